"""What changes over a training: the learning rate, when averaging begins, when to stop."""

import math
from dataclasses import replace

from gatedrnn.gates import Gates
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
        done = max(spent, (step - training.warmup_steps) / max(1, steps - training.warmup_steps))
        base *= 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return base * length / training.sequence_length if training.random_lengths else base


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
    fixed = training.average_epoch is not None and len(losses_nats) >= training.average_epoch
    return fixed or no_longer_better(losses_nats, training.average_interval)
