"""The `cpu` backend: whole-sequence kernels for every cell, in float32 and float64; layers in bfloat16 are computed in float32.

Dimensions: T time, B batch, N tokens (packed), D input, H hidden.
"""

import functools
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gatedrnn.cells import Params, Spec, Trace
from gatedrnn.core.torch_internals import being_traced
from gatedrnn.sequence import projected
from gatedrnn.sequence.backends.cpu.availability import unavailable
from gatedrnn.sequence.backends.cpu.matmul.sizes import DIRECT_TOKENS
from gatedrnn.sequence.modes import described, half_products, products, transformed
from gatedrnn.sequence.perturb import Draw, fold_extra
from gatedrnn.sequence.plan import Plan, biases, in_columns, plan_for, recurrent, rotated, starts
from gatedrnn.sequence.plan import trace as gates_of
from gatedrnn.sequence.request import Backend, Request, Result, blank
from gatedrnn.weights.compressed import CompressedWeight, as_dense, compressed, take_products

_MOST_KNOWN = 1024


class Cpu(Backend):
    """One operator a layer and direction, compiled by Numba on first use and kept on disk."""

    def __init__(self) -> None:
        self._able: dict[Hashable, Spec] = {}  # what was found able to run, by description; its Spec is held

    def supports(self, request: Request) -> str | None:
        """None, or why not: a device, type or shape it cannot take, no kernel for the cell, no Numba or folder for its cache."""
        description = request.description()
        if description is None:
            return self._reason(request)
        if description in self._able:
            return unavailable(request.params.weight_hh, torch.bfloat16)
        reason = self._reason(request)
        if reason is None:
            if len(self._able) >= _MOST_KNOWN:
                self._able.clear()
            self._able[description] = request.spec
        return reason

    def _reason(self, request: Request) -> str | None:
        x, weight, mixture = request.x_TBD, request.params.weight_hh, request.mixture()
        if mixture is not None:
            return mixture
        if torch.is_autocast_enabled("cpu"):
            if not half_products() or weight.dtype != torch.float32:
                return f"autocast to {torch.get_autocast_dtype('cpu')} of weights in {weight.dtype}"
            if x.dtype not in (torch.float32, torch.bfloat16):
                return f"the input is {x.dtype}"
        if transformed():
            return "a function transform or forward-mode differentiation is active"
        if request.params.weight_hr is not None:
            return projected.reason(self, request)
        plan = plan_for(request.cell.step, request.spec)
        return plan if isinstance(plan, str) else unavailable(weight, torch.bfloat16) or request.misfit()

    def run(self, request: Request) -> Result:
        """Run the operator and lay its results out again."""
        if request.params.weight_hr is not None:
            return projected.run(self, request)
        plan = plan_for(request.cell.step, request.spec)
        assert isinstance(plan, Plan)
        scale, state, lengths, given = request.scale_R, request.state, request.lengths_B, request.x_TBD.dtype
        p, (T, B, _), only_numbers = request.params, request.x_TBD.shape, request.only_numbers()
        weight_ih, weight_hh, half = p.weight_ih, recurrent(request.spec, p), p.weight_hh.dtype == torch.bfloat16
        dtype = torch.float32 if half else p.weight_hh.dtype
        if half:
            p = _with_wide_vectors(p)
            if not only_numbers or T * B > DIRECT_TOKENS:  # else they are read as they lie
                weight_ih, weight_hh = weight_ih.float(), weight_hh.float()
        if not only_numbers or half_products():  # only plain inference reads small forms
            weight_ih, weight_hh = as_dense(weight_ih), as_dense(weight_hh)
        vectors = [each for each in request.spec.extras if not each.full]  # matrices lie below U
        extras = [p.extras[each.name] for each in vectors]
        bias = _as(biases(plan, p), dtype)
        if scale is not None:
            scale = _as(scale, dtype)
            extras = [fold_extra(own, request.spec, each, scale) for own, each in zip(extras, vectors, strict=True)]
            scale = in_columns(plan, scale)
            bias = bias * scale
        h0, c0 = _as(state[0], dtype), _beside(plan, state[1:], dtype)
        extra = torch.cat(extras) if len(extras) > 1 else extras[0] if extras else None
        draw = request.noise if isinstance(request.noise, Draw) and lengths is None else None
        draw = None if draw and draw.distributions else draw
        noise = None if draw else request.drawn_noise(torch.ops.gatedrnn.logistic_noise)
        noise = None if noise is None else rotated(plan, _as(noise, dtype))
        arguments = (
            _as(request.x_TBD, dtype), weight_ih, weight_hh, bias, scale, extra, h0, c0, noise, *_drawn(plan, draw), lengths,
            plan.text(), request.reverse, "bf16" if half else products(B),
        )  # fmt: skip
        if only_numbers:
            output_TBH, gates, _, h_n, c_n = self._forward(*arguments, bool(request.return_gates))
        else:
            output_TBH, gates, _, h_n, c_n = torch.ops.gatedrnn.recurrence(*arguments)
        whole = c_n.shape[1] == plan.hidden  # else each state is copied: a user may not write into one of several views
        more = [c_n] if whole else [each.clone() for each in c_n.split(plan.hidden, 1)] if plan.cells else []
        found = (h_n, *more)[: len(state)]  # without left factors
        finals = tuple(_as(after, before.dtype) for after, before in zip(found, state, strict=True))
        trace = None
        if request.return_gates:
            trace = _shown(request, plan, gates, given if half else gates.dtype)
        return Result(_as(output_TBH, finals[0].dtype), finals, trace)

    def prepare(self, requests: Sequence[Request]) -> Any:
        """How to run requests like these, of layers upon one another, that `supports` was asked about; None if as single ones."""
        from gatedrnn.sequence.backends.cpu.recurrence.stack import Stack

        plans: Any = [plan_for(r.cell.step, r.spec) for r in requests]
        return Stack(plans, products(requests[0].x_TBD.shape[1])) if all(map(_stackable, plans, requests)) else None

    @functools.cached_property
    def _forward(self) -> Any:
        """The operator's function: without a graph to build, PyTorch's dispatcher would take longer than a small layer."""
        from gatedrnn.sequence.backends.cpu.recurrence.operator import forward

        return forward


def _stackable(plan: Plan, r: Request) -> bool:
    """Whether only numbers are wanted, of one type, and nothing that a `Stack` does not do."""
    if plan.cells > 1 or len(r.state) > 2 or len(r.spec.extras) > 1 or plan.rows != plan.columns_x:
        return False
    if r.reverse or r.return_gates or not (r.scale_R is r.noise is r.lengths_B is None) or not r.only_numbers():
        return False
    p, dtype = r.params, r.x_TBD.dtype
    if half_products() and compressed(p.weight_ih, p.weight_hh):
        return False
    return dtype != torch.bfloat16 and all(tensor.dtype == dtype for tensor in r.tensors())


def _beside(plan: Plan, states: Sequence[Tensor], dtype: torch.dtype) -> Tensor | None:
    """States beside h as one [B, cells · H], with room for the left factors of products inside the step; None for none."""
    if len(states) == plan.cells == 1:
        return _as(states[0], dtype)
    if not states:
        return None
    left = [torch.zeros_like(states[0])] * (plan.cells - len(states))
    return torch.cat([_as(state, dtype) for state in (*states, *left)], 1)


def _with_wide_vectors(p: Params) -> Params:
    """The same with biases and extras in float32."""
    bias_ih, bias_hh = (None if bias is None else bias.float() for bias in (p.bias_ih, p.bias_hh))
    return replace(p, bias_ih=bias_ih, bias_hh=bias_hh, extras={name: own.float() for name, own in p.extras.items()})


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _drawn(plan: Plan, draw: Draw | None) -> tuple[Tensor | None, list[int] | None, list[float] | None]:
    """Seed, columns of each block, probability and scale, as the operator takes them."""
    if draw is None:
        return None, None, None
    edges = []
    for first, last in draw.blocks:
        start = (first - plan.shift) % plan.columns_x
        edges += [start, start + last - first]
    return draw.seed, edges, [draw.probability, draw.scale]


def _shown(request: Request, plan: Plan, gates: Tensor, dtype: torch.dtype) -> Trace:
    """The gates that are wanted of packed tokens [T · B, G], as [T, B, …], 0 beyond a row's length."""
    (T, B, _), columns = request.x_TBD.shape, starts(plan, request.spec)
    if request.lengths_B is None:
        found = gates_of(request.spec, columns, gates, request.wants, lambda gate: _as(gate, dtype))
    else:
        from gatedrnn.sequence.backends.cpu.recurrence.arguments import token_places

        places, dead = token_places(request.lengths_B, T)  # before others are derived, which see rows of tokens alone
        found = gates_of(
            request.spec, columns, gates, request.wants, lambda gate: _as(gate, dtype).index_select(0, places)
        )
        found = {name: blank(gate, dead) for name, gate in found.items()}
    found = {name: gate.unflatten(0, (T, B)) for name, gate in found.items()}
    if any(gate.requires_grad for gate in found.values()) or torch.compiler.is_compiling() or being_traced():
        return found
    return {name: gate.contiguous() for name, gate in found.items()}  # each its own, and not the memory of all


def _linear(input: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor | None:
    """x Wᵀ + b of a compressed weight by the kernels, if only the numbers are wanted; else None."""
    if not isinstance(weight, CompressedWeight) or isinstance(bias, CompressedWeight):
        return None
    if described((input, bias)) is None:
        return None
    if input.dtype != torch.float32 or unavailable(input) is not None or torch.is_autocast_enabled("cpu"):
        return None
    if input.dim() == 0 or input.shape[-1] != weight.shape[1]:  # PyTorch says so
        return None
    if bias is not None and (
        bias.shape != weight.shape[:1] or bias.dtype != input.dtype or bias.device != input.device
    ):
        return None
    from gatedrnn.sequence.backends.cpu.operators.linear import linear

    return linear(input, weight, bias)


take_products(_linear)
