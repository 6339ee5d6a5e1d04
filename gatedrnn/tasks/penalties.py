"""Penalties on activations that AWD-LSTM adds to its loss. Dimensions: T time, B batch, H hidden."""

import torch
from torch import Tensor

from gatedrnn.models import LanguageModelOutput
from gatedrnn.tasks.config import TrainingConfig


def penalties(training: TrainingConfig, output: LanguageModelOutput, lengths_B: Tensor | None) -> Tensor | float:
    """AR and TAR: α · mean(dropped output²) + β · mean((h_t − h_{t−1})²) of the last layer.

    Equations: Merity, McCann & Socher 2017 (Revisiting activation regularization), as AWD-LSTM uses them; means over the
    steps that count.
    """
    total: Tensor | float = 0.0
    if not (training.activation_penalty or training.temporal_penalty):
        return total
    hidden, dropped = output.hidden.float(), output.dropped.float()
    steps = torch.arange(len(hidden), device=hidden.device)[:, None, None]
    alive = None if lengths_B is None else (steps < lengths_B[:, None]).float()
    if training.activation_penalty:
        total = total + training.activation_penalty * _mean(dropped.square(), alive)
    if training.temporal_penalty and len(hidden) > 1:
        change = (hidden[1:] - hidden[:-1]).square()
        total = total + training.temporal_penalty * _mean(change, None if alive is None else alive[1:])
    return total


def _mean(values_TBH: Tensor, alive_TB1: Tensor | None) -> Tensor:
    if alive_TB1 is None:
        return values_TBH.mean()
    return (values_TBH * alive_TB1).sum() / (alive_TB1.sum() * values_TBH.shape[-1]).clamp_min(1)
