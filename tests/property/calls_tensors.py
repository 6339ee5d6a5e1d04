"""What the fuzzer of calls knows of errors and tensors: whose an error is, a tensor laid out otherwise, whether two are equal."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gatedrnn
from gatedrnn.core.errors import GatedRNNError

PACKAGE = str(Path(gatedrnn.__file__).parent)
Values = dict[str, Tensor]


class Finding(Exception):  # noqa: N818 - what was found, not an error of the code that found it
    """What must not be: a kind, of few words, and the details."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


def where(error: BaseException) -> str:
    """The last place of the package that an error came through, and what it says."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
    place = f"{Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].name}" if frames else "outside"
    return f"{type(error).__name__} at {place}: {' '.join(str(error).split())[:300]}"


def ours(error: BaseException) -> bool:
    """Whether it is one of the package's errors; torch's wrappers of one count."""
    wrapped = type(error).__name__ in (
        "BackendCompilerFailed",
        "TorchRuntimeError",
        "UserError",
        "JitError",
        "Unsupported",
    )
    text = str(error)
    return isinstance(error, GatedRNNError) or (
        wrapped and ("ArgumentError" in text or "BackendError" in text or "; got " in text)
    )


def error_of(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except (Finding, NameError):  # a NameError is nobody's answer
        raise
    except (Exception, SystemError) as error:
        return None, error


def bare(tensor: Any) -> Any:
    """A plain tensor of a subclass."""
    if type(tensor).__name__ == "TwoTensor":
        return tensor.a
    return tensor.as_subclass(Tensor) if isinstance(tensor, Tensor) and type(tensor) is not Tensor else tensor


class Sub(Tensor):
    """A subclass with nothing of its own."""


class SubParameter(nn.Parameter):
    """A parameter's subclass."""


def restride(t: Tensor, how: str) -> Tensor:
    """The same values, or the first row of them in every row ("expanded"), lying otherwise; differentiable."""
    if how == "transposed" and t.dim() > 1:
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "strided":
        return torch.stack((t, torch.full_like(t, torch.nan) if t.is_floating_point() else t * 0 + 99), -1)[..., 0]
    if how == "narrow":
        wide = torch.full((*t.shape[:-1], 3), torch.nan, dtype=t.dtype, device=t.device)
        return torch.cat((wide, t, wide), -1)[..., 3:-3]
    if how == "offset":
        return torch.cat((t.new_zeros(1), t.reshape(-1)))[1:].view(t.shape)
    if how == "expanded" and t.dim() > 1 and t.shape[0]:
        return t[:1].expand(t.shape)
    if how == "neg":
        return torch._neg_view(-t)
    if how == "imag" and t.dtype in (torch.float32, torch.float64):
        return torch.complex(torch.zeros_like(t), -t).conj().imag
    if how == "subclass":
        return t.as_subclass(Sub)
    if how == "two_tensor":
        from torch.testing._internal.two_tensor import TwoTensor

        return TwoTensor(t, t.clone())
    return t


def equal(a: Tensor, b: Tensor) -> bool:
    """The same shape and values, NaN equal to NaN."""
    a, b = bare(a.detach()), bare(b.detach())
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.is_meta or bool(((a == b) | ((a != a) & (b != b))).all())


def close(a: Tensor, b: Tensor) -> bool:
    """Nearly the same values, NaN equal to NaN."""
    return torch.allclose(bare(a.detach()), bare(b.detach()), 1e-3, 1e-4, equal_nan=True)
