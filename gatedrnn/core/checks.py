"""Checks of single values; each returns the value or raises ArgumentError naming owner, rule and value."""

import math
import numbers
from collections.abc import Iterable
from difflib import get_close_matches

import numpy as np

from gatedrnn.core.errors import ArgumentError

_LARGEST = 2**32 - 1


def positive_int(owner: str, value: object, *, minimum: int = 1) -> int:
    """Return `value` if it is an integer of at least `minimum`, and fits 32 bits, as sizes of arrays do."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        rule = "must be a positive integer" if minimum == 1 else f"must be an integer of at least {minimum}"
        raise ArgumentError(owner, rule, repr(value), f"Give {minimum} or more")
    if int(value) > _LARGEST:
        got = value if (bits := int(value).bit_length()) < 64 else f"an integer of {bits} bits"
        raise ArgumentError(owner, f"must be at most {_LARGEST}", got, "Choose a smaller one")
    return int(value)


def positive_number(owner: str, value: object) -> float:
    """Return `value` if it is a finite number above zero."""
    if not 0.0 < real(value) < math.inf:
        raise ArgumentError(owner, "must be a finite number above 0", repr(value), "Give a number such as 0.5")
    return real(value)


def probability(owner: str, value: object) -> float:
    """Return `value` if it lies in [0, 1]."""
    if not 0.0 <= real(value) <= 1.0:
        raise ArgumentError(owner, "must be a probability between 0 and 1", repr(value), "Give a number such as 0.5")
    return real(value)


def boolean(owner: str, value: object, advice: str = "Give one of them") -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool):
        raise ArgumentError(owner, "must be True or False", repr(value), advice)
    return value


_KINDS: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (numbers.Integral, "an integer"),
    float: (numbers.Real, "a number"),
    str: (str, "text"),
}


def like(owner: str, value: object, default: object) -> None:
    """Raises ArgumentError: `default` is a flag, a number or text, and `value` is of another kind."""
    if type(default) not in _KINDS:
        return
    kind, name = _KINDS[type(default)]
    flag = isinstance(value, bool | np.bool_)
    if not (flag if kind is bool else isinstance(value, kind) and not flag):
        raise ArgumentError(owner, f"must be {name}", repr(value), f"Give one, such as {default!r}")


def real(value: object) -> float:
    """A real number as a float, infinity where it is too large for one; NaN for all else."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def nearest(name: str, names: Iterable[str]) -> str:
    """A sentence that names the nearest known name, or all of them when none is near."""
    known = sorted(names)
    close = get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}"


def one_of(owner: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        close = get_close_matches(str(value), known, n=1)
        advice = f"Did you mean {close[0]!r}?" if close else "Choose one of them"
        raise ArgumentError(owner, f"must be one of {', '.join(known)}", repr(value), advice)
    return value
