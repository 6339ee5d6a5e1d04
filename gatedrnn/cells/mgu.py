"""Minimal gated unit: one gate does the work of the forget, reset and input gates."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.cells.spec import Cell, Gate, Params, Spec, State, Trace


def make_spec(hidden_size: int) -> Spec:
    """Rows f n. The product with the U of n is part of the step, because the reset comes before it."""
    gates = (Gate("forget_gate", hidden_size), Gate("cell_candidate", hidden_size, "tanh"))
    return Spec(hidden_size, gates, ("h",), recurrent_gates=1)


def step(spec: Spec, params: Params, x_gates: Tensor, h_gates: Tensor, state: State) -> tuple[State, Trace]:
    """f = σ(W x + U h' + b); n = tanh(W x + U (f∘h') + b); h = (1 − f)∘h' + f∘n.

    Equations: Zhou et al. 2016 (MGU). Departs: none.
    Args:    x_gates: [B, 2H], rows f n; h_gates: [B, H], row f; state: (h',) of [B, H].
    Returns: (h,), gates of [B, H].
    Raises:  nothing: shapes are the driver's.
    """
    (h,) = state
    x_f, x_n = spec.split(x_gates)
    (h_f,) = spec.split(h_gates)
    f = spec.squash("forget_gate", x_f + h_f)
    first = spec.recurrent_rows
    U_n, b_n = params.weight_hh[first:], None if params.bias_hh is None else params.bias_hh[first:]
    n = torch.tanh(x_n + F.linear(f * h, U_n, b_n))
    h = (1 - f) * h + f * n
    return (h,), {"forget_gate": f, "cell_candidate": n}


CELL = Cell("mgu", "minimal gated unit", make_spec, step)
