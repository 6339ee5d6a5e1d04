"""A loop over time as one CUDA graph: its hundreds of launches become one, and no gap lies between its kernels.

The first call of a shape runs as it is (and compiles kernels); the second runs, and is captured, on buffers that stay; later ones
copy their inputs there, replay, and copy the results. Loops of fewer steps share the buffers of the longest. Buffers and graphs
belong to one device, stream and way of rounding products. Rows that products read lie a multiple of `_PITCH` apart in every call,
so that all give the same bits. All launches of this process are made under one lock, on the device of their tensors.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple

import torch

from gatedrnn.sequence.modes import float32_products

Buffers = dict[str, Any]
_ROOM = 32  # steps are rounded up to this, so that a slightly longer window finds room
_LARGEST = 4 << 30  # bytes of all buffers on a device, or an eighth of its memory if that is less
_STEPS = 1 << 15  # in all graphs together: a step is two or three nodes, each of which takes memory too
_SHAPES = 1 << 12  # remembered as seen
_PITCH = 64  # elements: cuBLAS's fast kernels want rows that begin at multiples of 16 bytes


class Layout(NamedTuple):
    """How a loop's buffers lie.

    timed: names of buffers whose first dimension is T plus that many; the others' shapes belong to the key.
    padded: names of buffers of which a graph's are views [..., :H] of rows with a greater pitch, the same for all. The pads are
        zero at first; the function leaves them so wherever a product sums over them.
    """

    timed: dict[str, int]
    padded: frozenset[str] = frozenset()


@dataclass
class _Kept:
    """Buffers of `room` steps, their bytes, and the graphs captured on them by number of steps, the last used last."""

    room: int
    size_bytes: int
    buffers: Buffers
    graphs: OrderedDict[int, Any] = field(default_factory=OrderedDict)


_SEEN: OrderedDict[Hashable, None] = OrderedDict()
_KEPT: OrderedDict[tuple[Hashable, torch.device, Hashable], _Kept] = OrderedDict()
"""By what the loop does, the device and the stream; the last used last."""
_LOCK = RLock()


def run(
    function: Callable[[Buffers], None],
    key: tuple[Hashable, ...],
    steps: int,
    layout: Layout,
    given: Buffers,
    out: Buffers,
) -> None:
    """`function({**given, **out})`, by a graph where there is a GPU, the shape was seen before and no capture is under way.

    Args:
        function: reads and writes its buffers only, without allocating what a graph could not hold.
        key: all that decides what it does but the steps and the values.
        steps: T.
        layout: see `Layout`.
        given: what it reads; it may write there, but that is lost.
        out: what it fills.
    """
    buffers = {**given, **out}
    device = next(tensor.device for tensor in out.values() if tensor is not None)
    with launching(device):
        stream = _stream(device)
        kept = None if stream is None else _find(((*key, *_products()), device, stream), steps, layout, buffers)
        if kept is None:
            try:
                own = {name: _pitched(buffers[name]) for name in layout.padded if buffers.get(name) is not None}
            except torch.OutOfMemoryError:
                own = {}
            function(buffers | own)
            _copy(out, {name: own[name] for name in own.keys() & out.keys() if own[name] is not out[name]})
            return
        views = {name: _view(tensor, name, steps, layout.timed) for name, tensor in kept.buffers.items()}
        _copy(views, given)
        graph = kept.graphs.get(steps)
        if graph is None:
            function(views)  # compiles what these addresses need: nothing may be compiled during a capture
            _add(kept, steps, function, views, device, stream)
        else:
            graph.replay()
            kept.graphs.move_to_end(steps)
        _copy(out, {name: views[name] for name in out})


def drop() -> None:
    """Forget every graph and free its buffers."""
    with _LOCK:
        _SEEN.clear()
        while _KEPT:
            _evict(next(iter(_KEPT)))


@contextmanager
def launching(device: torch.device) -> Iterator[None]:
    """Holds the lock, with `device` as the current one: Triton launches there, whatever its arguments' device is."""
    with _LOCK, torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield


def _products() -> tuple[Hashable, ...]:
    """How cuBLAS may round, which a graph fixes when it is captured."""
    matmul: Any = torch.backends.cuda.matmul
    names = (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    )
    return float32_products(), *(getattr(matmul, name, None) for name in names)


def _stream(device: torch.device) -> Hashable:
    """The current stream of `device`, the current device; None where there can be no graph."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    return torch.cuda.current_stream(device).cuda_stream


@functools.cache
def _limit(device: torch.device) -> int:
    """Bytes that buffers on `device` may take together."""
    if device.type != "cuda":
        return _LARGEST
    return min(_LARGEST, torch.cuda.get_device_properties(device).total_memory // 8)


def _find(key: tuple[Hashable, torch.device, Hashable], steps: int, layout: Layout, buffers: Buffers) -> _Kept | None:
    """Buffers with room for the steps; None at a shape's first call, and where memory does not allow them."""
    seen = (key, steps)
    if seen not in _SEEN:
        _SEEN[seen] = None
        if len(_SEEN) > _SHAPES:
            _SEEN.popitem(last=False)
        return None
    kept = _KEPT.get(key)
    if kept is None or kept.room < steps:
        kept = _allocated(key, -(-steps // _ROOM) * _ROOM, layout, buffers)
        if kept is None:
            return None
        _KEPT[key] = kept
    _KEPT.move_to_end(key)
    return kept


def _allocated(
    key: tuple[Hashable, torch.device, Hashable], room: int, layout: Layout, buffers: Buffers
) -> _Kept | None:
    """New buffers for `key` in place of its old ones; None where memory does not allow them.

    Where the limit needs it, others of the device go, the longest unused first.
    """
    device = key[1]
    shapes = {name: _shape(tensor, name, room, layout) for name, tensor in buffers.items() if tensor is not None}
    size_bytes = sum(shape.numel() * buffers[name].element_size() for name, shape in shapes.items())
    if size_bytes > _limit(device):
        return None
    if key in _KEPT:
        _evict(key)
    here = [other for other in _KEPT if other[1] == device]
    while sum(_KEPT[other].size_bytes for other in here) + size_bytes > _limit(device):
        _evict(here.pop(0))
    try:
        with torch.inference_mode(False):  # later calls may be in training, which may not write to inference tensors
            made = {name: buffers[name].new_empty(shape) for name, shape in shapes.items()}
            for name in layout.padded & made.keys():
                made[name] = made[name].zero_()[..., : buffers[name].shape[-1]]
    except torch.OutOfMemoryError:
        return None
    return _Kept(room, size_bytes, {name: made.get(name) for name in buffers})


def _add(
    kept: _Kept, steps: int, function: Callable[[Buffers], None], views: Buffers, device: torch.device, stream: Hashable
) -> None:
    """Capture `function`; without memory for that, the next call tries again. The graphs that were unused longest go."""
    here = [graph for key, other in _KEPT.items() if key[1:] == (device, stream) for graph in other.graphs.values()]
    try:
        kept.graphs[steps] = _capture(function, views, device, here[0].pool() if here else None)
    except (torch.OutOfMemoryError, torch.AcceleratorError) as error:  # the latter is the driver's
        if "out of memory" not in str(error):
            raise
        return
    total = sum(sum(other.graphs) for other in _KEPT.values())
    for other in _KEPT.values():
        while total > _STEPS and other.graphs:
            total -= other.graphs.popitem(last=False)[0]


def _evict(key: tuple[Hashable, torch.device, Hashable]) -> None:
    """Forget the buffers and graphs of `key`, once no replay is under way."""
    if key[1].type == "cuda":
        torch.cuda.synchronize(key[1])
    del _KEPT[key]


def _shape(tensor: Any, name: str, room: int, layout: Layout) -> torch.Size:
    first, *rest = tensor.shape
    if name in layout.padded:
        rest[-1] = _pitch(rest[-1])
    return torch.Size((room + layout.timed[name] if name in layout.timed else first, *rest))


def _pitch(width: int) -> int:
    return -(-width // _PITCH) * _PITCH


def _pitched(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or where its rows are not a multiple of `_PITCH` apart a copy [..., :H] in rows that are, their pads zero."""
    *shape, width = tensor.shape
    if width == _pitch(width):
        return tensor
    return tensor.new_zeros(*shape, _pitch(width))[..., :width].copy_(tensor)


def _view(tensor: Any, name: str, steps: int, timed: dict[str, int]) -> Any:
    return tensor if tensor is None or name not in timed else tensor[: steps + timed[name]]


def _copy(to: Buffers, values: Buffers) -> None:
    for name, tensor in values.items():
        if tensor is not None:
            to[name].copy_(tensor)


def _capture(function: Callable[[Buffers], None], buffers: Buffers, device: torch.device, pool: Any) -> Any:
    """The graph of `function`; `pool`: another graph's of this stream, whose scratch it may overwrite: they never run at once."""
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    stream = _capture_stream(device, current.cuda_stream)
    # the outer one brings the stream back even where the graph's own exit fails
    with (
        torch.cuda.stream(current),
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        function(buffers)
    return graph


@functools.cache
def _capture_stream(device: torch.device, stream: int) -> torch.cuda.Stream:
    """Graphs of `stream` are captured here, and no others: they keep cuBLAS's scratch of this stream, and may run at once."""
    return torch.cuda.Stream(device)
