"""One file a cell: its `Spec` (gates, widths, states) and `step()` (the equation); no loop over time, no module, no distance."""

from gatedrnn.cells import coupled, g2lstm, gru, lstm, onlstm, peephole, rnn
from gatedrnn.cells.spec import Cell, Extra, Gate, Params, Spec, State, Trace
from gatedrnn.core.registry import Registry

CELLS: Registry[Cell] = Registry(
    "cell",
    {
        "rnn": rnn.CELL,
        "lstm": lstm.CELL,
        "peephole": peephole.CELL,
        "coupled": coupled.CELL,
        "gru": gru.CELL,
        "onlstm": onlstm.CELL,
        "g2lstm": g2lstm.CELL,
    },
)

__all__ = ["CELLS", "Cell", "Extra", "Gate", "Params", "Spec", "State", "Trace"]
