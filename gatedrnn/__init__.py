"""Gated recurrent networks whose gates mean something: the public names; every room has its own package.

`Run`, `Vocabulary` and `load_run` are imported when they are first used.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from gatedrnn.models.saving import PretrainedModel

if TYPE_CHECKING:
    from gatedrnn.data.vocabulary import Vocabulary
    from gatedrnn.training.run import Run, load_run

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
    "Run",
    "Vocabulary",
    "load_run",
    "syntactic_distance",
]

_LATER = {"Run": "gatedrnn.training.run", "Vocabulary": "gatedrnn.data.vocabulary", "load_run": "gatedrnn.training.run"}
"""Names that are imported when they are first used, and where from."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


def _read_vocabulary(path: Path) -> Any:
    """Models know no text: the package tells them how a vocabulary is read."""
    from gatedrnn.data.vocabulary import Vocabulary

    return Vocabulary.load(path)


PretrainedModel.read_vocabulary = staticmethod(_read_vocabulary)
