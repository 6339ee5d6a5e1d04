"""A schedule as the text of a Numba function of one row of the batch: loops over vectors, and calls of what needs whole rows.

The text names no size: H units, K logits of the gates that have not H, M = H // C chunks of C units.
"""

from collections.abc import Callable

from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.graph import POINTWISE, REDUCTIONS, Node
from gatedrnn.compiler.schedule import Place, Schedule

Address = Callable[[Place], tuple[str, str]]
"""Where a place lies: a pointer, and how many elements behind it."""

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_START = {"sum": "0.0", "max": "-1e309"}
_SIZES = "H, K, C, M, row"


class Writer:
    """Writes one function, called `name`, with the loops' own functions before it."""

    def __init__(self, name: str, parameters: str, found: Schedule, address: Address, sizes: dict[int, str]) -> None:
        self._name, self._parameters, self._found, self._sizes = name, parameters, found, sizes
        self._address = address
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
                self._lines.append(f"    {self._named(node)} = {self._of_numbers(node)}")
        head = [
            "@njit",
            f"def {self._name}({self._parameters}):",
            "    W = lanes(g)",
            "    M = H // C",
            "    row = max(H, K) + W",
        ]
        return "\n".join([*self._loops, *head, *self._lines, ""]) + "\n"

    def _named(self, node: Node) -> str:
        return self._names.setdefault(node, f"v{len(self._names)}")

    def _pointer(self, place: Place) -> str:
        if place[0] == "slot":
            return f"scratch + {place[1]} * row"
        base, offset = self._address(place)
        return f"{base} + ({offset})" if offset else base

    def _where(self, node: Node) -> str:
        """The pointer to a value that stands in memory."""
        if node.op == "load":
            return self._pointer(node.args)  # type: ignore[arg-type]
        if node.op == "head":
            return self._where(node.inputs[0])
        return self._pointer(self._found.standing[node])

    def _expression(self, node: Node, of: Callable[[object], str]) -> str:
        """An operation of vectors and numbers; functions take vectors only."""
        args = [of(arg) for arg in node.args]
        if node.op in _INFIX:
            return f"{args[0]} {_INFIX[node.op]} {args[1]}"
        args = [f"splat(g, {x})" if _is_number(arg) else x for arg, x in zip(node.args, args, strict=True)]
        if node.op in ("neg", "same"):
            return {"neg": "-", "same": ""}[node.op] + args[0]
        return f"{node.op}({', '.join(args)})"

    def _of_numbers(self, node: Node) -> str:
        """A number of the row; what is no arithmetic is done by a vector whose lanes are alike."""
        found = self._expression(node, self._number)
        return found if node.op in _INFIX else f"total(first({found}, 1, 0.0))"

    def _number(self, arg: object) -> str:
        return self._named(arg) if isinstance(arg, Node) else repr(float(arg))  # type: ignore[arg-type]

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
        bases: dict[str, None] = {"g": None}
        numbers: dict[str, None] = {}
        body: list[str] = []
        loaded: dict[Node, str] = {}

        def memory(place: Place) -> str:
            bases.setdefault("scratch" if place[0] == "slot" else self._address(place)[0])
            return self._pointer(place)

        def of(arg: object) -> str:
            if not isinstance(arg, Node):
                return repr(float(arg))  # type: ignore[arg-type]
            if not arg.size:
                numbers.setdefault(self._named(arg))
                return self._named(arg)
            if arg in computed:
                return self._named(arg)
            if arg not in loaded:
                place = arg
                while place.op == "head":
                    place = place.inputs[0]
                where = memory(place.args if place.op == "load" else self._found.standing[place])  # type: ignore[arg-type]
                loaded[arg] = f"m{len(loaded)}"
                body.append(f"    {loaded[arg]} = load({where}, n)")
            return loaded[arg]

        computed: set[Node] = set()
        sums: list[Node] = []
        stores: list[str] = []
        for node in nodes:
            if node.op in REDUCTIONS:
                sums.append(node)
                value, name = of(node.inputs[0]), self._named(node)
                joined = (
                    f"{name} + first({value}, n, 0.0)"
                    if node.op == "sum"
                    else f"greatest({name}, first({value}, n, -1e309))"
                )
                body.append(f"    {name} = {joined}")
                continue
            body.append(f"    {self._named(node)} = {self._expression(node, of)}")
            computed.add(node)
            places = list(self._found.stores.get(node, []))
            standing = self._found.standing.get(node)
            for place in [*places, *([standing] if standing and standing not in places else [])]:
                added = f"load({memory(place)}, n) + " if place[0].startswith("+") else ""
                stores.append(f"    store({memory(place)}, {added}{self._named(node)}, n)")  # after all that is read
        name, n = f"{self._name}_{at}_{self._sizes[size]}", self._sizes[size]
        given = [*bases, _SIZES, *numbers, *map(self._named, sums)]
        end = [f"    return {', '.join(map(self._named, sums))}"] if sums else []
        self._loops += ["@njit(forceinline=True)", f"def {name}({', '.join(given)}, n):", *body, *stores, *end, "", ""]

        def call(j: str, count: str) -> str:
            advanced = [f"{base} + {j}" for base in bases]
            left = f"{', '.join(map(self._named, sums))} = " if sums else ""
            return f"{left}{name}({', '.join([*advanced, _SIZES, *numbers, *map(self._named, sums)])}, {count})"

        for node in sums:
            self._lines.append(f"    {self._named(node)} = splat(g, {_START[node.op]})")
        self._lines += [f"    for j in range(0, {n} - W + 1, W):", f"        {call('j', 'W')}"]
        self._lines += [f"    if {n} % W:", f"        {call(f'({n} - {n} % W)', f'{n} % W')}"]
        for node in sums:
            function = "total" if node.op == "sum" else "peak"
            self._lines.append(f"    {self._named(node)}s = {function}({self._named(node)})")
            self._names[node] = f"{self._named(node)}s"


def _is_number(arg: object) -> bool:
    return not isinstance(arg, Node) or not arg.size


__all__ = ["POINTWISE", "Writer"]
