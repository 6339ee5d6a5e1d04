"""Dynamic evaluation: a model that goes on learning from the text it has just been scored on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gatedrnn.core.checks import positive_int, probability, real
from gatedrnn.core.errors import ArgumentError

_EPSILON = 2e-3


@dataclass(frozen=True)
class Dynamic:
    """Settings of dynamic evaluation; the defaults were chosen on the Penn Treebank's validation text.

    Args:
        rate: η, the learning rate; 0 for no learning.
        decay: λ, the share of the way back to the original weights that each step first takes.
        segment: number of tokens between two steps.

    Raises: ArgumentError: a value is out of range.
    """

    rate: float = 0.004
    decay: float = 0.01
    segment: int = 20

    def __post_init__(self) -> None:
        if not 0 <= real(self.rate) <= 1:
            raise ArgumentError("dynamic.rate", "must lie in [0, 1]", self.rate, "Give a number such as 0.004")
        probability("dynamic.decay", self.decay)
        positive_int("dynamic.segment", self.segment)


@contextmanager
def adapting(model: nn.Module, dynamic: Dynamic) -> Iterator[Callable[[Tensor], None]]:
    """Lend out a function that takes a segment's mean loss, once it is scored, and a step; then put the weights back.

    θ ← θ − η g / (√MS + ε) + λ (θ₀ − θ): g the gradient, MS the mean square of each weight's gradients so far, θ₀ the original.

    Equations: Krause, Kahembwe, Murray & Renals 2018, eq. 5 and 7. Departs: MS is that of the segments scored so far, not of the
    training text, so that a model and a text suffice; λ is the same for every weight.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    originals = [weight.detach().clone() for weight in weights]
    squares = [torch.zeros_like(weight) for weight in weights]
    steps = 0

    @torch.no_grad()
    def learn(loss: Tensor) -> None:
        nonlocal steps
        steps += 1
        gradients = torch.autograd.grad(loss, weights)
        for weight, gradient, original, square in zip(weights, gradients, originals, squares, strict=True):
            square.mul_(1 - 1 / steps).addcmul_(gradient, gradient, value=1 / steps)
            weight.lerp_(original, dynamic.decay)
            weight.addcdiv_(gradient, square.sqrt().add_(_EPSILON), value=-dynamic.rate)

    try:
        yield learn
    finally:
        with torch.no_grad():
            for weight, original in zip(weights, originals, strict=True):
                weight.copy_(original)
