"""Predictions of SyntaxGym as formulae over surprisals of regions, read by a parser of their own.

formula    = comparison { ( "&" | "|" ) comparison }
comparison = sum [ ( "<" | ">" | "=" ) sum ]
sum        = term { ( "+" | "-" ) term }
term       = number | "-" term | region | "(" formula ")" | "[" formula "]"
region     = "(" ( number | "*" ) ";%" condition "%)"
"""

import re
from collections.abc import Callable
from typing import Any, final

from gatedrnn.core.errors import DataError

EVERY = "*"
"""The region that stands for all of a condition's."""

Region = tuple[int | str, str]
"""A region's number, or EVERY, and the name of its condition."""

Values = Callable[[Region], float]
"""What a region's surprisal is."""

_Node = tuple[bool, Callable[[Values], Any]]
"""Whether it is true or false, rather than a number; its value."""

_RELATIVE, _ABSOLUTE = 1e-5, 1e-3  # how far apart equal surprisals may be, in bits
_DEEPEST = 50
_LONGEST = 10_000  # characters
_REGION = re.compile(r"\(\s*(\*|\d{1,9})\s*;\s*%([^%]+)%\s*\)")
_NUMBER = re.compile(r"\d+(\.\d*)?([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?")
_CLOSING = {"(": ")", "[": "]"}
_JOINING: dict[str, Callable[[bool, bool], bool]] = {"&": lambda a, b: a and b, "|": lambda a, b: a or b}
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "=": lambda a, b: abs(a - b) <= _ABSOLUTE + _RELATIVE * abs(b),
}


@final
class Formula:
    """A prediction that can be asked whether it holds.

    Sums are taken from left to right, and so are `&` and `|`, which bind alike; `=` allows 0.001 bits and 1e-5 of the right side.

    Args: text: as in the suite; owner: where it stands, for messages.
    Attributes: regions: those that it names.
    Raises: DataError: no formula, or one that is a number (with the column).
    """

    def __init__(self, text: str, owner: str = "formula") -> None:
        self.text, self.owner = text, owner
        self.regions: list[Region] = []
        self._at = self._depth = 0
        if len(text) > _LONGEST:
            raise DataError(owner, f"must have at most {_LONGEST:,} characters", f"{len(text):,}", "Write it shorter")
        whole = self._joined()
        if self._next():
            raise self._wrong("one of < > = & | + - or the end", self._at)
        self._value = self._truth(whole, 0)

    def holds(self, values: Values) -> bool:
        """Whether it is true of these surprisals."""
        return bool(self._value(values))

    def _joined(self) -> _Node:
        start = self._at
        first = self._comparison()
        if (sign := self._next()) not in _JOINING:
            return first
        if not first[0]:
            raise self._wrong(f"a comparison before {sign}", start)
        others = []
        while (sign := self._next()) in _JOINING:
            self._take(sign)
            start = self._at
            others.append((_JOINING[sign], self._truth(self._comparison(), start)))

        def value(values: Values) -> bool:
            so_far = first[1](values)
            for join, other in others:
                so_far = join(so_far, other(values))
            return so_far

        return True, value

    def _comparison(self) -> _Node:
        start = self._at
        left = self._sum()
        sign = self._next()
        if sign not in _COMPARED:
            return left
        self._take(sign)
        compare, a, b = _COMPARED[sign], self._number(left, start), self._number(None, self._at)
        return True, lambda values: compare(a(values), b(values))

    def _sum(self) -> _Node:
        start = self._at
        first = self._term()
        if self._next() not in ("+", "-"):
            return first
        terms = [(1, self._number(first, start))]
        while (sign := self._next()) in ("+", "-"):
            self._take(sign)
            place = self._at
            terms.append((1 if sign == "+" else -1, self._number(self._term(), place)))
        return False, lambda values: sum(factor * term(values) for factor, term in terms)

    def _term(self) -> _Node:
        sign, start = self._next(), self._at
        if sign == "-":
            self._take(sign)
            self._deeper(start)
            inner = self._number(self._term(), self._at)
            self._depth -= 1
            return False, lambda values: -inner(values)
        if found := _REGION.match(self.text, start):
            self._at = found.end()
            region = (EVERY if found[1] == EVERY else int(found[1]), found[2].strip())
            self.regions.append(region)
            return False, lambda values: values(region)
        if found := _NUMBER.match(self.text, start):
            self._at, number = found.end(), float(found[0])
            return False, lambda values: number
        if sign not in _CLOSING:
            raise self._wrong("a region such as (2;%match%), a number or (", start)
        self._take(sign)
        self._deeper(start)
        inside = self._joined()
        if not self._take(_CLOSING[sign]):
            raise self._wrong(f"an operator or {_CLOSING[sign]}", self._at)
        self._depth -= 1
        return inside

    def _truth(self, node: _Node, start: int) -> Callable[[Values], bool]:
        is_truth, value = node
        if not is_truth:
            raise self._wrong("a comparison (with <, > or =)", start)
        return value

    def _number(self, node: _Node | None, start: int) -> Callable[[Values], float]:
        is_truth, value = node or self._sum()
        if is_truth:
            raise self._wrong("a number or a region, not a comparison", start)
        return value

    def _deeper(self, start: int) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong(f"inside at most {_DEEPEST} levels of brackets", start)

    def _next(self) -> str:
        """The next character that is no white space; "" at the end."""
        while self.text[self._at : self._at + 1].isspace():
            self._at += 1
        return self.text[self._at : self._at + 1]

    def _take(self, sign: str) -> bool:
        found = self._next() == sign
        self._at += found
        return found

    def _wrong(self, wanted: str, at: int) -> DataError:
        at += len(self.text[at:]) - len(self.text[at:].lstrip())
        rest = self.text[at : at + 30]
        got = repr(rest + "…" * (len(self.text) > at + 30)) if rest else "its end"
        return DataError(self.owner, f"column {at + 1} must be {wanted}", got, "Fix the formula")
