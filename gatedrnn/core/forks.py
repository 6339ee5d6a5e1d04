"""Forks of the process, on systems that have them."""

import os
from collections.abc import Callable


def at_fork(**calls: Callable[[], object]) -> None:
    """Register calls as `os.register_at_fork` does. Windows has no forks: nothing is registered there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**calls)
