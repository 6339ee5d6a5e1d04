"""How surprising every token of a text is to a language model.

Dimensions: T time, B batch, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatedrnn.models.finite import finite
from gatedrnn.models.language_model import LanguageModel, States
from gatedrnn.models.loss import IGNORED

_SORTED_SEQUENCES = 1024
_BATCH = 64
_FEW = 4096  # places of a batch that may hold padding only
_LOGITS = 8 << 20


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model` in evaluation mode, afterwards each part of it in the mode that it was in."""
    training = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, mode in training.items():
            part.training = mode


def surprisals(
    model: LanguageModel, sentences: Iterable[Sequence[int]], eos: int, *, carried: bool = False
) -> Iterator[list[float]]:
    """−log2 P of each word of each sentence and of its `<eos>`, given the words before, in bits.

    Args:
        sentences: word ids, any number of sentences of any length, read in constant memory; an empty one is an `<eos>` alone.
        eos: id that ends a sentence and precedes the first.
        carried: read each sentence from the final state of the sentence before, as one text, instead of a fresh state.

    Returns: one list for each sentence, in order, with one number for each word and one for `<eos>`.
    Raises: ArgumentError: an id is out of range.
    """
    for losses_T in token_losses(model, ([*ids, eos] for ids in sentences), eos, carried=carried):
        yield (losses_T / math.log(2)).tolist()


def token_losses(
    model: LanguageModel, sequences: Iterable[Sequence[int]], first: int, *, carried: bool = False
) -> Iterator[Tensor]:
    """−log P in nats of each id of each sequence, read after `first`: float64 [T], in order. As `surprisals`."""
    remaining, states = iter(sequences), None
    if carried:
        for ids in remaining:
            losses_TB, states = _losses(model, [ids], first, states)
            yield losses_TB[:, 0]
    while chunk := list(islice(remaining, _SORTED_SEQUENCES)):
        found: dict[int, Tensor] = {}
        for batch in _batches([len(ids) for ids in chunk]):
            losses_TB, _ = _losses(model, [chunk[k] for k in batch], first, None)
            found |= {k: losses_TB[: len(chunk[k]), b] for b, k in enumerate(batch)}
        yield from (found[k] for k in range(len(chunk)))


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Sequences to read side by side, by length: at most `_BATCH`, with not much more padding than tokens in a large one."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    while order:
        width, tokens, batch = lengths[order[-1]], 0, []
        while order and len(batch) < _BATCH and (not batch or width * (len(batch) + 1) <= max(_FEW, 2 * tokens)):
            batch.append(order.pop())
            tokens += lengths[batch[-1]]
        yield batch


@torch.no_grad()
def _losses(
    model: LanguageModel, batch: list[Sequence[int]], first: int, states: States | None
) -> tuple[Tensor, States | None]:
    """Losses [T, B] of sequences side by side, 0 beyond their ends, and the states after the longest."""
    inputs_TB = torch.full((max(map(len, batch)), len(batch)), first, device="cpu")
    targets_TB = torch.full_like(inputs_TB, IGNORED)
    for b, ids in enumerate(batch):
        targets_TB[: len(ids), b] = torch.as_tensor(ids, device="cpu")
        inputs_TB[1 : len(ids), b] = targets_TB[: max(0, len(ids) - 1), b]
    device = model.embedding.weight.device
    steps = max(1, _LOGITS // (len(batch) * model.embedding.num_embeddings))
    parts = []
    with evaluating(model):
        for inputs, targets in zip(inputs_TB.split(steps), targets_TB.split(steps), strict=True):
            output = model(inputs.to(device), states)
            states = output.states
            parts.append(window_losses(output.logits, targets.to(device)).cpu())
    return finite("surprisal", torch.cat(parts)), states


def window_losses(logits_TBV: Tensor, targets_TB: Tensor) -> Tensor:
    """−log softmax(logits)[target] in nats, float64 [T, B], 0 where the target is −100."""
    flat = F.cross_entropy(logits_TBV.flatten(0, 1).double(), targets_TB.flatten(), reduction="none")
    return flat.view_as(targets_TB)
