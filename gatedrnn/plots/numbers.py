"""Numbers as the tables of commands and the pages show them."""

from collections.abc import Iterable, Mapping
from typing import Any


def score(value: float | None, digits: int = 1) -> str:
    """A score; a dash where no sentence counts."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """A share in percent; a dash where nothing counts."""
    return "–" if share is None else f"{100 * share:.1f}"


def counts(each: Iterable[Mapping[str, Any]], key: str) -> str:
    """A count that all of them have, or those of runs that differ."""
    return " / ".join(dict.fromkeys(f"{one[key]:,}" for one in each))
