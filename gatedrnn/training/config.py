"""A run's configuration: its task, data, model, training."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gatedrnn.core.config import check_part, from_dict, to_dict
from gatedrnn.core.errors import ArgumentError, ConfigError
from gatedrnn.core.files import read_yaml
from gatedrnn.data import DataConfig
from gatedrnn.models import LanguageModelConfig
from gatedrnn.tasks import TASKS
from gatedrnn.tasks.config import TrainingConfig


@dataclass(frozen=True)
class RunConfig:
    """Everything that defines a run; its YAML has these sections, and `task` where that is not language_modelling.

    Raises: ArgumentError: an unknown task, or sections of another one.
    """

    data: Any = field(default_factory=DataConfig)
    model: Any = field(default_factory=LanguageModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    task: str = "language_modelling"

    def __post_init__(self) -> None:
        for name, kind in self.types({"task": self.task}).items():
            if not isinstance(getattr(self, name), kind):
                got = f"{type(getattr(self, name)).__name__} with task={self.task}"
                raise ArgumentError(name, f"must be a {kind.__name__}", got, "Give the section of this task")

    @staticmethod
    def types(values: dict[str, Any]) -> dict[str, type]:
        """The classes of the sections `data` and `model`, which the task decides on. Raises: ArgumentError: an unknown one."""
        task = TASKS[values.get("task", RunConfig.task)]
        return {"data": task.data, "model": task.network.kind}

    @staticmethod
    def completed(values: dict[str, Any]) -> dict[str, Any]:
        """`values` with every section, that of the training as the task has it where nothing is said."""
        told = values.get("training", {})
        own = to_dict(TASKS[values.get("task", RunConfig.task)].training)
        return {"data": {}, "model": {}, **values, "training": own | told if isinstance(told, dict) else told}


def read_run_config(path: Path, written: bool = False) -> RunConfig:
    """Read a run's YAML.

    Args: written: by a run, so that it may hold options that its cell does not read; they are left out.
    Raises: ConfigError: unreadable. ArgumentError: an unknown key or a bad value.
    """
    values = _sections(path)
    if written and isinstance(values.get("model"), dict):
        values = values | {"model": RunConfig.types(values)["model"].without_unread(values["model"])}
    return from_dict(RunConfig, values, "")


def read_part(path: Path, task: str) -> dict[str, Any]:
    """A YAML that is to be completed, with its keys and types checked as those of a task. Raises: as `read_run_config`."""
    values = _sections(path)
    RunConfig.types(values)  # its own task, if it names one
    check_part(RunConfig, values | {"task": task}, "")
    return values


def _sections(path: Path) -> dict[str, Any]:
    values = read_yaml(path)
    if not isinstance(values, dict | None):
        raise ConfigError(
            str(path), "must hold the sections data, model and training", f"{values!r:.60}", "Write `model:` lines"
        )
    return values or {}
