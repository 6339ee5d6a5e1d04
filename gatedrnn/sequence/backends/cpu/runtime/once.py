"""What is worked out once in a process, by one thread: Numba and LLVM neither compile nor load for two at a time."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from gatedrnn.core.forks import at_fork

LOCK = threading.RLock()
"""Held while Numba or LLVM work for us. A fork waits for it, so that no child gets them half done."""

at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


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
