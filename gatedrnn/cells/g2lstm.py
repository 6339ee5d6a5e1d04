"""G²-LSTM: an LSTM whose input and forget gates are Gumbel gates, G(α, τ) = σ((α + log U − log(1 − U)) / τ)."""

from gatedrnn.cells import lstm
from gatedrnn.cells.spec import Cell
from gatedrnn.gates import Gates

CELL = Cell(
    "g2lstm",
    "G²-LSTM",
    lstm.make_spec,
    lstm.step,
    {"input_cap": False},
    gates=Gates(temperature=0.9, noise_probability=0.2, names=("input_gate", "forget_gate")),
)
