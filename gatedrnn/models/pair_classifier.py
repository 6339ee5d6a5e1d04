"""A classifier of pairs of sentences: one encoder for both, and a head on what it makes of them.

Dimensions: T time, B batch, H units that stand for a sentence, C classes.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatedrnn.models.config import PairClassifierConfig, required
from gatedrnn.models.encoder import Encoder
from gatedrnn.models.saving import PretrainedModel


@final
class PairClassifier(PretrainedModel):
    """Scores of C labels for pairs of sentences.

    Equations: Bowman, Manning & Potts 2015, a shared encoder whose last h stands for the sentence; the head on
        [h1; h2; h1∘h2; |h1 − h2|] with one ELU layer is that of Shen et al. 2019 (Ordered Memory). Departs: none.
    Args: config: with sizes of vocabulary and classes.
    Raises: ArgumentError: a size is missing, or the cell refuses an option.
    """

    kind = PairClassifierConfig

    def __init__(self, config: PairClassifierConfig, backend: str = "auto") -> None:
        super().__init__()
        vocabulary_size, classes = (
            required(config, name, "Set it from the data") for name in ("vocabulary_size", "classes")
        )
        self.config, directions = config, [1 + config.bidirectional] * len(config.hidden_sizes)
        self.encoder = Encoder(config, vocabulary_size, directions, backend)
        size = self.encoder.output_size
        inner = config.head_size or size
        self.head = nn.Sequential(
            nn.Dropout(config.head_dropout), nn.Linear(4 * size, inner), nn.ELU(),
            nn.Dropout(config.head_dropout), nn.Linear(inner, classes),
        )  # fmt: skip

    def forward(self, left_TB: Tensor, right_TB: Tensor, left_B: Tensor, right_B: Tensor) -> Tensor:
        """Scores [B, C].

        Args: left_TB, right_TB: ids [T, B], each side's own T; left_B, right_B: their lengths, at least 1.
        """
        steps = max(len(left_TB), len(right_TB))
        both = torch.cat([F.pad(side, (0, 0, 0, steps - len(side)), value=1) for side in (left_TB, right_TB)], 1)
        one, two = self.encode(both, torch.cat([left_B, right_B])).chunk(2)  # one call of each layer for both sides
        return self.compare(one, two)

    def compare(self, one_BH: Tensor, two_BH: Tensor) -> Tensor:
        """Scores [B, C] of what stands for each side."""
        return self.head(torch.cat([one_BH, two_BH, one_BH * two_BH, (one_BH - two_BH).abs()], -1))

    def encode(self, tokens_TB: Tensor, lengths_B: Tensor) -> Tensor:
        """What stands for each sentence [B, H]: the last layer's final h, of both directions."""
        final_h = self.encoder(tokens_TB, lengths_B)[1][-1][0]
        return final_h.transpose(0, 1).flatten(1)


torch.serialization.add_safe_globals([PairClassifierConfig])  # a checkpoint's hyperparameters, under weights_only=True
