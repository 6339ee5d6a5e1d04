"""Gated recurrent networks whose gates mean something: the public names; every room has its own package."""

from gatedrnn.cells import CELLS
from gatedrnn.core.errors import ArgumentError, BackendError, CheckpointError, ConfigError, DataError, GatedRNNError
from gatedrnn.gates import Gates, syntactic_distance
from gatedrnn.layers import (
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
from gatedrnn.models import LanguageModel, LanguageModelConfig

__version__ = "0.1.0"

__all__ = [
    "CELLS",
    "G2LSTM",
    "GRU",
    "LSTM",
    "MGU",
    "ONLSTM",
    "RNN",
    "SLSTM",
    "ArgumentError",
    "BackendError",
    "CheckpointError",
    "ConfigError",
    "CoupledLSTM",
    "DataError",
    "GatedRNNError",
    "Gates",
    "LanguageModel",
    "LanguageModelConfig",
    "LayerNormLSTM",
    "PeepholeLSTM",
    "Recurrent",
    "syntactic_distance",
]
