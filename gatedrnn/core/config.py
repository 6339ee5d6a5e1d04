"""Frozen dataclasses from and to plain YAML values, strictly: an unknown key raises and names the nearest known one."""

from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from gatedrnn.core.checks import nearest
from gatedrnn.core.errors import ArgumentError

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration dataclass as plain YAML values."""
    return _plain(asdict(config))


def from_dict(kind: type[T], values: Any, owner: str) -> T:
    """Build the dataclass `kind` from plain values.

    Args: owner: where the values stand ("model"), for messages.
    Raises: ArgumentError: not a mapping, an unknown key (names the nearest known one), or a value of the wrong type or range.
    """
    return kind(**{key: convert(hint, value, name) for key, hint, value, name in _entries(kind, values, owner)})


def check_part(kind: type, values: Any, owner: str) -> None:
    """Keys and types of a part of the values of the dataclass `kind`, which others are to complete. Raises: as `from_dict`."""
    for _, hint, value, name in _entries(kind, values, owner):
        of: Any = next(filter(is_dataclass, get_args(hint) or (hint,)), None)
        if of and value is not None:
            check_part(of, value, name)
        else:
            convert(hint, value, name)


def _entries(kind: type, values: Any, owner: str) -> Iterator[tuple[str, Any, Any, str]]:
    """Key, type, value and name of each. Raises: ArgumentError: no mapping, or an unknown key."""
    if not isinstance(values, dict):
        raise ArgumentError(owner, "must be a mapping of keys to values", repr(values), "Write `key: value` lines")
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    complete, types = getattr(kind, "completed", None), getattr(kind, "types", None)
    values = complete(values) if complete else values  # defaults that depend on other values
    hints |= types(values) if types else {}  # as classes may
    for key, value in values.items():
        name = f"{owner}.{key}" if owner else str(key)
        if key not in known:
            raise ArgumentError(name, "unknown key", None, nearest(str(key), known))
        yield key, hints[key], value, name


def convert(hint: Any, value: Any, owner: str) -> Any:
    """A plain value as the type `hint` wants it. Raises: ArgumentError: it is of another type."""
    if get_origin(hint) in (Union, UnionType):
        options = [part for part in get_args(hint) if part is not NoneType]
        if value is None and NoneType in get_args(hint):
            return None
        fitting = [part for part in options if isinstance(part, type) and isinstance(value, part)]
        return convert((fitting or options)[0], value, owner)
    if is_dataclass(hint):
        return from_dict(hint, value, owner)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            written = {float: "[0.9, 0.99]", int: "[300, 300]"}.get(get_args(hint)[0], "[name, name]")
            raise ArgumentError(owner, "must be a list", repr(value), f"Write {written}")
        if Ellipsis not in get_args(hint) and len(value) != len(get_args(hint)):
            raise ArgumentError(owner, f"must have {len(get_args(hint))} values", repr(value), "Change the value")
        return tuple(convert(get_args(hint)[0], entry, owner) for entry in value)
    if get_origin(hint) is dict:
        if not isinstance(value, dict):
            raise ArgumentError(owner, "must be a mapping of keys to values", repr(value), "Write {key: value}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            got = f"an integer of {value.bit_length()} bits"
            raise ArgumentError(owner, "must fit a floating-point number", got, "Change the value") from error
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        names = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
        advice = "Put it in quotes" if hint is str and isinstance(value, int | float) else "Change the value"
        raise ArgumentError(owner, f"must be {names.get(hint, hint)}", repr(value), advice)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value
