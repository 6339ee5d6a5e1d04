"""A cell's kernels for the CPU as text, and where its columns lie.

Dimensions: H hidden, R rows of W, K logits of the gates that have not H, C units of a chunk.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass

from gatedrnn.cells.spec import Spec, Step
from gatedrnn.compiler.equations import Equations, Targets
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.numba import Writer
from gatedrnn.compiler.plan import Plan, Product
from gatedrnn.compiler.schedule import Place, schedule
from gatedrnn.compiler.triton import Gpu, gpu

_FORWARD = "g, h_prev, c_prev, c, h, extra, scratch, H, K, C"
_BACKWARD = "g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C"


@dataclass(frozen=True)
class Compiled:
    """Functions of one row, and the columns they are written for.

    Args:
        forward, backward: for each level of products, text of what is done with a row after, or before them.
        plan: the columns, of no cell in particular.
        gpu: the kernels for a GPU, or why there are none.
    """

    forward: tuple[str, ...]
    backward: tuple[str, ...]
    plan: Plan
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
        self._of_u = {"": self._rows, "last": self._rows + last, "all": self._rows + self._rows}[found.apart]
        self._own = [k for k in range(len(found.own)) if found.column(("own", k))[0] == "own"]
        self._columns = [*self._of_u, *(found.own[k].rows for k in self._own)]
        self._slots = 0

    def compiled(self) -> Compiled:
        found, spec = self._found, self._found.spec
        read: dict[str, str] = {} if found.saved else dict.fromkeys(("a", "x", "late", "full"), "kept")
        first = {"": 0, "last": self._rows[-1], "all": spec.rows}[found.apart]
        starts = dict(zip((gate.name for gate in spec.gates), spec.starts, strict=True))
        forward = self._texts("forward", _FORWARD, found.forward, read)
        backward = self._texts("backward", _BACKWARD, found.backward, {"d_state": "d_old"})
        plan = Plan(
            kernel="",
            hidden=found.H,
            columns=sum(self._columns),
            columns_x=spec.rows,
            u_column=first,
            products=self._products(),
            own=tuple((starts[found.own[k].name], found.own[k].rows) for k in self._own),
            shift=spec.rows - first if found.apart == "last" else 0,
            kept=sum(self._columns) if found.saved else 0,
            logits=found.logits,
            chunk=found.chunk,
            slots=self._slots,
            cells=len(spec.states) - 1 + len(found.products.lefts),
            carries=int(found.carries),
            extras=sum(spec.extra_shape(extra)[0] for extra in spec.extras if not extra.full),
        )
        return Compiled(forward, backward, plan, _gpu(found))

    def _products(self) -> tuple[Product, ...]:
        """What `Plan.products` has; neighbours among rows and columns are one product."""
        found, pieces, row = self._found, [], 0
        parts = [("h" if k < len(found.traced.h) else "product", k) for k in range(len(self._rows))]
        for part in [*parts, *(("own", k) for k in range(len(found.own)))]:
            product, column = found.products.of_part.get(part), sum(self._before(found.column(part)))
            rows = found.own[part[1]].rows if part[0] == "own" else self._rows[part[1]]
            level = found.level(product) if product else 0
            left = product.state if product else 0
            if product and left is None:
                left = len(found.spec.states) + found.products.place_of_left(product)
            if pieces:
                before = pieces[-1]
                if (level, left, row, column) == (before[0], before[4], before[1] + before[2], before[3] + before[2]):
                    before[2] += rows
                    row += rows
                    continue
            pieces.append([level, row, rows, column, left])
            row += rows
        return tuple(Product(*piece) for piece in sorted(pieces))

    def _texts(self, name: str, parameters: str, levels: list[Targets], same: dict[str, str]) -> tuple[str, ...]:
        texts = []
        counts = {self._found.spec.rows: self._sum(self._rows)} | self._sizes
        for k, targets in enumerate(levels):
            planned = schedule(targets, same)
            self._slots = max(self._slots, planned.slots)
            texts.append(Writer(level_name(name, k), parameters, planned, self._address, self._sizes, counts).text())
        return tuple(texts)

    def _address(self, place: Place) -> tuple[str, str]:
        kind, k = place
        if kind in ("a", "late", "full"):
            place = "x", k
        if kind in ("kept", "grad_g"):
            base = self._columns if self._found.saved else []
            return {"kept": "g"}.get(kind, kind), self._sum([*base, *self._before(("x", k))])
        if kind in ("x", "a", "late", "full", "h", "product", "own"):
            return "g", self._sum(self._before(place))
        if kind in ("d_x", "d_h", "d_own"):
            return "dg", self._sum(self._before((kind.removeprefix("d_"), k)))
        if kind in ("extra", "+d_extra"):
            vectors = [extra for extra in self._found.spec.extras if not extra.full]
            owned = [self._found.spec.gate(name).rows for extra in vectors for name in extra.gates]
            return kind.replace("+", ""), self._sum(owned[:k])
        if kind in ("left", "d_left"):
            k, kind = len(self._found.spec.states) + k, {"left": "new", "d_left": "d_old"}[kind]
        bases = {"old": ("h_prev", "c_prev"), "new": ("h", "c"), "d_state": ("dh", "dc"), "d_old": ("dh", "dc")}
        if kind in bases:
            return bases[kind][k > 0], self._sum([self._found.H] * (k - 1))
        return kind, ""

    def _before(self, place: Place) -> list[int]:
        """Sizes of the columns before a gate's W x, or what stands apart from it."""
        kind, k = place
        if kind == "own":
            return [*self._of_u, *(self._found.own[part].rows for part in self._own if part < k)]
        if kind != "x":
            return [*self._rows, *(self._rows[:k] if self._found.apart == "all" else [])]
        if self._found.apart == "last":  # the last gate first, so that the rows of U lie side by side
            return [] if k == len(self._rows) - 1 else [self._rows[-1], *self._rows[:k]]
        return self._rows[:k]

    def _sum(self, sizes: list[int]) -> str:
        counts = Counter(sorted(self._sizes[size] for size in sizes))
        return " + ".join(name if n == 1 else f"{n} * {name}" for name, n in counts.items())


def level_name(name: str, level: int) -> str:
    """The name of a level's function."""
    return f"{name}_{level}" if level else name
