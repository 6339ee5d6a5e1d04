"""Memory that a training step frees stays with the process for the next one."""

import ctypes
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of malloc.h
_LARGEST_BYTES = (1 << 30, 1 << 25)  # the second is what older C libraries admit


def keep_freed_memory() -> None:
    """Tell the C library's allocator to keep large blocks: else every step takes its tensors fresh, a page fault each 4 KiB.

    Linux with the GNU C library only; elsewhere nothing happens.
    """
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None and any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST_BYTES):
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
