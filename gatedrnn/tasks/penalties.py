"""Penalties on activations that AWD-LSTM adds to its loss. Dimensions: T time, B batch, H hidden."""

import torch
from torch import Tensor

from gatedrnn.data.batching import Window
from gatedrnn.models import LanguageModelOutput
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.text import at_least_float32


def penalties(
    training: TrainingConfig, output: LanguageModelOutput, batch: Window, lengths_B: Tensor | None
) -> Tensor | float:
    """AR and TAR: α · mean(dropped output²) + β · mean((h_t − h_{t−1})²) of the last layer.

    Equations: Merity, McCann & Socher 2017 (Revisiting activation regularization), as AWD-LSTM uses them; means over the
    steps that count, of the whole batch where this is a part of one; of a stream over all steps, padding at its end included.

    Args: lengths_B: the batch's, on the device.
    """
    total: Tensor | float = 0.0
    if not (training.activation_penalty or training.temporal_penalty):
        return total
    hidden, dropped = at_least_float32(output.hidden), at_least_float32(output.dropped)
    steps = torch.arange(len(hidden), device=hidden.device)[:, None, None]
    alive = None if lengths_B is None else (steps < lengths_B[:, None]).to(hidden.dtype)
    if training.activation_penalty:
        total = total + training.activation_penalty * _mean(dropped.square(), alive, batch, 0)
    if training.temporal_penalty and len(hidden) > 1:
        change = (hidden[1:] - hidden[:-1]).square()
        total = total + training.temporal_penalty * _mean(change, None if alive is None else alive[1:], batch, 1)
    return total


def _mean(values_TBH: Tensor, alive_TB1: Tensor | None, batch: Window, first: int) -> Tensor:
    """Over the steps from `first` on that count; the share of one of the batch's parts, whose mean is that of the batch."""
    if alive_TB1 is None:
        return values_TBH.mean()
    lengths_B = batch.lengths_B if batch.whole_B is None else batch.whole_B
    count = int((lengths_B - first).sum()) / batch.parts  # type: ignore[operator]
    return (values_TBH * alive_TB1).sum() / max(1.0, count * values_TBH.shape[-1])
