"""Dropouts of the AWD-LSTM recipe (Merity, Keskar & Socher 2018)."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatedrnn.core.checks import probability
from gatedrnn.core.torch_internals import being_traced, functorch_active

_LEAST_SHARE = 1 / 512  # of elements, dropped or kept, that a mask of 16 bits meets well: as 128 ± 0.5 of its steps


class _Dropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = probability(f"{type(self).__name__}.p", p)

    def extra_repr(self) -> str:
        """The rate, for repr."""
        return f"p={self.p}"


@final
class LockedDropout(_Dropout):
    """Dropout with one mask for all time steps (Gal & Ghahramani 2016).

    Args: p: probability that a feature of a sequence is dropped.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[T, B, D] → [T, B, D], the same [B, D] mask at every step."""
        if not self.training or self.p == 0.0:
            return input
        return input * F.dropout(torch.ones_like(input[:1]), self.p)


@final
class EmbeddingDropout(_Dropout):
    """Drops whole words: a dropped word is zero everywhere in the batch.

    This equals dropping rows of the embedding's weights, but touches only the rows of words in the batch.
    Args: p: probability that a word is dropped.
    """

    def forward(self, embedded_TBE: Tensor, tokens_TB: Tensor, vocabulary_size: int) -> Tensor:
        """Embedded words [T, B, E] of ids [T, B] → the same, dropped words zero and the rest scaled by 1 / (1 − p)."""
        if not self.training or self.p == 0.0:
            return embedded_TBE
        mask_V1 = F.dropout(embedded_TBE.new_ones(vocabulary_size, 1), self.p)
        return embedded_TBE * F.embedding(tokens_TB, mask_V1)


def dropped_weight(weight: Tensor, p: float) -> Tensor:
    """`weight` with each element dropped with probability p, the rest scaled by 1 / (1 − p) (DropConnect, Wan et al. 2013).

    On the CPU four masks are read off one random number of 64 bits, so that p is met to 1 / 65536: torch.nn.functional.dropout
    draws a number for each element, which for a weight takes a good part of a training step. For p within 1 / 512 of 0 or 1,
    where 1 / 65536 is too coarse, under vmap, and where a graph is made, its mask is used.
    """
    coarse = not _LEAST_SHARE <= p <= 1 - _LEAST_SHARE
    followed = torch.compiler.is_compiling() or being_traced() or functorch_active()
    if weight.device.type != "cpu" or followed or coarse:
        return F.dropout(weight, p)
    bits = torch.empty(-(-weight.numel() // 4), dtype=torch.int64, device="cpu").random_(-(1 << 63), None)
    kept = bits.view(torch.int16)[: weight.numel()].view(weight.shape) >= round(p * 65536) - 32768
    return weight * kept.to(weight.dtype).mul_(1 / (1 - p))
