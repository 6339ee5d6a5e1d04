"""Weights that stay packed between calls in inference.

What was made from parameters (the objects, not their values) is good as long as they are in the state they were in: version
counters, which every in-place change, `load_state_dict` and optimiser step raise; storage; and a sample of their values,
because a change through `.data` raises no counter. It dies with its parameters. Only parameters are watched.
"""

import math
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gatedrnn.sequence.compressed import CompressedWeight

_WHOLE = 4096  # values: weights up to this size are compared whole
_LINE, _LINES = 16, 16  # of a larger one, so many values lie together, at so many places


class Watch:
    """Parameters as they are now; `unchanged` tells whether they still are so. A compressed weight never changes."""

    def __init__(self, parameters: Sequence[Tensor], on_death: Callable[[Any], object] | None = None) -> None:
        self._references = tuple(weakref.ref(p, on_death) for p in parameters)
        self._state = _state(parameters)
        self._views = tuple(_sample(p) for p in _stored(parameters))
        self._samples = tuple(view.clone() for view in self._views)

    @staticmethod
    def possible(parameters: Sequence[Tensor]) -> bool:
        """Whether these can be watched: parameters with a version counter, each in one piece."""
        return all(isinstance(p, nn.Parameter) for p in parameters) and not any(
            p.is_inference() or not p.is_contiguous() for p in _stored(parameters)
        )

    def unchanged(self, parameters: Sequence[Tensor]) -> bool:
        """Whether these are the parameters, as they were."""
        if len(parameters) != len(self._references) or _state(parameters) != self._state:
            return False
        for reference, parameter in zip(self._references, parameters, strict=True):
            if reference() is not parameter:
                return False
        return all(map(torch.equal, self._views, self._samples))


@dataclass(frozen=True)
class _Pack:
    watch: Watch
    packed: tuple[Tensor, ...]


_PACKS: dict[Hashable, _Pack] = {}
_LOCK = threading.Lock()


def find(weights: tuple[Tensor, ...], form: Hashable) -> tuple[Tensor, ...] | None:
    """What was packed for these weights as they are now, for products of that form, or None."""
    pack = _PACKS.get((tuple(map(id, weights)), form))
    return pack.packed if pack is not None and pack.watch.unchanged(weights) else None


def keep(weights: tuple[Tensor, ...], form: Hashable, packed: tuple[Tensor, ...]) -> None:
    """Remember what was packed for these weights as they are now, if they can be watched."""
    if not Watch.possible(weights):
        return
    key = (tuple(map(id, weights)), form)
    pack = _Pack(Watch(weights, lambda _: _PACKS.pop(key, None)), packed)
    with _LOCK:
        _PACKS[key] = pack


def drop() -> None:
    """Forget every pack."""
    with _LOCK:
        _PACKS.clear()


os.register_at_fork(after_in_child=lambda: globals().update(_LOCK=threading.Lock()))


def _stored(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Those that can be written to."""
    return [p for p in parameters if not isinstance(p, CompressedWeight)]


def _state(parameters: Sequence[Tensor]) -> tuple[object, ...]:
    stored = _stored(parameters)
    if any(p.is_inference() for p in stored):
        return (None,)
    return tuple((p._version, p.data_ptr(), p.shape, p.stride(), p.dtype) for p in stored)


def _sample(parameter: Tensor) -> Tensor:
    """A view of the whole, or of a few cache lines, each further down and to the right: every column has its turn."""
    flat = parameter.detach().view(-1)
    n = len(flat)
    if n <= _WHOLE:
        return flat
    lines = min(_LINES, math.isqrt(n // _LINE))
    apart, width = n // lines, parameter.shape[-1]
    if apart >= width:
        apart = apart // width * width + _LINE
    return flat.as_strided((lines, _LINE), (apart, 1))
