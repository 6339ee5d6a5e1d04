"""Memory of the kernels: what they give out is memory like any other; what they need only while they run is lent.

Each thread keeps a run of bytes for that, of at most `KEPT_BYTES`, and one of half as many for packed rows, because fresh memory
costs a page fault every 4 KiB, as much as the arithmetic on it. Nothing that is lent ever leaves the call.
"""

import ctypes
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

KEPT_BYTES = 64 << 20
"""A call that needs more has it to itself, and gives it back."""
_HUGE_BYTES, _MADV_HUGEPAGE = 1 << 21, 14
LINE_BYTES = 64
_LIBC: Any = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
_LENT = threading.local()


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised, as torch.empty; a large one in pages of 2 MiB where Linux has them."""
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    if tensor.nbytes >= _HUGE_BYTES:
        _prefer_huge_pages(tensor.data_ptr(), tensor.nbytes)
    return tensor


def lend(size_bytes: int) -> Tensor:
    """Room for this and a cache line, uninitialised; it is this thread's until it is lent again: hold it until the call ends."""
    room = getattr(_LENT, "room", None)
    if room is None or room.nbytes < size_bytes + LINE_BYTES:
        room = empty(size_bytes + LINE_BYTES, dtype=torch.uint8)
        if room.nbytes <= KEPT_BYTES:
            _LENT.room = room
    return room


@contextmanager
def borrowed(shapes: Sequence[tuple[int, int]], dtype: torch.dtype) -> Iterator[list[Tensor]]:
    """Uninitialised matrices for as long as the block runs; nothing of them may leave it. A block inside has its own."""
    lines = [-(-rows * columns * dtype.itemsize // LINE_BYTES) * LINE_BYTES for rows, columns in shapes]
    room, _LENT.rows = getattr(_LENT, "rows", None), None
    if room is None or room.nbytes < sum(lines):
        room = empty(sum(lines), dtype=torch.uint8)
    parts = room[: sum(lines)].split(lines)
    yield [
        part[: rows * columns * dtype.itemsize].view(dtype).view(rows, columns)
        for part, (rows, columns) in zip(parts, shapes, strict=True)
    ]
    if room.nbytes <= KEPT_BYTES // 2:
        _LENT.rows = room


def aligned(count: int, dtype: torch.dtype) -> Tensor:
    """`count` uninitialised numbers that begin on a cache line."""
    room = empty(count + LINE_BYTES // dtype.itemsize, dtype=dtype)
    skip = -room.data_ptr() % LINE_BYTES // dtype.itemsize
    return room[skip : skip + count]


def _prefer_huge_pages(address: int, size_bytes: int) -> None:
    """Ask Linux for pages of 2 MiB: fewer page faults, and fewer translations where a weight is read whole every step."""
    begin = -(-address // _HUGE_BYTES) * _HUGE_BYTES
    whole = (address + size_bytes - begin) // _HUGE_BYTES * _HUGE_BYTES
    if _LIBC is not None and whole > 0:
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(whole), _MADV_HUGEPAGE)  # advice: failure changes nothing
