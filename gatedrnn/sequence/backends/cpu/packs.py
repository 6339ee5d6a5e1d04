"""Weights that stay packed between calls in inference.

A pack belongs to two parameters (the objects, not their values) and to the state they were in: version counters, which every
in-place change, `load_state_dict` and optimiser step raise; storage; and a sample of their values, because a change through
`.data` raises no counter. A pack dies with its parameter. Only parameters are remembered: anything else is made anew a call.
"""

import math
import os
import threading
import weakref
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_SAMPLE = 1024  # values compared


@dataclass(frozen=True)
class _Pack:
    weights: tuple[weakref.ref, ...]
    state: tuple[object, ...]
    samples: tuple[Tensor, ...]
    packed: tuple[Tensor, Tensor]


_PACKS: dict[tuple[int, int, Hashable], _Pack] = {}
_LOCK = threading.Lock()


def find(weight_ih: Tensor, weight_hh: Tensor, form: Hashable) -> tuple[Tensor, Tensor] | None:
    """What was packed for these weights as they are now, for products of that form, or None."""
    pack = _PACKS.get((id(weight_ih), id(weight_hh), form))
    if pack is None or pack.state != _state(weight_ih, weight_hh):
        return None
    weights = (weight_ih, weight_hh)
    same = all(reference() is weight for reference, weight in zip(pack.weights, weights, strict=True))
    if same and all(torch.equal(_sample(w), s) for w, s in zip(weights, pack.samples, strict=True)):
        return pack.packed
    return None


def keep(weight_ih: Tensor, weight_hh: Tensor, form: Hashable, packed_w: Tensor, packed_u: Tensor) -> None:
    """Remember what was packed for these weights as they are now, if they are parameters."""
    weights = (weight_ih, weight_hh)
    if not all(isinstance(weight, nn.Parameter) and not weight.is_inference() for weight in weights):
        return
    key = (id(weight_ih), id(weight_hh), form)
    references = tuple(weakref.ref(weight, lambda _: _PACKS.pop(key, None)) for weight in weights)
    pack = _Pack(references, _state(*weights), tuple(_sample(w).clone() for w in weights), (packed_w, packed_u))
    with _LOCK:
        _PACKS[key] = pack


def drop() -> None:
    """Forget every pack."""
    with _LOCK:
        _PACKS.clear()


os.register_at_fork(after_in_child=lambda: globals().update(_LOCK=threading.Lock()))


def _state(*weights: Tensor) -> tuple[object, ...]:
    if any(weight.is_inference() for weight in weights):
        return (None,)
    return tuple((w._version, w.data_ptr(), tuple(w.shape), w.stride(), w.dtype) for w in weights)


def _sample(weight: Tensor) -> Tensor:
    flat = weight.detach().reshape(-1)
    step = max(1, len(flat) // _SAMPLE)
    while math.gcd(step, weight.shape[-1]) > 1:  # every column has its turn
        step += 1
    return flat[::step]
