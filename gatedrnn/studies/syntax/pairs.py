"""Minimal pairs by whole-sentence log-probability.

Dimensions: T time, B batch, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from gatedrnn.core.errors import ArgumentError
from gatedrnn.models import LanguageModel

_BATCH = 128
_PAD = -100


@torch.no_grad()
def log_probabilities(model: LanguageModel, sentences: Sequence[list[int]], eos: int) -> list[float]:
    """log P of each sentence and its `<eos>` in nats, read from a fresh state after `<eos>`.

    Args: sentences: word ids, each at least one; eos: id of the end of a sentence.
    Raises: ArgumentError: an empty sentence.
    """
    if any(not ids for ids in sentences):
        raise ArgumentError("log_probabilities", "a sentence must have at least one word", "length 0", "Skip it")
    scores: list[float] = []
    device = model.embedding.weight.device
    for start in range(0, len(sentences), _BATCH):
        batch = sentences[start : start + _BATCH]
        width = max(map(len, batch)) + 1
        inputs_TB, targets_TB = torch.full((width, len(batch)), eos), torch.full((width, len(batch)), _PAD)
        for b, ids in enumerate(batch):
            inputs_TB[1 : len(ids) + 1, b] = torch.tensor(ids)
            targets_TB[: len(ids) + 1, b] = torch.tensor([*ids, eos])
        logits_TBV = model(inputs_TB.to(device), lengths=[len(ids) + 1 for ids in batch]).logits
        losses = F.cross_entropy(logits_TBV.flatten(0, 1).double(), targets_TB.to(device).flatten(), reduction="none")
        scores += (-losses.view(width, len(batch)).sum(0)).tolist()
    return scores


def pair_accuracy(model: LanguageModel, good: Sequence[list[int]], bad: Sequence[list[int]], eos: int) -> float:
    """Share of pairs whose good sentence is more probable than the bad one (a tie is no win). Raises as above, or on no pair."""
    if not good or len(good) != len(bad):
        got = f"{len(good)} and {len(bad)}"
        raise ArgumentError("pair_accuracy", "must have as many good as bad sentences", got, "Give at least one pair")
    wins = zip(log_probabilities(model, good, eos), log_probabilities(model, bad, eos), strict=True)
    return sum(g > b for g, b in wins) / len(good)
