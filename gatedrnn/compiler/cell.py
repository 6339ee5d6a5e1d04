"""A cell's kernels for the CPU as text, and where its columns lie.

Dimensions: H hidden, R rows of W, K logits of the gates that have not H, C units of a chunk.
"""

import hashlib
import itertools
from dataclasses import dataclass

from gatedrnn.cells.spec import Spec, Step
from gatedrnn.compiler.equations import Equations, Halves
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.numba import Writer
from gatedrnn.compiler.schedule import Place, schedule
from gatedrnn.compiler.triton import Gpu, gpu

_FORWARD = "g, h_prev, c_prev, c, h, extra, scratch, H, K, C"
_BACKWARD = "g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C"


@dataclass(frozen=True)
class Compiled:
    """Functions of one row, and the columns they are written for: W x, then U h' where it stands apart, then what is kept.

    Args:
        forward, backward: text of what is done with a row before and after the product inside the step; "" for nothing.
        columns_x: columns of W x.
        shift: column n of those belongs to row n + shift of W, the last ones to the first rows.
        first_1, columns_1, columns_2: where the columns of U h' begin; how many; and after those, of the product inside.
        kept: where the gates' values begin; in the order of W x's columns.
        cells: rows of H that are kept a token beside h: states, then the left factor of the product inside.
        carries: whether h' also reaches h past the products.
        logits, chunk: K and C; H and 1 where there are none.
        slots: rows of scratch.
        gpu: the kernels for a GPU, or why there are none.
    """

    forward: tuple[str, str]
    backward: tuple[str, str]
    columns_x: int
    shift: int
    first_1: int
    columns_1: int
    columns_2: int
    kept: int
    cells: int
    carries: bool
    logits: int
    chunk: int
    slots: int
    gpu: Gpu | str

    @property
    def name(self) -> str:
        """The same for cells of other sizes that share the text."""
        return hashlib.sha256("".join([*self.forward, *self.backward]).encode()).hexdigest()[:16]


def compile_cell(step: Step, spec: Spec) -> Compiled:
    """The kernels of a cell of one size.

    Raises: UnsupportedError: the step does what kernels cannot, with what and where.
    """
    return _Text(Equations(step, spec)).compiled()


def _gpu(found: Equations) -> Gpu | str:
    try:
        return gpu(found)
    except UnsupportedError as error:
        return f"its step has {error}; kernels for a GPU do not support that"


class _Text:
    """The text of one cell, and the addresses in it."""

    def __init__(self, found: Equations) -> None:
        self._found, self._sizes = found, found.sizes
        self._rows = [gate.rows for gate in found.spec.gates]
        last = self._rows[-1:]
        self._columns = {"": self._rows, "last": self._rows + last, "all": self._rows + self._rows}[found.apart]
        self._slots = 0

    def compiled(self) -> Compiled:
        found, spec = self._found, self._found.spec
        read = {} if found.saved else {"a": "kept", "x": "kept", "late": "kept"}
        rows, own = spec.rows, spec.recurrent_rows
        first = {"": 0, "last": self._rows[-1], "all": rows}[found.apart]
        return Compiled(
            self._pair("forward", _FORWARD, found.forward, read),
            self._pair("backward", _BACKWARD, found.backward, {"d_state": "d_old"}),
            columns_x=rows,
            shift=rows - first if found.apart == "last" else 0,
            first_1=first,
            columns_1=own,
            columns_2=rows - own,
            kept=sum(self._columns) if found.saved else 0,
            cells=len(spec.states) - 1 + (found.left is not None),
            carries=found.carries,
            logits=found.logits,
            chunk=found.chunk,
            slots=self._slots,
            gpu=_gpu(found),
        )

    def _pair(self, name: str, parameters: str, halves: Halves, same: dict[str, str]) -> tuple[str, str]:
        texts = []
        for half, end in zip(halves, ("", "_second"), strict=True):
            planned = schedule(half, same) if half else None
            self._slots = max(self._slots, planned.slots if planned else 0)
            writer = planned and Writer(name + end, parameters, planned, self._address, self._sizes)
            texts.append(writer.text() if writer else "")
        return texts[0], texts[1]

    def _address(self, place: Place) -> tuple[str, str]:
        kind, k = place
        if kind in ("a", "x", "late"):
            return "g", self._column(k)
        if kind in ("kept", "grad_g"):
            base = self._columns if self._found.saved else []
            return {"kept": "g"}.get(kind, kind), self._sum([*base, *self._before(k)])
        if kind in ("h", "product"):
            return "g", self._product_column(k)
        if kind in ("d_x", "d_h"):
            return "dg", self._column(k) if kind == "d_x" else self._product_column(k)
        if kind in ("extra", "+d_extra"):
            owned = [self._found.spec.gate(name).rows for extra in self._found.spec.extras for name in extra.gates]
            return kind.replace("+", ""), self._sum(owned[:k])
        if kind in ("left", "d_left"):
            k, kind = len(self._found.spec.states), {"left": "new", "d_left": "d_old"}[kind]
        bases = {"old": ("h_prev", "c_prev"), "new": ("h", "c"), "d_state": ("dh", "dc"), "d_old": ("dh", "dc")}
        if kind in bases:
            return bases[kind][k > 0], self._sum([self._found.H] * (k - 1))
        return kind, ""

    def _before(self, k: int) -> list[int]:
        """Columns before gate k's among W x's."""
        if self._found.apart == "last":  # the last gate first, so that the rows of U lie side by side
            return [] if k == len(self._rows) - 1 else [self._rows[-1], *self._rows[:k]]
        return self._rows[:k]

    def _column(self, k: int) -> str:
        return self._sum(self._before(k))

    def _product_column(self, k: int) -> str:
        return self._sum([*self._rows, *(self._rows[:k] if self._found.apart == "all" else [])])

    def _sum(self, sizes: list[int]) -> str:
        grouped = itertools.groupby(sorted(self._sizes[size] for size in sizes))
        counts = [(name, len(list(same))) for name, same in grouped]
        return " + ".join(name if n == 1 else f"{n} * {name}" for name, n in counts)
