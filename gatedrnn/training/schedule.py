"""What changes over a training: the learning rate, when averaging begins, when to stop."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import Gates
from gatedrnn.layers import RecurrentBase
from gatedrnn.training.config import TrainingConfig


def rate(training: TrainingConfig, base: float, step: int, steps: int, length: int, spent: float = 0.0) -> float:
    """The learning rate of one step.

    Args:
        base: `learning_rate`, as the plateau schedule has lowered it.
        step: from 0, of `steps` in all.
        length: of the window; with random lengths the rate is in proportion to it (Merity, Keskar & Socher 2018).
        spent: the share of the budget of minutes that is spent; cosine ends with the steps or the budget, whichever is first.
    """
    if step < training.warmup_steps:
        base *= (step + 1) / training.warmup_steps
    elif training.schedule == "cosine":
        base *= 0.5 * (1 + math.cos(math.pi * _done(training, step, steps, spent)))
    elif training.schedule == "one_cycle":
        base *= one_cycle(_done(training, step, steps, spent))
    return base * length / training.sequence_length if training.random_lengths else base


def _done(training: TrainingConfig, step: int, steps: int, spent: float) -> float:
    """The share of the schedule, after warm-up, that is over."""
    return min(1.0, max(spent, (step - training.warmup_steps) / max(1, steps - training.warmup_steps)))


_CYCLE = (0.0, 0.1), (1 / 12, 1.0), (1 / 2, 1.0), (11 / 12, 0.1), (1.0, 0.001)


def one_cycle(done: float) -> float:
    """The share of the highest learning rate when this share of training is over, linear between five points.

    Equations: Smith 2018 (A disciplined approach to neural network hyper-parameters); the lengths of the phases are those of
    public 90-epoch recipes for language models: 7.5 up, 37.5 constant, 37.5 down, 7.5 to almost 0.
    """
    for (start, low), (end, high) in pairwise(_CYCLE):
        if done <= end:
            return low + (high - low) * (done - start) / (end - start)
    return _CYCLE[-1][1]


def betas(training: TrainingConfig, step: int, steps: int, spent: float = 0.0) -> tuple[float, float]:
    """Adam's betas at one step: the first moves from `betas` to `peak_beta` and back as the learning rate rises and falls.

    Args: step, steps, spent: as in `rate`.
    """
    first, second = training.betas
    if training.peak_beta is None:
        return first, second
    height = (one_cycle(_done(training, step, steps, spent)) - 0.1) / 0.9
    return first + (training.peak_beta - first) * max(0.0, height), second


def check_gates(layers: Iterable[RecurrentBase], training: TrainingConfig) -> None:
    """Raises ArgumentError: a perturbation is to change, and no layer has a gate to perturb."""
    able = any(layer.spec.perturbed(layer.gates) for layer in layers)
    for name in ("final_temperature", "final_noise_probability"):
        value = getattr(training, name)
        if value is not None and not able:
            raise ArgumentError(f"training.{name}", "needs a cell with gates to perturb", value, "Leave it out")


def gates_at(training: TrainingConfig, gates: Gates, step: int, steps: int, spent: float = 0.0) -> Gates:
    """The perturbation of one step: τ geometrically, p linearly from those of `gates` to the final ones.

    Args: step, steps, spent: as in `rate`.
    """
    done = min(1.0, max(spent, step / max(1, steps - 1)))
    tau, p = training.final_temperature, training.final_noise_probability
    return replace(
        gates,
        temperature=gates.temperature if tau is None else gates.temperature ** (1 - done) * tau**done,
        noise_probability=gates.noise_probability if p is None else (1 - done) * gates.noise_probability + done * p,
    )


def plateau(training: TrainingConfig, base: float, loss_nats: float, best_nats: float | None) -> float:
    """The base rate after an epoch that ended with this validation loss; `best_nats` is the best before it."""
    stale = best_nats is not None and loss_nats > best_nats * (1 - training.plateau_threshold)
    return base * training.plateau_factor if training.schedule == "plateau" and stale else base


def no_longer_better(losses_nats: list[float], interval: int | None) -> bool:
    """NT-ASGD's trigger: whether the last loss is above the best of those more than `interval` epochs before it."""
    if interval is None or len(losses_nats) <= interval + 1:
        return False
    return losses_nats[-1] > min(losses_nats[: -1 - interval])


def starts_averaging(training: TrainingConfig, losses_nats: list[float]) -> bool:
    """Whether weights are averaged from now on, after as many epochs as there are validation losses."""
    if training.average_decay is not None and training.average_epoch is None and training.average_interval is None:
        return True
    fixed = training.average_epoch is not None and len(losses_nats) >= training.average_epoch
    return fixed or no_longer_better(losses_nats, training.average_interval)
