"""Working memory of the kernels.

What an operator needs only while it runs is lent from one buffer a purpose and thread, which grows and stays: fresh memory costs
a page fault every 4 KiB, as much as the arithmetic on it.
"""

import threading
from typing import Any

import torch
from torch import Tensor

_LENT = threading.local()


def aligned(count: int, dtype: torch.dtype) -> Tensor:
    """`count` uninitialised reals that begin on a cache line."""
    room = torch.empty(count + 64 // dtype.itemsize, dtype=dtype)
    skip = -room.data_ptr() % 64 // dtype.itemsize
    return room[skip : skip + count]


def borrow(purpose: str, count: int, dtype: torch.dtype) -> Tensor:
    """`count` uninitialised reals, this thread's until it borrows for `purpose` again."""
    lent: dict[Any, Tensor] = _LENT.__dict__
    held = lent.get((purpose, dtype))
    if held is None or len(held) < count:
        lent.pop((purpose, dtype), None)  # given back before more is taken
        held = lent[purpose, dtype] = aligned(count, dtype)
    return held[:count]
