"""A run on disk: config.yaml, model.safetensors, vocabulary.json (and tokenizer.json), metrics.jsonl, the token cache."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatedrnn.core.config import to_dict
from gatedrnn.core.errors import CheckpointError, DataError
from gatedrnn.core.files import ROOM, write_yaml
from gatedrnn.data import Vocabulary
from gatedrnn.models import LanguageModel
from gatedrnn.models.saving import CONFIG_FILE, WEIGHTS_FILE
from gatedrnn.training.config import RunConfig, read_run_config

VOCABULARY_FILE = "vocabulary.json"
METRICS_FILE = "metrics.jsonl"
TOKENS_FOLDER = "tokens"


@dataclass(frozen=True)
class Run:
    """A trained model with its vocabulary and configuration."""

    folder: Path
    config: RunConfig
    model: LanguageModel
    vocabulary: Vocabulary


def load_run(folder: Path | str) -> Run:
    """Read a run for evaluation.

    Raises: CheckpointError, DataError, ConfigError, ArgumentError: the folder or one of its files is missing, damaged, or the
        vocabulary is of another size than the model's.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(str(folder), "must be a run's folder", "no such folder", "Train one: gatedrnn train")
    config = read_run_config(folder / CONFIG_FILE)
    vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
    if len(vocabulary) != config.model.vocabulary_size:
        got = f"{len(vocabulary)} words and model.vocabulary_size={config.model.vocabulary_size}"
        raise CheckpointError(
            str(folder / VOCABULARY_FILE), "must be of the model's size", got, "Restore the run's own file"
        )
    return Run(folder, config, LanguageModel.from_pretrained(folder, backend=config.training.backend), vocabulary)


def create_run(folder: Path, config: RunConfig, vocabulary: Vocabulary) -> None:
    """Start a run's folder: configuration, vocabulary, empty metrics.

    Raises: DataError: the folder holds a run already, so that none is ever overwritten.
    """
    if (folder / WEIGHTS_FILE).exists() or (folder / CONFIG_FILE).exists():
        raise DataError(str(folder), "must not hold a run yet", "a run", "Choose another --out, or delete the folder")
    write_yaml(folder / CONFIG_FILE, to_dict(config))
    vocabulary.save(folder / VOCABULARY_FILE)
    (folder / METRICS_FILE).touch()


def append_metrics(folder: Path, record: dict[str, Any]) -> None:
    """Add one line to metrics.jsonl. Raises: DataError: it cannot be written."""
    path = folder / METRICS_FILE
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
    except OSError as error:
        raise DataError(str(path), "must be writable", error.strerror, ROOM) from error


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()]
