"""A schedule as the text of a Numba function of one row of the batch: loops over vectors, and calls of what needs whole rows.

The text has no size in it, only names: H units, K logits of the gates that have not H, M = H // C chunks of C units.
"""

from collections.abc import Callable

from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.graph import REDUCTIONS, Node, is_number, number_text
from gatedrnn.compiler.schedule import Place, Schedule

Address = Callable[[Place], tuple[str, str]]
"""Where a place lies: a pointer, and how many elements behind it."""

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_START = {"sum": "0.0", "max": "-1e309"}
_SIZES = "H, K, C, M, row"


class Writer:
    """Writes one function, called `name`, with the loops' own functions before it."""

    def __init__(
        self,
        name: str,
        parameters: str,
        found: Schedule,
        address: Address,
        sizes: dict[int, str],
        counts: dict[int, str],
    ) -> None:
        self._name, self._parameters, self._found, self._sizes = name, parameters, found, sizes
        self._address, self._counts = address, counts
        self._names: dict[Node, str] = {}
        self._loops: list[str] = []
        self._lines: list[str] = []

    def text(self) -> str:
        """The whole."""
        for at, stage in enumerate(self._found.stages):
            for node in stage.whole:
                self._whole(node)
            for size, nodes in stage.loops.items():
                self._loop(at, size, nodes)
            for node in stage.numbers:
                self._lines.append(f"    {self.named(node)} = {self._of_numbers(node)}")
        head = [
            "@njit",
            f"def {self._name}({self._parameters}):",
            "    W = lanes(g)",
            "    M = H // C",
            "    row = max(H, K) + W",
        ]
        return "\n".join([*self._loops, *head, *self._lines, ""]) + "\n"

    def named(self, node: Node) -> str:
        """The variable that holds it."""
        return self._names.setdefault(node, f"v{len(self._names)}")

    def pointer(self, place: Place) -> str:
        """Where it begins."""
        if place[0] == "slot":
            return f"scratch + {place[1]} * row"
        base, offset = self._address(place)
        return f"{base} + ({offset})" if offset else base

    def base(self, place: Place) -> str:
        """What a pointer to a place counts from."""
        return "scratch" if place[0] == "slot" else self._address(place)[0]

    def place(self, node: Node) -> Place:
        """Where a value stands in memory."""
        while node.op == "head":
            node = node.inputs[0]
        return node.args if node.op == "load" else self._found.standing[node]  # type: ignore[return-value]

    def places(self, node: Node) -> list[Place]:
        """Where a value is to be stored."""
        places, standing = list(self._found.stores.get(node, [])), self._found.standing.get(node)
        return [*places, *([standing] if standing and standing not in places else [])]

    def _where(self, node: Node) -> str:
        return self.pointer(self.place(node))

    def expression(self, node: Node, of: Callable[[object], str]) -> str:
        """An operation of vectors and numbers; functions take vectors only."""
        args = [of(arg) for arg in node.args]
        if node.op in _INFIX:
            return f"{args[0]} {_INFIX[node.op]} {args[1]}"
        args = [f"splat(g, {x})" if is_number(arg) else x for arg, x in zip(node.args, args, strict=True)]
        if node.op in ("neg", "same"):
            return {"neg": "-", "same": ""}[node.op] + args[0]
        return f"{node.op}({', '.join(args)})"

    def _of_numbers(self, node: Node) -> str:
        """A number of the row; what is no arithmetic is done by a vector whose lanes are alike."""
        found = self.expression(node, self._number)
        return found if node.op in _INFIX else f"total(first({found}, 1, 0.0))"

    def _number(self, arg: object) -> str:
        return self.named(arg) if isinstance(arg, Node) else self.constant(arg)

    def constant(self, number: object) -> str:
        """A number of the step; a whole one that counts elements, as in a mean, by the name of that size."""
        name = self._counts.get(number) if isinstance(number, int) and number > 1 else None
        return f"float({name})" if name else number_text(number)

    def _whole(self, node: Node) -> None:
        """A call of a function of whole rows; others lie in `rowwise`."""
        if node.op == "head":
            return
        n, target = self._sizes[node.size], self._where(node)
        if node.op == "zeros":
            self._lines.append(f"    clear({target}, {n})")
            return
        source = self._where(node.inputs[0])
        if node.op == "softmax":
            if source != target:
                self._lines.append(f"    copy({source}, {target}, {n})")
            self._lines.append(f"    softmax({target}, {n})")
        elif node.op == "scan":
            name = f"scan_{'above' if node.args[1] else 'below'}{'_others' if node.args[2] else ''}"
            self._lines.append(f"    {name}({source}, {target}, {n})")
        elif node.op == "spread":
            name = "fill" if self._found.standing[node][0] == "slot" else "spread"
            self._lines.append(f"    {name}({source}, {target}, {self._sizes[node.inputs[0].size]}, C)")
        elif node.op == "chunk_sum":
            self._lines.append(f"    chunk_sums({source}, {target}, {n}, C)")
        elif node.op == "one_hot":
            self._lines.append(f"    one_hot({source}, {target}, {n})")
        elif node.op == "padded":
            self._lines.append(f"    pad({source}, {target}, {self._sizes[node.inputs[0].size]}, {n})")
        else:
            raise UnsupportedError(f"the operation {node.op} of a whole row")

    def _loop(self, at: int, size: int, nodes: list[Node]) -> None:
        """A loop over `size` elements: its body as a function of its own, and the calls of it."""
        body = _Body(self)
        for node in nodes:
            body.add(node)
        name, n, sums = f"{self._name}_{at}_{self._sizes[size]}", self._sizes[size], [*map(self.named, body.sums)]
        given = [*body.bases, _SIZES, *body.numbers, *sums]
        end = [f"    return {', '.join(sums)}"] if sums else []
        head = ["@njit(forceinline=True)", f"def {name}({', '.join(given)}, n):"]
        self._loops += [*head, *body.lines, *body.stores, *end, "", ""]

        def call(j: str, count: str) -> str:
            advanced = [f"{base} + {j}" for base in body.bases]
            left = f"{', '.join(sums)} = " if sums else ""
            return f"{left}{name}({', '.join([*advanced, _SIZES, *body.numbers, *sums])}, {count})"

        self._lines += [f"    {self.named(node)} = splat(g, {_START[node.op]})" for node in body.sums]
        self._lines += [f"    for j in range(0, {n} - W + 1, W):", f"        {call('j', 'W')}"]
        self._lines += [f"    if {n} % W:", f"        {call(f'({n} - {n} % W)', f'{n} % W')}"]
        for node in body.sums:
            function = "total" if node.op == "sum" else "peak"
            self._lines.append(f"    {self.named(node)}s = {function}({self.named(node)})")
            self._names[node] = f"{self.named(node)}s"


class _Body:
    """What a loop does with one vector: what it computes, then what it stores, after all that is read."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.bases: dict[str, None] = {"g": None}
        self.numbers: dict[str, None] = {}
        self.sums: list[Node] = []
        self.lines: list[str] = []
        self.stores: list[str] = []
        self._computed: set[Node] = set()
        self._loaded: dict[Node, str] = {}

    def add(self, node: Node) -> None:
        """Compute a node, and store it wherever it stands."""
        writer = self._writer
        if node.op in REDUCTIONS:
            self.sums.append(node)
            value, name = self._of(node.inputs[0]), writer.named(node)
            joined = f"{name} + first({value}, n, 0.0)"
            self.lines.append(
                f"    {name} = {joined if node.op == 'sum' else f'greatest({name}, first({value}, n, -1e309))'}"
            )
            return
        name = writer.named(node)
        self.lines.append(f"    {name} = {writer.expression(node, self._of)}")
        self._computed.add(node)
        for place in writer.places(node):
            added = f"load({self._memory(place)}, n) + " if place[0].startswith("+") else ""
            self.stores.append(f"    store({self._memory(place)}, {added}{name}, n)")

    def _memory(self, place: Place) -> str:
        self.bases.setdefault(self._writer.base(place))
        return self._writer.pointer(place)

    def _of(self, arg: object) -> str:
        """An operand: a number, a vector computed before, or one that is loaded once."""
        if not isinstance(arg, Node):
            return self._writer.constant(arg)
        if arg.size and arg not in self._computed:
            return self._loaded.get(arg) or self._load(arg)
        name = self._writer.named(arg)
        if not arg.size:
            self.numbers.setdefault(name)
        return name

    def _load(self, node: Node) -> str:
        name = self._loaded[node] = f"m{len(self._loaded)}"
        self.lines.append(f"    {name} = load({self._memory(self._writer.place(node))}, n)")
        return name
