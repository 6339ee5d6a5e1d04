"""One file a cell: its `Spec` (gates, widths, states) and `step()` (the equation); no loop over time, no module, no distance."""

import torch

from gatedrnn.cells import coupled, g2lstm, gru, layernorm, lstm, mgu, onlstm, peephole, rnn, slstm
from gatedrnn.cells.onlstm import repeat_chunks
from gatedrnn.cells.spec import Cell, Derived, Extra, Gate, Params, Spec, State, Trace
from gatedrnn.core.registry import Registry

CELLS: Registry[Cell] = Registry(
    "cell",
    {each.CELL.name: each.CELL for each in (rnn, lstm, peephole, coupled, gru, onlstm, g2lstm, mgu, layernorm, slstm)},
)

PACKAGED = tuple(cell for _, cell in CELLS.items())
"""The package's own, whatever is registered later."""

# what a pickled layer holds besides tensors: under weights_only=True only its class is left to allow, as of torch.nn.LSTM
torch.serialization.add_safe_globals(
    [
        Cell,
        Derived,
        Extra,
        Gate,
        Spec,
        coupled.rest,
        *{part for _, cell in CELLS.items() for part in (cell.make_spec, cell.step)},
    ]
)

__all__ = ["CELLS", "PACKAGED", "Cell", "Derived", "Extra", "Gate", "Params", "Spec", "State", "Trace", "repeat_chunks"]
