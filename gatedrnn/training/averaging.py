"""The mean of the weights over steps: what averaged SGD (ASGD) evaluates and keeps."""

import torch
from torch import Tensor, nn


class Average:
    """A running mean of a model's parameters, one copy of them.

    Equations: Polyak & Juditsky 1992, as AWD-LSTM uses it: with sgd, torch.optim.ASGD with t0=0 and lambd=0.
    Departs: the first step counts, which torch.optim.ASGD leaves out.
    Args: decay: None for the mean over all steps; else the share of itself that the mean keeps at a step. The mean of fewer than
        1 / (1 − decay) steps is the plain one, so that the starting point is forgotten.
    """

    def __init__(self, model: nn.Module, decay: float | None = None) -> None:
        self.decay = decay
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.means = [parameter.detach().clone() for parameter in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters as they are after a step."""
        self.steps += 1
        weight = 1.0 / self.steps if self.decay is None else max(1.0 / self.steps, 1.0 - self.decay)
        for mean, parameter in zip(self.means, self.parameters, strict=True):
            mean.lerp_(parameter, weight)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the means and the parameters; a second time, back."""
        for parameter, mean in zip(self.parameters, self.means, strict=True):
            held: Tensor = parameter.detach().clone()
            parameter.copy_(mean)
            mean.copy_(held)
