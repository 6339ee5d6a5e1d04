"""Exact perplexity: every token of the text predicted once, nats divided by their number.

Dimensions: T steps of a window, B batch.
"""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gatedrnn.core.checks import positive_number
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, Vocabulary, windows
from gatedrnn.data.batching import PAD_TARGET
from gatedrnn.models import LanguageModel
from gatedrnn.models.finite import finite
from gatedrnn.models.surprisal import evaluating, token_losses, window_losses
from gatedrnn.tasks.cache import Cache, CacheMemory
from gatedrnn.tasks.dynamic import Dynamic, adapting
from gatedrnn.weights.compressed import compressed


@dataclass(frozen=True)
class Evaluation:
    """Mean loss in nats a token, its exponential, and how many tokens were predicted (`<eos>` included)."""

    loss_nats: float
    perplexity: float
    tokens: int


def evaluate(
    model: nn.Module,
    tokens: np.ndarray,
    vocabulary: Vocabulary,
    *,
    batch_size: int = 1,
    sequence_length: int = 70,
    reset: bool = False,
    temperature: float = 1.0,
    cache: Cache | None = None,
    dynamic: Dynamic | None = None,
) -> Evaluation:
    """Perplexity of a stream, the state carried over windows or reset at each sentence.

    Args:
        model: a LanguageModel, in any mode; its mode and weights are restored.
        tokens: ids [N].
        batch_size: stretches read side by side; each starts without context, so 1 is exact and more is faster.
        sequence_length: steps a window; changes memory, not the result.
        reset: read each sentence from a fresh state after `<eos>`; batches are then formed by length and change nothing.
        temperature: a number by which the logits are divided.
        cache: mix a continuous cache in, one for each stretch.
        dynamic: learn from each of its segments once it is scored.

    Raises: DataError: no token. CheckpointError: the perplexity is not finite. ArgumentError: a size is not positive,
        `reset` comes with `cache`, `dynamic` or a temperature, or the temperature is so low, or the rate of `dynamic` so
        high, that the perplexity is no number.
    """
    positive_number("evaluate.temperature", temperature)
    if reset and (cache or dynamic):
        rule = "cannot be combined with a cache or dynamic evaluation, which continue from sentence to sentence"
        advice = "Leave out reset, or the cache and dynamic evaluation"
        raise ArgumentError("evaluate.reset", rule, f"{cache or dynamic}", advice)
    if reset and temperature != 1:
        rule, got = "cannot be combined with a temperature", f"temperature={temperature:g}"
        raise ArgumentError("evaluate.reset", rule, got, "Leave out reset or the temperature")
    if not len(tokens):
        raise DataError("evaluate.tokens", "must hold at least one token", 0, "Check the text")
    eos = vocabulary.ids[EOS]
    with evaluating(model):
        if reset:
            total, count = _by_sentence(model, tokens, eos)
        else:
            length = dynamic.segment if dynamic else sequence_length
            batches = _batches(model, tokens, batch_size, length, eos)
            plain = not (cache or dynamic) and temperature == 1
            total, count = _plain(model, batches) if plain else _adaptive(model, batches, temperature, cache, dynamic)
    loss = total / count
    if _STEEPEST <= loss < math.inf and (dynamic or temperature != 1):
        name, given, way = (
            ("dynamic.rate", dynamic.rate, "low") if dynamic else ("evaluate.temperature", temperature, "high")
        )
        rule, got = f"must be {way} enough for a perplexity that is a number", f"{given:g}: {loss:.0f} nats a token"
        with evaluating(model):
            nats, size = _plain(model, islice(_batches(model, tokens, batch_size, sequence_length, eos), 1))
        if nats / size < _STEEPEST:  # else the weights themselves are too large
            raise ArgumentError(name, rule, got, f"Use a {way}er one")
    perplexity = torch.tensor(math.exp(loss) if loss < _STEEPEST else math.inf, dtype=torch.float64)
    return Evaluation(loss, float(finite("perplexity", perplexity)), count)


_STEEPEST = 700  # nats: the perplexity of more is no number of float64

TEMPERATURES = tuple(0.8 + 0.025 * k for k in range(19))
"""0.8 … 1.25."""


@torch.no_grad()
def best_temperature(model: nn.Module, tokens: np.ndarray, vocabulary: Vocabulary, *, batch_size: int = 10) -> float:
    """The one of `TEMPERATURES` that gives a text the lowest perplexity, in one pass over it.

    The model is the plain one, without cache and dynamic evaluation.

    Args: model, tokens, vocabulary, batch_size: as for `evaluate`.
    """
    totals, states = torch.zeros(len(TEMPERATURES), dtype=torch.float64), None
    with evaluating(model):
        for inputs_TB, targets_TB in _batches(model, tokens, batch_size, 35, vocabulary.ids[EOS]):
            output = model(inputs_TB, states)
            states = output.states
            for k, temperature in enumerate(TEMPERATURES):
                totals[k] += float(window_losses(output.logits / temperature, targets_TB).sum())
    return round(TEMPERATURES[int(totals.argmin())], 3)


def _batches(model: nn.Module, tokens: np.ndarray, size: int, length: int, eos: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets [T, B] of every window, on the model's device; a window of padding alone is left out."""
    device = next(model.parameters()).device
    for window in windows(tokens, min(size, len(tokens)), length, eos):
        if window.count:
            yield torch.from_numpy(window.inputs_TB).to(device), torch.from_numpy(window.targets_TB).to(device)


@torch.no_grad()
def _plain(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, int]:
    """Nats and tokens, the state carried."""
    total, count, states = 0.0, 0, None
    for inputs_TB, targets_TB in batches:
        output = model(inputs_TB, states, targets=targets_TB)
        size, states = int((targets_TB != PAD_TARGET).sum()), output.states
        total, count = total + float(output.loss) * size, count + size
    return total, count


def _adaptive(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    temperature: float,
    cache: Cache | None,
    dynamic: Dynamic | None,
) -> tuple[float, int]:
    """The same with logits divided by a temperature, with a cache, and with dynamic evaluation, on a copy if it is compressed."""
    if dynamic and isinstance(model, LanguageModel) and any(map(compressed, model.own_state_dict().values())):
        model = deepcopy(model).expand()
    total, count, states = 0.0, 0, None
    memory = CacheMemory(cache) if cache else None
    with adapting(model, dynamic) if dynamic else nullcontext() as learn:
        for inputs_TB, targets_TB in batches:
            with torch.set_grad_enabled(learn is not None):
                output = model(inputs_TB, states)
                losses_TB = window_losses(output.logits / temperature, targets_TB)
            predicted_TB = targets_TB != PAD_TARGET
            size = int(predicted_TB.sum())
            scored_TB = losses_TB.detach()
            if memory:
                scored_TB = memory.mix(scored_TB, output.hidden.detach(), targets_TB)
            total, count = total + float(scored_TB[predicted_TB].sum()), count + size
            if learn:
                learn(losses_TB.sum() / size)
            states = [tuple(state.detach() for state in layer) for layer in output.states]
    return total, count


def _by_sentence(model: Any, tokens: np.ndarray, eos: int) -> tuple[float, int]:
    """The same with a fresh state for each sentence."""
    ends = [*(np.flatnonzero(tokens == eos) + 1), len(tokens)]
    sentences = (tokens[start:end].tolist() for start, end in pairwise([0, *ends]) if start < end)
    return sum(float(losses_T.sum()) for losses_T in token_losses(model, sentences, eos)), len(tokens)
