"""A layer over time on a GPU: a step is a product (torch.mm) and a pointwise kernel; weight gradients are one product at the end.

Every array is laid out as `rows.shared` says. Rows that have ended stay in the batch, and their state stands still: nothing here
depends on a length's value, so that a loop can be captured once and replayed.
Dimensions: T steps, B batch, H hidden, R rows of x, G columns of gates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from gatedrnn.sequence.backends.triton.rows import coupled, gru, lstm, onlstm, rnn
from gatedrnn.sequence.plan import Plan

Buffers = dict[str, Any]
"""Tensors by name, None for those that there are not."""

_FORWARD = ("x", "u", "extra", "h_all", "s_all", "gates", "work", "lengths")
_BACKWARD = (
    "extra", "s_all", "gates", "grad_h", "grad_s", "grad_gates", "dh_u", "dh", "dc", "dx", "du", "lengths",
)  # fmt: skip
_BLOCK = 256  # units of a program


@dataclass(frozen=True)
class Rows:
    """The kernels of a cell: forward, backward (each with a second half or None), and constants of its own."""

    forward: Any
    backward: Any
    forward_second: Any = None
    backward_second: Any = None
    constants: tuple[tuple[str, Any], ...] = ()


_ROWS = {
    "rnn_tanh": Rows(rnn.forward, rnn.backward, constants=(("PHI", "tanh"),)),
    "rnn_relu": Rows(rnn.forward, rnn.backward, constants=(("PHI", "relu"),)),
    "rnn_sigmoid": Rows(rnn.forward, rnn.backward, constants=(("PHI", "sigmoid"),)),
    "lstm": Rows(lstm.forward, lstm.backward, constants=(("PEEPHOLE", False),)),
    "peephole": Rows(lstm.forward, lstm.backward, constants=(("PEEPHOLE", True),)),
    "coupled": Rows(coupled.forward, coupled.backward),
    "gru_after": Rows(gru.after_forward, gru.after_backward),
    "gru_before": Rows(gru.before_forward, gru.before_backward, gru.before_forward_second, gru.before_backward_second),
    "onlstm": Rows(onlstm.forward, onlstm.backward),
}


def slots(t: int, reverse: bool) -> tuple[int, int]:
    """Slots of the state before and after step t."""
    return (t + 1, t) if reverse else (t, t + 1)


def forward_loop(plan: Plan, steps: int, reverse: bool, keep: bool, b: Buffers) -> None:
    """Fill h_all, s_all and gates.

    Args: b: x, weight_hh, extra, lengths, h0, s0, h_all, s_all, gates, and scratch: u [B, columns_1], and of a GRU that resets
        before the product u_second and work [B, H].
    """
    rows = _ROWS[plan.kernel]
    constants = {"KEEP": int(keep), "RAGGED": b["lengths"] is not None}
    run = _launcher(plan, b["x"].shape[1], rows, constants)
    first = plan.columns_1
    U, U_second, u = b["weight_hh"][:first].t(), b["weight_hh"][first:].t(), b["u"]
    start = steps if reverse else 0
    b["h_all"][start].copy_(b["h0"])
    b["s_all"][start if keep else 0].copy_(b["s0"])
    for t in range(steps - 1, -1, -1) if reverse else range(steps):
        old, new = slots(t, reverse)
        torch.mm(b["h_all"][old], U, out=u)
        run(rows.forward, [b[name] for name in _FORWARD], t, old, new)
        if rows.forward_second is not None:
            torch.mm(b["work"], U_second, out=b["u_second"])
            second = {**b, "u": b["u_second"]}
            run(rows.forward_second, [second[name] for name in _FORWARD], t, old, new)


def backward_loop(plan: Plan, steps: int, reverse: bool, b: Buffers) -> None:
    """Fill dx (and du, where it is not dx), dU, and in dh_u, dh and dc what reaches the initial state.

    Args: b: weight_hh, extra, lengths, h_all, s_all, gates, grad_h, grad_s, grad_gates, dx, du, dU, dh_u, dh, dc.
    """
    rows, first = _ROWS[plan.kernel], plan.columns_1
    names = {"RAGGED": "lengths", "GRAD_S": "grad_s", "GRAD_GATES": "grad_gates"}
    run = _launcher(plan, b["dx"].shape[1], rows, {flag: b[name] is not None for flag, name in names.items()})
    U, U_second = b["weight_hh"][:first], b["weight_hh"][first:]
    for name in ("dh_u", "dh", "dc"):
        b[name].zero_()
    for t in range(steps) if reverse else range(steps - 1, -1, -1):
        old, new = slots(t, reverse)
        run(rows.backward, [b[name] for name in _BACKWARD], t, old, new)
        if rows.backward_second is not None:
            torch.mm(b["dx"][t, :, first:], U_second, out=b["dh_u"])
            run(rows.backward_second, [b[name] for name in _BACKWARD], t, old, new)
        torch.mm(b["du"][t, :, :first], U, out=b["dh_u"])
    _weight_gradient(plan, steps, reverse, b)


def _weight_gradient(plan: Plan, steps: int, reverse: bool, b: Buffers) -> None:
    first, H = plan.columns_1, plan.hidden
    before = b["h_all"][1 : steps + 1] if reverse else b["h_all"][:steps]
    du = b["du"].flatten(0, 1)
    torch.mm(du[:, :first].t(), before.flatten(0, 1), out=b["dU"][:first])
    if plan.columns_2:  # the candidate's product reads r∘h'
        state = b["s_all"][1 : steps + 1] if reverse else b["s_all"][:steps]
        r = b["gates"][..., :H]
        read = ((r > 0.5).to(state.dtype) if plan.hard & 1 else r) * state
        torch.mm(du[:, first:].t(), read.to(du.dtype).flatten(0, 1), out=b["dU"][first:])


def _launcher(plan: Plan, batch: int, rows: Rows, flags: dict[str, Any]) -> Callable[..., None]:
    """A function that runs one of a cell's kernels for step t."""
    constants = {**flags, "HARD": plan.hard, **dict(rows.constants)}
    H = plan.hidden
    if plan.split_points:
        tile = tile_of(plan)
        constants |= {"K": plan.split_points, "C": plan.chunk, "BLOCK": tile[0], "BLOCK_C": tile[1]}
        grid, warps = (batch,), min(16, max(4, tile[0] * tile[1] // 256))
    else:
        block = min(_BLOCK, triton.next_power_of_2(H))
        constants["BLOCK"], grid, warps = block, (batch, triton.cdiv(H, block)), 4

    def run(kernel: Any, arguments: list[Any], t: int, old: int, new: int) -> None:
        kernel[grid](*arguments, t, old, new, batch, H, **constants, num_warps=warps)

    return run


def tile_of(plan: Plan) -> tuple[int, int]:
    """Chunks and units of a chunk that one program of an ON-LSTM holds, each rounded up to a power of 2."""
    return triton.next_power_of_2(plan.split_points), triton.next_power_of_2(plan.chunk)
