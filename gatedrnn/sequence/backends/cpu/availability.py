"""Whether this process can have the kernels; if not, it is said once."""

import importlib.util
import warnings

import torch
from torch import Tensor

from gatedrnn.core.errors import BackendError
from gatedrnn.core.torch_internals import constant_in_graphs
from gatedrnn.sequence.backends.cpu import sources
from gatedrnn.sequence.backends.cpu.once import once

_LOST: str | None = None  # why kernels that are not loaded yet can no longer be had


def unavailable(like: Tensor) -> str | None:
    """None, or why there are no kernels for tensors such as `like` in this process."""
    if not like.is_cpu:
        return f"tensors are on {like.device}"
    if like.dtype not in (torch.float32, torch.float64):
        return f"tensors are {like.dtype}"
    return _unavailable()


@constant_in_graphs
def _unavailable() -> str | None:
    return _LOST or _ready()


def check_sources() -> None:
    """Raises BackendError if nothing can be compiled any more; from then on, kernels are unavailable."""
    global _LOST
    reason = sources.changed()
    if reason:
        if _LOST is None:
            _say(reason)
        _LOST = reason
        raise BackendError("backend='cpu'", "cannot compile a kernel", reason, "The other backends still work")


@once
def _ready() -> str | None:
    """None, or why the kernels cannot be had in this process; says so once."""
    reason = _reason()
    if reason:
        _say(reason)
    return reason


def _say(reason: str) -> None:
    warnings.warn(f"gatedrnn: recurrent layers run without their kernels, slower: {reason}", stacklevel=2)


def _reason() -> str | None:
    try:
        missing = [name for name in ("numba", "llvmlite") if importlib.util.find_spec(name) is None]
    except ValueError:  # None in sys.modules
        missing = ["numba"]
    if missing:
        return f"{missing[0]} is not installed"
    try:
        from gatedrnn.sequence.backends.cpu import operators, pointwise  # noqa: F401 - registers the operators
    except (ImportError, OSError) as error:  # a library that does not load here
        return sources.changed() or f"{type(error).__name__}: {error}"
    return sources.changed()
