"""What a step reads beside its arguments: it is traced once, so what may change unseen must not be in it."""

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from gatedrnn.cells.spec import Cell, Extra, Gate, Spec
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.gates import Gates

_CONSTANT = (int, float, complex, str, bytes, type(None), type, types.ModuleType, types.BuiltinFunctionType)
_FROZEN = (Cell, Spec, Gate, Extra, Gates)
_TRUSTED = ("torch", "gatedrnn", "math")


def check_outside(step: Callable[..., Any]) -> None:
    """Refuse a step that reads what may change: an object, or a global number whose name is not in capitals.

    Raises: UnsupportedError: with the name.
    """
    _check(step, set())


def _check(function: Any, seen: set[int]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    if not isinstance(function, types.FunctionType):
        raise UnsupportedError(f"a {type(function).__name__} instead of a function")
    for name, value, constant in _read(function):
        if isinstance(value, types.FunctionType):
            if value.__module__.split(".")[0] not in _TRUSTED:
                _check(value, seen)
        elif not _fixed(value) or not (constant or name.isupper() or not isinstance(value, int | float)):
            raise UnsupportedError(f"{name}, read from outside, which may change")


def _fixed(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_fixed, value))
    return isinstance(value, (*_CONSTANT, *_FROZEN)) or (callable(value) and _module(value) in _TRUSTED)


def _module(value: Any) -> str:
    return (getattr(value, "__module__", None) or "").split(".")[0]


def _read(function: types.FunctionType) -> Iterator[tuple[str, Any, bool]]:
    """Name and value of each thing from outside, and whether only the function's own maker can change it."""
    given = inspect.getclosurevars(function)
    for name, value in given.nonlocals.items():
        yield name, value, True
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield "a default", value, True
    for code in _codes(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name], False


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
