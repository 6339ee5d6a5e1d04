"""Propositional logic: formulae, the relation of two by their truth in all worlds, and pairs made of nothing but a seed.

A formula is a variable, `( not F )`, `( F ( and F ) )` or `( F ( or F ) )`, its tokens apart by spaces, as Bowman, Manning &
Potts (2015) write them. A world says of each of six variables whether it is true; a formula's truth in all 64 is a number of 64
bits.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gatedrnn.core.errors import DataError
from gatedrnn.core.files import write_text
from gatedrnn.data.text import Kept, read_lines

VARIABLES = "abcdef"
LABELS = ("=", "<", ">", "^", "|", "v", "#")
"""Equivalence, entailment, reverse entailment, negation, alternation, cover, independence."""

_WORLDS = 1 << len(VARIABLES)
_ALL = (1 << _WORLDS) - 1
_TRUE_IN = {v: sum(1 << world for world in range(_WORLDS) if world >> k & 1) for k, v in enumerate(VARIABLES)}
_MOST_MISSES = 1000
_COLUMNS = "operators, label, left and right, separated by tabs"


@dataclass(frozen=True)
class Pair:
    """Two formulae as texts, their relation, and the larger of their numbers of operators."""

    operators: int
    label: str
    left: str
    right: str


@dataclass(frozen=True)
class Formula:
    """What a formula says: its truth in all worlds, and its number of operators."""

    truth: int
    operators: int


class FormulaError(ValueError):
    """A text that is no formula: at which token (from 1), and why."""

    def __init__(self, token: int, reason: str) -> None:
        super().__init__(f"token {token}: {reason}")
        self.token = token


def read_formula(text: str) -> Formula:
    """The formula that a text is. Raises: FormulaError: it is none."""
    tokens = text.split(" ")
    stack: list[list[object]] = []  # what each open bracket has so far
    found: Formula | None = None
    for place, token in enumerate(tokens, 1):
        if found is not None and not stack:
            raise FormulaError(place, f"{token!r} after the formula's end")
        if token == "(":
            stack.append([])
            continue
        if token in ("and", "or", "not"):
            if not stack or stack[-1]:
                raise FormulaError(place, f"{token!r} must follow an open bracket")
            stack[-1].append(token)
            continue
        if token == ")":
            if not stack:
                raise FormulaError(place, "')' without '('")
            value = _closed(stack.pop(), place)
        elif token in _TRUE_IN:
            value = Formula(_TRUE_IN[token], 0)
        else:
            raise FormulaError(place, f"{token!r} is not a bracket, an operator or a variable a … f")
        if stack:
            stack[-1].append(value)
        elif isinstance(value, Formula):
            found = value
        else:
            raise FormulaError(place, "an operator without its left side")
    if stack or found is None:
        raise FormulaError(len(tokens), f"{len(stack)} brackets are open at the end")
    return found


def _closed(parts: list[object], place: int) -> object:
    """What a closed bracket holds: a formula, or an operator with its right side."""
    match parts:
        case ["not", Formula() as inner]:
            return Formula(_ALL & ~inner.truth, inner.operators + 1)
        case ["and" | "or" as operator, Formula() as right]:
            return operator, right
        case [Formula() as left, ("and", Formula() as right)]:
            return Formula(left.truth & right.truth, left.operators + right.operators + 1)
        case [Formula() as left, ("or", Formula() as right)]:
            return Formula(left.truth | right.truth, left.operators + right.operators + 1)
    raise FormulaError(place, "a bracket must hold ( not F ), ( and F ), ( or F ) or ( F ( and F ) )")


def relation(left: Formula, right: Formula) -> str:
    """Which of `LABELS` holds between two formulae, over all worlds (MacCartney & Manning 2009's seven relations)."""
    a, b = left.truth, right.truth
    if a == b:
        return "="
    if a == _ALL & ~b:
        return "^"
    if a & ~b == 0:
        return "<"
    if b & ~a == 0:
        return ">"
    if a & b == 0:
        return "|"
    return "v" if a | b == _ALL else "#"


def make_pairs(count: int, seed: int, operators: Sequence[int] = range(7), variables: int = 4) -> list[Pair]:
    """Different random pairs, labelled by `relation`.

    Args:
        operators: the larger of a pair's numbers of operators is drawn from these.
        variables: of the six, that a pair has at most.
    """
    return list(islice(_drawn(random.Random(seed), operators, variables, set()), count))


def make_splits(sizes: Mapping[str, tuple[int, Sequence[int]]], seed: int, variables: int = 4) -> dict[str, list[Pair]]:
    """Pairs as `make_pairs` makes them, for several splits; no pair is in two of them.

    The splits take pairs in turn: there are only 36 pairs without an operator, and each split gets a share of them.

    Args: sizes: how many pairs, and `operators` as in `make_pairs`, by split.
    """
    seen, draws = set[tuple[str, str]](), {}
    for number, (split, (_, operators)) in enumerate(sizes.items()):
        draws[split] = _drawn(random.Random(len(sizes) * seed + number), operators, variables, seen)
    made: dict[str, list[Pair]] = {split: [] for split in sizes}
    for turn in range(max(count for count, _ in sizes.values())):
        for split, (count, _) in sizes.items():
            made[split] += islice(draws[split], int(turn < count))
    return made


def _drawn(draw: random.Random, operators: Sequence[int], variables: int, seen: set[tuple[str, str]]) -> Iterator[Pair]:
    """Random pairs that are not in `seen`, which they join, until a thousand draws in a row have found none."""
    misses = 0
    while misses < _MOST_MISSES:  # there are only so many of few operators
        most, names = draw.choice(operators), draw.sample(VARIABLES, variables)
        sizes = [most, draw.randint(0, most)]
        draw.shuffle(sizes)
        left, right = (_random_formula(draw, names, size) for size in sizes)
        misses += 1
        if (left, right) not in seen:
            misses = 0
            seen.add((left, right))
            yield Pair(most, relation(read_formula(left), read_formula(right)), left, right)


def _random_formula(draw: random.Random, names: Sequence[str], operators: int) -> str:
    if not operators:
        return draw.choice(names)
    operator = draw.choice(("and", "or", "not"))
    if operator == "not":
        return f"( not {_random_formula(draw, names, operators - 1)} )"
    left = draw.randint(0, operators - 1)
    first, second = (_random_formula(draw, names, size) for size in (left, operators - 1 - left))
    return f"( {first} ( {operator} {second} ) )"


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs as lines `operators label left right`, separated by tabs. Raises: DataError: the file cannot be written."""
    write_text(path, "".join(f"{p.operators}\t{p.label}\t{p.left}\t{p.right}\n" for p in pairs))


def read_pairs(path: Path | Kept) -> Iterator[Pair]:
    """Pairs of a file that `write_pairs` wrote, or one like it (.gz too).

    Raises: DataError: as `read_lines`; a line that has not four columns, an unknown label or a text that is no formula, with the
        line and the place.
    """
    for number, line in read_lines(path):
        if line.strip():
            yield _pair(f"{path}, line {number}", line)


def _pair(owner: str, line: str) -> Pair:
    columns = line.split("\t")
    if len(columns) != 4:
        raise DataError(owner, f"must have four columns: {_COLUMNS}", f"{len(columns)}", "Fix the line")
    _, label, left, right = columns
    if label not in LABELS:
        raise DataError(owner, f"the label must be one of {' '.join(LABELS)}", repr(label), "Fix the line")
    counts = []
    for side, text in (("left", left), ("right", right)):
        try:
            counts.append(read_formula(text).operators)
        except FormulaError as error:
            raise DataError(f"{owner}, {side} side", "must be a formula", str(error), "Fix the line") from None
    return Pair(max(counts), label, left, right)
