"""Continuous cache: what followed similar hidden states lately is likely to follow again.

Dimensions: T steps of a window, B stretches side by side, H hidden, M entries kept before the window.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from gatedrnn.core.checks import positive_int, positive_number, real
from gatedrnn.core.errors import ArgumentError

_STEEPEST = 1e100  # θ: the scores of more might be no numbers of float64


@dataclass(frozen=True)
class Cache:
    """Settings of the continuous cache; the defaults are AWD-LSTM's for the Penn Treebank.

    Args:
        window: number of earlier positions in the cache.
        theta: sharpness, above 0: near 0 all positions count equally, a larger value prefers similar hidden states.
        lambda_: the weight of the cache in the mixture; 0 uses the model alone.

    Raises: ArgumentError: a value is out of range.
    """

    window: int = 3785
    theta: float = 0.6625
    lambda_: float = 0.1279

    def __post_init__(self) -> None:
        positive_int("cache.window", self.window)
        if positive_number("cache.theta", self.theta) > _STEEPEST:
            raise ArgumentError(
                "cache.theta", f"must be at most {_STEEPEST:g}", self.theta, "Give a number such as 0.5"
            )
        if not 0 <= real(self.lambda_) < 1:
            raise ArgumentError("cache.lambda", "must lie in [0, 1)", self.lambda_, "Give a number such as 0.1")


@final
class CacheMemory:
    """Hidden states and the tokens that followed them, of the last `window` positions of each stretch.

    Equations: Grave, Joulin & Usunier 2017, eq. 2-3, linear interpolation. Departs: none; the model speaks alone where nothing
    is kept yet.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._kept: tuple[Tensor, Tensor] | None = None  # hidden states [M, B, H], and what followed them [M, B]

    def mix(self, losses_TB: Tensor, hidden_TBH: Tensor, targets_TB: Tensor) -> Tensor:
        """Losses of model and cache together, and remember the window.

        Args:
            losses_TB: the model's −log P(target) in nats.
            hidden_TBH: last layer's output, from which the targets were predicted.
            targets_TB: ids; −100 (only after a stretch's end) predicts nothing, its result means nothing.

        Returns: −log((1 − λ) P_model + λ P_cache) [T, B].
        """
        steps, window = len(targets_TB), self.cache.window
        hidden_MBH, next_MB = self._kept or (hidden_TBH[:0], targets_TB[:0])
        keys_KBH, next_KB = torch.cat([hidden_MBH, hidden_TBH]), torch.cat([next_MB, targets_TB])
        now_T1 = torch.arange(len(next_KB) - steps, len(next_KB), device=targets_TB.device)[:, None]
        place_K = torch.arange(len(next_KB), device=targets_TB.device)
        visible_TK = (place_K < now_T1) & (place_K >= now_T1 - window)
        scores_BTK = (hidden_TBH.transpose(0, 1) @ keys_KBH.permute(1, 2, 0)).double().mul_(self.cache.theta)
        scores_BTK = scores_BTK.masked_fill(~visible_TK, -math.inf)
        matches_BTK = targets_TB.t()[:, :, None] == next_KB.t()[:, None, :]
        matched_TB = scores_BTK.masked_fill(~matches_BTK, -math.inf).logsumexp(-1).t()
        cached_TB = matched_TB - scores_BTK.logsumexp(-1).t()
        self._kept = keys_KBH[-window:], next_KB[-window:]
        share = torch.tensor(self.cache.lambda_, dtype=torch.float64, device=losses_TB.device)
        mixed_TB = torch.logaddexp(torch.log1p(-share) - losses_TB, share.log() + cached_TB)
        return torch.where(visible_TK.any(-1)[:, None], -mixed_TB, losses_TB)
