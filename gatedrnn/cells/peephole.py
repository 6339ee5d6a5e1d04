"""Peephole LSTM: i and f also read the old cell state, o reads the new one, through a diagonal or a full matrix."""

import torch
from torch import Tensor

from gatedrnn.cells import lstm
from gatedrnn.cells.spec import Cell, Extra, Params, Spec, State, Trace
from gatedrnn.core.checks import one_of

PEEPHOLES = ("diagonal", "full")


def make_spec(hidden_size: int, *, peephole: str = "diagonal") -> Spec:
    """The LSTM's rows i f g o, and `weight_ch` with rows i f o: [3H] if diagonal, [3H, H] if full."""
    one_of("PeepholeLSTM.peephole", peephole, PEEPHOLES)
    extra = Extra("weight_ch", ("input_gate", "forget_gate", "output_gate"), full=peephole == "full")
    plain = lstm.make_spec(hidden_size)
    return Spec(hidden_size, plain.gates, plain.states, extras=(extra,))


def step(spec: Spec, params: Params, x_gates: Tensor, h_gates: Tensor, state: State) -> tuple[State, Trace]:
    """i, f = σ(· + P c'); c = f∘c' + i∘g; o = σ(· + P c); h = o∘tanh(c).

    Equations: Gers & Schmidhuber 2000 (diagonal P); textbooks write a full matrix on [c, h, x]. Departs: none.
    Args:    x_gates, h_gates: [B, 4H], rows i f g o; state: (h', c') of [B, H]; params.extras["weight_ch"]: P, rows i f o.
    Returns: (h, c), gates of [B, H].
    Raises:  nothing: shapes are the driver's.
    """
    _, c = state
    P_i, P_f, P_o = params.extras["weight_ch"].chunk(3)
    a_i, a_f, a_g, a_o = spec.split(x_gates + h_gates)
    i = spec.squash("input_gate", a_i + _peep(c, P_i))
    f = spec.squash("forget_gate", a_f + _peep(c, P_f))
    g = spec.squash("cell_candidate", a_g)
    c = f * c + i * g
    o = spec.squash("output_gate", a_o + _peep(c, P_o))
    h = o * torch.tanh(c)
    return (h, c), {"input_gate": i, "forget_gate": f, "cell_candidate": g, "output_gate": o}


def _peep(c: Tensor, P: Tensor) -> Tensor:
    return c * P if P.dim() == 1 else c @ P.t()


CELL = Cell("peephole", "peephole LSTM", make_spec, step, {"peephole": "diagonal"})
