"""Coupled LSTM (CIFG): an LSTM with i = 1 − f."""

import torch
from torch import Tensor

from gatedrnn.cells.spec import Cell, Derived, Gate, Params, Spec, State, Trace


def make_spec(hidden_size: int) -> Spec:
    """Rows f g o: the LSTM's without i."""
    gates = (
        Gate("forget_gate", hidden_size),
        Gate("cell_candidate", hidden_size, "tanh"),
        Gate("output_gate", hidden_size, memory=False),
    )
    return Spec(hidden_size, gates, ("h", "c"), derived=(Derived("input_gate", "forget_gate", rest),))


def rest(gate: Tensor) -> Tensor:
    """1 − gate."""
    return 1 - gate


def step(spec: Spec, params: Params, x_gates: Tensor, h_gates: Tensor, state: State) -> tuple[State, Trace]:
    """f, o = σ(·); g = tanh(·); c = f∘c' + (1 − f)∘g; h = o∘tanh(c).

    Equations: Greff et al. 2017, CIFG. Departs: none.
    Args:    x_gates, h_gates: [B, 3H], rows f g o; state: (h', c') of [B, H].
    Returns: (h, c), gates of [B, H]; the driver adds input_gate, 1 − f.
    Raises:  nothing: shapes are the driver's.
    """
    _, c = state
    a_f, a_g, a_o = spec.split(x_gates + h_gates)
    f = spec.squash("forget_gate", a_f)
    g = spec.squash("cell_candidate", a_g)
    o = spec.squash("output_gate", a_o)
    c = f * c + rest(f) * g
    h = o * torch.tanh(c)
    return (h, c), {"forget_gate": f, "cell_candidate": g, "output_gate": o}


CELL = Cell("coupled", "coupled LSTM", make_spec, step)
