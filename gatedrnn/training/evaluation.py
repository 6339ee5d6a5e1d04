"""Exact perplexity: every token of the stream predicted once, nats divided by their number."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from gatedrnn.data import EOS, Vocabulary, windows


@dataclass(frozen=True)
class Evaluation:
    """Mean loss in nats a token, its exponential, and how many tokens were predicted (`<eos>` included)."""

    loss_nats: float
    perplexity: float
    tokens: int


@torch.no_grad()
def evaluate(
    model: nn.Module, tokens: np.ndarray, vocabulary: Vocabulary, *, batch_size: int = 1, sequence_length: int = 70
) -> Evaluation:
    """Perplexity of a stream, the state carried over windows.

    Args:
        model: a LanguageModel, in any mode; it is put back into it.
        tokens: ids [N].
        batch_size: stretches read side by side; each starts without context, so 1 is exact and more is faster.
        sequence_length: steps a window; changes memory, not the result.

    Raises: DataError: no token.
    """
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    total, count, states = 0.0, 0, None
    for window in windows(tokens, min(batch_size, len(tokens)), sequence_length, vocabulary.ids[EOS]):
        inputs, targets = (torch.from_numpy(a).to(device) for a in (window.inputs_TB, window.targets_TB))
        output = model(inputs, states, targets=targets)
        states = output.states
        if window.tokens:
            total += float(output.loss) * window.tokens
            count += window.tokens
    model.train(training)
    loss = total / count
    return Evaluation(loss, math.exp(loss) if loss < 700 else math.inf, count)
