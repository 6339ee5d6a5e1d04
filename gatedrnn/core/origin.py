"""Where a function was written, whatever it says of itself."""

from types import FunctionType
from typing import Any


def module_of(value: Any) -> str:
    """The name of the module that a function was written in; of another object, its own or that of its class; "" for none.

    Not a function's `__module__`, which `functools.wraps` copies from another.
    """
    if isinstance(value, FunctionType):
        return value.__globals__.get("__name__") or ""
    return getattr(value, "__module__", None) or ""
