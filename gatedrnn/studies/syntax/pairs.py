"""Minimal pairs by log-probability; what sentences begin with alike is read once.

Dimensions: T time, N prefixes of one length, S sentences, V vocabulary.
"""

from collections.abc import Sequence
from itertools import islice, pairwise

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
    return _checked(model, sentences, eos, (eos,), "log_probabilities")


def beginning_log_probabilities(model: LanguageModel, beginnings: Sequence[list[int]], eos: int) -> list[float]:
    """log P of each beginning of a sentence in nats: as `log_probabilities`, but its end is not predicted."""
    return _checked(model, beginnings, eos, (), "beginning_log_probabilities")


def _checked(
    model: LanguageModel, given: Sequence[list[int]], eos: int, end: tuple[int, ...], owner: str
) -> list[float]:
    """log P of each sequence and `end`. Raises: ArgumentError, in the name of `owner`: an empty sequence."""
    if not all(given):
        raise ArgumentError(owner, "a sentence must have at least one word", "length 0", "Skip it")
    sequences = [(*ids, *end) for ids in given]
    found: dict[tuple[int, ...], float] = {}
    at_once = max(_FEWEST, _LOGITS // model.embedding.num_embeddings)
    rest = iter(sorted(set(sequences)))  # those that begin alike are neighbours
    while chunk := list(islice(rest, at_once)):
        found |= zip(chunk, _together(model, chunk, eos), strict=True)
    return [found[ids] for ids in sequences]


@torch.no_grad()
def _together(model: LanguageModel, sentences: list[tuple[int, ...]], eos: int) -> list[float]:
    """log P of sorted token sequences after `<eos>`: prefixes [N] are read, each with its parent's state.

    One call reads up to where the next sentence ends or two part, so that a very long one takes few calls.
    """
    device, vocabulary_size = model.embedding.weight.device, model.embedding.num_embeddings
    totals = torch.zeros(len(sentences), dtype=torch.float64)
    alive = torch.arange(len(sentences))  # sentences that go on [S], and the prefix of each
    node, tokens_N, states, start = torch.zeros_like(alive), torch.tensor([eos]), None, 0
    with evaluating(model):
        for place in sorted({len(ids) for ids in sentences} | {_parting(*both) + 1 for both in pairwise(sentences)}):
            while start < place:
                end = min(place, start + max(1, _LOGITS // (len(tokens_N) * vocabulary_size)))
                targets_TS = torch.tensor([sentences[k][start:end] for k in alive]).t()
                first_N = torch.searchsorted(node, torch.arange(len(tokens_N)))
                inputs_TN = torch.cat((tokens_N[None], targets_TS[:-1, first_N]))
                output = model(inputs_TN.to(device), states)
                steps = torch.arange(end - start)[:, None]
                chosen_TS = output.logits[steps.to(device), node.to(device), targets_TS.to(device)].double().cpu()
                totals[alive] += (chosen_TS - _whole(output.logits)[:, node]).sum(0)
                on = torch.tensor([len(sentences[k]) > end for k in alive])
                alive, node, following = alive[on], node[on], targets_TS[-1, on]
                pairs, node = torch.unique_consecutive(torch.stack((node, following)), dim=1, return_inverse=True)
                parents, tokens_N = pairs
                states = [tuple(state[:, parents.to(device)] for state in layer) for layer in output.states]
                start = end
    return finite("log P", totals).tolist()


def _parting(one: Sequence[int], other: Sequence[int]) -> int:
    """The first place in which they differ."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _whole(logits_TNV: Tensor) -> Tensor:
    """log Σ exp over the vocabulary, float64 [T, N]."""
    rows = logits_TNV.flatten(0, 1).split(256)
    return torch.cat([row.double().logsumexp(-1) for row in rows]).cpu().view(logits_TNV.shape[:2])
