"""Tiny language models of every level, and the log-probabilities that one gives step by step."""

import torch

from gatedrnn.data import DataConfig, Vocabulary
from gatedrnn.models import LanguageModel, LanguageModelConfig

TEXT = [
    "the old pilot walks",
    "the old pilots walk to the garden .",
    "a guard sees the pilot",
    "guards see a pilot",
] * 3
LEVELS = {
    "char": {"level": "char", "min_count": 1},
    "subword": {"level": "subword", "vocabulary_size": 290},
    "characters": {"tokenize": "characters", "min_count": 1},
    "word": {"min_count": 1},
}


def of_level(name):
    vocabulary = Vocabulary.learn([TEXT], DataConfig(**LEVELS[name]))
    torch.manual_seed(1)
    config = LanguageModelConfig(len(vocabulary), embedding_size=8, hidden_sizes=(12, 8), options={"chunk_size": 4})
    model = LanguageModel(config).double().eval()
    with torch.no_grad():  # so that verdicts differ
        model.embedding.weight.mul_(8)
    return model, vocabulary


def by_steps(model, ids):
    """log P of each id after `<eos>` and those before it."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([1, *ids[:-1]])[:, None]).logits[:, 0].log_softmax(-1)
    return logits_TV.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
