"""LSTM: c = f∘c' + i∘g, h = o∘tanh(c)."""

import torch
from torch import Tensor

from gatedrnn.cells.spec import Cell, Gate, Params, Spec, State, Trace
from gatedrnn.core.checks import boolean

_CAPPED = ("input_cap", 1.0)


def make_spec(hidden_size: int, *, input_cap: bool = False) -> Spec:
    """Rows i f g o, torch's order.

    With `input_cap` the input gate is at most 1 − f, which keeps c in [−1, 1].
    Raises: ArgumentError: input_cap is neither True nor False.
    """
    boolean("LSTM.input_cap", input_cap, "Give True to cap the input gate")
    gates = (
        Gate("input_gate", hidden_size),
        Gate("forget_gate", hidden_size),
        Gate("cell_candidate", hidden_size, "tanh"),
        Gate("output_gate", hidden_size, memory=False),
    )
    return Spec(hidden_size, gates, ("h", "c"), constants=(_CAPPED,) if input_cap else ())


def step(spec: Spec, params: Params, x_gates: Tensor, h_gates: Tensor, state: State) -> tuple[State, Trace]:
    """i, f, o = σ(W x + U h' + b); g = tanh(W x + U h' + b); c = f∘c' + i∘g; h = o∘tanh(c).

    Equations: Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000. With input_cap=True, i = min(σ(a_i), 1 − f)
        as in Melis, Dyer & Blunsom 2018, computed as σ(min(a_i, −a_f)); a_i and a_f are the logits. Departs: none.
    Args:    x_gates, h_gates: [B, 4H], rows i f g o; state: (h', c') of [B, H].
    Returns: (h, c), gates of [B, H]; input_gate is the capped one, rounded after the cap if straight-through.
    Raises:  nothing: shapes are the driver's.
    """
    _, c = state
    a_i, a_f, a_g, a_o = spec.split(x_gates + h_gates)
    if _CAPPED in spec.constants:
        a_i = torch.minimum(a_i, -a_f)
    i = spec.squash("input_gate", a_i)
    f = spec.squash("forget_gate", a_f)
    g = spec.squash("cell_candidate", a_g)
    o = spec.squash("output_gate", a_o)
    c = f * c + i * g
    h = o * torch.tanh(c)
    return (h, c), {"input_gate": i, "forget_gate": f, "cell_candidate": g, "output_gate": o}


CELL = Cell("lstm", "LSTM", make_spec, step, {"input_cap": False})
