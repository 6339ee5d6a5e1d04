"""Models made of layers, their configurations, saving and loading, generation, surprisal; no training, no text."""

from gatedrnn.models.config import LanguageModelConfig, PairClassifierConfig, TranslationConfig
from gatedrnn.models.encoder import Encoder
from gatedrnn.models.generation import generate
from gatedrnn.models.grammar import Grammar, GrammarConfig
from gatedrnn.models.language_model import LanguageModel, LanguageModelOutput
from gatedrnn.models.pair_classifier import PairClassifier
from gatedrnn.models.surprisal import surprisals
from gatedrnn.models.translation import TranslationModel

__all__ = [
    "Encoder",
    "Grammar",
    "GrammarConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "LanguageModelOutput",
    "PairClassifier",
    "PairClassifierConfig",
    "TranslationConfig",
    "TranslationModel",
    "generate",
    "surprisals",
]
