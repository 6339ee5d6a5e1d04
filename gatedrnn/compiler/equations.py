"""A cell's step and its derivative as values and the memories they come from and go to; no layout of columns, no text.

Dimensions: H hidden, K logits of the gates that have not H, C units of a chunk.
"""

from typing import Any

from gatedrnn.cells.spec import Spec, Step
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.graph import Graph, Matrix, Node, Wide, leaves_of
from gatedrnn.compiler.outside import fingerprint
from gatedrnn.compiler.products import Product, Products
from gatedrnn.compiler.reader import Reader, read
from gatedrnn.compiler.schedule import Place, ordered
from gatedrnn.core.forks import awaited_lock

Targets = list[tuple[Node, Place]]
"""Values, and the memory each is stored in."""
_OF_A_SUM = {"x", "a", "late", "full"}
"""What stands in a gate's column of W x."""

_LOCK = awaited_lock()


class _Sizes(dict[int, str]):
    """Names of the sizes that kernels know."""

    def __missing__(self, size: int) -> str:
        raise UnsupportedError(f"a value of {size} elements, which no gate has")


class Equations:
    """What a step computes, forward and backward, from what stands in which memory to what is stored in which.

    Args:
        forward: values and their places, at each level after its products (`products`).
        backward: gradients and theirs, at each level before its products' own.
        apart: the gates whose W x and U h' stand in columns of their own: "" for none, the "last" one's, or "all".
        joined: gates whose sum has a product with a matrix of the cell's own in it, and the part of that.
        products: those inside the step.
        saved: whether logits are read by the derivative, so that gate values stand elsewhere.
        carries: whether h' also reaches h past the products.
        logits, chunk: K, the logits of the gates that have not H, and C; H and 1 where there are none.
        sizes: names of the sizes, H, K and M = H / C.
    """

    forward: list[Targets]
    backward: list[Targets]

    def __init__(self, step: Step, spec: Spec) -> None:
        fingerprint(step)  # refuses what may change
        if not spec.recurrent_rows:
            raise UnsupportedError("no gate with U h' before it")
        from gatedrnn.compiler.tracing import trace  # whose imports take seconds

        with _LOCK:  # PyTorch's tracing is not for two threads at once
            self.spec, self.traced = spec, trace(step, spec)
        self.H, self.apart = spec.hidden_size, ""
        self.sizes = self._named_sizes()
        self.own = [spec.gate(name) for extra in spec.extras if extra.full for name in extra.gates]
        self.joined: dict[int, int] = {}
        self.carries, self.saved = False, False
        self._cuts: dict[tuple[int, int, int], list[int]] = {}
        self.forward = self._forward()
        self.backward = self._backward()

    def level(self, product: Product) -> int:
        """When it is done."""
        return self.products.level(product, self.joined)

    def column(self, part: Place) -> Place:
        """Where a product's results for a gate, ("h", gate) and as in `Product.parts`, stand, or the sum they are added to."""
        kind, k = part
        if kind == "own":
            return next((("x", gate) for gate, joined in self.joined.items() if joined == k), part)
        return part if self.stands_apart(k) else ("x", k)

    def stands_apart(self, gate: int) -> bool:
        """Whether a gate's W x and U h' stand in columns of their own."""
        return self.apart == "all" or (self.apart == "last" and gate == len(self.spec.gates) - 1)

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
        at = {"own": 0, "extra": 0}
        for extra, node in zip(spec.extras, t.extra, strict=True):
            kind = "own" if extra.full else "extra"
            loads = [load(kind, at[kind] + k, spec.gate(name).rows) for k, name in enumerate(extra.gates)]
            at[kind] += len(loads)
            known[node] = Matrix(tuple(loads), self.H) if extra.full else Wide(loads) if len(loads) > 1 else loads[0]
        U = Matrix(tuple([load("product", k, n) for k, n in enumerate(rows)]), self.H)
        return known | {t.U: U, t.bias: Wide([load("bias", k, n) for k, n in enumerate(rows)])}

    def _forward(self) -> list[Targets]:
        of_gate = {gate.name: k for k, gate in enumerate(self.spec.gates)}
        owners = {of_gate[gate.name]: part for part, gate in reversed(list(enumerate(self.own)))}
        values, leaves = self._read_forward(Graph(owners={part: k for k, part in owners.items()}))
        self.apart = self._apart(leaves)
        split = {k for k in owners if len({place for place in _places(k, owners[k]) if place in leaves}) > 1}
        if self.apart == "all":
            owners, (values, leaves) = {}, self._read_forward(Graph(merged=False))
        elif split:  # a gate whose sum is also read without the product
            owners = {k: part for k, part in owners.items() if k not in split}
            values, leaves = self._read_forward(Graph(owners={part: k for k, part in owners.items()}))
        self.joined = {k: part for k, part in owners.items() if ("full", k) in leaves}
        if any(kind == "bias" for kind, _ in leaves):
            raise UnsupportedError("b_hh by itself")
        self._check_products()
        t = self.traced
        kept, new = values[: len(t.kept)], values[len(t.kept) :]
        targets: Targets = [(self._stored(node, self.H), ("new", k)) for k, node in enumerate(new)]
        targets += [(self._stored(node, self.spec.gates[k].rows), ("kept", k)) for k, node in enumerate(kept)]
        targets += [(self._stored(product.left, self.H), ("left", k)) for k, product in enumerate(self.products.lefts)]
        if any(node.op == "flip" for node in ordered([node for node, _ in targets])):
            where = f" ({t.lines['flip']})" if "flip" in t.lines else ""
            raise UnsupportedError(f"the operation flip{where} other than around a cumulative sum")
        return self._in_levels(targets)

    def _in_levels(self, targets: Targets) -> list[Targets]:
        """Each value where all is there that it is computed from; what was stored before is read again."""
        levels: list[Targets] = [[] for _ in range(1 + max(map(self.level, self.products.all), default=0))]
        for node, place in targets:
            levels[-1 if place[0] == "new" else self._ready(node)].append((node, place))
        known: dict[Node, Node] = {}
        stored = {place: k for k, level in enumerate(levels) for _, place in level}
        for k, level in enumerate(levels):
            before = known.copy()
            for node, place in level:
                known.setdefault(node, self.graph.load(*place, node.size))
            level[:] = [(self._stored(_replaced(node, before, self.graph), node.size), place) for node, place in level]
            read = leaves_of([node for node, _ in level])
            self.saved |= any(kind in _OF_A_SUM and stored["kept", gate] < k for kind, gate in read)
        for part, product in self.products.of_part.items():
            kind, gate = self.column(part)
            self.saved |= kind == "x" and stored["kept", gate] < self.level(product)
        return levels

    def _ready(self, node: Node) -> int:
        return max(map(self.level, self.products.reads([node], self.joined)), default=0)

    def _check_products(self) -> None:
        """Refuse rows of a matrix, U's or the cell's own, that no product has."""
        late = {("product", k) for k in range(len(self.traced.h), len(self.spec.gates))}
        if late - self.products.of_part.keys():
            raise UnsupportedError("no product inside it, though its Spec leaves U h' of the last gates to it")
        if len(late) + len(self.own) > len(self.products.of_part):
            raise UnsupportedError("rows of a matrix of the cell's own that no product has")

    def _read_forward(self, graph: Graph) -> tuple[list[Any], set[Place]]:
        """What squashes keep, and the new states; then all memories that these, and what is multiplied, are computed from."""
        t, self.graph, self.products = self.traced, graph, Products(len(self.traced.h), self.traced.old)
        values = read(t.nodes, self._reader(self._inputs()), [*t.kept, *t.new])
        return values, leaves_of([*values, *(product.left for product in self.products.all)])

    def _reader(self, known: dict[Any, Any], backward: bool = False) -> Reader:
        return Reader(self.graph, known, self.products, self.traced.lines, self.chunk, self._cuts, backward)

    def _apart(self, leaves: set[Place]) -> str:
        raw = {k for kind, k in leaves if kind in ("x", "h", "product")}
        if not raw:
            return ""
        last = len(self.spec.gates) - 1
        alone = {("x", last), ("h", last)} <= leaves and ("a", last) not in leaves
        return "last" if raw == {last} and alone and len(self.traced.h) > last else "all"

    def _backward(self) -> list[Targets]:
        t, spec, load, H = self.traced, self.spec, self.graph.load, self.H
        known = self._inputs()
        known |= {node: load("new", k, H) for k, node in enumerate(t.new) if k}
        known |= {node: load("kept", k, spec.gates[k].rows) for k, node in enumerate(t.kept)}
        states = [self.graph.apply("add", load("d_state", 0, H), load("grad_h", 0, H))]
        states += [load("d_state", k, H) for k in range(1, len(spec.states))]
        known |= dict(zip(t.d_state, states, strict=True))
        known |= {node: load("grad_g", k, spec.gates[k].rows) for k, node in enumerate(t.d_kept)}
        reader = self._reader(known, backward=True)
        counts, vectors = [len(t.d_x), len(t.d_h), len(t.d_old)], [extra for extra in spec.extras if not extra.full]
        d_vectors = [node for extra, node in zip(spec.extras, t.d_extra, strict=True) if not extra.full]
        values = read(t.nodes, reader, [*t.d_x, *t.d_h, *t.d_old, *d_vectors])
        of_products = [product.gradient for product in self.products.all]
        self._check_backward(leaves_of([v for v in [*values, *of_products] if v is not None]))
        d_x, d_h, d_old = (values[sum(counts[:k]) : sum(counts[: k + 1])] for k in range(3))
        self.carries = isinstance(d_old[0], Node)  # else nothing, or 0 beside a product
        targets: Targets = [(self._stored(node, spec.gates[k].rows), ("d_x", k)) for k, node in enumerate(d_x)]
        targets += self._d_products(d_x, d_h)
        targets += [(self._stored(node, H), ("d_old", k)) for k, node in enumerate(d_old) if k or self.carries]
        at = 0
        for extra, node in zip(vectors, values[sum(counts) :], strict=True):
            for k, part in enumerate(_parts(node, len(extra.gates)) if node is not None else []):
                targets.append((self._stored(part, spec.gate(extra.gates[k]).rows), ("+d_extra", at + k)))
            at += len(extra.gates)
        return self._in_levels_back(targets)

    def _check_backward(self, leaves: set[Place]) -> None:
        kinds = {kind for kind, _ in leaves}
        if "bias" in kinds:
            raise UnsupportedError("b_hh by itself")
        if any(place in leaves for k, part in self.joined.items() for place in _places(k, part) if place[0] != "full"):
            raise UnsupportedError(
                "a derivative that reads a gate's sum without a product of a matrix of the cell's own"
            )
        self.saved |= bool(kinds & _OF_A_SUM)

    def _in_levels_back(self, targets: Targets) -> list[Targets]:
        """Each gradient as early as it can be; those of states last, where nothing reads any more what stood there."""
        levels: list[Targets] = [[] for _ in self.forward]
        of_left = [self.level(product) for product in self.products.lefts]
        for node, place in targets:
            after = min((of_left[k] for kind, k in leaves_of([node]) if kind == "d_left"), default=len(levels))
            levels[0 if place[0] == "d_old" else after - 1].append((node, place))
        return levels

    def _d_products(self, d_x: list[Any], d_h: list[Any]) -> Targets:
        """Gradients of U h' and of the products inside the step, where they are not those of W x."""
        own: dict[Place, Any] = {("h", k): node for k, node in enumerate(d_h)}
        for product in self.products.all:
            if product.gradient is None:
                raise UnsupportedError("a product inside the step that has no gradient, or whose left factor has none")
            given = _parts(product.gradient, len(product.parts))
            own |= zip([part.args for part in product.parts], given, strict=True)
        targets: Targets = []
        for place, node in own.items():
            kind, k = self.column(place)
            if kind == "own":
                targets.append((self._stored(node, self.own[k].rows), ("d_own", k)))
            elif kind != "x":
                targets.append((self._stored(node, self.spec.gates[k].rows), ("d_h", k)))
            elif node is not d_x[k]:
                raise UnsupportedError("a gate whose W x and U h' are added, with gradients that differ")
        return targets

    def _stored(self, value: Any, size: int) -> Node:
        """What can be stored: a value computed for every element."""
        if value is None:
            return self.graph.node("zeros", size=size)
        if isinstance(value, Wide):
            raise UnsupportedError("values of several gates where one row belongs")
        if isinstance(value, Node) and value.size not in (0, size):
            raise UnsupportedError(f"a row of {value.size} elements where one of {size} belongs")
        if not isinstance(value, Node) or value.op in ("load", "head") or not value.size:  # it stands elsewhere
            return self.graph.node("same", value, size=size)
        return value


def _parts(value: Any, count: int) -> list[Any]:
    """A value of so many gates, a number of the row for each of them."""
    return value.parts if isinstance(value, Wide) else [value] * count


def _places(gate: int, part: int) -> list[Place]:
    """All that a gate's sum may be read as, where the product of that part of the cell's own matrices belongs to it."""
    return [*((kind, gate) for kind in ("x", "h", "a", "product", "late", "full")), ("own", part)]


def _replaced(node: Node, known: dict[Node, Node], graph: Graph) -> Node:
    """`node` computed from what `known` has instead of it."""
    if node in known:
        return known[node]
    if node.op == "load":
        return node
    args = [_replaced(arg, known, graph) if isinstance(arg, Node) else arg for arg in node.args]
    return graph.node(node.op, *args, size=node.size)
