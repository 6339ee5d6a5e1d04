"""A step as a small graph: every value belongs to one row of the batch, and has `size` elements, or is a number (`size` 0).

Equal values are one node. Sizes are kept as numbers here; the text that is written of them has names, so that cells of other
sizes whose graphs have the same shape share their kernels.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from gatedrnn.compiler.errors import UnsupportedError

UNARY = {"neg": "neg", "sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu", "exp": "exp", "expm1": "expm1", "log": "ln",
         "log1p": "log1p", "sqrt": "sqrt", "abs": "absolute", "sgn": "sign", "sign": "sign", "isnan": "not_number"}  # fmt: skip
"""Operations of one value, by PyTorch's names for them."""
BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "maximum": "greatest", "minimum": "least", "gt": "greater",
          "ge": "at_least", "eq": "equal", "logical_and": "mul", "bitwise_and": "mul", "logical_or": "greatest",
          "bitwise_or": "greatest"}  # fmt: skip
"""Operations of two; a comparison gives 1 or 0."""
_FUNCTIONS = {op: name for name, op in UNARY.items()}
POINTWISE = {*UNARY.values(), *BINARY.values(), "sigmoid_slope", "tanh_slope", "choose_nonzero", "same"}
REDUCTIONS = {"sum", "max"}


def number_text(number: Any) -> str:
    """A number as Python writes it, an infinite one too."""
    value = float(number)
    return {math.inf: "1e999", -math.inf: "-1e999"}.get(value) or repr(value)


@dataclass(eq=False, frozen=True)
class Node:
    """A value: `op` of `args`, nodes or numbers; of a leaf ("load") the name of a memory and an index into it."""

    op: str
    args: tuple[Any, ...]
    size: int

    @property
    def inputs(self) -> list["Node"]:
        """Its arguments that are nodes."""
        return [arg for arg in self.args if isinstance(arg, Node)]


@dataclass
class Wide:
    """Values side by side: a row of all gates, or a parameter whose rows belong to several of them."""

    parts: list[Any]

    def cut(self, first: int, last: int) -> Any:
        """Elements first … last − 1, whole parts only."""
        found, at = [], 0
        for part in self.parts:
            if first <= at and at + part.size <= last:
                found.append(part)
            elif not (at + part.size <= first or last <= at):
                raise UnsupportedError("a slice through the middle of a gate")
            at += part.size
        return found[0] if len(found) == 1 else Wide(found)

    @property
    def size(self) -> int:
        """Elements in all."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Matrix:
    """Rows of a matrix, as what a product with them gives, of so many columns; or those transposed."""

    parts: tuple[Node, ...]
    columns: int
    turned: bool = False

    @property
    def rows(self) -> Any:
        """What a product with its transpose gives."""
        return self.parts[0] if len(self.parts) == 1 else Wide(list(self.parts))

    @property
    def shape(self) -> list[int]:
        """As PyTorch's."""
        return [self.rows.size, self.columns][:: -1 if self.turned else 1]

    def cut(self, first: int, last: int) -> "Matrix":
        """Rows first … last − 1, whole parts only."""
        found = Wide(list(self.parts)).cut(first, last)
        return Matrix(tuple(found.parts) if isinstance(found, Wide) else (found,), self.columns)


@dataclass
class Graph:
    """Nodes made so far; asks for the same one give the same object.

    Args:
        merged: whether x + h of one gate, "a", and x + the product inside the step, "late", are what the driver adds up.
        owners: parts of the cell's own matrices whose products the driver adds to a gate's sum too, "full", and the gates.
    """

    merged: bool = True
    owners: dict[int, int] = field(default_factory=dict)
    _made: dict[Any, Node] = field(default_factory=dict)

    def node(self, op: str, *args: Any, size: int) -> Node:
        """The node of an operation on these arguments."""
        if any(isinstance(arg, Matrix) for arg in args):
            raise UnsupportedError(f"{op} of a matrix, which only a product takes")
        if op == "add" and self.merged:
            leaves = {arg.args for arg in args if isinstance(arg, Node) and arg.op == "load"}
            for kind, k in leaves:
                if kind in ("h", "product") and ("x", k) in leaves:
                    return self.node("load", "a" if kind == "h" else "late", k, size=size)
                if kind in ("a", "late") and any(
                    ("own", part) in leaves for part, own in self.owners.items() if own == k
                ):
                    return self.node("load", "full", k, size=size)
        key = (op, size, *(id(arg) if isinstance(arg, Node) else (type(arg), arg) for arg in args))
        return self._made.setdefault(key, Node(op, args, size))

    def load(self, memory: str, k: int, size: int) -> Node:
        """What stands in a memory's part k."""
        return self.node("load", memory, k, size=size)

    def apply(self, op: str, *args: Any) -> Any:
        """`op` of every element; numbers, Python's or the row's, go with all."""
        args = tuple(float(arg) if isinstance(arg, bool) else arg for arg in args)
        if op == "add" and (zero := [k for k, arg in enumerate(args) if _adds_nothing(arg, args[1 - k])]):
            return args[1 - zero[0]]
        if op in _FUNCTIONS and isinstance(args[0], int | float):
            return _of_number(op, args[0])
        wide = [arg for arg in args if isinstance(arg, Wide)]
        if wide:
            n = len(wide[0].parts)
            if any(len(w.parts) != n for w in wide):
                raise UnsupportedError("values side by side that do not match")
            return Wide(
                [self.apply(op, *(arg.parts[k] if isinstance(arg, Wide) else arg for arg in args)) for k in range(n)]
            )
        sizes = {arg.size for arg in args if isinstance(arg, Node)} - {0}
        if len(sizes) > 1:
            raise UnsupportedError(f"{op} of values of {' and '.join(map(str, sorted(sizes)))} elements")
        return self.node(op, *args, size=max(sizes, default=0))


def _of_number(op: str, number: float) -> float:
    """An operation of a constant, done now."""
    found = float(getattr(torch, _FUNCTIONS[op])(torch.tensor(number, dtype=torch.float64)))
    if math.isnan(found):
        raise UnsupportedError(f"{_FUNCTIONS[op]} of the number {number}, which is NaN")
    return found


def _adds_nothing(arg: Any, other: Any) -> bool:
    """Whether it is 0, of no more elements than `other`."""
    if isinstance(arg, Node):
        return arg.op == "zeros" and isinstance(other, Node) and other.size == arg.size
    return isinstance(arg, float) and arg == 0


def is_number(value: Any) -> bool:
    """Whether it has no elements: a number of the row, or a constant."""
    return not isinstance(value, Wide) and (not isinstance(value, Node) or not value.size)


def leaves_of(values: list[Any]) -> set[tuple[str, int]]:
    """All memories that these values are computed from."""
    found, seen, stack = set(), set(), list(values)
    while stack:
        node = stack.pop()
        if isinstance(node, Wide):
            stack += node.parts
        elif isinstance(node, Node) and node not in seen:
            seen.add(node)
            stack += node.inputs
            if node.op == "load":
                found.add(node.args)
    return found
