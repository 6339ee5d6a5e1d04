"""How a completion's next token is chosen: greedily, or drawn by a generator of its own.

Dimensions: V vocabulary.
"""

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from gatedrnn.models.generation import sampling_weights


@dataclass(frozen=True)
class Sampling:
    """What a request asks for.

    Args:
        temperature: 0 for the most probable token.
        top_p: sample from the fewest most probable tokens whose probabilities sum to p or more.
        seed: None for another text every time.
        bias: what is added to a token's logit, by id.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    bias: dict[int, float] = field(default_factory=dict)


@final
class Sampler:
    """Chooses the tokens of one completion; what is computed beside it changes none of them.

    Args: index: of the completion within its request; each has a seed of its own.
    """

    def __init__(self, sampling: Sampling, index: int) -> None:
        self._sampling = sampling
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed((sampling.seed + index) % (1 << 63))
        self._ids = torch.tensor(list(sampling.bias), dtype=torch.int64)
        self._bias = torch.tensor(list(sampling.bias.values()), dtype=torch.float64)

    def pick(self, logits_V: Tensor) -> int:
        """The next token's id."""
        if len(self._ids):
            logits_V = logits_V.double().index_add(0, self._ids, self._bias)
        if self._sampling.temperature == 0:
            return int(logits_V.argmax())
        weights_V = sampling_weights(logits_V.double(), self._sampling.temperature, top_p=self._sampling.top_p)
        return int(torch.multinomial(weights_V, 1, generator=self._generator))
