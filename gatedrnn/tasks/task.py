"""What the training loop needs of an experiment, and nothing more; it never asks which one it is."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from gatedrnn.core.errors import ArgumentError
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.gates import LayerGates, WordGates


class Batch(Protocol):
    """What one optimiser step reads."""

    @property
    def count(self) -> int:
        """Predictions that its loss is the mean of."""
        ...

    @property
    def steps(self) -> int:
        """T, in proportion to which a learning rate may be."""
        ...

    def part(self, index: int, parts: int) -> Any:
        """Part `index` of it, shared out to `parts` processes."""
        ...


class Batches(Protocol):
    """The batches of one epoch, by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


@dataclass(frozen=True)
class Loss:
    """The loss of one batch.

    Args:
        nats: the sum of all predictions' losses over the divisor.
        penalty: what is added for the gradient alone.
        carried: states for the next batch, by layer; none where batches stand alone.
    """

    nats: Tensor
    penalty: Tensor | float = 0.0
    carried: Sequence[tuple[Tensor, ...]] | None = None


@dataclass(frozen=True)
class Score:
    """The score of the validation text.

    Args:
        loss: what must fall: it decides which weights are kept, and what the learning rate does.
        shown: measures by name, in a record with "valid_" before.
    """

    loss: float
    shown: dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """All measures of a model on a text.

    Args:
        record: measures by name, and how they were found.
        lines: the same in words.
    """

    record: dict[str, Any]
    lines: list[str]


class Task(Protocol):
    """An experiment with its data.

    Attributes:
        name: as a run's `task` has it.
        data: the class of a run's section `data`.
        network: the class of its models, made of a completed section `model`, whose class is `network.kind`, and a backend.
        measure: which of a score's measures a person is told.
        unit: what is counted, as "tokens".
        files: what a run holds beside configuration and weights.
        training: how it is trained unless told otherwise.
        ignores: keys of the section training that it has no use for.
    """

    name: ClassVar[str]
    data: ClassVar[type]
    network: ClassVar[Any]
    measure: ClassVar[str]
    unit: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    training: ClassVar[TrainingConfig]
    ignores: ClassVar[tuple[str, ...]]

    @classmethod
    def open(cls, data: Any, folder: Path | str, run: Path | None = None) -> "Task":
        """Read the data in `folder` as the section `data` says, with what a run holds that has begun. Raises: DataError."""
        ...

    @staticmethod
    def make(folder: Path, seed: int, data: Any) -> None:
        """Write a folder of data that needs no download. Raises: ArgumentError: the section `data` asks for another one."""
        ...

    @staticmethod
    def load(folder: Path, model: Any, backend: str) -> tuple[nn.Module, Any]:
        """A run's model in evaluation mode, and what its files hold beside; `model` is its section. Raises: CheckpointError."""
        ...

    @property
    def splits(self) -> Collection[str]:
        """Names of the splits: train, valid and perhaps test."""
        ...

    def describe(self) -> str:
        """What is read, in a line."""
        ...

    def complete(self, model: Any) -> Any:
        """The section `model` with all that follows from the data, as a vocabulary's size."""
        ...

    def checksum(self, split: str) -> int:
        """Of what is trained on, or of what validation scores."""
        ...

    def write(self, folder: Path) -> None:
        """Write `files` into a run that begins."""
        ...

    def cache(self, folder: Path) -> None:
        """Keep in a run what was computed of the data, where that is worth it; nothing is lost with it."""
        ...

    def batches(self, training: TrainingConfig, epoch: int) -> Batches:
        """Of an epoch, from 1: they depend on the seed and the epoch alone."""
        ...

    def loss(
        self, model: nn.Module, training: TrainingConfig, batch: Any, carried: Any, divisor: float, device: torch.device
    ) -> Loss:
        """Of a batch, or of this process's part of one; `carried` is what the last batch's loss has."""
        ...

    def score(self, model: nn.Module, training: TrainingConfig, split: str = "valid") -> Score:
        """A split's. Raises: CheckpointError: it is not finite."""
        ...

    def shown(self, nats: float) -> dict[str, float]:
        """Measures that a mean training loss gives, by name, in a record with "train_" before."""
        ...


def unread(task: Task, training: TrainingConfig) -> dict[str, str]:
    """The settings that are given and have no effect: for which task, or with which other setting."""
    found = dict.fromkeys(task.ignores, f"for {task.name}")
    if training.optimizer == "sgd":
        found["betas"] = "with optimizer: sgd"
    if training.unit == "sentence":
        found["sequence_length"] = "with unit: sentence"
    if training.schedule != "plateau":
        found |= dict.fromkeys(("plateau_factor", "plateau_threshold"), f"with schedule: {training.schedule}")
    return {name: why for name, why in found.items() if getattr(training, name) != getattr(task.training, name)}


def settled(task: Any, training: TrainingConfig, given: Collection[str]) -> TrainingConfig:
    """Settings that another one, which an option replaced, leaves without effect get their defaults, unless they are given too.

    Args: given: keys of options, as "training.optimizer".
    """
    if not {"training.optimizer", "training.schedule", "training.unit"}.intersection(given):
        return training
    left = [name for name in unread(task, training) if f"training.{name}" not in given]
    return replace(training, **{name: getattr(task.training, name) for name in left})


def check_read(task: Task, training: TrainingConfig) -> None:
    """Raises ArgumentError if a setting is given that has no effect, or an unwanted one: runs of before may have it."""
    for name, why in unread(task, training).items():
        raise ArgumentError(f"training.{name}", f"has no effect {why}", getattr(training, name), "Leave it out")
    if training.schedule == "one_cycle" and training.warmup_steps:
        rule = "must be 0 with schedule: one_cycle, which rises by itself"
        raise ArgumentError("training.warmup_steps", rule, training.warmup_steps, "Leave it out")


class Evaluated(Protocol):
    """What the commands ask of a task's trained models.

    Attributes:
        rated: which measure `evaluate` and `rate` give.
        reads: options of `evaluate`.
    """

    rated: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]

    @staticmethod
    def text(held: Any, data: Any, folder: Path | str, split: str = "test", path: Any = None) -> Any:
        """What a trained model is evaluated on: a split of `folder`, or what is at `path`.

        Args: held, data: what the run holds, and its section `data`.
        Raises: DataError: it is missing, or damaged.
        """
        ...

    @staticmethod
    def evaluate(model: nn.Module, held: Any, text: Any, how: Mapping[str, Any]) -> Evaluation:
        """Every measure of a trained model. Raises: CheckpointError: they are not finite. ArgumentError: a value of `how`."""
        ...

    @staticmethod
    def rate(model: nn.Module, held: Any, text: Any, batch_size: int, most: int | None = None) -> tuple[float, int]:
        """The measure `rated`, and how many tokens were read: all, or about `most` of them."""
        ...

    @staticmethod
    def gates(model: nn.Module, held: Any, text: Any, batch_size: int) -> Iterator[list[LayerGates]]:
        """Every gate of every layer at each token of a text, batch by batch."""
        ...

    @staticmethod
    def gates_by_word(model: nn.Module, held: Any, sentence: str, mapping: str) -> WordGates:
        """Every gate at each word of a sentence. Args: mapping: how words are looked up."""
        ...


class Experiment(Task, Evaluated, Protocol):
    """All of a task."""
