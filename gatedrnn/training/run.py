"""A run on disk: config.yaml, model.safetensors, vocabulary.json (and tokenizer.json), metrics.jsonl, the token cache."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatedrnn.core.config import from_dict, to_dict
from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.core.files import ROOM, write_text, write_yaml
from gatedrnn.data import Vocabulary
from gatedrnn.models import LanguageModel
from gatedrnn.models.saving import CONFIG_FILE, WEIGHTS_FILE, is_compressed
from gatedrnn.training.config import RunConfig, read_run_config

MAY_CHANGE = (
    "epochs", "finetune_epochs", "minutes", "patience", "learning_rate", "gradient_clip", "checkpoint_minutes", "tensorboard",
    "device", "backend",
)  # fmt: skip
"""Keys of the section training that may change when a run is gone on with."""

VOCABULARY_FILE = "vocabulary.json"
METRICS_FILE = "metrics.jsonl"
TOKENS_FOLDER = "tokens"
CHECKPOINT_FOLDER = "checkpoint"


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


def load_runs(folders: Sequence[str]) -> list[Run]:
    """Several runs. Raises: as `load_run`; ArgumentError: a folder is named twice."""
    places = [Path(folder).resolve() for folder in folders]
    twice = [folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]
    if twice:
        raise ArgumentError("RUN", "must be different folders", " ".join(twice), "Name each run once")
    return [load_run(folder) for folder in folders]


def check_free(folder: Path) -> None:
    """Raises DataError if the folder holds a run, so that none is ever overwritten."""
    if (folder / CONFIG_FILE).exists() or (folder / WEIGHTS_FILE).exists():
        advice = "Go on with it by --resume, choose another --out, or delete the folder"
        raise DataError(str(folder), "must not hold a run yet", "a run", advice)


def check_begun(folder: Path) -> None:
    """Raises DataError if the folder holds a trained model and no checkpoint: a fresh start would overwrite it.

    One that was killed before its first checkpoint is no such model: it has metrics of one epoch at most.
    """
    if not (folder / WEIGHTS_FILE).exists():
        return
    metrics = folder / METRICS_FILE
    begun = metrics.exists() and len(metrics.read_bytes().splitlines()) <= 1
    if not begun or is_compressed(folder):
        rule, advice = "must have a checkpoint to go on from", "Choose another --out, or delete the folder"
        raise DataError(str(folder), rule, "a trained model without one", advice)


def write_run(folder: Path, config: RunConfig, vocabulary: Vocabulary, *, fresh: bool) -> None:
    """Write a run's configuration and, if it is fresh, its vocabulary and empty metrics. Raises: DataError: it cannot."""
    write_yaml(folder / CONFIG_FILE, to_dict(config))
    if fresh:
        vocabulary.save(folder / VOCABULARY_FILE)
        write_text(folder / METRICS_FILE, "")


def continued(folder: Path, config: RunConfig, given: Collection[str]) -> RunConfig:
    """The run's own configuration, with what may change in a run taken from `config`.

    Args: given: keys ("model.cell") that a person set; every other one is the run's.
    Raises: ArgumentError: a key that may not change differs. ConfigError, CheckpointError: the run's file is damaged.
    """
    own = to_dict(read_run_config(folder / CONFIG_FILE))
    wanted = to_dict(config)
    for key in sorted(given):
        section, name = key.split(".")[:2]
        if wanted[section][name] == own[section][name]:
            continue
        if key != "data.folder" and (section != "training" or name not in MAY_CHANGE):
            got = f"{wanted[section][name]!r}, and {own[section][name]!r} in the run"
            advice = f"Drop it, or start another run; what may change: {', '.join(MAY_CHANGE)}"
            raise ArgumentError(key, "must be as in the run", got, advice)
        own[section][name] = wanted[section][name]
    return from_dict(RunConfig, own, "")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder, so that no second training writes into it; a killed process holds nothing.

    Raises: DataError: another process holds it, or it cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        (folder / CHECKPOINT_FOLDER).mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / CHECKPOINT_FOLDER / ".lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        advice = "Wait for it, or choose another --out"
        raise DataError(str(folder), "must not be in training already", "a live run", advice) from error
    except OSError as error:
        raise DataError(str(folder), "must be a folder that can be written", error.strerror, ROOM) from error
    try:
        yield
    finally:
        lock.release()


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


def cut_metrics(folder: Path, lines: int) -> None:
    """Keep the first lines of metrics.jsonl: what came after the checkpoint will come again."""
    kept = (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines(keepends=True)[:lines]
    write_text(folder / METRICS_FILE, "".join(kept))
