"""nn.Modules: drop-in recurrent layers and dropouts; the mathematics lives in cells, the loop in sequence."""

from gatedrnn.layers.dropout import EmbeddingDropout, LockedDropout
from gatedrnn.layers.family import (
    G2LSTM,
    GRU,
    LSTM,
    MGU,
    ONLSTM,
    RNN,
    SLSTM,
    CoupledLSTM,
    LayerNormLSTM,
    PeepholeLSTM,
    Recurrent,
)
from gatedrnn.layers.recurrent import RecurrentBase

__all__ = [
    "G2LSTM",
    "GRU",
    "LSTM",
    "MGU",
    "ONLSTM",
    "RNN",
    "SLSTM",
    "CoupledLSTM",
    "EmbeddingDropout",
    "LayerNormLSTM",
    "LockedDropout",
    "PeepholeLSTM",
    "Recurrent",
    "RecurrentBase",
]
