"""Models made of layers, their configurations, saving and loading, generation, surprisal; no training, no text."""

from gatedrnn.models.config import LanguageModelConfig, PairClassifierConfig
from gatedrnn.models.generation import generate
from gatedrnn.models.language_model import LanguageModel, LanguageModelOutput
from gatedrnn.models.pair_classifier import PairClassifier
from gatedrnn.models.surprisal import surprisals

__all__ = [
    "LanguageModel",
    "LanguageModelConfig",
    "LanguageModelOutput",
    "PairClassifier",
    "PairClassifierConfig",
    "generate",
    "surprisals",
]
