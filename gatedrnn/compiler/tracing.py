"""A cell's step and its derivative as one graph of PyTorch's operators, recorded while both run on tensors without numbers.

A gate's squash stays whole: its value is kept for the backward pass, and its derivative is taken from that value.
Dimensions: B batch, R rows of a gate, H hidden.
"""

import copy
import operator
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx

from gatedrnn.cells.spec import Params, Spec, Step, Trace
from gatedrnn.compiler.asked import Asked
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.core.torch_internals import DispatchMode, decompositions, written_by
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
    """A Spec that notes what each squash keeps, a softmax's probabilities, else the soft value, and what it gives."""

    kept: dict[str, Tensor]
    given: dict[str, Tensor]

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


class _Unbiased:
    """Parameters of a step that asks for no bias: layers may have none, and a step is traced once."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def __getattr__(self, name: str) -> Any:
        if name in ("bias_ih", "bias_hh"):
            raise UnsupportedError(f"params.{name}, a parameter that a layer with bias=False does not have")
        return getattr(self._params, name)


class _Calls(DispatchMode):
    """Notes in which line of the step's file each operation is first called; refuses those that write into a tensor."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._file, self.lines = step.__code__.co_filename, {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if name not in self.lines:
            frame: Any = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename != self._file:
                frame = frame.f_back
            self.lines[name] = f"{Path(self._file).name}:{frame.f_lineno}" if frame else Path(self._file).name
        _check_pure(func, args, kwargs or {}, f" ({self.lines[name]})")
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


def _check_alike(graph: list[tuple[str, list[str]]], other: list[tuple[str, list[str]]]) -> None:
    """Refuse a step whose operations differ between batches or types."""
    if [each for _, each in graph] != [each for _, each in other]:
        raise UnsupportedError("a number that follows from the batch's size or type")
    if graph != other:
        raise UnsupportedError("operations that follow from the batch's size or type")


def trace(step: Step, spec: Spec) -> Traced:
    """Run the step and its derivative on tensors without numbers. What the step itself raises is raised here.

    Raises: UnsupportedError: its trace shows other values than the gates'.
    """
    watched: Any = copy.copy(spec)
    calls = _Calls(step)
    object.__setattr__(watched, "__class__", _Watched)
    gates, H = spec.gates, spec.hidden_size
    own = gates[: spec.recurrent_gates]
    counts = [len(gates), len(own), len(spec.states), len(spec.extras), 1, 1, 2, len(spec.states), len(gates)]

    def joint(*given: Tensor) -> tuple[Any, ...]:
        x, h, old, extra, (U,), (b,), (W, b_ih), d_state, d_kept = _parts(given, counts)
        object.__setattr__(watched, "kept", {})
        object.__setattr__(watched, "given", {})
        params: Any = Params(W, U, b_ih, b, extras={e.name: p for e, p in zip(spec.extras, extra, strict=True)})
        if len(own) == len(gates):  # nothing inside the step is multiplied by U, so that it has no use for b_hh
            params = _Unbiased(params)
        given = torch.cat(x, -1), torch.cat(h, -1)
        with calls, Asked(len(x[0])):
            new, shown = step(watched, params, *given, tuple(old))
        _check_shapes(spec, new, shown, len(x[0]))
        _check_shown(spec, shown, watched.given)
        kept = [watched.kept.get(gate.name, shown[gate.name]) for gate in gates]
        inputs = [*x, *h, *old, *extra]
        pairs = zip([*new, *kept], [*d_state, *d_kept], strict=True)
        values, seeds = zip(*((value, seed) for value, seed in pairs if value.requires_grad), strict=True)
        grads = torch.autograd.grad(values, inputs, seeds, allow_unused=True)
        return (list(new), kept, *_parts(grads, counts[:4]))

    widths, states = [gate.rows for gate in gates], [H] * len(spec.states)
    odd = (
        n
        for n in (127, 131, 137, 139, 149, 151, 157, 163, 167, 173)
        if all(size % n for size in (H, spec.rows, *widths))
    )

    def traced(batch: int, dtype: torch.dtype) -> Graph:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device="cpu", requires_grad=True)

        def vectors(rows: list[int]) -> list[Tensor]:
            return [zeros(batch, n) for n in rows]

        extras = [zeros(*spec.extra_shape(e)) for e in spec.extras]
        given = [*vectors(widths), *vectors([gate.rows for gate in own]), *vectors(states), *extras]
        given += [zeros(spec.rows, H), zeros(spec.rows)]
        given += [zeros(spec.rows, 1), zeros(spec.rows), *vectors(states), *vectors(widths)]
        return make_fx(joint, _DECOMPOSED, "fake")(*given).graph

    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        graph = traced(next(odd), torch.float32)
        _check_alike(_operations(graph), _operations(traced(next(odd), torch.float64)))
    nodes = list(graph.nodes)
    if not calls.lines:  # a PyTorch without modes of this class; the graph has the derivative's operations too
        for node in nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                _check_pure(node.target, node.args, node.kwargs)
    found: Any = _parts([node for node in nodes if node.op == "placeholder"], counts)
    x, h, old, extra, (U,), (b,), _, d_state, d_kept = found
    return Traced(nodes, calls.lines, x, h, old, extra, U, b, d_state, d_kept, *nodes[-1].args[0])


def _operations(graph: Graph) -> list[tuple[str, list[str]]]:
    """All operations in order, with the numbers that they take; shapes are none."""
    return [(str(n.target), [repr(arg) for arg in n.args if isinstance(arg, float | int)]) for n in graph.nodes]


def _check_pure(func: Any, args: Any, kwargs: Any, where: str = "") -> None:
    """Refuse an operation that writes into a tensor."""
    if written_by(func, args, kwargs):
        name = func.__name__.split(".")[0]
        raise UnsupportedError(f"the operation {name}{where}, which writes into a tensor")


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
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if got != [batch, size]:
            rule = got if isinstance(got, str) else str(got).replace(str(batch), "B", 1)
            raise UnsupportedError(f"{what} of {rule}, not [B, {size}]")


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
