"""Whether this process can have the kernels; if not, it is said once."""

import importlib.util

import torch
from torch import Tensor

from gatedrnn.core.torch_internals import constant_in_graphs
from gatedrnn.sequence.backends.cpu.compile import sources
from gatedrnn.sequence.backends.cpu.runtime.once import once


def unavailable(like: Tensor, *more: torch.dtype) -> str | None:
    """None, or why there are no kernels for tensors such as `like`, of float32, float64 or a type of `more`, in this process."""
    if not like.is_cpu:
        return f"tensors are on {like.device}"
    if like.dtype not in (torch.float32, torch.float64, *more):
        return f"tensors are {like.dtype}"
    return _unavailable()


@constant_in_graphs
def _unavailable() -> str | None:
    return sources.lost() or _ready()


@once
def _ready() -> str | None:
    """None, or why the kernels cannot be had in this process; says so once."""
    reason = _reason()
    if reason:
        sources.say(reason)
    return reason


def _reason() -> str | None:
    try:
        missing = [name for name in ("numba", "llvmlite") if importlib.util.find_spec(name) is None]
    except ValueError:  # None in sys.modules
        missing = ["numba"]
    if missing:
        return f"{missing[0]} is not installed"
    try:
        from gatedrnn.sequence.backends.cpu.operators import pointwise  # noqa: F401 - registers the operators
        from gatedrnn.sequence.backends.cpu.recurrence import operator  # noqa: F401
    except (ImportError, OSError) as error:  # a library that does not load here
        return sources.changed() or f"{type(error).__name__}: {error}"
    return sources.changed()
