"""Memory of the kernels, which is used again: fresh memory costs a page fault every 4 KiB, as much as the arithmetic on it.

What an operator needs only while it runs is lent from one buffer a purpose and thread, which grows and stays. What it gives out
and is large (gate values, gradients) lies in storages that are remembered, and taken again once nobody else holds them.
"""

import ctypes
import sys
import threading
from typing import Any

import torch
from torch import Tensor

_HUGE_BYTES, _MADV_HUGEPAGE = 1 << 21, 14
_LIBC: Any = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
_LENT = threading.local()
_LARGE_BYTES = 1 << 20
_IDLE = 128  # large tensors given out before an idle storage is let go
_USERS: Any = getattr(torch._C, "_storage_Use_Count", None)


def _prefer_huge_pages(address: int, size_bytes: int) -> None:
    """Ask Linux for pages of 2 MiB: fewer page faults, and fewer translations where a weight is read whole every step."""
    begin = -(-address // _HUGE_BYTES) * _HUGE_BYTES
    whole = (address + size_bytes - begin) // _HUGE_BYTES * _HUGE_BYTES
    if _LIBC is not None and whole > 0:
        _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(whole), _MADV_HUGEPAGE)  # advice: failure changes nothing


def aligned(count: int, dtype: torch.dtype) -> Tensor:
    """`count` uninitialised reals that begin on a cache line."""
    room = torch.empty(count + 64 // dtype.itemsize, dtype=dtype)
    _prefer_huge_pages(room.data_ptr(), room.nbytes)
    skip = -room.data_ptr() % 64 // dtype.itemsize
    return room[skip : skip + count]


def lend(purpose: str, count: int, dtype: torch.dtype) -> int:
    """Address of `count` uninitialised reals, this thread's until it borrows for `purpose` again."""
    lent: dict[Any, tuple[int, int, Tensor]] = _LENT.__dict__
    held = lent.get((purpose, dtype))
    if held is None or held[1] < count:
        lent.pop((purpose, dtype), None)  # given back before more is taken
        room = aligned(count, dtype)
        held = lent[purpose, dtype] = room.data_ptr(), count, room
    return held[0]


def borrow(purpose: str, count: int, dtype: torch.dtype) -> Tensor:
    """The same as a tensor."""
    lend(purpose, count, dtype)
    lent: dict[Any, tuple[int, int, Tensor]] = _LENT.__dict__
    return lent[purpose, dtype][2][:count]


class _Storages:
    """Storages of large tensors that were given out, by size; one whose only holder is this object is free.

    Sizes are rounded up by less than a quarter, and one of up to twice the size will do, so that batches share them that have
    about as many tokens.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[tuple[int, torch.UntypedStorage]]] = {}
        self._given = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> torch.UntypedStorage:
        """A free storage of at least this size, or a new one."""
        step = 1 << (size_bytes.bit_length() - 3)
        size_bytes = -(-size_bytes // step) * step
        with self._lock:
            self._given += 1
            for size in sorted(size for size in self._held if size_bytes <= size <= 2 * size_bytes):
                held = self._held[size]
                for k, (_, storage) in enumerate(held):
                    if _USERS(storage._cdata) == 1:
                        held[k] = (self._given, storage)
                        return storage
            self._let_go()
            storage = torch.UntypedStorage(size_bytes)
            _prefer_huge_pages(storage.data_ptr(), size_bytes)
            self._held.setdefault(size_bytes, []).append((self._given, storage))
            return storage

    def _let_go(self) -> None:
        for size, held in list(self._held.items()):
            recent = [(given, s) for given, s in held if self._given - given < _IDLE]
            if recent:
                self._held[size] = recent
            else:
                del self._held[size]


_STORAGES = _Storages()


def renew() -> None:
    """After a fork: the lock may have been held."""
    global _STORAGES
    _STORAGES = _Storages()


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised, as torch.empty; large ones in memory that was used before, where it is free."""
    count = 1
    for n in shape:
        count *= n
    if _USERS is None or count * dtype.itemsize < _LARGE_BYTES:
        return torch.empty(shape, dtype=dtype)
    tensor: Any = torch.empty(0, dtype=dtype)
    return tensor.set_(_STORAGES.take(count * dtype.itemsize), 0, shape)
