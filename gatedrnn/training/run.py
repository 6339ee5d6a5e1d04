"""A run on disk: config.yaml, model.safetensors, vocabulary.json (and tokenizer.json), their checksums, metrics.jsonl, caches."""

import errno
import json
import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gatedrnn.core.checksums import CHECKSUMS_FILE, accept, check, check_all
from gatedrnn.core.config import from_dict, to_dict
from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.core.files import ROOM, remove_stale, to_json, write_text
from gatedrnn.data.subwords import Subwords
from gatedrnn.data.vocabulary import TOKENIZER_FILE, VOCABULARY_FILE
from gatedrnn.models.saving import CONFIG_FILE, WEIGHTS_FILE, holds_trained, save_config, save_weights
from gatedrnn.tasks import TASKS, LanguageModelling, Task
from gatedrnn.tasks.teacher import TEACHER_FILE
from gatedrnn.training.config import RunConfig, read_run_config

MAY_CHANGE = (
    "epochs", "finetune_epochs", "minutes", "patience", "learning_rate", "gradient_clip", "checkpoint_minutes", "tensorboard",
    "device", "backend",
)  # fmt: skip
"""Keys of the section training that may change when a run is resumed."""

METRICS_FILE = "metrics.jsonl"
TOKENS_FOLDER = "tokens"
CHECKPOINT_FOLDER = "checkpoint"
IN_TRAINING = "must not be in training already"
_TRIES = 5
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
LISTED = tuple(dict.fromkeys([CONFIG_FILE, WEIGHTS_FILE, *(name for _, task in TASKS.items() for name in task.files)]))
"""Files of runs whose checksums are kept; a checkpoint and the token cache have their own."""


@dataclass(frozen=True)
class Run:
    """A trained model with its configuration and what its task keeps beside it: a vocabulary, or that of each language."""

    folder: Path
    config: RunConfig
    model: Any
    vocabulary: Any

    @property
    def text_folder(self) -> Path:
        """Of what it was trained on."""
        return Path(self.config.data.folder or self.folder / "text")


def load_run(folder: Path | str, task: str | Collection[str] | None = LanguageModelling.name) -> Run:
    """Read a run for evaluation.

    Args: task: that it must be of, or one of several; None for any.

    Raises: CheckpointError, DataError, ConfigError, ArgumentError: the folder or one of its files is missing or damaged, does not
        fit the model, or the run is of another task.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(str(folder), "must be a run's folder", "no such folder", "Train one: gatedrnn train")
    if (folder / CONFIG_FILE).is_file():
        check(folder / CONFIG_FILE)  # before one that was damaged is blamed on another file
    config = read_run_config(folder / CONFIG_FILE, written=True)
    allowed = (task,) if isinstance(task, str) else task
    if allowed is not None and config.task not in allowed:
        rule = f"must be a run of {' or '.join(allowed)}"
        raise CheckpointError(str(folder), rule, f"a run of {config.task}", "Give another run")
    kind = TASKS[config.task]
    return Run(folder, config, *kind.load(folder, config.model, config.training.backend))


def load_runs(folders: Sequence[str], task: str | Collection[str] | None = LanguageModelling.name) -> list[Run]:
    """Several runs. Args: task: as in `load_run`. Raises: as `load_run`; ArgumentError: a folder is named twice."""
    places = [Path(folder).resolve() for folder in folders]
    twice = [folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]
    if twice:
        raise ArgumentError("RUN", "must be different folders", " ".join(twice), "Name each run once")
    return [load_run(folder, task) for folder in folders]


def checkpoints(folder: Path) -> list[Path]:
    """A run's checkpoints, the newest first."""
    return sorted((folder / CHECKPOINT_FOLDER).glob("step-*.safetensors"), reverse=True)


def with_text(run: Run) -> RunConfig:
    """The configuration for a copy of a run in another folder: the built-in text is that of the run, where it still is."""
    data, folder = run.config.data, run.text_folder.absolute()
    if data.folder is not None or not folder.is_dir():
        return run.config
    level = {"level": data.token_level} if hasattr(data, "token_level") else {}  # with a folder, its default is another
    return replace(run.config, data=replace(data, folder=str(folder), **level))


def check_free(folder: Path) -> None:
    """Raises DataError if the folder holds a run or a part of one, so that none is ever overwritten."""
    own = (folder / name for name in (*LISTED, METRICS_FILE, CHECKSUMS_FILE))
    found = [path for path in (*own, *checkpoints(folder)) if path.exists()]
    if found:
        advice = "Continue it with --resume, choose another --out, or delete the folder"
        raise DataError(str(folder), "must not hold a run yet", f"a run's {found[0].name}", advice)


def check_begun(folder: Path, given: bool = False) -> bool:
    """Whether there is a checkpoint to resume from. Where there is none, nothing is trained, and a run may begin.

    Args: given: the weights to begin with are, so that a run may begin again that was killed while its first files were written.
    Raises: DataError: something is trained, and there is no checkpoint. CheckpointError: another of the run's files, but for its
        log, is missing or is not as it was written.
    """
    found = checkpoints(folder)
    if given and [path.stem for path in found] == [f"step-{0:09d}"] and not (folder / WEIGHTS_FILE).exists():
        return False
    if not found:
        log = folder / METRICS_FILE
        if holds_trained(folder) or (log.exists() and log.stat().st_size):
            rule, advice = "must have a checkpoint to continue from", "Choose another --out, or delete the folder"
            raise DataError(str(folder), rule, "a trained model without one", advice)
        if (folder / CONFIG_FILE).is_file():
            check(folder / CONFIG_FILE)  # which says how to begin again
        return False
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise CheckpointError(str(folder / name), "must exist", "no such file", "Restore it, or start another run")
    check_all(folder)
    return True


def write_begun(folder: Path, config: RunConfig, task: Task) -> None:
    """Write configuration, the task's files and an empty log of a run that begins. Raises: DataError: they cannot be written."""
    (folder / CHECKSUMS_FILE).unlink(missing_ok=True)
    save_config(folder, to_dict(config))
    task.write(folder)
    write_metrics(folder, [])


def accept_run(folder: Path) -> list[str]:
    """Take a run's files for right as they are now; the names of those that had changed. Raises: DataError: as `write_json`."""
    return accept(folder, (*LISTED, TEACHER_FILE))


def continued(folder: Path, config: RunConfig, given: Collection[str] | None = None) -> RunConfig:
    """The run's own configuration, with what may change in a run taken from `config`.

    Args: given: keys ("model.cell") that a person set, None for all; every other one is the run's.
    Raises: ArgumentError: a key that may not change differs. ConfigError, CheckpointError: the run's file is damaged.
    """
    own = to_dict(read_run_config(folder / CONFIG_FILE, written=True))
    wanted = to_dict(config)
    if wanted["task"] != own["task"]:
        got = f"{wanted['task']}, and {own['task']} in the run"
        raise ArgumentError("task", "must be as in the run", got, "Leave it out, or start another run")
    every = (f"{section}.{name}" for section in ("data", "model", "training") for name in wanted[section])
    for key in sorted(every if given is None else given):
        section, name, *inner = key.split(".")
        asked, had = wanted[section][name], own[section][name]
        if name == "options" and inner:
            asked, had = asked.get(inner[0]), had.get(inner[0])
        if asked == had:
            continue
        free = key == "data.folder" or (section == "training" and name in MAY_CHANGE)
        if not free and not (key == "data.tokenizer" and _is_tokenizer(folder, wanted[section][name])):
            got = f"{asked!r}, and {had!r} in the run"
            advice = f"Leave it out, or start another run; these may change: {', '.join(MAY_CHANGE)}"
            raise ArgumentError(key, "must be as in the run", got, advice)
        own[section][name] = wanted[section][name]
    return from_dict(RunConfig, own, "")


def _is_tokenizer(folder: Path, path: str | None) -> bool:
    """Whether this file holds the run's own tokenizer. Raises: DataError: it is missing, or holds none."""
    own = folder / TOKENIZER_FILE
    return path is not None and own.is_file() and Subwords.load(path).settings == own.read_text(encoding="utf-8")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder, so that no other process writes into it, and remove temporary files of killed ones.

    A killed process holds nothing. A folder without checkpoints is left without a lock's file, an empty one not at all.

    Raises: DataError: another process holds it, or it cannot be written.
    """
    with held(folder, f"{CHECKPOINT_FOLDER}/.lock", "a run that another process trains", IN_TRAINING):
        try:
            for place in (folder, folder / CHECKPOINT_FOLDER, folder / TOKENS_FOLDER):
                remove_stale(place)
            yield
        finally:
            if not checkpoints(folder):
                with suppress(OSError):  # other files are in it
                    (folder / CHECKPOINT_FOLDER / ".lock").unlink()
                    (folder / CHECKPOINT_FOLDER).rmdir()
                    folder.rmdir()


@contextmanager
def held(folder: Path, name: str, got: str, rule: str = "must not be in use") -> Iterator[None]:
    """Hold the lock that the file `name` of a folder is. Raises: DataError: another process does, or it cannot be written."""
    from filelock import FileLock, Timeout

    try:
        lock = FileLock(folder / name, timeout=0)
        for left in reversed(range(_TRIES)):
            try:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                lock.acquire()
                break
            except (FileNotFoundError, FileExistsError):  # another process that ends may have just removed the folder
                if not left:
                    raise
                time.sleep(0.01)
    except Timeout as error:
        raise DataError(str(folder), rule, got, "Wait for it, or choose another --out") from error
    except (OSError, NotImplementedError) as error:  # the latter is filelock's own
        got = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", errno.ENOSYS) in _NO_LOCKS:
            rule, advice = "must be on a file system with locks", "Choose an --out on another file system"
            raise DataError(str(folder), rule, got, advice) from error
        raise DataError(str(folder), "must be a writable folder", got, ROOM) from error
    try:
        yield
    finally:
        lock.release()


def write_metrics(folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write metrics.jsonl, a line an epoch. Raises: DataError: it cannot be written."""
    path = folder / METRICS_FILE
    write_text(path, "".join(to_json(record, str(path)) + "\n" for record in records))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All lines of metrics.jsonl. Raises: DataError: one is damaged (with its number). OSError: it cannot be read."""
    path, records = folder / METRICS_FILE, []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            got = ascii(line[:60].decode("utf-8", "replace"))
            raise DataError(
                f"{path}:{number}", "must be an epoch's record in JSON", got, "Restore the file, or delete it"
            )
        records.append(record)
    return records


def best_record(folder: Path) -> dict[str, Any] | None:
    """The epoch whose weights are kept: the last of the best, in a log that names none the one of the lowest perplexity on the
    validation text; None without a finite one. Raises: as `read_metrics`.
    """
    records = read_metrics(folder) if (folder / METRICS_FILE).is_file() else []
    scored = [each for each in records if isinstance(each.get("valid_perplexity"), int | float)]
    finite = [each for each in scored if math.isfinite(each["valid_perplexity"])]
    kept = [each for each in finite if each.get("best") is True]
    return kept[-1] if kept else min(finite, key=lambda each: each["valid_perplexity"], default=None)


def write_trained(folder: Path, config: RunConfig, model: Any, vocabulary: Any) -> None:
    """Write a model that is not trained here as a run: without checkpoints, with an empty log. Raises: DataError: it cannot."""
    save_config(folder, to_dict(config))
    save_weights(folder, model)
    vocabulary.save(folder / VOCABULARY_FILE)
    write_metrics(folder, [])
    accept_run(folder)


def without_paths(config: RunConfig) -> RunConfig:
    """A configuration of language modelling without the paths of this machine."""
    data: Any = config.data
    return replace(config, data=replace(data, folder=None, tokenizer=None))
