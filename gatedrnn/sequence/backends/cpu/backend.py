"""The `cpu` backend: whole-sequence kernels for every cell, in float32 and float64.

Dimensions: T time, B batch, N tokens (packed), D input, H hidden.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.sequence.backends.cpu import memory
from gatedrnn.sequence.backends.cpu.availability import unavailable
from gatedrnn.sequence.compressed import as_dense
from gatedrnn.sequence.modes import half_products, plain, products, transformed
from gatedrnn.sequence.perturb import Draw, fold_extra
from gatedrnn.sequence.plan import Plan, biases, in_columns, plan_for, rotated, trace
from gatedrnn.sequence.request import Request, Result


class Cpu:
    """One operator a layer and direction, compiled by Numba on first use and kept on disk."""

    def supports(self, request: Request) -> str | None:
        """None, or why not: a device, type or shape it cannot take, no kernel for the cell, no Numba or folder for its cache."""
        x, weight = request.x_TBD, request.params.weight_hh
        if x.device != weight.device:
            return f"the input is on {x.device}, the weights on {weight.device}"
        if half_products() and weight.dtype == torch.float32:
            if x.dtype not in (torch.float32, torch.bfloat16):
                return f"the input is {x.dtype}"
        elif torch.is_autocast_enabled("cpu"):
            return f"autocast to {torch.get_autocast_dtype('cpu')} of weights in {weight.dtype}"
        elif x.dtype != weight.dtype:
            return f"the input is {x.dtype}, the weights {weight.dtype}"
        if not torch.compiler.is_compiling() and transformed():
            return "a function transform or forward-mode differentiation is at work"
        plan = plan_for(request.cell.step, request.spec)
        return plan if isinstance(plan, str) else request.misfit() or unavailable(weight)

    def run(self, request: Request) -> Result:
        """Pack the tokens, run the operator, and lay its results out again."""
        plan = plan_for(request.cell.step, request.spec)
        assert isinstance(plan, Plan)
        T, B, _ = request.x_TBD.shape
        order = index = offsets = previous = None
        if request.lengths_B is not None:
            order, index, offsets, previous = _ragged(T, request.lengths_B, request.reverse)
        p, scale, dtype = request.params, request.scale_R, request.params.weight_ih.dtype
        if not plain(request.x_TBD) or half_products():  # only plain inference reads small forms
            p = replace(p, weight_ih=as_dense(p.weight_ih), weight_hh=as_dense(p.weight_hh))
        extra = next(iter(p.extras.values()), None)
        bias = biases(plan, p.bias_ih, p.bias_hh, p.weight_ih)
        if scale is not None:
            if extra is not None:
                extra = fold_extra(extra, request.spec, request.spec.extras[0], scale)
            scale = in_columns(plan, scale)
            bias = bias * scale
        states = [state.to(dtype) for state in request.state]
        if order is not None:
            states = [state.index_select(0, order) for state in states]
        draw = request.noise if isinstance(request.noise, Draw) and index is None else None
        noise = None if draw else request.drawn_noise()
        noise = None if noise is None else rotated(plan, _tokens(noise.to(dtype), index))
        grad = torch.is_grad_enabled()
        h_NH, gates_NG, _, h_n, c_n = _operator(request.x_TBD)(
            _tokens(request.x_TBD.to(dtype), index), p.weight_ih, p.weight_hh, bias, scale, extra,
            states[0], states[1] if len(states) > 1 else None, noise,
            *_drawn(plan, draw), offsets, previous, T, plan.text(),
            request.reverse, grad or bool(request.return_gates), not grad and scale is None, products(B),
        )  # fmt: skip
        finals = [h_n, c_n][: len(states)]
        if order is not None:
            back = torch.argsort(order)
            finals = [final.index_select(0, back) for final in finals]
        finals = tuple(final.to(given.dtype) for final, given in zip(finals, request.state, strict=True))
        gates = None
        if request.return_gates:
            found = trace(plan, request.spec, gates_NG, request.wants)
            gates = {name: _padded(gate_NX, index, T, B) for name, gate_NX in found.items()}
        return Result(_padded(h_NH, index, T, B).to(request.state[0].dtype), finals, gates)


def _operator(x: Tensor) -> Any:
    """The operator; in plain inference what it calls, which spares the time of PyTorch's dispatcher."""
    if not plain(x):
        return torch.ops.gatedrnn.recurrence
    from gatedrnn.sequence.backends.cpu.operators import forward

    return forward


def _drawn(plan: Plan, draw: Draw | None) -> tuple[Tensor | None, list[int], list[float]]:
    """Seed, columns of each block, probability and scale, as the operator takes them."""
    if draw is None:
        return None, [], []
    starts = [((first - plan.shift) % plan.columns_x, last - first) for first, last in draw.blocks]
    return (
        draw.seed,
        [edge for start, width in starts for edge in (start, start + width)],
        [draw.probability, draw.scale],
    )


def _tokens(values_TBX: Tensor, index: Tensor | None) -> Tensor:
    flat = values_TBX.reshape(-1, values_TBX.shape[-1])
    return flat if index is None else flat.index_select(0, index)


def _padded(values_NX: Tensor, index: Tensor | None, T: int, B: int) -> Tensor:
    width = values_NX.shape[-1]
    if index is None:
        return values_NX.reshape(T, B, width)
    dtype = values_NX.dtype
    zeros = memory.empty(T * B, width, dtype=dtype).zero_() if plain(values_NX) else values_NX.new_zeros(T * B, width)
    return zeros.index_copy_(0, index, values_NX).view(T, B, width)


def _ragged(T: int, lengths_B: Tensor, reverse: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The batch's order, longest first; the place of each packed token in [T·B]; offsets; previous tokens."""
    B = len(lengths_B)
    order = torch.argsort(lengths_B, descending=True, stable=True)
    sorted_B = lengths_B.index_select(0, order)
    alive_TB = torch.arange(T)[:, None] < sorted_B
    offsets = F.pad(alive_TB.sum(1).cumsum(0), (1, 0))
    t, b = alive_TB.nonzero().unbind(1)
    if reverse:
        first = t + 1 == sorted_B[b]
        previous = torch.where(first, -1 - b, offsets[(t + 1).clamp_max(T)] + b)
    else:
        previous = torch.where(t == 0, -1 - b, offsets[(t - 1).clamp_min(0)] + b)
    return order, t * B + order[b], offsets, previous
