"""Numbers and names as the tables of commands and the pages show them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PROTOCOLS = ("A", "AW", "B", "B*", "corpus")
"""Columns of F1."""


def in_words(name: str) -> str:
    """A name in words."""
    return name.replace("_", " ")


def score(value: float | None, digits: int = 1) -> str:
    """A score; a dash where no sentence counts."""
    return "–" if value is None else f"{value:.{digits}f}"


def interval(found: Sequence[float] | None) -> str:
    """Both ends; a dash where no sentence counts."""
    return "–" if found is None else f"{found[0]:.1f}–{found[1]:.1f}"


def percent(share: float | None) -> str:
    """A share in percent; a dash where nothing counts."""
    return "–" if share is None else f"{100 * share:.1f}"


def counts(each: Iterable[Mapping[str, Any]], key: str) -> str:
    """A count that all of them have, or those of runs that differ."""
    return " / ".join(dict.fromkeys(f"{one[key]:,}" for one in each))


def judged_cells(each: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[str]:
    """Of what several runs were judged on: the accuracy of each, and counts by `keys`."""
    return [*(percent(one["accuracy"]) for one in each), *(counts(each, key) for key in keys)]
