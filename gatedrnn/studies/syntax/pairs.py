"""Minimal pairs by log-probability; what sentences begin with alike is read once.

Dimensions: N prefixes of one length, S sentences, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from gatedrnn.core.errors import ArgumentError
from gatedrnn.models import LanguageModel
from gatedrnn.models.finite import finite
from gatedrnn.models.surprisal import evaluating

_LOGITS = 16 << 20
_FEWEST = 64  # sentences at once, however large the vocabulary


def log_probabilities(model: LanguageModel, sentences: Sequence[list[int]], eos: int) -> list[float]:
    """log P of each sentence and its `<eos>` in nats, read from a fresh state after `<eos>`.

    Args: sentences: word ids, each at least one; eos: id of the end of a sentence.
    Raises: ArgumentError: an empty sentence.
    """
    if any(not ids for ids in sentences):
        raise ArgumentError("log_probabilities", "a sentence must have at least one word", "length 0", "Skip it")
    ended = sorted({(*ids, eos) for ids in sentences})  # sentences that begin alike are neighbours
    found: dict[tuple[int, ...], float] = {}
    at_once, rest = max(_FEWEST, _LOGITS // model.embedding.num_embeddings), iter(ended)
    while chunk := list(islice(rest, at_once)):
        found |= zip(chunk, _together(model, chunk, eos), strict=True)
    return [found[*ids, eos] for ids in sentences]


@torch.no_grad()
def _together(model: LanguageModel, sentences: list[tuple[int, ...]], eos: int) -> list[float]:
    """log P of sorted token sequences after `<eos>`, word by word: prefixes [N] are read, each with its parent's state."""
    device = model.embedding.weight.device
    totals = torch.zeros(len(sentences), dtype=torch.float64)
    alive = torch.arange(len(sentences))  # sentences that go on [S], and the prefix of each
    node, tokens, states = torch.zeros_like(alive), torch.tensor([eos]), None
    with evaluating(model):
        for position in range(max(map(len, sentences))):
            output = model(tokens[None].to(device), states)
            logits_NV = output.logits[0]
            following = torch.tensor([sentences[k][position] for k in alive])
            chosen = logits_NV[node.to(device), following.to(device)].double().cpu()
            totals[alive] += chosen - _whole(logits_NV)[node]
            on = torch.tensor([len(sentences[k]) > position + 1 for k in alive])
            alive, node, following = alive[on], node[on], following[on]
            if not len(alive):
                break
            pairs, node = torch.unique_consecutive(torch.stack((node, following)), dim=1, return_inverse=True)
            parents, tokens = pairs
            states = [tuple(state[:, parents.to(device)] for state in layer) for layer in output.states]
    return finite("log P", totals).tolist()


def _whole(logits_NV: Tensor) -> Tensor:
    """log Σ exp of each row, in float64."""
    return torch.cat([part.double().logsumexp(-1) for part in logits_NV.split(256)]).cpu()


def next_word_log_probabilities(
    model: LanguageModel, prefixes: Sequence[list[int]], words: Sequence[list[int]], eos: int
) -> Iterator[list[float]]:
    """log P of each of `words`[k] after `<eos>` and `prefixes`[k]. Raises: as `log_probabilities`, on no word."""
    for prefix, choices in zip(prefixes, words, strict=True):
        if not choices:
            raise ArgumentError("next_word_log_probabilities", "must have a word to choose", 0, "Skip the pair")
        with torch.no_grad(), evaluating(model):
            tokens = torch.tensor([eos, *prefix], device=model.embedding.weight.device)[:, None]
            logits_V = model(tokens).logits[-1, 0].double()
        yield finite("log P", logits_V.log_softmax(-1)[choices]).tolist()


def pair_accuracy(model: LanguageModel, good: Sequence[list[int]], bad: Sequence[list[int]], eos: int) -> float:
    """Share of pairs whose good sentence is more probable than the bad one (a tie is no win). Raises as above, or on no pair."""
    if not good or len(good) != len(bad):
        got = f"{len(good)} and {len(bad)}"
        raise ArgumentError("pair_accuracy", "must have as many good as bad sentences", got, "Give at least one pair")
    scores = log_probabilities(model, [*good, *bad], eos)
    return sum(g > b for g, b in zip(scores[: len(good)], scores[len(good) :], strict=True)) / len(good)
