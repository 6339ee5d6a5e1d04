"""The recurrence on a GPU as two PyTorch operators, forward and backward; compilers and exporters see them whole.

Dimensions: T steps, B batch, H hidden, R rows of x, G columns of gates.
"""

from typing import Any

import torch
from torch import Tensor

from gatedrnn.core.errors import BackendError
from gatedrnn.sequence.backends.triton import graphs
from gatedrnn.sequence.backends.triton.compiled import Shape, shape_of
from gatedrnn.sequence.backends.triton.graphs import Layout
from gatedrnn.sequence.backends.triton.loops import Buffers, backward_loop, forward_loop
from gatedrnn.sequence.derivatives import no_second_derivative
from gatedrnn.sequence.perturb import real_of

_INFERENCE = Layout({"x": 0, "h_all": 1}, frozenset({"h_all", "work", "weight_hh"}))
_FORWARD = Layout(_INFERENCE.timed | {"s_all": 1, "gates": 0}, _INFERENCE.padded)
_BACKWARD = Layout(
    {"h_all": 1, "s_all": 1, "gates": 0, "grad_h": 1, "grad_s": 1, "grad_gates": 0, "dx": 0, "du": 0},
    frozenset({"h_all", "weight_hh", "dh_u", "d_left", "dU"}),
)


@torch.library.custom_op("gatedrnn::recurrence_triton", mutates_args=())
def recurrence(
    x_TBR: Tensor,
    weight_hh: Tensor,
    bias_R: Tensor | None,
    extra: Tensor | None,
    h0_BH: Tensor,
    s0_BS: Tensor,
    lengths_B: Tensor | None,
    kernel: str,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """A cell over time.

    Args:
        x_TBR: W x + b, temperature and noise in it [T, B, R], in the precision of storage: float32, bfloat16, float16, float64.
        weight_hh: U [R, H], scaled, as x_TBR.
        bias_R: what is added to U h' of rows whose W x and U h' stand apart, the others' is in x; in float32 at least.
        extra: all extras side by side, in float32 at least.
        h0_BH, s0_BS: initial h as x_TBR, and what `s_all` holds (see `functions`) in float32 at least.
        lengths_B: int64 [B], or None.
        kernel: the cell, as `cell_of` reads it.
        reverse: from the last step to the first.
        keep: whether gates and states are wanted.

    Returns: h [T+1, B, H] and s_all with the initial ones, gates [T, B, G] (of a cell with master gates in float32 at least); one
        slot of the last two if not `keep`.
    """
    p, (T, B, _) = shape_of(kernel), x_TBR.shape
    kind, real, H = x_TBR.dtype, real_of(x_TBR.dtype), p.hidden
    given = _by_address(
        x_TBR.device,
        x=(x_TBR, kind, (T, B, p.rows)),
        weight_hh=(weight_hh, kind, (p.rows, H)),
        bias=(bias_R, real, (p.rows,)),
        extra=(extra, real, (p.extras,)),
        h0=(h0_BH, kind, (B, H)),
        s0=(s0_BS, real, (B, p.states)),
        lengths=(lengths_B, torch.int64, (B,)),
    )
    inside = p.gpu.left >= 0
    given |= {
        "u": x_TBR.new_empty(B, p.own),
        "u_second": x_TBR.new_empty(B, p.rows - p.own) if inside else None,
        "work": x_TBR.new_empty(B, H) if inside else None,
    }
    h_all, s_all, gates = _results(x_TBR, s0_BS, p, keep)
    out: Buffers = {"h_all": h_all, "s_all": s_all, "gates": gates}
    if B:
        key = ("forward", kernel, reverse, keep, B, x_TBR.dtype, lengths_B is None)
        layout = _FORWARD if keep else _INFERENCE
        graphs.run(lambda b: forward_loop(p, b["x"].shape[0], reverse, keep, b), key, T, layout, given, out)
    return h_all, s_all, gates


def _by_address(
    device: torch.device, **tensors: tuple[Tensor | None, torch.dtype, tuple[int, ...]]
) -> dict[str, Tensor | None]:
    """Tensors with the types and shapes that they must have, contiguous: kernels get an address and check nothing.

    Raises: BackendError: another device, type or shape.
    """
    for name, (tensor, dtype, shape) in tensors.items():
        if tensor is not None and (tensor.device != device or tensor.dtype != dtype or tensor.shape != shape):
            got = f"{tensor.dtype} of {list(tensor.shape)} on {tensor.device}"
            rule = f"{name} must be {dtype} of {list(shape)} on {device}"
            raise BackendError("backend='triton'", rule, got, "Call the layers, which pass it in this form")
    return {name: None if tensor is None else tensor.contiguous() for name, (tensor, _, _) in tensors.items()}


def _results(x: Tensor, s0: Tensor, p: Shape, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    T, B, _ = x.shape
    slots, steps = (T + 1, T) if keep else (1, 1)
    like = s0 if p.gpu.wide else x  # a master gate is a sum of many: in bfloat16 it would be off by their roundings
    return x.new_empty(T + 1, B, p.hidden), s0.new_empty(slots, B, p.states), like.new_empty(steps, B, p.gpu.columns)


@recurrence.register_fake
def _recurrence_fake(x_TBR, weight_hh, bias_R, extra, h0_BH, s0_BS, lengths_B, kernel, reverse, keep):
    return _results(x_TBR, s0_BS, shape_of(kernel), keep)


@torch.library.custom_op("gatedrnn::recurrence_triton_backward", mutates_args=())
def recurrence_backward(
    grad_h: Tensor | None,
    grad_s: Tensor | None,
    grad_gates: Tensor | None,
    weight_hh: Tensor,
    extra: Tensor | None,
    lengths_B: Tensor | None,
    h_all: Tensor,
    s_all: Tensor,
    gates: Tensor,
    kernel: str,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `recurrence` for x, U, bias, extra (empty if there is none), h0 and s0."""
    p, (slots, B, H) = shape_of(kernel), h_all.shape
    T, kind, real = slots - 1, h_all.dtype, real_of(h_all.dtype)
    given = _by_address(
        h_all.device,
        weight_hh=(weight_hh, kind, (p.rows, H)),
        extra=(extra, real, (p.extras,)),
        lengths=(lengths_B, torch.int64, (B,)),
        h_all=(h_all, kind, (slots, B, p.hidden)),
        s_all=(s_all, real, (slots, B, p.states)),
        gates=(gates, real if p.gpu.wide else kind, (T, B, p.gpu.columns)),
        grad_h=(torch.zeros_like(h_all) if grad_h is None else grad_h, kind, (slots, B, H)),
        grad_s=(grad_s, real, (slots, B, p.states)),
        grad_gates=(grad_gates, gates.dtype, (T, B, p.gpu.columns)),
    )
    dx, dU = h_all.new_empty(T, B, p.rows), torch.zeros_like(weight_hh, memory_format=torch.contiguous_format)
    dh_u, dh, dc = h_all.new_zeros(B, H), s_all.new_zeros(B, H), s_all.new_zeros(B, p.states)
    out: Buffers = {"dx": dx, "dU": dU, "dh_u": dh_u, "d_left": torch.zeros_like(dh_u), "dh": dh, "dc": dc}
    out["d_extra"] = s_all.new_zeros(B, p.extras)
    apart = p.gpu.apart
    if apart < p.rows:
        out["du"] = torch.zeros_like(dx)
    if B:
        flags = (lengths_B is None, grad_s is None, grad_gates is None)
        key = ("backward", kernel, reverse, B, h_all.dtype, *flags)
        graphs.run(
            lambda b: backward_loop(p, b["dx"].shape[0], reverse, {"du": b["dx"], **b}), key, T, _BACKWARD, given, out
        )
    first = T if reverse else 0
    d_h0 = dh_u + dh if grad_h is None else dh_u + dh + grad_h[first]
    d_s0 = dc if grad_s is None else dc + grad_s[first]
    d_bias, d_extra = s_all.new_zeros(p.rows), out["d_extra"].sum(0)
    if apart < p.rows:
        d_bias[apart:] = out["du"][..., apart:].sum((0, 1), dtype=s_all.dtype)
    return dx, dU, d_bias, d_extra, d_h0.to(h_all.dtype), d_s0


@recurrence_backward.register_fake
def _recurrence_backward_fake(
    grad_h, grad_s, grad_gates, weight_hh, extra, lengths_B, h_all, s_all, gates, kernel, reverse
):
    p, (T, B, _) = shape_of(kernel), gates.shape
    states = h_all.new_empty(B, p.hidden), s_all.new_empty(B, p.states)
    parameters = weight_hh.new_empty(weight_hh.shape), s_all.new_empty(p.rows), s_all.new_empty(p.extras)
    return h_all.new_empty(T, B, p.rows), *parameters, *states


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, U, bias, extra, _, _, lengths, kernel, reverse, _ = inputs
    ctx.save_for_backward(U, extra, lengths, *output)
    ctx.set_materialize_grads(False)
    ctx.kernel, ctx.reverse, ctx.biased = kernel, reverse, bias is not None


def _backward(ctx: Any, d_h: Any, d_s: Any, d_gates: Any) -> tuple[Any, ...]:
    U, extra, lengths, h_all, s_all, gates = ctx.saved_tensors
    dx, dU, d_bias, d_extra, d_h0, d_s0 = recurrence_backward(
        d_h, d_s, d_gates, U, extra, lengths, h_all, s_all, gates, ctx.kernel, ctx.reverse
    )
    d_bias, d_extra = d_bias if ctx.biased else None, None if extra is None else d_extra
    return dx, dU, d_bias, d_extra, d_h0, d_s0, None, None, None, None


recurrence.register_autograd(_backward, setup_context=_setup)
recurrence_backward.register_autograd(no_second_derivative("triton"))
