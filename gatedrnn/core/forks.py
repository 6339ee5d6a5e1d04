"""Forks of the process, on systems that have them."""

import os
from collections.abc import Callable
from threading import RLock
from typing import Any

_WAITED: list[Any] = []
_TAKEN: list[Any] = []


def at_fork(**calls: Callable[[], object]) -> None:
    """Register calls as `os.register_at_fork` does. Windows has no forks: nothing is registered there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**calls)


def awaited_lock(*, first: bool = False) -> Any:
    """An RLock that a fork waits for, so that no child gets what it guards half done, or the lock held for ever.

    Args: first: a fork waits for it before others: a thread that holds it may wait for one of these.
    """
    lock = RLock()
    _WAITED.insert(0 if first else len(_WAITED), lock)
    return lock


def _take() -> None:
    locks = [*_WAITED]
    for lock in locks:
        lock.acquire()
    _TAKEN[:] = locks  # by the one thread that holds them all


def _release() -> None:
    for lock in [*_TAKEN]:
        lock.release()


at_fork(before=_take, after_in_parent=_release, after_in_child=_release)
