"""Vanilla RNN: h = φ(W x + U h' + b), φ one of tanh, relu, σ."""

from torch import Tensor

from gatedrnn.cells.spec import Cell, Gate, Params, Spec, State, Trace
from gatedrnn.core.checks import one_of

NONLINEARITIES = ("tanh", "relu", "sigmoid")


def make_spec(hidden_size: int, *, nonlinearity: str = "tanh") -> Spec:
    """One row block, the candidate, squashed by `nonlinearity`: tanh, relu or sigmoid."""
    one_of("RNN.nonlinearity", nonlinearity, NONLINEARITIES)
    candidate = Gate("cell_candidate", hidden_size, nonlinearity, memory=False)
    return Spec(hidden_size, (candidate,), ("h",))


def step(spec: Spec, params: Params, x_gates: Tensor, h_gates: Tensor, state: State) -> tuple[State, Trace]:
    """h = φ(W x + U h' + b).

    Equations: Elman 1990. Departs: φ can be relu or σ.
    Args:    x_gates, h_gates: [B, H]; state: (h',) of [B, H].
    Returns: (h,), {"cell_candidate": h}.
    Raises:  nothing: shapes are the driver's.
    """
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h,), {"cell_candidate": h}


CELL = Cell("rnn", "vanilla RNN", make_spec, step, {"nonlinearity": "tanh"})
