"""A team of threads: torch's own OpenMP pool, so that no second pool of threads competes for the cores.

The kernels ask for their number and wait for one another through three functions of that library; where there is none, or in a
forked child (whose pool is gone), a team has one thread.
"""

import array
import ctypes
import functools
import sys
import warnings
from contextlib import suppress
from typing import Any

import llvmlite.binding as llvm
import torch

from gatedrnn.core.forks import at_fork
from gatedrnn.core.torch_internals import LIBRARY
from gatedrnn.sequence.backends.cpu.runtime.once import once

_FORKED = False


def _forget() -> None:
    global _FORKED
    _FORKED = True


at_fork(after_in_child=_forget)


@once
def _openmp() -> Any:
    """The OpenMP library that torch's own calls go to, or None."""
    if sys.platform.startswith("linux"):
        for path in (None, LIBRARY):  # the order in which the linker looks for torch's symbols
            with suppress(OSError):
                library = ctypes.CDLL(path)
                if hasattr(library, "GOMP_parallel"):
                    return library
    if torch.get_num_threads() > 1:
        rest = "torch's threads are not those of GNU OpenMP. To use all cores, start several processes"
        warnings.warn(f"gatedrnn: the kernels of recurrent layers run on one thread: {rest}", stacklevel=2)
    return None


@once
def link() -> None:
    """Make the three functions known to the kernels under our names."""
    library = _openmp()
    for ours, (theirs, alone) in _FUNCTIONS.items():
        function = getattr(library, theirs) if library else alone
        llvm.add_symbol(ours, ctypes.cast(function, ctypes.c_void_p).value)


_FUNCTIONS = {
    "gatedrnn_barrier": ("GOMP_barrier", ctypes.CFUNCTYPE(None)(lambda: None)),
    "gatedrnn_thread": ("omp_get_thread_num", ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)),
    "gatedrnn_threads": ("omp_get_num_threads", ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)),
}
"""By our names: the library's, and what stands for it in a team of one thread."""


_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def size() -> int:
    """How many threads a team has now: torch.get_num_threads(), or one where there is no pool to borrow."""
    return 1 if _FORKED or _openmp() is None else torch.get_num_threads()


@functools.lru_cache(maxsize=1024)
def _entry(address: int) -> Any:
    return _ENTRY(address)


def run(address: int, arguments: "array.array[int]", threads: int) -> None:
    """Call entry(arguments) in every thread of a team and wait for all; other Python threads go on meanwhile."""
    place = arguments.buffer_info()[0]
    if threads == 1:
        _entry(address)(place)
    else:
        _openmp().GOMP_parallel(
            ctypes.c_void_p(address), ctypes.c_void_p(place), ctypes.c_uint(threads), ctypes.c_uint(0)
        )
