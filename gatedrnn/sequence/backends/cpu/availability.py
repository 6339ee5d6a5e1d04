"""Whether this process can have the kernels; if not, it is said once."""

import functools
import importlib.util
import warnings

import torch
from torch import Tensor

from gatedrnn.core.errors import DataError


def unavailable(like: Tensor) -> str | None:
    """None, or why there are no kernels for tensors such as `like` in this process."""
    if not like.is_cpu:
        return f"tensors are on {like.device}"
    if like.dtype not in (torch.float32, torch.float64):
        return f"tensors are {like.dtype}"
    return _unavailable()


def _unavailable() -> str | None:
    return _ready()


# what torch.compiler.assume_constant_result sets, which would import the compiler: a second
_unavailable._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _ready() -> str | None:
    """None, or why the kernels cannot be had in this process; says so once."""
    reason = _reason()
    if reason:
        warnings.warn(f"gatedrnn: recurrent layers run without their kernels, slower: {reason}", stacklevel=2)
    return reason


def _reason() -> str | None:
    try:
        missing = [name for name in ("numba", "llvmlite") if importlib.util.find_spec(name) is None]
    except ValueError:  # None in sys.modules
        missing = ["numba"]
    if missing:
        return f"{missing[0]} is not installed"
    try:
        from gatedrnn.sequence.backends.cpu import build, operators, pointwise  # noqa: F401 - registers the operators

        build.probe()
    except DataError as error:
        return f"the kernels' cache cannot be kept: {error}"
    except (ImportError, OSError) as error:  # a library that does not load here
        return f"{type(error).__name__}: {error}"
    return None
