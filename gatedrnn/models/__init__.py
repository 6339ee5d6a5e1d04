"""Models made of layers, their configurations, saving and loading; no training."""

from gatedrnn.models.config import LanguageModelConfig, from_dict, to_dict
from gatedrnn.models.language_model import LanguageModel

__all__ = ["LanguageModel", "LanguageModelConfig", "from_dict", "to_dict"]
