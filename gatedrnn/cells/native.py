"""Which function of PyTorch runs a cell, if any: by its equation, not its name."""

from gatedrnn.cells import gru, lstm, rnn
from gatedrnn.cells.spec import Spec, Step


def native(step: Step, spec: Spec) -> str | None:
    """The name in `torch` of the function that computes one layer of the cell, or None."""
    H = spec.hidden_size
    if step is lstm.step:
        return "lstm" if spec == lstm.make_spec(H) else None
    if step is gru.step:
        return "gru" if spec == gru.make_spec(H) else None
    if step is rnn.step:
        return next((f"rnn_{phi}" for phi in ("tanh", "relu") if spec == rnn.make_spec(H, nonlinearity=phi)), None)
    return None
