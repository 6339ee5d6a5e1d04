"""The reference loop: hoisted input product, one step at a time, ragged lengths, either direction.

Dimensions: T time, B batch, D input, H hidden, R rows of all gates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.cells import Params, State, Trace
from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.torch_internals import being_traced, functorch_active, of_one_tensor, writes
from gatedrnn.sequence.perturb import fold
from gatedrnn.sequence.request import Backend, Request, Result, blank
from gatedrnn.weights.compressed import as_dense


class Reference(Backend):
    """Eager PyTorch, one step at a time, for every request: the reference that every backend is tested against."""

    def supports(self, request: Request) -> str | None:
        """None: nothing is refused."""
        return None

    def run(self, request: Request) -> Result:
        """See `run`."""
        return run(request)


def run(request: Request) -> Result:
    """Run one layer and direction; see `Request` and `Result` for shapes. Raises: ArgumentError: tensors of several devices.

    A row's state stands still where t ≥ its length, so a reversed row starts at its last step without being turned round.
    """
    spec, state = request.spec, request.state
    devices = sorted({str(tensor.device) for tensor in request.tensors()})
    if len(devices) > 1:  # of a tensor on meta PyTorch would make memory that nobody fills
        advice = "Move the layer and its input to one"
        raise ArgumentError("recurrence", "all tensors must be on one device", " and ".join(devices), advice)
    params = fold(request.params, spec, request.scale_R)
    # rows are cut out of U, which inference mode refuses for a compressed one
    params = replace(params, weight_hh=as_dense(params.weight_hh))
    x_gates_TBR = F.linear(request.live(request.x_TBD), params.weight_ih, params.bias_ih)
    noise_TBR = request.drawn_noise()
    if noise_TBR is not None:
        x_gates_TBR = x_gates_TBR + noise_TBR
    recurrent = recurrent_rows(request, params)
    steps = range(len(x_gates_TBR))
    x_gates = x_gates_TBR.unbind(0)
    outputs: list[Tensor] = []
    traces: list[Trace] = []
    for t in reversed(steps) if request.reverse else steps:
        alive = None if request.lengths_B is None else t < request.lengths_B
        state, output, trace = one_step(request, params, recurrent, x_gates[t], state, alive)
        outputs.append(output)
        if request.return_gates:
            traces.append(trace)
    if request.reverse:
        outputs.reverse()
        traces.reverse()
    gates = {name: torch.stack([trace[name] for trace in traces]) for name in traces[0]} if traces else None
    return Result(torch.stack(outputs), state, gates)


def recurrent_rows(request: Request, params: Params) -> tuple[Tensor, Tensor | None]:
    """U and its bias, of the rows that are multiplied with h' before the step."""
    rows = request.spec.recurrent_rows
    return params.weight_hh[:rows], None if params.bias_hh is None else params.bias_hh[:rows]


def one_step(
    request: Request,
    params: Params,
    recurrent: tuple[Tensor, Tensor | None],
    x_gates: Tensor,
    state: State,
    alive: Tensor | None,
) -> tuple[State, Tensor, Trace]:
    """State, output and trace of one step of all rows.

    Args:
        params: the request's, with its scale folded in.
        recurrent: as `recurrent_rows` gives it.
        x_gates: W x + b [B, R].
        alive: [B], whether the step counts in a row; None for all.

    Raises: ArgumentError: the cell's step writes into a state, or gives other states than its Spec names, or in other shapes.
    """
    spec, eager = request.spec, not (torch.compiler.is_compiling() or being_traced())
    h_gates = F.linear(state[0], *recurrent)
    given, before = state, [None]
    if eager and not functorch_active():  # of views of one tensor, each counts the writes into all
        before = [None if of_one_tensor(each, x_gates) else writes(each) for each in state]
    if eager and None in before:  # where writes are not counted, a step may write into copies
        given = tuple(each.clone() for each in state)
    found: Any = request.cell.step(spec, params, x_gates, h_gates, given)
    if None not in before:
        _check_unwritten(request, state, before)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise _wrong_step(request, f"{len(found)} values" if isinstance(found, (tuple, list)) else type(found).__name__)
    new, trace = found
    if not hasattr(trace, "items"):
        raise _wrong_step(request, f"a trace that is a {type(trace).__name__}")
    new = tuple(new) if isinstance(new, Iterable) and not isinstance(new, Tensor) else new
    if eager:  # elsewhere, sizes are not numbers
        _check_states(request, new, x_gates.shape[0])
        if request.return_gates:
            sources = {each.of for each in spec.derived if request.wants(each.name)}
            _check_trace(
                request, {n: g for n, g in trace.items() if n in sources or request.wants(n)}, x_gates.shape[0]
            )
    if params.weight_hr is not None:
        new = F.linear(new[0], params.weight_hr), *new[1:]
    new = tuple(after.to(before.dtype) for after, before in zip(new, state, strict=True))  # float32 under autocast
    output = new[0]
    trace = spec.complete(trace, request.wants) if request.return_gates else {}
    if alive is not None:
        new = tuple(torch.where(alive[:, None], after, before) for after, before in zip(new, state, strict=True))
        output = blank(output, ~alive)
        trace = {name: blank(gate, ~alive) for name, gate in trace.items()}
    return new, output, trace


def _check_unwritten(request: Request, state: State, before: Sequence[int | None]) -> None:
    """Raises ArgumentError: the step wrote into a state, which is the output of the step before, or the caller's."""
    from gatedrnn.compiler.outside import place

    named = zip(request.spec.states, state, before, strict=True)
    if written := [name for name, each, count in named if writes(each) != count]:  # states of zeros may be one tensor
        rule, advice = "its step must not write into a state", "Make a new tensor: h * z instead of h *= z"
        got = f"a step that writes into {' or '.join(written)}{place(request.cell.step)}"
        raise ArgumentError(f"cell {request.cell.name}", rule, got, advice)


def _check_states(request: Request, new: Any, batch: int) -> None:
    """Raises ArgumentError: these are not the states of the Spec, each [B, H]. PyTorch would broadcast them without a word."""
    spec = request.spec
    shape = (batch, spec.hidden_size)
    if isinstance(new, (tuple, list)) and len(new) == len(spec.states):
        odd = [k for k, state in enumerate(new) if not isinstance(state, Tensor) or state.shape != shape]
        if not odd:
            return
        state = new[odd[0]]
        kind = f"of {list(state.shape)}" if isinstance(state, Tensor) else f"a {type(state).__name__}"
        got = f"{spec.states[odd[0]]} {kind}, not {list(shape)}"
    else:
        got = f"{len(new)} states" if isinstance(new, (tuple, list)) else f"a {type(new).__name__}"
    raise _wrong_step(request, got)


def _check_trace(request: Request, trace: Trace, batch: int) -> None:
    """Raises ArgumentError: what is shown of a step is not one row of the batch each. Steps would be stacked without a word."""
    for name, gate in trace.items():
        if not isinstance(gate, Tensor) or gate.shape[:1] != (batch,):
            kind = f"of {list(gate.shape)}" if isinstance(gate, Tensor) else f"that is a {type(gate).__name__}"
            raise _wrong_step(request, f"a trace with {name} {kind}, not [{batch}, …]")


def _wrong_step(request: Request, got: str) -> ArgumentError:
    from gatedrnn.compiler.outside import place

    rule = f"its step must return a tuple of the new {', '.join(request.spec.states)}, each [B, H], and a trace, gates by name"
    return ArgumentError(f"cell {request.cell.name}", rule, got + place(request.cell.step), "Mend the step")
