"""GRU: torch's form (reset after the product) and the textbook's (reset before it)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.cells.spec import Cell, Gate, Params, Spec, State, Trace
from gatedrnn.core.checks import boolean


def make_spec(hidden_size: int, *, reset_after: bool = True) -> Spec:
    """Rows r z n, torch's order.

    Raises: ArgumentError: reset_after is neither True nor False.
    """
    boolean("GRU.reset_after", reset_after, "Give True to reset after the product, as torch does")
    gates = (
        Gate("reset_gate", hidden_size),
        Gate("update_gate", hidden_size),
        Gate("cell_candidate", hidden_size, "tanh"),
    )
    return Spec(hidden_size, gates, ("h",), recurrent_gates=None if reset_after else 2)


def step(spec: Spec, params: Params, x_gates: Tensor, h_gates: Tensor, state: State) -> tuple[State, Trace]:
    """r, z = σ(W x + U h' + b); then one of two forms, which also differ in what z keeps.

    reset_after=True, as `torch.nn.GRU`: n = tanh(W x + b + r∘(U h' + b)); h = (1 − z)∘n + z∘h'.
    reset_after=False, the textbook's:   n = tanh(W x + b + U (r∘h') + b); h = (1 − z)∘h' + z∘n.

    Equations: Cho et al. 2014 (before), cuDNN (after). Departs: none.
    Args:    x_gates: [B, 3H], rows r z n; h_gates: [B, 3H], or [B, 2H] if the reset comes before; state: (h',) of [B, H].
    Returns: (h,), gates of [B, H].
    Raises:  nothing: shapes are the driver's.
    """
    (h,) = state
    x_r, x_z, x_n = spec.split(x_gates)
    h_r, h_z, *h_n = spec.split(h_gates)
    r = spec.squash("reset_gate", x_r + h_r)
    z = spec.squash("update_gate", x_z + h_z)
    if h_n:
        n = torch.tanh(x_n + r * h_n[0])
        h = (1 - z) * n + z * h
    else:
        first = spec.recurrent_rows
        U_n, b_n = params.weight_hh[first:], None if params.bias_hh is None else params.bias_hh[first:]
        n = torch.tanh(x_n + F.linear(r * h, U_n, b_n))
        h = (1 - z) * h + z * n
    return (h,), {"reset_gate": r, "update_gate": z, "cell_candidate": n}


CELL = Cell("gru", "GRU", make_spec, step, {"reset_after": True})
