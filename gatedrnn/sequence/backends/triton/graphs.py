"""A loop over time as one CUDA graph: its hundreds of launches become one, and no gap lies between its kernels.

The first call of a shape runs as it is (and compiles kernels); the second runs, and is captured, on buffers that stay; later ones
copy their inputs there, replay, and copy the results. Loops of fewer steps share the buffers of the longest.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch

Buffers = dict[str, Any]
_SETS = 32
"""Sets of buffers kept; the one that was used longest ago goes first."""

_ROOM = 32  # steps are rounded up to this, so that a slightly longer window finds room
_LARGEST = 4 << 30  # bytes of buffers: beyond, a step's work hides its launches


@dataclass
class _Kept:
    """Buffers of `room` steps, and the graphs captured on them by number of steps."""

    room: int
    buffers: Buffers
    graphs: dict[int, Any] = field(default_factory=dict)


_SEEN: set[Hashable] = set()
_KEPT: OrderedDict[Hashable, _Kept] = OrderedDict()
_LOCK = RLock()


def run(
    function: Callable[[Buffers], None], key: Hashable, steps: int, timed: dict[str, int], given: Buffers, out: Buffers
) -> None:
    """`function({**given, **out})`, by a graph where there is a GPU, the shape was seen before and no capture is under way.

    Args:
        function: reads and writes its buffers only, without allocating what a graph could not hold.
        key: all that decides what it does but the steps and the values.
        steps: T.
        timed: names of buffers whose first dimension is T plus that many; the others' shapes belong to the key.
        given: what it reads; it may write there, but that is lost.
        out: what it fills.
    """
    buffers = {**given, **out}
    place = _place(next(tensor.device for tensor in out.values() if tensor is not None))
    if place is None or sum(tensor.nbytes for tensor in buffers.values() if tensor is not None) > _LARGEST:
        function(buffers)
        return
    key = (key, place)
    with _LOCK:
        if (key, steps) not in _SEEN:
            _SEEN.add((key, steps))
            function(buffers)
            return
        kept = _find(key, steps, timed, buffers)
        views = {name: _view(tensor, name, steps, timed) for name, tensor in kept.buffers.items()}
        _copy(views, given)
        graph = kept.graphs.get(steps)
        if graph is None:
            function(views)  # compiles what these addresses need: nothing may be compiled during a capture
            kept.graphs[steps] = _capture(function, views)
        else:
            graph.replay()
        _copy(out, {name: views[name] for name in out})


def drop() -> None:
    """Forget every graph and free its buffers."""
    with _LOCK:
        _SEEN.clear()
        _KEPT.clear()


def _place(device: torch.device) -> Hashable:
    """The device and stream that a graph belongs to; None where there can be none."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    return device, torch.cuda.current_stream(device).cuda_stream


def _find(key: Hashable, steps: int, timed: dict[str, int], buffers: Buffers) -> _Kept:
    kept = _KEPT.get(key)
    if kept is None or kept.room < steps:
        room = -(-steps // _ROOM) * _ROOM
        kept = _KEPT[key] = _Kept(room, {name: _roomy(tensor, name, room, timed) for name, tensor in buffers.items()})
    _KEPT.move_to_end(key)
    while len(_KEPT) > _SETS:
        _KEPT.popitem(last=False)
    return kept


def _roomy(tensor: Any, name: str, room: int, timed: dict[str, int]) -> Any:
    if tensor is None or name not in timed:
        return None if tensor is None else torch.empty_like(tensor)
    return tensor.new_empty(room + timed[name], *tensor.shape[1:])


def _view(tensor: Any, name: str, steps: int, timed: dict[str, int]) -> Any:
    return tensor if tensor is None or name not in timed else tensor[: steps + timed[name]]


def _copy(to: Buffers, values: Buffers) -> None:
    for name, tensor in values.items():
        if tensor is not None:
            to[name].copy_(tensor)


def _capture(function: Callable[[Buffers], None], buffers: Buffers) -> Any:
    device = next(tensor.device for tensor in buffers.values() if tensor is not None)
    with torch.cuda.device(device):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            function(buffers)
    return graph
