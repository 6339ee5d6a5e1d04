"""A run's configuration: data, model, training."""

from dataclasses import dataclass, field
from pathlib import Path

from gatedrnn.core.checks import one_of, positive_int, positive_number
from gatedrnn.core.config import from_dict
from gatedrnn.core.errors import ArgumentError, ConfigError
from gatedrnn.core.files import read_yaml
from gatedrnn.data import DataConfig
from gatedrnn.models import LanguageModelConfig
from gatedrnn.sequence import choices

OPTIMIZERS = ("adam", "adamw", "sgd")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")


@dataclass(frozen=True)
class TrainingConfig:
    """The section `training` of a run's YAML.

    Args:
        epochs: passes over the training text.
        minutes: a budget of wall-clock time, validation included; none without it.
        batch_size: stretches of the text read side by side.
        sequence_length: steps of truncated back-propagation.
        optimizer: adam, adamw or sgd.
        learning_rate: at the start.
        weight_decay: L2, decoupled for adamw.
        gradient_clip: largest gradient norm, 0 for no clipping.
        plateau_factor: the learning rate is multiplied by it after an epoch that does not improve enough.
        plateau_threshold: the share of the validation loss by which an epoch must improve on the best.
        evaluation_batch_size: stretches side by side in validation.
        seed: of initialisation, dropout and gate noise.
        device: auto, cpu, cuda, … (Lightning Fabric's accelerator).
        precision: 32-true, bf16-mixed, 16-mixed or 64-true (Fabric's).
        backend: of the recurrence, auto or a name.

    Raises: ArgumentError: a value is out of range.
    """

    epochs: int = 10
    minutes: float | None = None
    batch_size: int = 20
    sequence_length: int = 35
    optimizer: str = "adam"
    learning_rate: float = 0.002
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    plateau_factor: float = 0.5
    plateau_threshold: float = 0.01
    evaluation_batch_size: int = 32
    seed: int = 1
    device: str = "auto"
    precision: str = "32-true"
    backend: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "sequence_length", "evaluation_batch_size"):
            positive_int(f"training.{name}", getattr(self, name))
        positive_int("training.seed", self.seed, minimum=0)
        if self.minutes is not None:
            positive_number("training.minutes", self.minutes)
        positive_number("training.learning_rate", self.learning_rate)
        for name in ("weight_decay", "gradient_clip", "plateau_threshold"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                rule = "must be a finite number of at least 0"
                raise ArgumentError(f"training.{name}", rule, value, "Give a number such as 0.25")
        if not 0 < self.plateau_factor <= 1:
            raise ArgumentError(
                "training.plateau_factor", "must lie in (0, 1]", self.plateau_factor, "Give a number such as 0.5"
            )
        one_of("training.optimizer", self.optimizer, OPTIMIZERS)
        one_of("training.precision", self.precision, PRECISIONS)
        one_of("training.backend", self.backend, choices())


@dataclass(frozen=True)
class RunConfig:
    """Everything that defines a run; its YAML has these sections."""

    data: DataConfig = field(default_factory=DataConfig)
    model: LanguageModelConfig = field(default_factory=LanguageModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


def read_run_config(path: Path) -> RunConfig:
    """Read a run's YAML. Raises: ConfigError: unreadable. ArgumentError: an unknown key or a bad value."""
    values = read_yaml(path)
    if not isinstance(values, dict | None):
        raise ConfigError(
            str(path), "must hold the sections data, model and training", repr(values), "Write `model:` lines"
        )
    return from_dict(RunConfig, values or {}, "")
