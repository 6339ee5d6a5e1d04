"""A cell's step and its derivative as one graph of PyTorch's operators, recorded while both run on tensors without numbers.

A gate's squash stays whole: its value is kept for the backward pass, and its derivative is taken from that value.
Dimensions: B batch, R rows of a gate, H hidden.
"""

import copy
import operator
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.fx import Graph
from torch.fx import Node as FxNode
from torch.fx.node import map_arg

from gatedrnn.cells.spec import Params, Spec, Step, Trace
from gatedrnn.compiler.asked import Asked, AskedExtra, AskedParameters
from gatedrnn.compiler.errors import UnsupportedError, shape_told
from gatedrnn.compiler.recorded import recorded
from gatedrnn.compiler.rounding import mark_rounded
from gatedrnn.core.torch_internals import (
    DispatchMode,
    decompositions,
    start_autograd,
    without_log,
    written_by,
)
from gatedrnn.gates import SQUASHES, straight_through

_ATEN = torch.ops.aten
_DECOMPOSED: Any = decompositions([
    _ATEN.native_layer_norm, _ATEN.native_layer_norm_backward, _ATEN.log_sigmoid_forward, _ATEN.log_sigmoid_backward,
    _ATEN.softplus, _ATEN.softplus_backward, _ATEN.silu, _ATEN.silu_backward, _ATEN.hardtanh, _ATEN.hardtanh_backward,
    _ATEN.hardsigmoid, _ATEN.hardsigmoid_backward, _ATEN.elu, _ATEN.elu_backward,
])  # fmt: skip
_LIBRARY = torch.library.Library("gatedrnn_step", "DEF")
_LIBRARY.define("scan(Tensor x, bool reverse, bool exclusive) -> Tensor")
_LIBRARY.define("one_hot(Tensor p) -> Tensor")
for _name in ("scan", "one_hot"):
    _LIBRARY.impl(_name, lambda x, *_: torch.empty_like(x), "CompositeExplicitAutograd")
_OPS: Any = torch.ops.gatedrnn_step


class _Scan(torch.autograd.Function):
    """Cumulative sums along the row, from either end, with or without the element itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, reverse: bool, exclusive: bool) -> Tensor:
        ctx.how = reverse, exclusive
        return _OPS.scan(x, reverse, exclusive)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        reverse, exclusive = ctx.how
        return _OPS.scan(grads[0], not reverse, exclusive), None, None


class _Watched(Spec):
    """A Spec that notes what each squash keeps, a softmax's probabilities, else the soft value, and what it gives.

    It refuses what `Spec.text` does not say, and comparisons, which read that too.
    """

    kept: dict[str, Tensor]
    given: dict[str, Tensor]

    @property
    def derived(self) -> Any:
        raise UnsupportedError("spec.derived, which kernels do not see")

    def __eq__(self, other: object) -> bool:
        raise UnsupportedError("a comparison of its Spec, of which kernels do not see all")

    __hash__ = None  # type: ignore[assignment]

    def squash(self, name: str, logits: Tensor) -> Tensor:
        self.given[name] = self._squash(name, logits)
        return self.given[name]

    def _squash(self, name: str, logits: Tensor) -> Tensor:
        gate = self.gate(name)
        if gate.squash not in ("cumax", "tail_cumax"):
            y = self.kept[name] = SQUASHES[gate.squash](logits, False)
            return straight_through(y, (y > 0.5).to(y.dtype)) if gate.hard else y
        p = self.kept[name] = torch.softmax(logits, -1)
        tail = gate.squash == "tail_cumax"
        y: Any = _Scan.apply(p, tail, tail)
        if gate.hard:
            y = straight_through(y, _OPS.scan(_OPS.one_hot(p.detach()), tail, tail))
        return y if gate.units is None else y[..., : gate.units]


class _Calls(DispatchMode):
    """Notes in which lines of the step's file each operation is called; refuses those that write into a tensor."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._file, self._called = step.__code__.co_filename, {}

    def lines(self) -> dict[str, str]:
        """By operation: "file.py:12, 14", or the file alone where another one calls it."""
        name = Path(self._file).name
        return {
            called: name + (":" + ", ".join(map(str, sorted(lines))) if lines else "")
            for called, lines in self._called.items()
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        lines = self._called.setdefault(_name_of(func), set())
        if frame is not None:
            lines.add(frame.f_lineno)
        where = f"{Path(self._file).name}:{frame.f_lineno}" if frame else Path(self._file).name
        _check_pure(func, args, kwargs or {}, f" ({where})")
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Traced:
    """The graph's nodes by what they are; a gate or a state by its place in the Spec, None for a gradient of nothing.

    Args:
        lines: where the step's file calls each operation.
        x, h: W x + b and U h' + b of each gate; `h` only of those whose product the driver computes.
        U, bias: the recurrent matrix and b_hh. W and b_ih are not here: the driver alone may read them.
        d_state, d_kept: gradients of the new states and of what squashes keep.
        new, kept: new states, and what squashes keep.
        d_x, d_h, d_old, d_extra: gradients of x, h, the states before and the extras.
    """

    nodes: list[FxNode]
    lines: dict[str, str]
    x: list[FxNode]
    h: list[FxNode]
    old: list[FxNode]
    extra: list[FxNode]
    U: FxNode
    bias: FxNode
    d_state: list[FxNode]
    d_kept: list[FxNode]
    new: list[FxNode]
    kept: list[FxNode]
    d_x: list[FxNode | None]
    d_h: list[FxNode | None]
    d_old: list[FxNode | None]
    d_extra: list[FxNode | None]


class _Operation(NamedTuple):
    """Of a graph. Args: numbers: its arguments, tensors aside; given: the places of the operations whose results it takes."""

    target: str
    numbers: str
    given: list[int]


_OF_TENSORS = frozenset(("dtype", "device", "layout", "pin_memory", "memory_format"))
_CONVERSIONS = frozenset(("_to_copy",))
_ZEROS = frozenset(("zeros", "new_zeros", "zeros_like"))
_VIEWS = frozenset((
    "slice", "split", "split_with_sizes", "getitem", "view", "alias", "detach", "unsqueeze", "squeeze", "expand",
))  # fmt: skip


@final
class _Tracer:
    """Makes graphs of a step, and of its derivative, for tensors of some size and type."""

    def __init__(self, step: Step, spec: Spec) -> None:
        self._step, self._spec, self.calls = step, spec, _Calls(step)
        self._watched = _watched(spec, _Watched)
        object.__setattr__(self._watched, "extras", tuple(_watched(extra, AskedExtra) for extra in spec.extras))
        gates, states = len(spec.gates), len(spec.states)
        self._widths = [gate.rows for gate in spec.gates]
        self._inside = spec.recurrent_rows < spec.rows
        self._of_u = self._widths[: spec.recurrent_gates]
        self.counts = [gates, len(self._of_u), states, len(spec.extras), 1, 1, 2, states, gates]

    def batches(self) -> Iterator[int]:
        """Sizes that divide no other size."""
        sizes = (self._spec.hidden_size, self._spec.rows, *self._widths)
        primes = 1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061  # which a step hardly writes as numbers
        return (n for n in primes if all(size % n for size in sizes))

    def joint(self, batch: int, dtype: torch.dtype) -> Graph:
        """The graph of the step and its derivative."""

        def run(*given: Tensor) -> tuple[Any, ...]:
            parts = _parts(given, self.counts)
            new, kept = self._called(parts)
            pairs = zip([*new, *kept], [*parts[-2], *parts[-1]], strict=True)
            values, seeds = zip(*((value, seed) for value, seed in pairs if value.requires_grad), strict=True)
            inputs = [tensor for part in parts[:4] for tensor in part]
            grads = torch.autograd.grad(values, inputs, seeds, allow_unused=True)
            return (new, kept, *_parts(grads, self.counts[:4]))

        start_autograd()
        return recorded(run, lambda: self._inputs(batch, dtype), _DECOMPOSED)

    def step(self, batch: int, dtype: torch.dtype, biased: bool = True) -> Graph:
        """The graph of PyTorch's operators as the step calls them."""

        def run(*given: Tensor) -> tuple[Any, ...]:
            return self._called(_parts(given, self.counts), biased)

        return recorded(run, lambda: self._inputs(batch, dtype), {})

    def _called(self, parts: list[list[Tensor]], biased: bool = True) -> tuple[list[Tensor], list[Tensor]]:
        """The new states, and what the gates' squashes keep."""
        x, h, old, extra, (U,), (b,), (W, b_ih), *_ = parts
        spec, watched = self._spec, self._watched
        object.__setattr__(watched, "kept", {})
        object.__setattr__(watched, "given", {})
        biases = (b_ih, b) if biased else (None, None)
        params = Params(W, U, *biases, extras={e.name: p for e, p in zip(spec.extras, extra, strict=True)})
        asked: Any = AskedParameters(params, biases=self._inside)  # else nothing in the step is multiplied by U
        given = torch.cat(x, -1), torch.cat(h, -1)
        with self.calls, Asked(len(x[0])):
            new, shown = self._step(watched, asked, *given, tuple(old))
        _check_shapes(spec, new, shown, len(x[0]))
        _check_shown(spec, shown, watched.given)
        return list(new), [watched.kept.get(gate.name, shown[gate.name]) for gate in spec.gates]

    def _inputs(self, batch: int, dtype: torch.dtype) -> list[Tensor]:
        def unread(*shape: int) -> Tensor:
            return torch.empty(*shape, dtype=dtype, device="cpu", requires_grad=True)

        def vectors(rows: list[int]) -> list[Tensor]:
            return [unread(batch, n) for n in rows]

        spec, states = self._spec, [self._spec.hidden_size] * len(self._spec.states)
        extras = [unread(*spec.extra_shape(e)) for e in spec.extras]
        given = [*vectors(self._widths), *vectors(self._of_u), *vectors(states), *extras]
        given += [unread(spec.rows, spec.hidden_size), unread(spec.rows)]
        return [*given, unread(spec.rows, 1), unread(spec.rows), *vectors(states), *vectors(self._widths)]

    def check(self, batch: int) -> None:
        """Refuse a step that decides by a small type, or by whether there are biases: its graph is one for all."""
        graph = self.step(batch, torch.float32)
        for dtype in (torch.bfloat16, torch.float16):
            if other := self._other(batch, dtype):
                _check_alike(_operations(graph, _CONVERSIONS), _operations(other, _CONVERSIONS))
        other = self._other(batch, torch.float32, biased=False) if self._inside else None
        if other and self._without_biases(graph) != self._without_biases(other):
            raise UnsupportedError("operations that follow from whether the layer has biases")

    def _other(self, batch: int, dtype: torch.dtype, biased: bool = True) -> Graph | None:
        """The graph for another kind of layer; None where the step fails for that, as it then does on the reference."""
        try:
            return self.step(batch, dtype, biased)
        except UnsupportedError:
            raise
        except Exception:  # whatever a user's step may raise
            return None

    def _without_biases(self, graph: Graph) -> list[_Operation]:
        first = sum(self.counts[:5])
        nodes = list(graph.nodes)
        return _operations(graph, biases=(nodes[first], nodes[first + 2]))


def _watched(value: Any, kind: type) -> Any:
    found = copy.copy(value)
    object.__setattr__(found, "__class__", kind)
    return found


def _check_alike(graph: list[_Operation], other: list[_Operation]) -> None:
    """Refuse a step whose operations differ between batches or types."""
    if [each.target for each in graph] == [each.target for each in other] and graph != other:
        same = [each.given for each in graph] == [each.given for each in other]
        what = "a number that follows" if same else "values that follow"
        raise UnsupportedError(f"{what} from the batch's size or type")
    if graph != other:
        raise UnsupportedError("operations that follow from the batch's size or type")


def trace(step: Step, spec: Spec) -> Traced:
    """Run the step and its derivative on tensors without numbers. What the step itself raises is raised here.

    Raises: UnsupportedError: its trace shows other values than the gates', or it decides by what differs between calls.
    """
    tracer = _Tracer(step, spec)
    batches = tracer.batches()
    with without_log(), torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        graph = tracer.joint(next(batches), torch.float32)
        double = tracer.joint(next(batches), torch.float64)
        _check_alike(_operations(graph), _operations(double))
        mark_rounded(graph, double, tracer.calls.lines())
        tracer.check(next(batches))
    nodes, lines = list(graph.nodes), tracer.calls.lines()
    for node in nodes:
        if node.op == "get_attr" and node.users:
            where = f" ({lines['lift_fresh']})" if "lift_fresh" in lines else ""
            raise UnsupportedError(f"a tensor made of given numbers, as by torch.tensor(){where}")
    if not lines:  # a PyTorch without modes of this class; the graph has the derivative's operations too
        for node in nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                _check_pure(node.target, node.args, node.kwargs)
    found: Any = _parts([node for node in nodes if node.op == "placeholder"], tracer.counts)
    x, h, old, extra, (U,), (b,), _, d_state, d_kept = found
    return Traced(nodes, lines, x, h, old, extra, U, b, d_state, d_kept, *nodes[-1].args[0])


def _operations(graph: Graph, left_out: Collection[str] = (), biases: Collection[FxNode] = ()) -> list[_Operation]:
    """All operations in order; shapes are left out.

    Args:
        left_out: names of operations that stand for what they are given.
        biases: inputs that are left out too, with what only hands them on, zeros in their place, and their sum with a product.
    """
    found: list[_Operation] = []
    places: dict[FxNode, int] = {}
    nothing, batch = set(biases), next(iter(graph.nodes)).meta["val"].shape[0]
    for node in graph.nodes:
        name, target, given = _name_of(node.target), str(node.target), []
        map_arg((node.args, node.kwargs), given.append)
        if biases and (name in _ZEROS or (name in _VIEWS and given and nothing.issuperset(given))):
            nothing.add(node)
        if node in nothing:
            places[node] = -1
        elif name in left_out:
            places[node] = places[given[0]]
        else:
            args = node.args
            if name == "addmm" and given[0] in nothing:
                target, given, args = str(_ATEN.mm.default), given[1:], args[1:]
            places[node] = len(found)
            kwargs = {key: value for key, value in node.kwargs.items() if key not in _OF_TENSORS}
            found.append(_Operation(target, _shown((args, kwargs), batch), [places[each] for each in given]))
    return found


def _shown(argument: Any, batch: int) -> str:
    """An argument as text, the same for every batch: tensors have none, and a shape has B."""
    if isinstance(argument, dict):
        return str({key: _shown(value, batch) for key, value in argument.items()})
    if isinstance(argument, tuple | list):
        return str([_shown(each, batch) for each in argument])
    if isinstance(argument, FxNode | torch.dtype | torch.device | torch.layout | torch.memory_format):
        return "_"
    return "B" if type(argument) is int and argument == batch else repr(argument)


def _name_of(target: Any) -> str:
    """An operation's, without that of its overload."""
    return getattr(target, "__name__", str(target)).split(".")[0]


def _check_pure(func: Any, args: Any, kwargs: Any, where: str = "") -> None:
    """Refuse an operation that writes into a tensor."""
    if written_by(func, args, kwargs):
        raise UnsupportedError(f"the operation {_name_of(func)}{where}, which writes into a tensor")


def _check_shapes(spec: Spec, new: Any, shown: Any, batch: int) -> None:
    """Refuse new states and gates that are not one row each of the batch."""
    if not isinstance(new, tuple | list) or len(new) != len(spec.states):
        count = len(new) if isinstance(new, tuple | list) else type(new).__name__
        raise UnsupportedError(f"{count} new states, not the {len(spec.states)} of its Spec")
    wanted = {f"the new {name}": (value, spec.hidden_size) for name, value in zip(spec.states, new, strict=True)}
    known = {gate.name: gate for gate in spec.gates}
    if isinstance(shown, dict):
        wanted |= {
            f"the trace's {name}": (value, known[name].units or known[name].rows)
            for name, value in shown.items()
            if name in known
        }
    for what, (value, size) in wanted.items():
        got = shape_told(value.shape, batch) if isinstance(value, Tensor) else type(value).__name__
        if got != f"[B, {size}]":
            raise UnsupportedError(f"{what} of {got}, not [B, {size}]")


def _check_shown(spec: Spec, shown: Trace, given: dict[str, Tensor]) -> None:
    """Refuse a trace that cannot be read off what the squashes keep."""
    if shown.keys() != {gate.name for gate in spec.gates}:
        odd = ", ".join(sorted(shown.keys() ^ {gate.name for gate in spec.gates}))
        raise UnsupportedError(f"a trace that does not hold exactly the gates: {odd}")
    for gate in spec.gates:
        whole = gate.perturbable and (gate.hard or gate.squash != "sigmoid")  # more than its value is kept
        if (gate.name in given or whole) and shown[gate.name] is not given.get(gate.name):
            raise UnsupportedError(f"the trace's {gate.name}, which is not what its squash gave")


def _parts(values: Any, counts: list[int]) -> list[list[Any]]:
    values = iter(values)
    return [[next(values) for _ in range(n)] for n in counts]
