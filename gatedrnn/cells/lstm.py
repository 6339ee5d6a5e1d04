"""LSTM: c = f∘c' + i∘g, h = o∘tanh(c)."""

import torch
from torch import Tensor

from gatedrnn.cells.spec import Cell, Gate, Params, Spec, State, Trace


def make_spec(hidden_size: int) -> Spec:
    """Rows i f g o, torch's order."""
    gates = (
        Gate("input_gate", hidden_size),
        Gate("forget_gate", hidden_size),
        Gate("cell_candidate", hidden_size, "tanh"),
        Gate("output_gate", hidden_size, memory=False),
    )
    return Spec(hidden_size, gates, ("h", "c"))


def step(spec: Spec, params: Params, x_gates: Tensor, h_gates: Tensor, state: State) -> tuple[State, Trace]:
    """i, f, o = σ(W x + U h' + b); g = tanh(W x + U h' + b); c = f∘c' + i∘g; h = o∘tanh(c).

    Equations: Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000. Departs: none.
    Args:    x_gates, h_gates: [B, 4H], rows i f g o; state: (h', c') of [B, H].
    Returns: (h, c), gates of [B, H].
    Raises:  nothing: shapes are the driver's.
    """
    _, c = state
    a_i, a_f, a_g, a_o = spec.split(x_gates + h_gates)
    i = spec.squash("input_gate", a_i)
    f = spec.squash("forget_gate", a_f)
    g = spec.squash("cell_candidate", a_g)
    o = spec.squash("output_gate", a_o)
    c = f * c + i * g
    h = o * torch.tanh(c)
    return (h, c), {"input_gate": i, "forget_gate": f, "cell_candidate": g, "output_gate": o}


CELL = Cell("lstm", "LSTM", make_spec, step)
