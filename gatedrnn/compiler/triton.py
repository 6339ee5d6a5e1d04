"""A cell's kernels for a GPU as text: a program has a row of the batch, or a block of its units where no value needs more.

Values live in registers; what `backends.triton.loops` says of its arrays holds here. Units of a row are a tile of chunks × units
of a chunk, or a vector where a chunk is one unit; chunks and logits of them are vectors.
Dimensions: B batch, H hidden, R rows of W, K logits of the gates that have not H, C units of a chunk, M = H / C.
"""

from collections import Counter
from dataclasses import dataclass

from gatedrnn.compiler.equations import Equations, Targets
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.graph import Node, leaves_of, number_text
from gatedrnn.compiler.schedule import Place, ordered

_UNARY = {"sigmoid": "sigmoid({})", "tanh": "tanh({})", "relu": "tl.where({0} <= 0.0, 0.0, {0})", "exp": "tl.exp({})",
          "neg": "-{}", "expm1": "expm1({})", "ln": "tl.log({})", "log1p": "log1p({})", "sqrt": "tl.sqrt({})",
          "absolute": "tl.abs({})", "sign": "tl.where({0} > 0.0, 1.0, tl.where({0} < 0.0, -1.0, 0.0))",
          "not_number": "tl.where({0} != {0}, 1.0, 0.0)", "sigmoid_slope": "slope({})", "tanh_slope": "(1.0 - {0} * {0})",
          "same": "{}"}  # fmt: skip
_BINARY = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "greater": "tl.where({} > {}, 1.0, 0.0)",
           "at_least": "tl.where({} >= {}, 1.0, 0.0)", "equal": "tl.where({} == {}, 1.0, 0.0)",
           "greatest": "tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})",
           "least": "tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})"}  # fmt: skip
_WHOLE = {"softmax", "scan", "one_hot", "chunk_sum", "spread", "head", "padded", "sum", "max"}
ARRAYS = {
    "forward": ("x", "u", "bias", "extra", "h_all", "s_all", "gates", "work", "lengths"),
    "backward": (
        "extra", "s_all", "h_all", "gates", "grad_h", "grad_s", "grad_gates", "dh_u", "d_left", "dh", "dc", "dx", "du", "d_extra",
        "lengths",
    ),
}  # fmt: skip
"""What the kernels are called with, in order; then `_NUMBERS`."""
_NUMBERS = ("t", "old", "new", "B", "H", "P")
_FLAGS = {"forward": ("KEEP", "RAGGED"), "backward": ("RAGGED", "GRAD_S", "GRAD_GATES")}


@dataclass(frozen=True)
class Gpu:
    """The kernels of a cell, and what their arrays hold.

    Args:
        forward, backward: text of what is done with a row before and after the product inside the step; "" for nothing.
        whole: whether a program has a whole row.
        columns: G, of the gates' array: values [R], then what else the derivative reads.
        left: the column there of the left factor of the product inside the step, or −1.
        apart: the first row whose W x and U h' stand apart, R for none.
        wide: whether gates are kept in float32 at least: those of a cell with master gates, which are sums of many, or with hard
            gates, which bfloat16 would round to ½, where 0 and 1 meet.
    """

    forward: tuple[str, str]
    backward: tuple[str, str]
    whole: bool
    columns: int
    left: int
    apart: int
    wide: bool


def gpu(found: Equations) -> Gpu:
    """The kernels of a cell. Raises: UnsupportedError: it has what a program of a GPU cannot hold."""
    lefts, halves = found.products.lefts, [*found.forward, *found.backward]
    if found.own or len(lefts) > 1:
        raise UnsupportedError("a product with a matrix of the cell's own, or more than one inside it")
    whole = any(node.op in _WHOLE for half in halves for node in ordered([value for value, _ in half]))
    spec, rows = found.spec, [gate.rows for gate in found.spec.gates]
    read = leaves_of([value for half in found.backward for value, _ in half])
    # when the next product stands where h U' stood
    second = leaves_of([value for half in found.forward[1:] for value, _ in half])
    again = {place for place in second if place[0] in ("a", "h")}
    logits = sorted(again | {place for place in read if place[0] in ("a", "x", "h", "late", "product")})
    saved: dict[Place, list[int]] = {}
    columns = list(rows)
    for place in logits:
        saved[place] = list(columns)
        columns.append(rows[place[1]])
    left = sum(columns) if lefts else -1
    if lefts:
        saved["left", 0] = list(columns)
        columns.append(found.H)
    text = _Text(found, whole, saved, columns)
    texts = [
        (text.kernel(kind, "", first), text.kernel(kind, "_second", *second) if second else "")
        for kind, (first, *second) in (("forward", found.forward), ("backward", found.backward[::-1]))
    ]
    apart = {"": spec.rows, "last": spec.rows - rows[-1], "all": 0}[found.apart]
    wide = any(gate.hard or gate.squash in ("cumax", "tail_cumax") for gate in spec.gates)
    return Gpu(texts[0], texts[1], whole, sum(columns), left, apart, wide)


class _Text:
    """Writes the kernels of one cell."""

    def __init__(self, found: Equations, whole: bool, saved: dict[Place, list[int]], columns: list[int]) -> None:
        self._found, self._whole, self._saved = found, whole, saved
        self._rows = [gate.rows for gate in found.spec.gates]
        self._states, self._columns = len(found.spec.states), columns
        self._lines: list[str] = []
        self._names: dict[Node, str] = {}
        self._backward = self._second = False

    def kernel(self, kind: str, end: str, targets: Targets) -> str:
        """One kernel's text."""
        self._lines, self._names, self._backward, self._second = [], {}, kind == "backward", bool(end)
        flags = [*_FLAGS[kind], *(("K", "C", "BLOCK", "BLOCK_C") if self._whole else ("BLOCK",))]
        constants = ", ".join(f"{flag}: tl.constexpr" for flag in flags)
        given = ", ".join((*ARRAYS[kind], *_NUMBERS))
        head = ["@triton.jit(do_not_specialize=CHANGING)", f"def {kind}{end}({given}, {constants}):"]
        self._places()
        for node in ordered([value for value, _ in targets]):
            self._say(self._name(node), self._value(node))
        (self._store_forward if kind == "forward" else self._store_backward)(targets)
        return "\n".join([*head, *self._lines, ""])

    def _places(self) -> None:
        say = self._lines.append
        say("    b = tl.cast(tl.program_id(0), tl.int64)")
        if not self._whole:
            say("    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)")
            say("    m_H = j < H")
        else:
            say("    k = tl.arange(0, BLOCK)")
            say("    m_M = k < H // C")
            say("    m_K = k < K")
            if self._found.chunk > 1:
                say("    unit = tl.arange(0, BLOCK_C)")
                say("    j = k[:, None] * C + unit[None, :]")
                say("    m_H = (j < H) & (unit[None, :] < C)")
            else:
                say("    j = k")
                say("    m_H = j < H")
        say("    if RAGGED:")
        say("        alive = t < tl.load(lengths + b)")

    # Values.

    def _name(self, node: Node) -> str:
        return self._names.setdefault(node, f"v{len(self._names)}")

    def _say(self, name: str, value: str, mark: str = "    ") -> None:
        self._lines.append(f"{mark}{name} = {value}")

    def _of(self, arg: object) -> str:
        if not isinstance(arg, Node):
            return number_text(arg)
        if arg.op == "load" and arg not in self._names:
            self._load(arg)
        return self._name(arg)

    def _value(self, node: Node) -> str:
        args = [self._of(arg) for arg in node.args if isinstance(arg, Node | int | float) and not isinstance(arg, bool)]
        if node.op == "zeros" or (node.op == "same" and not any(arg.size for arg in node.inputs)):
            return _full(self._shape(node), args[0] if args else "0.0")
        if node.op in _BINARY and not node.inputs:  # else Triton would take what follows from constants as float32
            return _full("[]", _BINARY[node.op].format(*args))
        if node.op in _UNARY:
            return _UNARY[node.op].format(*args)
        if node.op in _BINARY:
            if node.op in ("greatest", "least") and not isinstance(node.args[0], Node):
                args.reverse()
            return _BINARY[node.op].format(*args)
        if node.op == "choose_nonzero":
            first = args[1] if any(isinstance(arg, Node) for arg in node.args[1:]) else f"{args[0]} * 0.0 + {args[1]}"
            return f"tl.where({args[0]} != 0.0, {first}, {args[2]})"
        return self._row_value(node, args[0])

    def _row_value(self, node: Node, value: str) -> str:
        """What needs more of the row than one element."""
        given = node.inputs[0]
        mask, tile = f"m_{self._size(given)}", self._size(given) == "H" and self._found.chunk > 1
        if node.op in ("sum", "max"):
            whole = "tl.{0}(tl.{0}({1}, 1), 0)".format if tile else "tl.{0}({1}, 0)".format
            if node.op == "sum":
                return whole("sum", f"tl.where({mask}, {value}, 0.0)")
            bad = f"tl.where({mask} & ({value} != {value}), {value}, 0.0)"
            greatest = whole("max", f'tl.where({mask}, {value}, -float("inf"))')
            return f"{greatest} + {whole('sum', bad)}"
        if node.op == "spread":
            return f"tl.broadcast_to({value}[:, None], [BLOCK, BLOCK_C])"
        if node.op == "chunk_sum":
            return f"tl.sum(tl.where(m_H, {value}, 0.0), 1)"
        if tile:
            raise UnsupportedError(f"the operation {node.op} over units that have chunks")
        if node.op == "softmax":
            return f"softmax({value}, {mask})"
        if node.op == "scan":
            return f"scan{'_others' if node.args[2] else ''}(tl.where({mask}, {value}, 0.0), {bool(node.args[1])})"
        if node.op == "one_hot":
            return f"one_hot({value}, {mask}, k)"
        return value if node.op == "head" else f"tl.where({mask}, {value}, 0.0)"

    def _shape(self, node: Node) -> str:
        """That of a value in registers."""
        return "[BLOCK, BLOCK_C]" if self._size(node) == "H" and self._found.chunk > 1 else "[BLOCK]"

    def _size(self, node: Node) -> str:
        return self._found.sizes[node.size]

    def _load(self, node: Node) -> None:
        """A value from memory, in the precision of states."""
        name, (kind, k) = self._name(node), node.args
        if kind == "d_state" and k == 0:
            past = "    " if self._found.carries else "        "
            self._say(name, self._read("dh_u + b * P", "", node))
            if not self._found.carries:
                self._lines.append("    if RAGGED:")
            self._say(name, f"{name} + {self._read('dh + b * H', '', node)}", past)
            if self._states == 1:
                self._lines.append("    if GRAD_S:")
                self._say(name, f"{name} + {self._read(*self._address(('grad_s', 0)), node)}", "        ")
        elif kind == "d_state":
            self._say(name, self._read(*self._address(("dc", k)), node))
            self._lines.append("    if GRAD_S:")
            self._say(name, f"{name} + {self._read(*self._address(('grad_s', k)), node)}", "        ")
        elif kind == "grad_g":
            self._say(name, f"tl.zeros_like({self._of(self._found.graph.load('kept', k, node.size))})")
            self._lines.append("    if GRAD_GATES:")
            self._say(name, self._read(*self._address(("grad_gates", k)), node), "        ")
        elif kind in ("a", "late", "h", "product") and node.args not in self._saved_here():
            parts = {"a": ("x", "h"), "late": ("x", "product")}.get(kind, (kind,))
            found = [self._read(*self._address((part, k)), node) for part in parts]
            if self._found.stands_apart(k) and kind in ("h", "product"):
                found.append(self._read("bias", self._sum(self._rows[:k]), node))
            self._say(name, " + ".join(found))
        else:
            self._say(name, self._read(*self._address(node.args), node))

    def _saved_here(self) -> dict[Place, list[int]]:
        """What this kernel reads from where an earlier one kept it."""
        if self._backward:
            return self._saved
        return {place: at for place, at in self._saved.items() if self._second and place[0] in ("a", "h", "left")}

    def _read(self, base: str, offset: str, node: Node) -> str:
        size = self._size(node)
        return f"read({_element(base, offset, size)}, m_{size}, s_all)"

    # Memory.

    def _address(self, place: Place) -> tuple[str, str]:
        """A row's pointer, and how many elements behind it."""
        kind, k = place
        R, G, own = self._sum(self._rows), self._sum(self._columns), self._sum(self._rows[: len(self._found.traced.h)])
        beside = self._sum([self._found.H] * max(1, self._states - 1))
        slot = "t" if self._backward else "t * KEEP"
        if place in self._saved_here():
            return f"gates + place({slot}, b, B, {G})", self._sum(self._saved[place])
        if kind in ("kept", "grad_gates"):
            return f"{'gates' if kind == 'kept' else kind} + place({slot}, b, B, {G})", self._sum(self._rows[:k])
        if kind in ("x", "d_x", "d_h"):
            base = {"x": "x", "d_x": "dx", "d_h": "du"}[kind]
            return f"{base} + place(t, b, B, {R})", self._sum(self._rows[:k])
        if kind == "h":
            return f"u + b * ({own})", self._sum(self._rows[:k])
        if kind == "product":
            first = len(self._found.traced.h)
            return f"u + b * ({self._sum(self._rows[first:])})", self._sum(self._rows[first:k])
        if kind in ("extra", "+d_extra"):
            owned = [self._found.spec.gate(name).rows for extra in self._found.spec.extras for name in extra.gates]
            return ("extra" if kind == "extra" else f"d_extra + b * ({self._sum(owned)})"), self._sum(owned[:k])
        if kind == "grad_h":
            return "grad_h + place(new, b, B, H)", ""
        if kind == "d_left":
            return "d_left + b * P", ""
        keep = "" if self._backward else " * KEEP"
        part = self._sum([self._found.H] * max(0, k - 1))
        if kind in ("dc", "d_old"):
            return f"dc + b * ({beside})", part
        if kind == "grad_s":
            return f"grad_s + place(new, b, B, {beside})", part
        if k == 0 and self._states > 1:
            return f"h_all + place({kind}, b, B, P)", ""
        return f"s_all + place({kind}{keep}, b, B, {beside})", part

    def _sum(self, sizes: list[int]) -> str:
        names = [self._found.sizes[size] for size in sizes]
        counts = Counter("(H // C)" if name == "M" else name for name in names)
        return " + ".join(f"{n} * {name}" if n > 1 else name for name, n in counts.items())

    def _store_forward(self, targets: Targets) -> None:
        new = {place[1]: self._of(node) for node, place in targets if place[0] == "new"}
        kept = [(self._of(node), place, self._size(node)) for node, place in targets if place[0] == "kept"]
        late = ("late", "product")
        for place in self._saved:
            if (place[0] in late) == self._second and place[0] != "left":
                node = self._found.graph.load(*place, self._rows[place[1]])
                kept.append((self._of(node), place, self._size(node)))
        if kept:
            inside = bool(self._found.products.lefts)  # whose second half reads them, whatever is kept
            if not inside:
                self._lines.append("    if KEEP:")
            for value, place, size in kept:
                self._store_kept(place, value, size, "    " if inside else "        ")
        for node, place in targets:
            if place[0] == "left":
                self._lines.append(f"    tl.store(work + b * P + j, {self._of(node)}, mask=m_H)")
                self._store_kept(("left", 0), self._of(node), "H", "    ")
        if not new:
            return
        load = self._found.graph.load
        for k in new:
            old = load("old", k, self._found.H)
            before = self._of(old) if old in self._names else ""
            self._lines.append("    if RAGGED:")
            if not before:
                self._say("before", self._read(*self._address(old.args), old), "        ")
            self._say(f"new{k}", f"tl.where(alive, {new[k]}, {before or 'before'})", "        ")
            self._lines.append("    else:")
            self._say(f"new{k}", new[k], "        ")
        for k in new:
            if k or self._states == 1:
                self._lines.append(f"    tl.store({_element(*self._address(('new', k)), 'H')}, new{k}, mask=m_H)")
        self._lines.append("    tl.store(h_all + place(new, b, B, P) + j, new0, mask=m_H)")

    def _store_kept(self, place: Place, value: str, size: str, mark: str) -> None:
        G = self._sum(self._columns)
        offset = self._sum(self._rows[: place[1]] if place[0] == "kept" else self._saved[place])
        at = _element(f"gates + place(t * KEEP, b, B, {G})", offset, size)
        self._lines.append(f"{mark}tl.store({at}, {value}, mask=m_{size})")

    def _store_backward(self, targets: Targets) -> None:
        d_x = {place[1]: self._of(node) for node, place in targets if place[0] == "d_x"}
        stores: list[tuple[Place, str, str, str]] = []
        for node, place in targets:
            if place[0] in ("d_x", "d_h", "+d_extra"):
                stores.append((place, self._of(node), self._size(node), "0.0"))
        if self._found.apart == "last":  # U h' of the other gates has the gradient of W x
            last = len(self._rows) - 1
            stores += [(("d_h", k), v, self._found.sizes[self._rows[k]], "0.0") for k, v in d_x.items() if k != last]
        found = {place[1]: self._of(node) for node, place in targets if place[0] == "d_old"}
        final = self._second or not self._found.products.lefts
        load, H = self._found.graph.load, self._found.H
        if final:
            for k in range(1, self._states):
                stores.append((("d_old", k), found[k], "H", self._of(load("d_state", k, H))))
            whole = self._of(load("d_state", 0, H)), self._of(load("grad_h", 0, H))
        for place, value, size, dead in stores:
            self._lines += ["    if RAGGED:", f"        stored = tl.where(alive, {value}, {dead})"]
            self._lines += ["    else:", f"        stored = {value}"]
            at, added = _element(*self._address(place), size), ""
            if place[0] == "+d_extra":
                added = f"tl.load({at}, mask=m_{size}, other=0.0) + "
            self._lines.append(f"    tl.store({at}, {added}stored, mask=m_{size})")
        if final:
            past = found.get(0, "0.0")
            self._lines.append("    if RAGGED:")
            self._lines.append(
                f"        tl.store(dh + b * H + j, tl.where(alive, {past}, {' + '.join(whole)}), mask=m_H)"
            )
            if self._found.carries:
                self._lines += ["    else:", f"        tl.store(dh + b * H + j, {past}, mask=m_H)"]


def _full(shape: str, number: str) -> str:
    """A number in the precision of states."""
    return f"tl.full({shape}, {number}, s_all.dtype.element_ty)"


def _element(base: str, offset: str, size: str) -> str:
    """The address of each element of a row's value that begins `offset` behind `base`."""
    return f"{base}{f' + {offset}' if offset else ''} + {'j' if size == 'H' else 'k'}"
