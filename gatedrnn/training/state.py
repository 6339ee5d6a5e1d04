"""Where a training is, and its state as tensors and plain values: what a checkpoint holds."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gatedrnn.core.errors import ArgumentError
from gatedrnn.models.saving import PretrainedModel
from gatedrnn.training.averaging import Average
from gatedrnn.training.config import TrainingConfig
from gatedrnn.training.projected import Project

_NAMES_OF_BEFORE = {"best_nats": "best", "losses_nats": "losses", "tokens": "count"}


@dataclass
class Progress:
    """Where a training is, as a checkpoint holds it.

    Args:
        stage: main or finetune.
        epoch: the current one, from 1, over both stages; batch: of it, the next; step: batches in all.
        base_rate: the learning rate before warm-up and cosine.
        best, since_best: best validation loss, and epochs without a better one.
        losses: the stage's validation losses.
        averaged: steps in the average, None while there is none.
        total_nats, count, smooth_nats: of the current epoch.
        metrics: lines of metrics.jsonl.
        project: how the weights are projected for every step, in words; nothing where they are not.
        learning_rate, processes: as configured, and how many train.
        text, valid_text: checksums of what is trained on, and of what validation scores (None in older checkpoints).
        seconds: spent so far, over all sessions; validation_seconds: of the last validation.
    """

    stage: str = "main"
    epoch: int = 1
    batch: int = 0
    step: int = 0
    base_rate: float = 0.0
    best: float | None = None
    since_best: int = 0
    losses: list[float] = field(default_factory=list)
    averaged: int | None = None
    total_nats: float = 0.0
    count: int = 0
    smooth_nats: float = 0.0
    metrics: list[dict[str, Any]] = field(default_factory=list)
    project: str = ""
    learning_rate: float = 0.0
    text: int = 0
    valid_text: int | None = None
    processes: int = 1
    seconds: float = 0.0
    validation_seconds: float = 0.0

    def best_record(self) -> dict[str, Any] | None:
        """Metrics of the epoch whose weights are kept; None before the first."""
        return next((record for record in reversed(self.metrics) if record["best"]), None)


def check_same(tensors: dict[str, Tensor], values: dict[str, Any], now: Progress) -> None:
    """Raises ArgumentError if a checkpoint is of other texts, projection or processes than `now`; before anything is written."""
    for split, known in (("training", "text"), ("validation", "valid_text")):
        before, text = values.get(known), getattr(now, known)
        if before not in (None, text):
            got = f"another {split} text (checksum {text}, and {before} before)"
            rule = "must hold the text that the run started with"
            advice = "Restore it, or start another run; if it is the same, continue with the version that began, which read it so"
            raise ArgumentError("data.folder", rule, got, advice)
    project, processes = now.project, now.processes
    if values["project"] is None and (project or any(name.startswith("project.") for name in tensors)):
        rule, got = "needs a checkpoint that says how the weights are projected", "one of version 1, which does not"
        advice = "Start again in another --out, or continue with the version that started the run"
        raise ArgumentError("--resume", rule, got, advice)
    before = values["project"] or ""
    if before != project and not project.startswith(f"{before} of "):  # earlier versions did not name the weights
        got = f"{project or 'none'}, and {before or 'none'} before"
        rule = "must project the weights as at the start of the run, and begin with the same"
        raise ArgumentError("train --resume", rule, got, "Continue with the command that started it")
    if values["processes"] != processes:
        rule, got = "must use as many processes as before", f"{processes}, and {values['processes']} before"
        raise ArgumentError("train --resume", rule, got, "Start the same number")


def check_epochs(values: dict[str, Any], training: TrainingConfig, had: TrainingConfig) -> None:
    """Raises ArgumentError: fewer epochs than are trained; other ones, and finetuning, which comes after them, has begun.

    Args: values: a checkpoint's; had: the run's section training before this call.
    """
    finetuning, trained = values["stage"] == "finetune", len(_named(values)["losses"])
    if finetuning and training.epochs != had.epochs:
        rule, got = "must be as in the run once finetuning has begun", f"{training.epochs}, and {had.epochs} in the run"
        advice = "Give more --training.finetune_epochs, or start another run"
        raise ArgumentError("training.epochs", rule, got, advice)
    name = "finetune_epochs" if finetuning else "epochs"
    epochs = getattr(training, name)
    if epochs < trained and epochs != getattr(had, name):
        rule, advice = f"must be at least {trained}, which are trained", "Give more, or start another run"
        raise ArgumentError("compress.retrain" if values["project"] else f"training.{name}", rule, epochs, advice)


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's values, by the names of today."""
    return {_NAMES_OF_BEFORE.get(name, name): value for name, value in values.items()}


@dataclass
class TrainingState:
    """All that changes while a model is trained.

    Args:
        model: as it was built, not as it is distributed.
        optimizer: PyTorch's own.
        precision: Fabric's, which may scale losses.
        project: how weights are projected, if they are.
        average_decay: of the average, see `Average`.
        average: of the weights, once there is one.
        carried: states for the next batch, by layer.
    """

    model: PretrainedModel
    optimizer: torch.optim.Optimizer
    precision: Any
    progress: Progress
    project: Project | None = None
    average_decay: float | None = None
    average: Average | None = None
    carried: Sequence[tuple[Tensor, ...]] | None = None

    def state_dict(
        self, device: torch.device, gather: Callable[[Tensor], list[Tensor]]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All tensors by name, and all plain values.

        Args: device: where this process computes; gather: a tensor of this process → those of all, by rank.
        """
        optimizer = self.optimizer.state_dict()
        tensors = {f"model.{name}": value for name, value in self.model.own_state_dict().items()}
        for index, state in optimizer["state"].items():
            known = {key: torch.as_tensor(value) for key, value in state.items() if value is not None}
            tensors |= {f"optimizer.{index}.{key}": value for key, value in known.items()}
        if self.average is not None:
            tensors |= {f"average.{k}": mean for k, mean in enumerate(self.average.means)}
        if self.project is not None:
            tensors |= {f"project.{name}": value for name, value in self.project.memory.items()}
        own = {"rng": torch.get_rng_state().to(device)}
        if device.type == "cuda":
            own["rng_cuda"] = torch.cuda.get_rng_state().to(device)
        for k, layer in enumerate(self.carried or ()):
            own |= {f"states.{k}.{n}": state for n, state in enumerate(layer)}
        for name, value in own.items():
            tensors |= {f"rank.{rank}.{name}": entry for rank, entry in enumerate(gather(value))}
        averaged = None if self.average is None else self.average.steps
        values = asdict(replace(self.progress, averaged=averaged))
        return tensors, values | {"groups": optimizer["param_groups"], "precision": self.precision.state_dict()}

    def load(
        self, tensors: dict[str, Tensor], values: dict[str, Any], learning_rate: float, device: torch.device, rank: int
    ) -> None:
        """Restore what `state_dict` returned, here or in an earlier version.

        Args: learning_rate: as it is configured now; rank: this process's.
        """
        values = _named(values)
        groups, precision = values.pop("groups"), values.pop("precision")
        for name in ("project", "valid_text"):  # the same, by `check_same`, where the checkpoint names it
            values[name] = getattr(self.progress, name)
        self.progress = p = Progress(**values)
        p.base_rate *= learning_rate / p.learning_rate
        p.learning_rate = learning_rate
        weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        weights |= {name: weights[kept] for name, kept in self.model.shared.items()}
        self.model.load_state_dict(weights)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".")
                state.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.precision.load_state_dict(precision)
        if p.averaged is not None:
            self.average = Average(self.model, self.average_decay)
            self.average.steps = p.averaged
            for k, mean in enumerate(self.average.means):
                mean.copy_(tensors[f"average.{k}"])
        if self.project is not None:
            own = {n.removeprefix("project."): t for n, t in tensors.items() if n.startswith("project.")}
            self.project.memory |= own
        self._load_rank(tensors, device, f"rank.{rank}.")

    def _load_rank(self, tensors: dict[str, Tensor], device: torch.device, rank: str) -> None:
        """This process's random numbers and carried states."""
        torch.set_rng_state(tensors[f"{rank}rng"])
        if f"{rank}rng_cuda" in tensors and device.type == "cuda":
            torch.cuda.set_rng_state(tensors[f"{rank}rng_cuda"].cpu())
        layers: dict[int, dict[int, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith(f"{rank}states."):
                k, n = name.removeprefix(f"{rank}states.").split(".")
                layers.setdefault(int(k), {})[int(n)] = value.to(device)
        self.carried = [tuple(layers[k][n] for n in sorted(layers[k])) for k in sorted(layers)] or None
