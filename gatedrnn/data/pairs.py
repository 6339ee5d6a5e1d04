"""Minimal pairs: JSON lines of a grammatical and an ungrammatical sentence, as Marvin & Linzen 2018 and BLiMP give them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gatedrnn.core.errors import DataError
from gatedrnn.data.text import parse_object, read_lines

_GOOD, _BAD = ("good", "sentence_good"), ("bad", "sentence_bad")
_PHENOMENON = ("phenomenon", "UID", "construction")
_PREFIX = ("one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad")


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences that differ in whether they are grammatical.

    Args:
        phenomenon: what they test.
        good, bad: the sentences.
        prefix: what both begin with, the next word of the good one and of the bad one, where one prefix decides; else None.
    """

    phenomenon: str
    good: str
    bad: str
    prefix: tuple[str, str, str] | None = None


def read_pairs(path: Path | str) -> Iterator[MinimalPair]:
    """Pairs of a file of JSON lines, `.gz` too: keys good, bad, phenomenon, or BLiMP's sentence_good, sentence_bad, UID.

    Raises: DataError: the file cannot be read, a line is no JSON object (with its number), or lacks a sentence.
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        record = parse_object(line, place, "a file of JSON lines")
        good, bad, phenomenon = (_first(record, names) for names in (_GOOD, _BAD, _PHENOMENON))
        if not isinstance(good, str) or not isinstance(bad, str) or not good.split() or not bad.split():
            rule = f"must have {' or '.join(_GOOD)}, and {' or '.join(_BAD)}, each with a word"
            raise DataError(place, rule, sorted(record), "Use these names")
        prefix = tuple(str(record[name]) for name in _PREFIX) if all(record.get(name) for name in _PREFIX) else None
        yield MinimalPair(str(phenomenon or "all"), good, bad, prefix)  # type: ignore[arg-type]


def _first(record: dict[str, object], names: tuple[str, ...]) -> object:
    return next((record[name] for name in names if record.get(name) is not None), None)
