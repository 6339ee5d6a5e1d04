"""Layer-normalised LSTM: W x, U h' and the cell state are normalised over their row."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.cells import lstm
from gatedrnn.cells.spec import Cell, Extra, Params, Spec, State, Trace

_GATES = ("input_gate", "forget_gate", "cell_candidate", "output_gate")


def make_spec(hidden_size: int) -> Spec:
    """The LSTM's rows i f g o, and gains (initially 1) and shifts (0) of the norms of W x and U h' [4H] and of c [H]."""
    plain = lstm.make_spec(hidden_size)
    extras = []
    for name, gates in (("ih", _GATES), ("hh", _GATES), ("ch", ("output_gate",))):
        extras += [Extra(f"gain_{name}", gates, start=1.0), Extra(f"shift_{name}", gates, start=0.0)]
    return Spec(hidden_size, plain.gates, plain.states, extras=tuple(extras), normalised=True)


def step(spec: Spec, params: Params, x_gates: Tensor, h_gates: Tensor, state: State) -> tuple[State, Trace]:
    """i, f, o = σ(·), g = tanh(·) of LN(W x + b) + LN(U h' + b); c = f∘c' + i∘g; h = o∘tanh(LN(c)).

    LN(a) = gain∘(a − mean) / √(var + 10⁻⁵) + shift over the row, of all four gates together.

    Equations: Ba, Kiros & Hinton 2016, eq. 29–31. Departs: b is inside the norms; the shifts take its place.
    Args:    x_gates, h_gates: [B, 4H], rows i f g o; state: (h', c') of [B, H]; params.extras: gains and shifts.
    Returns: (h, c), gates of [B, H].
    Raises:  nothing: shapes are the driver's.
    """
    _, c = state
    own = params.extras
    a_x = F.layer_norm(x_gates, x_gates.shape[-1:], own["gain_ih"], own["shift_ih"])
    a_h = F.layer_norm(h_gates, h_gates.shape[-1:], own["gain_hh"], own["shift_hh"])
    a_i, a_f, a_g, a_o = spec.split(a_x + a_h)
    i = spec.squash("input_gate", a_i)
    f = spec.squash("forget_gate", a_f)
    g = spec.squash("cell_candidate", a_g)
    o = spec.squash("output_gate", a_o)
    c = f * c + i * g
    h = o * torch.tanh(F.layer_norm(c, c.shape[-1:], own["gain_ch"], own["shift_ch"]))
    return (h, c), {"input_gate": i, "forget_gate": f, "cell_candidate": g, "output_gate": o}


CELL = Cell("layernorm", "layer-normalised LSTM", make_spec, step)
