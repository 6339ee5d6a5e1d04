"""Layers upon one another in one direction, where nothing but numbers is wanted: no tensor is made but the results.

A small layer's step takes less time than PyTorch needs to cut a state out of a stack of states: the loops take addresses.
Dimensions: T steps, B batch, D input, L layers, H hidden.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gatedrnn.cells import Params
from gatedrnn.sequence.backends.cpu.recurrence.arguments import Loop, layout
from gatedrnn.sequence.backends.cpu.recurrence.operator import forward_loop, kind_for, weights
from gatedrnn.sequence.backends.cpu.runtime import team
from gatedrnn.sequence.backends.cpu.runtime.target import Target, best
from gatedrnn.sequence.plan import Plan, biases


class Stack:
    """How to run layers of these plans, from the first to the last, in calls of one shape, type and kind of products."""

    def __init__(self, plans: Sequence[Plan], asked: str) -> None:
        self._plans, self._asked = plans, asked
        self._loops: dict[tuple[int, Target], list[Loop]] = {}

    def __call__(
        self, x_TBD: Tensor, states: Sequence[Tensor], params: Sequence[Params]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Output [T, B, H] and final states, each [L, B, H] as `states`. All tensors have one type, and fit the plans."""
        (T, B, _), x, dtype = x_TBD.shape, x_TBD.contiguous(), x_TBD.dtype
        states, tokens = [state.contiguous() for state in states], layout(None, T, B, False)
        finals = tuple([torch.empty_like(state) for state in states])
        h0, c0, hn, cn = states[0].data_ptr(), states[-1].data_ptr(), finals[0].data_ptr(), finals[-1].data_ptr()
        for plan, p, run in zip(self._plans, params, self._ready(x_TBD, params), strict=True):
            output, bias, bias_h = torch.empty(T, B, plan.hidden, dtype=dtype), p.bias_ih, p.bias_hh
            values = weights(run, p.weight_ih, p.weight_hh, None)
            values["x"], values["out"] = x, output
            values["h0"], values["c0"], values["hn"], values["cn"] = h0, c0, hn, cn
            values["offsets"], values["prev"] = tokens.offsets, tokens.previous
            if bias is None or bias_h is None:
                values["bias"] = biases(plan, p)
            else:
                values["bias"], values["bias_h"], values["two_biases"] = bias.contiguous(), bias_h.contiguous(), 1
            for extra in p.extras.values():
                values["extra"] = extra.contiguous()
            if plan.cells and len(states) == 1:  # the last r∘h', which nobody asks for
                values["cn"] = torch.empty((B, plan.hidden), dtype=dtype)
            run(values)
            step = B * plan.hidden * dtype.itemsize
            h0, c0, hn, cn, x = h0 + step, c0 + step, hn + step, cn + step, output
        return x, finals

    def _ready(self, x_TBD: Tensor, params: Sequence[Params]) -> list[Loop]:
        """The loops, which depend on the team and the target of now, and on the ranks of compressed weights."""
        (T, B, _), dtype, threads, target = x_TBD.shape, x_TBD.dtype, team.size(), best()
        found = self._loops.get((threads, target))
        if found is None:
            found, small = [], False
            for plan, p in zip(self._plans, params, strict=True):
                kind, rank = kind_for(p.weight_ih, p.weight_hh, self._asked, x_TBD, target)
                D, small = p.weight_ih.shape[1], small or kind == "small"
                found.append(
                    forward_loop(plan.text(), T, B, T * B, D, dtype, False, False, kind, rank, threads, target)
                )
            if not small:
                self._loops[threads, target] = found
        return found
