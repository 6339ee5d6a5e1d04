"""A cell's step and its derivative as values and the memories they come from and go to; no layout of columns, no text.

Dimensions: H hidden, K logits of the gates that have not H, C units of a chunk.
"""

import threading
from typing import Any

from gatedrnn.cells.spec import Spec, Step
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.graph import Graph, Matrix, Node, Wide, leaves_of
from gatedrnn.compiler.outside import fingerprint
from gatedrnn.compiler.reader import Reader, read
from gatedrnn.compiler.schedule import Place

Targets = list[tuple[Node, Place]]
"""Values, and the memory each is stored in."""
Halves = tuple[Targets, Targets | None]

_LOCK = threading.RLock()


class _Sizes(dict[int, str]):
    """Names of the sizes that kernels know."""

    def __missing__(self, size: int) -> str:
        raise UnsupportedError(f"a value of {size} elements, which no gate has")


class Equations:
    """What a step computes, forward and backward, from what stands in which memory to what is stored in which.

    Args of `forward` and `backward`: values and their places, before and after the product inside the step; None without one.
        apart: the gates whose W x and U h' stand in columns of their own: "" for none, the "last" one's, or "all".
        saved: whether logits are read by the derivative, so that gate values stand elsewhere.
        left: the left factor of the product inside the step, or None.
        carries: whether h' also reaches h past the products.
        logits, chunk: K, the logits of the gates that have not H, and C; H and 1 where there are none.
        sizes: names of the sizes, H, K and M = H / C.
    """

    forward: Halves
    backward: Halves

    def __init__(self, step: Step, spec: Spec) -> None:
        fingerprint(step)  # refuses what may change
        if any(extra.full for extra in spec.extras):
            raise UnsupportedError("a matrix of the cell's own")
        if not spec.recurrent_rows:
            raise UnsupportedError("no gate with U h' before it")
        from gatedrnn.compiler.tracing import trace  # whose imports take seconds

        with _LOCK:  # PyTorch's tracing is not for two threads at once
            self.spec, self.traced = spec, trace(step, spec)
        self.H, self.graph, self.apart = spec.hidden_size, Graph(), ""
        self.sizes = self._named_sizes()
        self.carries, self.saved, self.left = False, False, None
        self.forward = self._forward()
        self.backward = self._backward()

    @property
    def inside(self) -> int | None:
        """First row of U that is multiplied inside the step; None for none."""
        return None if self.left is None else self.spec.recurrent_rows

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
        return _Sizes({units: "M", self.logits: "K", H: "H"})

    def _inputs(self) -> dict[Any, Any]:
        """What stands for the inputs."""
        t, spec, load = self.traced, self.spec, self.graph.load
        rows = [gate.rows for gate in spec.gates]
        known: dict[Any, Any] = {node: load("x", k, rows[k]) for k, node in enumerate(t.x)}
        known |= {node: load("h", k, rows[k]) for k, node in enumerate(t.h)}
        known |= {node: load("old", k, self.H) for k, node in enumerate(t.old)}
        parts = [[spec.gate(name).rows for name in extra.gates] for extra in spec.extras]
        for j, node in enumerate(t.extra):
            first = sum(map(len, parts[:j]))
            loads = [load("extra", first + k, n) for k, n in enumerate(parts[j])]
            known[node] = Wide(loads) if len(loads) > 1 else loads[0]
        return known | {t.U: Matrix(0), t.bias: Wide([load("bias", k, n) for k, n in enumerate(rows)])}

    def _late(self) -> dict[int, int]:
        """Rows of the gates that the product inside the step belongs to, by place."""
        return {k: gate.rows for k, gate in enumerate(self.spec.gates) if k >= len(self.traced.h)}

    def _forward(self) -> Halves:
        reader, values = self._read_forward()
        self.apart = self._apart(values)
        if self.apart == "all":
            self.graph = Graph(merged=False)
            reader, values = self._read_forward()
        if any(kind == "bias" for kind, _ in leaves_of(values)):
            raise UnsupportedError("b_hh by itself")
        t = self.traced
        kept, new = values[: len(t.kept)], values[len(t.kept) :]
        rows = [gate.rows for gate in self.spec.gates]
        targets: Targets = [(self._stored(node, self.H), ("new", k)) for k, node in enumerate(new)]
        targets += [(self._stored(node, rows[k]), ("kept", k)) for k, node in enumerate(kept)]
        if not reader.products:
            if self._late():
                raise UnsupportedError("no product inside it, though its Spec leaves U h' of the last gates to it")
            return targets, None
        if len(set(reader.products)) != 1 or reader.products[0][1] != self.spec.recurrent_rows:
            raise UnsupportedError("more than one product inside the step, or one with other rows than the last gates'")
        left = reader.products[0][0]
        if isinstance(left, Wide):
            raise UnsupportedError("a product inside the step of values of several gates")
        self.left = self._stored(left, self.H)
        if _depends(self.left, *_LATE):
            raise UnsupportedError("a product inside the step of what comes after it")
        first = [(node, place) for node, place in targets if place[0] == "kept" and not _depends(node, *_LATE)]
        known = {node: self.graph.load("kept", place[1], node.size) for node, place in first}
        rest = [(node, place) for node, place in targets if (node, place) not in first]
        second = [(self._stored(_replaced(node, known, self.graph), node.size), place) for node, place in rest]
        done = {place[1] for _, place in first}
        self.saved = any(kind in ("a", "x") and k in done for kind, k in leaves_of([node for node, _ in second]))
        return [*first, (self.left, ("left", 0))], second

    def _read_forward(self) -> tuple[Reader, list[Any]]:
        t, reader = self.traced, Reader(self.graph, self._inputs(), self._late(), self.traced.lines, self.chunk)
        return reader, read(t, reader, [*t.kept, *t.new])

    def _apart(self, values: list[Node]) -> str:
        leaves = leaves_of(values)
        raw = {k for kind, k in leaves if kind in ("x", "h", "product")}
        if not raw:
            return ""
        last = len(self.spec.gates) - 1
        alone = {("x", last), ("h", last)} <= leaves and ("a", last) not in leaves
        return "last" if raw == {last} and alone and not self._late() else "all"

    def _backward(self) -> Halves:
        t, spec, load, H = self.traced, self.spec, self.graph.load, self.H
        known = self._inputs()
        known |= {node: load("new", k, H) for k, node in enumerate(t.new) if k}
        known |= {node: load("kept", k, spec.gates[k].rows) for k, node in enumerate(t.kept)}
        states = [self.graph.apply("add", load("d_state", 0, H), load("grad_h", 0, H))]
        states += [load("d_state", k, H) for k in range(1, len(spec.states))]
        known |= dict(zip(t.d_state, states, strict=True))
        known |= {node: load("grad_g", k, spec.gates[k].rows) for k, node in enumerate(t.d_kept)}
        reader = Reader(self.graph, known, self._late(), t.lines, self.chunk, backward=True)
        counts = [len(t.d_x), len(t.d_h), len(t.d_old), len(t.d_extra)]
        values = read(t, reader, [*t.d_x, *t.d_h, *t.d_old, *t.d_extra])
        kinds = {kind for kind, _ in leaves_of([v for v in values if v is not None])}
        if "bias" in kinds:
            raise UnsupportedError("b_hh by itself")
        self.saved |= bool(kinds & {"a", "x", "late"})
        d_x, d_h, d_old, d_extra = (values[sum(counts[:k]) : sum(counts[: k + 1])] for k in range(4))
        self.carries = d_old[0] is not None
        targets: Targets = [(self._stored(node, spec.gates[k].rows), ("d_x", k)) for k, node in enumerate(d_x)]
        targets += self._d_h(d_x, d_h, reader)
        targets += [(self._stored(node, H), ("d_old", k)) for k, node in enumerate(d_old) if k or self.carries]
        at = 0
        for extra, node in zip(spec.extras, d_extra, strict=True):
            for k, part in enumerate(_parts(node) if node is not None else []):
                targets.append((self._stored(part, spec.gate(extra.gates[k]).rows), ("+d_extra", at + k)))
            at += len(extra.gates)
        if self.left is None:
            return targets, None
        first = [(node, place) for node, place in targets if not _depends(node, "d_left")]
        second = [(node, place) for node, place in targets if _depends(node, "d_left")]
        if any(place[0] == "d_old" for _, place in first):  # which the second half may still read
            second += [pair for pair in first if pair[1][0] == "d_old"]
            first = [pair for pair in first if pair[1][0] != "d_old"]
        return first, second

    def _d_h(self, d_x: list[Any], d_h: list[Any], reader: Reader) -> Targets:
        """Gradients of U h', where they are not those of W x."""
        late = list(self._late())
        turned = [part for value in reader.turned for part in _parts(value)]
        if len(turned) != len(late) * bool(self.left):
            raise UnsupportedError("a product inside the step with more than one gradient")
        own = dict(enumerate(d_h)) | dict(zip(late, turned, strict=False))
        if self.apart == "all":
            return [(self._stored(node, self.spec.gates[k].rows), ("d_h", k)) for k, node in own.items()]
        last = len(d_x) - 1
        if self.apart == "last":
            node = own.pop(last)
            targets = [(self._stored(node, self.H), ("d_h", last))]
        else:
            targets = []
        if any(node is not d_x[k] for k, node in own.items()):
            raise UnsupportedError("a gate whose W x and U h' are added, with gradients that differ")
        return targets

    def _stored(self, value: Any, size: int) -> Node:
        """What can be stored: a value computed for every element."""
        if value is None:
            return self.graph.node("zeros", size=size)
        if isinstance(value, Wide):
            raise UnsupportedError("values of several gates where one row belongs")
        if not isinstance(value, Node) or value.op == "load" or not value.size:
            return self.graph.node("same", value, size=size)
        return value


_LATE = ("late", "product")


def _parts(value: Any) -> list[Node]:
    return value.parts if isinstance(value, Wide) else [value]


def _depends(node: Node, *kinds: str) -> bool:
    return any(leaf in kinds for leaf, _ in leaves_of([node]))


def _replaced(node: Node, known: dict[Node, Node], graph: Graph) -> Node:
    """`node` computed from what `known` has instead of it."""
    if node in known:
        return known[node]
    if node.op == "load":
        return node
    args = [_replaced(arg, known, graph) if isinstance(arg, Node) else arg for arg in node.args]
    return graph.node(node.op, *args, size=node.size)
