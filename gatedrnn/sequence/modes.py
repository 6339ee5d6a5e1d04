"""What PyTorch is doing around a call."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from gatedrnn.core.torch_internals import (
    being_traced,
    dispatch_modes,
    forward_mode,
    function_modes,
    functorch_active,
    is_zerotensor,
    profiled,
)
from gatedrnn.weights.compressed import CompressedWeight

_NEARLY: ContextVar[bool] = ContextVar("nearly", default=False)
WORTH_SPLITTING = 16
"""Rows of a batch, as many as a matrix register has."""
_LIBRARIES: Any = torch.backends
_SWITCHES = hasattr(_LIBRARIES.mkldnn, "matmul")
"""Whether there is a switch for each library, as of PyTorch 2.9 on; reading the older one may then raise."""


def half_products() -> bool:
    """Whether products are wanted in bfloat16: under autocast to it."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


@contextmanager
def nearly_float32() -> Iterator[None]:
    """Allow products of float32 to be rounded to 16 bits on the way in, as `torch.set_float32_matmul_precision("high")` does."""
    token = _NEARLY.set(True)
    try:
        yield
    finally:
        _NEARLY.reset(token)


def products(batch: int) -> str:
    """How to multiply: "bf16" under autocast; "split" in inference on a large batch if nearly float32 will do; else "float"."""
    if half_products():
        return "bf16"
    if torch.compiler.is_compiling() or being_traced():
        return "float"  # a graph would fix the answer, and the batch's size with it
    if batch < WORTH_SPLITTING or torch.is_grad_enabled():
        return "float"
    return "split" if _NEARLY.get() or _lowered() else "float"


def _lowered() -> bool:
    """Whether products of float32 on the CPU may be rounded, by either of PyTorch's switches."""
    if not _SWITCHES:
        return torch.get_float32_matmul_precision() != "highest"
    return _LIBRARIES.mkldnn.matmul.fp32_precision in ("tf32", "bf16")


def rounds_recurrences() -> bool:
    """Whether cuDNN rounds a recurrence's float32 to TF32, as is its default, where products keep it, as is theirs."""
    if not _SWITCHES:
        return torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    return _LIBRARIES.cudnn.rnn.fp32_precision == "tf32" and float32_products() != "tf32"


def float32_products() -> str:
    """How products of float32 may be rounded on a GPU, in the words of PyTorch's switch."""
    return _LIBRARIES.cuda.matmul.fp32_precision if _SWITCHES else torch.get_float32_matmul_precision()


def storage_type(x: Tensor) -> torch.dtype:
    """The type that x is computed in: autocast's, which leaves float64 as it is, or its own."""
    kind = x.device.type
    cast = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if cast else x.dtype


def transformed() -> bool:
    """Whether torch.func or forward-mode differentiation looks on: the operators have a backward formula only."""
    return forward_mode() or functorch_active()


def described(tensors: Sequence[Tensor | None]) -> tuple[Hashable, ...] | None:
    """Kind, type, shape and device of each, and autocast's type: all that differs between calls but numbers.

    None where more than numbers is wanted: a gradient, graph, trace or profile, or what is done by a subclass or a mode.
    """
    if torch.compiler.is_compiling():  # which cannot see the questions below
        return None
    if dispatch_modes() or function_modes() or being_traced() or profiled() or forward_mode() or functorch_active():
        return None
    grad = torch.is_grad_enabled()
    found: list[Hashable] = [torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None]
    for tensor in tensors:
        if tensor is None:
            found.append(None)
            continue
        kind = type(tensor)
        if kind not in KINDS or tensor.is_neg() or is_zerotensor(tensor) or tensor.layout is not _STRIDED:
            return None
        if grad and tensor.requires_grad:
            return None
        found += (kind, tensor.dtype, tensor.shape, tensor.device)
    return tuple(found)


_STRIDED = torch.strided

KINDS: tuple[type, ...] = (Tensor, torch.nn.Parameter, CompressedWeight)
"""Of tensors whose numbers lie at their address, or that kernels of ours know how to read."""


def readable(kind: type) -> bool:
    """Whether operators of ours take tensors of this type: `KINDS`, and subclasses that leave to PyTorch what a function does.

    Inside a checkpoint's second forward, PyTorch takes the latter for plain tensors: another backend then would not fit.
    """
    return kind in KINDS or (_own(kind, "dispatch") is _own(Tensor, "dispatch") and _own(kind, "function") in _USUAL)


def _own(kind: type, what: str) -> Any:
    found = getattr(kind, f"__torch_{what}__")
    return getattr(found, "__func__", found)


_USUAL = (_own(Tensor, "function"), _own(torch.nn.Parameter, "function"))
