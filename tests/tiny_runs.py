"""Runs of a tiny language model that was never trained."""

from gatedrnn.data import EOS, UNK, DataConfig, Vocabulary
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.training.config import RunConfig
from gatedrnn.training.run import load_run, write_trained

WORDS = [UNK, EOS, "the", "cat", "sleeps", "."]


def tiny(folder, **model):
    """A run that is written without a training."""
    options = {"cell": "onlstm", "embedding_size": 4, "hidden_sizes": (4,), "options": {"chunk_size": 2}} | model
    config = LanguageModelConfig(len(WORDS), **options)
    write_trained(folder, RunConfig(data=DataConfig(), model=config), LanguageModel(config), Vocabulary(WORDS))
    return load_run(folder)
