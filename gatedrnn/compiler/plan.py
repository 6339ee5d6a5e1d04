"""How a cell's rows are laid out in the CPU kernels' columns of gates.

Dimensions: H hidden, G columns of gates, K logits of the gates that have not H, C units of a chunk.
"""

import functools
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from gatedrnn.core.errors import ArgumentError


class Product(NamedTuple):
    """Of a row of H values and rows of the recurrent matrix: U, and the rows of the cell's own matrices below it.

    Args:
        level: how many parts of the step are done before it.
        row, rows: the first row of the matrix, and how many.
        column: the first column of gates that it is added to.
        left: 0 for h' of the step before, k for row k − 1 of those kept beside h: of the step before at level 0, else of this.
    """

    level: int
    row: int
    rows: int
    column: int
    left: int


@dataclass(frozen=True)
class Plan:
    """One cell's columns: W x, then U h' where it stands apart, then the products with the cell's own matrices that are in no
    gate's sum, then what is kept.

    Args:
        kernel: the cell, as `cell_of` reads it; "" for any that has this layout.
        hidden: H.
        columns: G, of what products are added to.
        columns_x: columns of W x.
        u_column: the first column that U h' and b_hh are added to.
        products: those with the recurrent matrix, U with the rows of the cell's own matrices below it, by level.
        own: of the columns past those of U, the first row of W whose scale they have, and how many they are.
        shift: column n of W x belongs to row n + shift of W, the last ones to the first rows.
        kept: where the gates' values begin, in the order of W x's columns: 0 or G.
        logits, chunk: K and C of a cell with gates of another size than H, else H and 1.
        slots: rows of scratch.
        cells: rows of H that are kept a token beside h: further states, then the left factors of products inside the step.
        carries: whether h' also reaches h past the product.
        extras: elements of all extras but matrices.
    """

    kernel: str
    hidden: int
    columns: int
    columns_x: int
    u_column: int
    products: tuple[Product, ...]
    own: tuple[tuple[int, int], ...] = ()
    shift: int = 0
    kept: int = 0
    logits: int = 0
    chunk: int = 1
    slots: int = 0
    cells: int = 0
    carries: int = 0
    extras: int = 0
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = [getattr(self, each.name) for each in fields(self)[1:-1]]
        object.__setattr__(self, "_text", " ".join([self.kernel, *map(_written, given)]))

    @property
    def rows(self) -> int:
        """Rows of the recurrent matrix."""
        return sum(product.rows for product in self.products)

    def text(self) -> str:
        """As one string, which an operator can take."""
        return self._text

    @staticmethod
    @functools.lru_cache(maxsize=1024)
    def of(text: str) -> "Plan":
        """The plan that `text()` wrote."""
        plan = read_plan(text)
        sizes = [each for name in _SIZES if isinstance(each := getattr(plan, name), int)]
        sizes += [number for part in (*plan.products, *plan.own) for number in part]
        inside = all(p.column + p.rows <= plan.columns and p.row + p.rows <= plan.rows for p in plan.products)
        inside &= all(p.left <= plan.cells and p.level < len(plan.products) for p in plan.products)
        if not inside or plan.u_column + plan.columns_x > plan.columns or min(sizes) < 0:
            raise ArgumentError(
                "Plan", "its columns must lie within the row of gates", text, "Pass the text that a Plan gave"
            )
        return plan

    def integers(self) -> dict[str, int]:
        """As the loops' arguments."""
        names = ("columns", "columns_x", "u_column", "shift", "cells", "carries")
        return {name: getattr(self, name) for name in names} | {"H": self.hidden, "K": self.logits, "C": self.chunk}


_SIZES = [each.name for each in fields(Plan)[1:-1]]


def _written(value: int | tuple[tuple[int, ...], ...]) -> str:
    return str(value) if isinstance(value, int) else "/" + "/".join(",".join(map(str, part)) for part in value)


def read_plan(text: str) -> Plan:
    """The plan that `text()` wrote, not checked: for compilers, which do not see through `Plan.of`."""
    kernel, *given = text.rsplit(" ", len(_SIZES))
    read = dict(zip(_SIZES, given, strict=True))
    parts = {
        name: [tuple(map(int, part.split(","))) for part in read.pop(name)[1:].split("/") if part]
        for name in ("products", "own")
    }
    products, own = tuple(Product(*part) for part in parts["products"]), tuple(parts["own"])
    return Plan(kernel, **{name: int(value) for name, value in read.items()}, products=products, own=own)  # type: ignore[arg-type]
