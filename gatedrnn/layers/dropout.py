"""Dropouts of the AWD-LSTM recipe (Merity, Keskar & Socher 2018)."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatedrnn.core.checks import probability


@final
class LockedDropout(nn.Module):
    """Dropout with one mask for all time steps (Gal & Ghahramani 2016).

    Args: p: probability that a feature of a sequence is dropped.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = probability("LockedDropout.p", p)

    def forward(self, input: Tensor) -> Tensor:
        """[T, B, D] → [T, B, D], the same [B, D] mask at every step."""
        if not self.training or self.p == 0.0:
            return input
        return input * F.dropout(torch.ones_like(input[:1]), self.p)

    def extra_repr(self) -> str:
        """The rate, for repr."""
        return f"p={self.p}"


@final
class EmbeddingDropout(nn.Module):
    """Drops whole rows of an embedding: a dropped word is absent everywhere in the batch.

    Args: p: probability that a row is dropped.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = probability("EmbeddingDropout.p", p)

    def forward(self, weight: Tensor) -> Tensor:
        """Embedding weights [V, E] → [V, E] with rows zeroed and the rest scaled by 1 / (1 − p)."""
        if not self.training or self.p == 0.0:
            return weight
        return weight * F.dropout(weight.new_ones(len(weight), 1), self.p)

    def extra_repr(self) -> str:
        """The rate, for repr."""
        return f"p={self.p}"
