"""nn.Modules: drop-in recurrent layers and dropouts; the mathematics lives in cells, the loop in sequence."""

from gatedrnn.layers.dropout import EmbeddingDropout, LockedDropout
from gatedrnn.layers.family import GRU, LSTM, ONLSTM, RNN, CoupledLSTM, G2LSTM, PeepholeLSTM, Recurrent
from gatedrnn.layers.recurrent import RecurrentBase

__all__ = [
    "GRU",
    "LSTM",
    "ONLSTM",
    "RNN",
    "CoupledLSTM",
    "EmbeddingDropout",
    "G2LSTM",
    "LockedDropout",
    "PeepholeLSTM",
    "Recurrent",
    "RecurrentBase",
]
