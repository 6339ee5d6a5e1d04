"""The `cpu` backend: whole-sequence kernels for every cell, in float32 and float64.

Dimensions: T time, B batch, N tokens (packed), D input, H hidden.
"""

from typing import Any

import torch
from torch import Tensor

from gatedrnn.cells import Trace
from gatedrnn.sequence.backends.cpu.availability import unavailable
from gatedrnn.sequence.compressed import as_dense
from gatedrnn.sequence.modes import half_products, products, transformed
from gatedrnn.sequence.perturb import Draw, fold_extra
from gatedrnn.sequence.plan import Plan, biases, in_columns, plan_for, rotated
from gatedrnn.sequence.plan import trace as gates_of
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
        """Run the operator and lay its results out again."""
        from gatedrnn.sequence.backends.cpu.operators import forward

        plan = plan_for(request.cell.step, request.spec)
        assert isinstance(plan, Plan)
        (T, B, _), lengths = request.x_TBD.shape, request.lengths_B
        p, scale, dtype = request.params, request.scale_R, request.params.weight_ih.dtype
        only_numbers = request.only_numbers()
        weight_ih, weight_hh = p.weight_ih, p.weight_hh
        if not only_numbers or half_products():  # only plain inference reads small forms
            weight_ih, weight_hh = as_dense(weight_ih), as_dense(weight_hh)
        extra = next(iter(p.extras.values()), None)
        bias = biases(plan, p.bias_ih, p.bias_hh, p.weight_ih)
        if scale is not None:
            if extra is not None:
                extra = fold_extra(extra, request.spec, request.spec.extras[0], scale)
            scale = in_columns(plan, scale)
            bias = bias * scale
        states = [state if state.dtype == dtype else state.to(dtype) for state in request.state]
        draw = request.noise if isinstance(request.noise, Draw) and lengths is None else None
        noise = None if draw else request.drawn_noise()
        noise = None if noise is None else rotated(plan, noise.to(dtype))
        x_TBD = request.x_TBD if request.x_TBD.dtype == dtype else request.x_TBD.to(dtype)
        output_TBH, gates, _, h_n, c_n = (forward if only_numbers else torch.ops.gatedrnn.recurrence)(
            x_TBD, weight_ih, weight_hh, bias, scale, extra, states[0], states[1] if len(states) > 1 else None, noise,
            *_drawn(plan, draw), lengths, plan.text(), request.reverse, not only_numbers or bool(request.return_gates),
            products(B),
        )  # fmt: skip
        finals = h_n, c_n
        finals = tuple(
            final if final.dtype == given.dtype else final.to(given.dtype)
            for final, given in zip(finals, request.state, strict=False)
        )
        trace = None
        if request.return_gates:
            trace = _laid_out(gates_of(plan, request.spec, gates, request.wants), lengths, T, B)
        return Result(output_TBH.to(request.state[0].dtype), finals, trace)


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


def _laid_out(found: Trace, lengths_B: Tensor | None, T: int, B: int) -> Trace:
    """Gates of packed tokens [T · B, X] as [T, B, X], 0 beyond a row's length."""
    if lengths_B is not None:
        from gatedrnn.sequence.backends.cpu.arguments import token_places

        places, dead = token_places(lengths_B, T)
        found = {name: gate.index_select(0, places).masked_fill(dead, 0) for name, gate in found.items()}
    return {name: gate.view(T, B, gate.shape[-1]) for name, gate in found.items()}
