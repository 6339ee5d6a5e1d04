"""What is worked out once in a process, by one thread: Numba and LLVM neither compile nor load for two at a time."""

import functools
from collections.abc import Callable
from typing import Any

from gatedrnn.core.forks import awaited_lock

LOCK = awaited_lock(first=True)
"""Held while Numba or LLVM work for us, and while a thread that was asked to traces a cell for them."""


def once(function: Callable[..., Any]) -> Any:
    """`function`, called once for the same arguments; other threads wait meanwhile. What is known takes no lock."""
    known: dict[tuple[Any, ...], Any] = {}

    @functools.wraps(function)
    def ask(*arguments: Any) -> Any:
        try:
            return known[arguments]
        except KeyError:
            with LOCK:
                if arguments not in known:
                    known[arguments] = function(*arguments)
                return known[arguments]

    return ask
