"""sLSTM (of the xLSTM family): an LSTM with exponential gates, a normaliser state n and a stabiliser state m."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.cells.spec import Cell, Gate, Params, Spec, State, Trace


def make_spec(hidden_size: int) -> Spec:
    """Rows i f z o; states h, c, n and m."""
    gates = (
        Gate("input_gate", hidden_size, "exp"),
        Gate("forget_gate", hidden_size, "exp"),
        Gate("cell_candidate", hidden_size, "tanh"),
        Gate("output_gate", hidden_size, memory=False),
    )
    return Spec(hidden_size, gates, ("h", "c", "n", "m"))


def step(spec: Spec, params: Params, x_gates: Tensor, h_gates: Tensor, state: State) -> tuple[State, Trace]:
    """i = exp(a_i − m); f = exp(log σ(a_f) + m' − m); c = f∘c' + i∘z; n = f∘n' + i; h = o∘c/n.

    m = max(log σ(a_f) + m', a_i), or a_i where n' = 0: c and n are e^m times smaller than without it, h is the same.

    Equations: Beck et al. 2024, eq. 8–17, f by σ, without heads. Departs: an empty state takes m = a_i, as in the authors' code.
    Args:    x_gates, h_gates: [B, 4H], rows i f z o; state: (h', c', n', m') of [B, H].
    Returns: (h, c, n, m), gates of [B, H]; i and f are what c' and z are multiplied by, stabilised.
    Raises:  nothing: shapes are the driver's.
    """
    _, c, n, m = state
    a_i, a_f, a_z, a_o = spec.split(x_gates + h_gates)
    old = F.logsigmoid(a_f) + m
    m = torch.where(n == 0, a_i, torch.maximum(old, a_i))
    i, f = torch.exp(a_i - m), torch.exp((old - m).clamp(max=80.0))  # above 0 for an empty state only
    z = spec.squash("cell_candidate", a_z)
    o = spec.squash("output_gate", a_o)
    c = f * c + i * z
    n = f * n + i
    h = o * c / n
    return (h, c, n, m), {"input_gate": i, "forget_gate": f, "cell_candidate": z, "output_gate": o}


CELL = Cell("slstm", "sLSTM", make_spec, step)
