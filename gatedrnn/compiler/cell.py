"""A cell's kernels as text, and where its columns lie.

Dimensions: H hidden, R rows of W, K logits of the gates that have not H, C units of a chunk.
"""

import hashlib
import threading
from dataclasses import dataclass
from typing import Any

from gatedrnn.cells.spec import Spec, Step
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.graph import Graph, Matrix, Node, Reader, Wide, read
from gatedrnn.compiler.numba import Writer
from gatedrnn.compiler.outside import check_outside
from gatedrnn.compiler.schedule import Place, Schedule, schedule

_FORWARD = "g, h_prev, c_prev, c, h, extra, scratch, H, K, C, hard"
_BACKWARD = "g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C, hard"


@dataclass(frozen=True)
class Compiled:
    """Functions of one row, and the layout they are written for.

    Args:
        forward, backward: text of what is done with a row before and after the product inside the step; "" for nothing.
        apart: whether the last gate's W x and U h' stand in columns of their own.
        inside: first row of U that is multiplied inside the step; None for none.
        cells: whether a second row of H a token is kept: c, or the left factor of the product inside.
        carries: whether h' also reaches h past the products.
        logits, chunk: K and C; H and 1 where there are none.
        slots: rows of scratch.
    """

    forward: tuple[str, str]
    backward: tuple[str, str]
    apart: bool
    inside: int | None
    cells: bool
    carries: bool
    logits: int
    chunk: int
    slots: int

    @property
    def name(self) -> str:
        """The same for cells of other sizes that share the text."""
        return hashlib.sha256("".join([*self.forward, *self.backward]).encode()).hexdigest()[:16]


_LOCK = threading.RLock()


def compile_cell(step: Step, spec: Spec) -> Compiled:
    """The kernels of a cell of one size.

    Raises: UnsupportedError: the step does what kernels cannot, with what and where.
    """
    check_outside(step)
    with _LOCK:  # PyTorch's tracing is not for two threads at once
        return _Cell(step, spec).compiled()


class _Cell:
    """One cell's graphs, and the addresses in its kernels."""

    def __init__(self, step: Step, spec: Spec) -> None:
        if len(spec.states) > 2:
            raise UnsupportedError(f"{len(spec.states)} states; kernels have h and one more")
        if any(extra.full for extra in spec.extras) or len(spec.extras) > 1:
            raise UnsupportedError("a matrix of the cell's own, or several extras")
        from gatedrnn.compiler.tracing import trace  # whose imports take seconds

        self.spec, self.traced = spec, trace(step, spec)
        self.H, self.graph = spec.hidden_size, Graph()
        self.sizes = self._named_sizes()
        self.apart, self.left = False, None

    def _named_sizes(self) -> dict[int, str]:
        """Names of the sizes: H, K, and M chunks."""
        H, rows = self.H, {gate.rows for gate in self.spec.gates} - {self.H}
        chunks = {gate.units or gate.rows for gate in self.spec.gates} - {self.H}
        if len(rows) > 1 or len(chunks) > 1:
            raise UnsupportedError("gates of more than two sizes")
        self.logits = next(iter(rows), H)
        units = next(iter(chunks), H)
        if H % units:
            raise UnsupportedError(f"chunks that do not divide {H} units")
        self.chunk = H // units
        return {units: "M", self.logits: "K", H: "H"}

    # What stands for the inputs.

    def _inputs(self) -> dict[Any, Any]:
        t, spec, load = self.traced, self.spec, self.graph.load
        rows = [gate.rows for gate in spec.gates]
        known: dict[Any, Any] = {node: load("x", k, rows[k]) for k, node in enumerate(t.x)}
        known |= {node: load("h", k, rows[k]) for k, node in enumerate(t.h)}
        known |= {node: load("old", k, self.H) for k, node in enumerate(t.old)}
        for extra, node in zip(spec.extras, t.extra, strict=True):
            owned = [spec.gate(name).rows for name in extra.gates]
            known[node] = Wide([load("extra", k, n) for k, n in enumerate(owned)])
        return known | {t.U: Matrix(0), t.bias: Wide([load("bias", k, n) for k, n in enumerate(rows)])}

    def _late(self) -> dict[int, int]:
        """Rows of the gates that the product inside the step belongs to, by place."""
        return {k: gate.rows for k, gate in enumerate(self.spec.gates) if k >= len(self.traced.h)}

    def compiled(self) -> Compiled:
        forward, backward = self._forward(), self._backward()
        slots = max(found.slots for found in (*forward, *backward) if found)
        names = ("forward", "forward_second"), ("backward", "backward_second")
        texts: list[Any] = [
            tuple(self._text(name, parameters, found) if found else "" for name, found in zip(pair, both, strict=True))
            for pair, parameters, both in zip(names, (_FORWARD, _BACKWARD), (forward, backward), strict=True)
        ]
        inside = self.spec.recurrent_rows if self._late() else None
        cells = len(self.spec.states) > 1 or inside is not None
        return Compiled(
            texts[0],
            texts[1],
            self.apart,
            inside,
            cells,
            self.carries,
            self.logits,
            self.chunk,
            slots,  # type: ignore[arg-type]
        )

    def _forward(self) -> tuple[Schedule, Schedule | None]:
        t, reader = self.traced, Reader(self.graph, self._inputs(), self._late())
        values = read(t, reader, [*t.kept, *t.new])
        kept, new = values[: len(t.kept)], values[len(t.kept) :]
        self._see_apart(values)
        targets: list[tuple[Node, Place]] = [(node, ("new", k)) for k, node in enumerate(new)]
        targets += [(node, ("kept", k)) for k, node in enumerate(kept)]
        if not reader.products:
            return schedule(targets), None
        lefts = {left for left, _ in reader.products}
        if len(lefts) != 1 or len(new) > 1 or any(row != self.spec.recurrent_rows for _, row in reader.products):
            raise UnsupportedError("more than one product inside the step, or one beside a state c")
        self.left = reader.products[0][0]
        first = [(node, place) for node, place in targets if not _depends(node, "late")]
        known = {node: self.graph.load("kept", place[1], node.size) for node, place in first if place[0] == "kept"}
        second = [(_replaced(node, known, self.graph), place) for node, place in targets if _depends(node, "late")]
        return schedule([*first, (self.left, ("left", 0))]), schedule(second)

    def _see_apart(self, values: list[Node]) -> None:
        """Find gates whose W x and U h' are not only added: the last one's may stand apart, as in a GRU."""
        leaves = _leaves(values)
        raw = {k for kind, k in leaves if kind in ("x", "h")}
        if any(kind in ("product", "bias") for kind, _ in leaves):
            raise UnsupportedError("a product inside the step that is not added to its gate's W x + b")
        if raw:
            last = len(self.spec.gates) - 1
            both = {("x", last), ("h", last)} <= leaves and not any(("a", last) == leaf for leaf in leaves)
            if raw != {last} or not both or self._late():
                raise UnsupportedError("W x and U h' apart in another gate than the last")
            self.apart = True

    def _backward(self) -> tuple[Schedule, Schedule | None]:
        t, spec, load, H = self.traced, self.spec, self.graph.load, self.H
        known = self._inputs()
        for k, node in enumerate(t.new):
            if k:
                known[node] = load("new", k, H)
        for k, node in enumerate(t.kept):
            known[node] = load("kept", k, spec.gates[k].rows)
        states = [self.graph.apply("add", load("d_state", 0, H), load("grad_h", 0, H))]
        states += [load("d_state", k, H) for k in range(1, len(spec.states))]
        known |= dict(zip(t.d_state, states, strict=True))
        known |= {node: load("grad_g", k, spec.gates[k].rows) for k, node in enumerate(t.d_kept)}
        reader = Reader(self.graph, known, self._late(), backward=True)
        counts = [len(t.d_x), len(t.d_h), len(t.d_old), len(t.d_extra)]
        values = read(t, reader, [*t.d_x, *t.d_h, *t.d_old, *t.d_extra])
        if {kind for kind, _ in _leaves([v for v in values if v is not None])} & {"a", "x", "late", "product", "bias"}:
            raise UnsupportedError("a gradient that needs more than the gates' values and the states")
        d_x, d_h, d_old, d_extra = (values[sum(counts[:k]) : sum(counts[: k + 1])] for k in range(4))
        targets: list[tuple[Node, Place]] = []
        for k, node in enumerate(d_x):
            last = self.apart and k == len(d_x) - 1
            if node is None or (k < len(d_h) and (d_h[k] is None or (d_h[k] is not node and not last))):
                raise UnsupportedError("a gate whose logits have no gradient")
            targets.append((node, ("d_x", k)))
            if last:
                targets.append((d_h[k], ("d_h", k)))
        self.carries = d_old[0] is not None
        targets += [(node, ("d_old", k)) for k, node in enumerate(d_old) if node is not None]
        if len(d_old) > 1 and d_old[1] is None:
            raise UnsupportedError("a state that the next does not depend on")
        for node in d_extra:
            for k, part in enumerate(node.parts if isinstance(node, Wide) else [node]):
                targets.append((part, ("+d_extra", k)))
        if self.left is None:
            return schedule(targets), None
        late = [node for node, place in targets if place[0] == "d_x" and place[1] >= len(d_h)]
        turned = [part for value in reader.turned for part in (value.parts if isinstance(value, Wide) else [value])]
        if turned != late:
            raise UnsupportedError("a product inside the step whose gradient is not its gate's")
        first = [(node, place) for node, place in targets if not _depends(node, "d_left")]
        second = [(node, place) for node, place in targets if _depends(node, "d_left")]
        if any(place[0] == "d_old" for _, place in first):  # which the second half may still read
            second += [pair for pair in first if pair[1][0] == "d_old"]
            first = [pair for pair in first if pair[1][0] != "d_old"]
        return schedule(first), schedule(second)

    # Addresses.

    def _text(self, name: str, parameters: str, found: Schedule) -> str:
        return Writer(name, parameters, found, self._address, self.sizes).text()

    def _address(self, place: Place) -> tuple[str, str]:
        kind, k = place
        if kind in ("a", "x", "kept", "late"):
            return "g", self._column(k)
        if kind in ("d_x", "grad_g"):
            return {"d_x": "dg", "grad_g": "grad_g"}[kind], self._column(k)
        if kind in ("h", "d_h"):
            return {"h": "g", "d_h": "dg"}[kind], self._sum([gate.rows for gate in self.spec.gates])
        if kind in ("old", "new", "d_state", "d_old"):
            return {"old": ("h_prev", "c_prev"), "new": ("h", "c")}.get(kind, ("dh", "dc"))[k], ""
        if kind in ("extra", "+d_extra"):
            owned = [self.spec.gate(name).rows for name in self.spec.extras[0].gates]
            return kind.replace("+", ""), self._sum(owned[:k])
        return {"left": "c", "d_left": "dc", "grad_h": "grad_h"}[kind], ""

    def _column(self, k: int) -> str:
        rows = [gate.rows for gate in self.spec.gates]
        if self.apart:  # the last gate first, so that the rows of U lie side by side
            return "" if k == len(rows) - 1 else self._sum([rows[-1], *rows[:k]])
        return self._sum(rows[:k])

    def _sum(self, sizes: list[int]) -> str:
        counts: dict[str, int] = {}
        for size in sizes:
            counts[self.sizes[size]] = counts.get(self.sizes[size], 0) + 1
        return " + ".join(name if n == 1 else f"{n} * {name}" for name, n in counts.items())


def _leaves(values: list[Any]) -> set[Place]:
    """All memories that these values are computed from."""
    found, seen, stack = set(), set(), list(values)
    while stack:
        node = stack.pop()
        if isinstance(node, Wide):
            stack += node.parts
        elif node not in seen:
            seen.add(node)
            stack += node.inputs
            if node.op == "load":
                found.add(node.args)
    return found


def _depends(node: Node, kind: str) -> bool:
    return any(leaf == kind for leaf, _ in _leaves([node]))


def _replaced(node: Node, known: dict[Node, Node], graph: Graph) -> Node:
    """`node` computed from what `known` has instead of it."""
    if node in known:
        return known[node]
    if node.op == "load":
        return node
    args = [_replaced(arg, known, graph) if isinstance(arg, Node) else arg for arg in node.args]
    return graph.node(node.op, *args, size=node.size)
