"""nn.Modules: drop-in recurrent layers and dropouts; the mathematics lives in cells, the loop in sequence."""

from gatedrnn.layers.dropout import EmbeddingDropout, LockedDropout
from gatedrnn.layers.family import G2LSTM, GRU, LSTM, ONLSTM, RNN, CoupledLSTM, PeepholeLSTM, Recurrent
from gatedrnn.layers.recurrent import RecurrentBase

__all__ = [
    "G2LSTM",
    "GRU",
    "LSTM",
    "ONLSTM",
    "RNN",
    "CoupledLSTM",
    "EmbeddingDropout",
    "LockedDropout",
    "PeepholeLSTM",
    "Recurrent",
    "RecurrentBase",
]
