"""`gatedrnn train`: a run of a task, begun or gone on with."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from jsonargparse import ActionConfigFile, ArgumentParser  # pyright: ignore[reportPrivateImportUsage]
from rich.console import Console

from gatedrnn.cells.own import imported_files
from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import Found, option, section
from gatedrnn.cli.output import as_typed, say
from gatedrnn.cli.processes import processes, rank
from gatedrnn.cli.text import GO_ON
from gatedrnn.core.config import from_dict, to_dict
from gatedrnn.core.errors import ArgumentError, DataError, GatedRNNError
from gatedrnn.core.files import parse_yaml, read_yaml, yaml_text
from gatedrnn.data.text import rereadable
from gatedrnn.models.config import DECIDED_BY_DATA, OLD_KEYS, with_options
from gatedrnn.models.saving import CONFIG_FILE, WEIGHTS_FILE
from gatedrnn.tasks import TASKS, LanguageModelling
from gatedrnn.tasks.task import check_read, settled
from gatedrnn.tasks.teacher import TEACHER_FILE, Teacher
from gatedrnn.training.config import RunConfig, TrainingConfig, read_part, read_run_config
from gatedrnn.training.run import TOKENS_FOLDER, check_begun, check_free, checkpoints, continued, load_run, locked


@dataclass(frozen=True)
class Options(arguments.Options):
    """A run's sections, and where it lies."""

    task: str = option(LanguageModelling.name, f"{', '.join(TASKS)} [the configuration's, else the first]", "NAME")
    out: str | None = option(None, "folder for the run [runs/<name of the data>]", "RUN")
    resume: bool = option(False, "continue the run in --out from its last checkpoint; start it if there is none")
    data: Mapping[str, Any] = section()
    model: Mapping[str, Any] = section()
    training: Mapping[str, Any] = section()
    cells: Mapping[str, str] = field(default_factory=dict)
    """The cell of the file by the keys that `--config` alone sets."""


def prepare(arguments: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Arguments as they can be read again, and the fields of `Options` that they decide: the keys that are given, and `cells`."""
    again, given, cells, files = _given(_as_keys(arguments))
    return again, {"given": frozenset(given), "cells": cells, "files": files}


def add_sections(parser: ArgumentParser, arguments: list[str]) -> None:
    """`--config` and the sections of a task's run."""
    name = _task(arguments)
    kind = TASKS[name]
    parser.set_defaults(task=name)
    parser._print_config = None  # the library's option shows its own reading, which is no run's configuration
    parser.add_argument("--config", action=ActionConfigFile, help="a run's YAML with the sections below")
    parser.add_argument("--data", type=kind.data, default=kind.data())
    parser.add_argument("--model", type=kind.network.kind, default=kind.network.kind())
    parser.add_argument("--training", type=TrainingConfig, default=kind.training)
    shown = parser._option_string_actions["--data"]  # whose own help names a file; `_as_keys` takes a folder
    shown.metavar, shown.help = "DIR", "folder with train.txt and so on; the same as --data.folder DIR"


Teach = Callable[[Any, RunConfig, Path, Console], Any]
"""A task, the configuration, the run's folder, and where progress is shown → the task as it is trained."""


def run(options: Options, teach: Teach | None = None) -> Found:
    """Where the run is, why it stopped, and its scores.

    Args: teach: adds to the task, before anything is written; None to train it as it is.
    Raises: KeyboardInterrupt, with what goes on: before there are any.
    """
    sections = {name: dict(getattr(options, name)) for name in ("data", "model", "training")}
    for name in {"gates", "options"} & sections["model"].keys():  # the parser filled in what was not given
        asked, given = sections["model"][name] or {}, [f"{key}." for key in options.given]
        said = {k: v for k, v in asked.items() if any(key.startswith(f"model.{name}.{k}.") for key in given)}
        if said or name == "options":
            sections["model"][name] = said
    goes_on = options.resume and options.out is not None and (Path(options.out) / CONFIG_FILE).exists()
    own = _own(Path(options.out or ""), options.task) if goes_on else {}
    if own and ("model.cell" not in options.given or sections["model"].get("cell") == own["model"].get("cell")):
        sections = {name: _over(own[name], name, values, options.given) for name, values in sections.items()}
    cell = sections["model"].get("cell")  # what a file holds for another cell, that an option replaced, may stand
    left = {key.removeprefix("model.") for key, other in options.cells.items() if goes_on or other != cell}
    sections["model"] = RunConfig.types({"task": options.task})["model"].without_unread(sections["model"], left)
    asked = options.given - options.cells.keys()
    sections["training"] = TrainingConfig.without_clashes(sections["training"], asked)
    config = _absolute(from_dict(RunConfig, {**sections, "task": options.task}, ""))
    config = replace(config, training=settled(TASKS[config.task], config.training, asked))
    data = config.data.folder
    if options.resume and options.out is None:
        raise ArgumentError("train --resume", "needs the run to continue", "no --out", "Write --out RUN --resume")
    _check_shared(options, data)
    out = Path(options.out) if options.out else _free(Path("runs") / (Path(data).resolve().name if data else "grammar"))
    if not options.resume:
        check_free(out)
    elif check_begun(out) or goes_on:
        config = _absolute(continued(out, config, options.given - {"task"}))
    elif not options.given:
        raise DataError(str(out), "must hold a run to continue", "no config.yaml", "Check --out")
    existed = out.exists()
    try:
        return _train(config, out, options, teach)
    except BaseException as error:  # whatever stops it: no half-written run stays
        begun = (out / WEIGHTS_FILE).exists()
        if not existed and not begun and rank() == 0 and out.exists():
            with suppress(GatedRNNError), locked(out):  # not what another process has begun there meanwhile
                if not (out / WEIGHTS_FILE).exists():
                    shutil.rmtree(out, ignore_errors=True)
        if begun and isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(_go_on(out, options)) from None
        raise


def _own(out: Path, task: str) -> dict[str, Any]:
    """Sections of a run that is continued; none if it cannot be read, or is of another task."""
    with suppress(GatedRNNError):  # which is told where the run is continued
        config = to_dict(read_run_config(out / CONFIG_FILE, written=True))
        return config if config["task"] == task else {}
    return {}


def _over(own: dict[str, Any], section: str, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
    """A section of the run, with the keys that are given over it."""
    asked = {name: value for name, value in values.items() if f"{section}.{name}" in given}
    for name, value in values.items():  # some keys of a mapping
        if name not in asked and any(key.startswith(f"{section}.{name}.") for key in given):
            asked[name] = (own.get(name) or {}) | value
    return own | asked


def _absolute(config: Any) -> Any:
    """The configuration with its paths absolute, so that a run can be gone on with from another folder."""
    data = config.data
    known = {name: path for name in ("folder", "tokenizer") if (path := getattr(data, name, None)) is not None}
    absolute = {name: str(Path(path).absolute()) for name, path in known.items()}
    return replace(config, data=replace(data, **absolute))


def _check_shared(options: Options, data: str | None) -> None:
    """Raise ArgumentError if several processes would each choose a folder, or read a text that one of them is still writing."""
    if processes() == 1:
        return
    got = f"{processes()} processes"
    if options.out is None:
        raise ArgumentError("train --out", "must be given where several processes train", got, "Write --out RUN")
    if data is None and not (Path(options.out) / CONFIG_FILE).exists():
        rule = "must be given where several processes train: only one can write the built-in text"
        advice = "Train with one process first, then give the folder text of its run, or give a text of your own"
        raise ArgumentError("train --data", rule, got, advice)


def _train(config: Any, out: Path, options: Options, teach: Teach | None) -> Found:
    from gatedrnn.training.loop import train as run_training
    from gatedrnn.training.progress import TrainingDisplay

    data = config.data.folder
    kind: Any = TASKS[config.task]
    if not (out / CONFIG_FILE).exists():  # a run that has begun was checked, perhaps by an earlier version
        check_read(kind, config.training)
    if data is None and rank() == 0 and not (out / CONFIG_FILE).exists():
        _make_text(out, config)
    console = Console(stderr=options.json, quiet=rank() > 0)
    begun = bool(checkpoints(out))
    with console.status("reading the text"):
        task = kind.open(config.data, data or out / "text", out if begun else None)
        task.cache(out / TOKENS_FOLDER)
    if teach is not None:
        task = teach(task, config, out, console)
    elif not begun and (out / TEACHER_FILE).exists():
        task = _student(task, out, options.resume)
    what = getattr(config.model, "cell", config.task)
    doing = f"{'continuing' if begun else 'training'} {what} {'in' if begun else 'into'} {out}"
    for line in (task.describe(), doing):
        say(line, console)
    with TrainingDisplay(console, config.training.epochs + config.training.finetune_epochs, task) as display:
        outcome = run_training(config, task, out, display, resume=options.resume)
    measure, stopped = task.measure, outcome.stopped
    scores: dict[str, Any] = {"run": str(out), "epochs": outcome.epochs, f"best_valid_{measure}": outcome.best}
    scores["stopped"] = stopped
    if rank() == 0 and "test" in task.splits and stopped != "interrupted":
        scores[f"test_{measure}"] = task.score(load_run(out, None).model, config.training, "test").shown[measure]
    if options.json and stopped == "interrupted" and rank() == 0:
        print(_go_on(out, options), file=sys.stderr)
    return Found(scores, measure)


def _student(task: Any, out: Path, resume: bool) -> Any:
    """The task of a student that has no checkpoint, with its teacher. Raises: DataError: it is not to be continued."""
    if not resume or not isinstance(task, LanguageModelling):
        advice = "Continue it with --resume, choose another --out, or delete the folder"
        raise DataError(str(out), "must not hold a run yet", f"a student's {TEACHER_FILE}", advice)
    teacher = Teacher.load(out)
    if teacher is not None:
        teacher.check_text(task.corpus, str(out))
    return LanguageModelling(task.corpus, teacher)


def show(found: Found, options: Options) -> None:
    """A line, and how to go on."""
    scores, measure = found.record, found.more
    best, test = scores[f"best_valid_{measure}"], scores.get(f"test_{measure}")
    tested = "" if test is None else f", test {test:.2f}"
    valid = "not yet validated" if best is None else f"best valid {measure} {best:.2f}{tested}"
    said = [f"{scores['stopped']}: {valid}; the run is in {scores['run']}"]
    for line in said + ([_go_on(Path(scores["run"]), options)] if scores["stopped"] == "interrupted" else []):
        say(line)


def _go_on(out: Path, options: Options) -> str:
    """What to do after an interrupt: without --out, the same command would not find the run."""
    known = "".join(f" --import {as_typed(str(file))}" for file in imported_files())
    return GO_ON if options.out else f"`gatedrnn train --out {as_typed(str(out))} --resume{known}` continues it"


def _make_text(out: Path, config: Any) -> None:
    """Write what a task makes itself into a run, whole or not at all; what is there already must be the same."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out, prefix=".text.", suffix=".writing") as folder:
        new, text = Path(folder) / "text", out / "text"
        new.mkdir()
        TASKS[config.task].make(new, config.training.seed, config.data)
        with suppress(OSError):  # one is there
            new.rename(text)
            return
        if not text.is_dir() or any(
            not (text / path.name).is_file() or (text / path.name).read_bytes() != path.read_bytes()
            for path in new.iterdir()
        ):
            raise DataError(
                str(text), "must not exist yet", "another text", "Train on it with --data, or choose another --out"
            )


def _free(path: Path) -> Path:
    """`path`, or `path-2`, `path-3`, … if it exists."""
    candidates = [path, *(path.with_name(f"{path.name}-{k}") for k in range(2, 10_000))]
    return next(candidate for candidate in candidates if not candidate.exists())


def _as_keys(arguments: list[str]) -> list[str]:
    """`--data DIR`, and options of a cell as earlier versions had them, written as the configuration keys they set."""
    keys = {"--data": "--data.folder"} | {f"--model.{key}": f"--model.options.{key}" for key in OLD_KEYS}
    again = list(arguments)
    for k, (name, equals, value) in enumerate(_options(arguments)):
        path = name == "--data" or (name in ("--data.folder", "--data.tokenizer") and value != "null")
        if path and (read := _as_path(value)) != value:
            again[k if equals else k + 1] = (f"{name}=" if equals else "") + read
    parts = (argument.partition("=") for argument in again)
    return ["".join([keys.get(name, name), equals, value]) for name, equals, value in parts]


def _as_path(value: str) -> str:
    """A path in which YAML, as which options are read, finds no comment and no null: `#text`, `~`."""
    try:
        node = yaml.compose(value, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return value
    return f"./{value}" if value and (node is None or node.tag == "tag:yaml.org,2002:null") else value


def _given(arguments: list[str]) -> tuple[list[str], set[str], dict[str, str], list[Any]]:
    """Arguments as they can be read again, the keys they set (in `--config` too), the cell of the file by key, the files.

    Keys by cell are those that `--config` alone sets.
    Reads the files strictly, so that a wrong key is named with the nearest known one.
    """
    again, keys, files, cells = list(arguments), set(), dict[int, Any](), dict[str, str]()
    for k, (name, equals, value) in enumerate(_options(arguments)):
        if name == "--config" and value:
            files[k] = rereadable(value)
            again[k if equals else k + 1] = (f"{name}=" if equals else "") + os.fspath(files[k])
    task = _task(again)
    model = RunConfig.types({"task": task})["model"]
    named = [str(cell) for file in files.values() if (cell := (read_part(file, task).get("model") or {}).get("cell"))]
    cell = (named or [str(getattr(model, "cell", ""))])[0]  # of files before the first that names one, that one
    for k, (name, equals, value) in enumerate(_options(arguments)):
        read = None  # what to read instead of `value`
        if k in files:
            values = read_part(files[k], task)  # `train` refuses what has no use
            new = {section: with_options(own) if section == "model" else own for section, own in values.items()}
            cell = str((values.get("model") or {}).get("cell", cell))  # of several files, the last that names one
            read = None if new and new == values else yaml_text(new)
            cells |= dict.fromkeys(_keys("", new), cell)
        elif name in ("--model", "--training", "--model.gates", "--model.options"):
            values = _mapping(value)
            new = with_options(values) if name == "--model" else values
            read = None if new == values else yaml_text(new)
            keys |= _keys(f"{name[2:]}.", new)
        elif name == "--data.columns":
            read = _columns(value)
        if read is not None:
            again[k if equals else k + 1] = (f"{name}=" if equals else "") + read
        if name == "--task" or name.startswith(("--data.", "--model.", "--training.")):
            keys.add(name[2:])
    cells = {key: cell for key, cell in cells.items() if key not in keys}
    keys = (keys | (cells.keys() - DECIDED_BY_DATA)) - {"model.options"}  # whose own keys count
    return _files_first(again), {key for key in keys if "." in key or key == "task"}, cells, list(files.values())


def _options(arguments: list[str]) -> Iterator[tuple[str, str, str]]:
    """Of each argument its name, its =, and the value that would be an option's: behind the =, or the next argument."""
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = argument.partition("=")
        yield name, equals, value if equals else after


def _files_first(arguments: list[str]) -> list[str]:
    """The command, then each `--config FILE`: what the command line says counts, wherever it stands."""
    first, rest, left = arguments[:1], list[str](), iter(arguments[1:])
    for argument in left:
        if argument == "--config":
            first += [argument, *([value] if (value := next(left, None)) is not None else [])]
        else:
            (first if argument.startswith("--config=") else rest).append(argument)
    return first + rest


def _columns(value: str) -> str | None:
    """A list of languages in which each is text, also `no`; None where it is to be read as it is."""
    try:
        given = yaml.load(value, yaml.BaseLoader)
    except yaml.YAMLError:
        return None
    if isinstance(given, str) and "," in given:
        given = [word.strip() for word in given.split(",")]
    fits = isinstance(given, list) and all(isinstance(word, str) for word in given)
    return json.dumps(given) if fits else None


def _task(arguments: list[str]) -> str:
    """The task of `train`: that of `--task`, of the last `--config` that names one, or of the run in `--out`."""
    said, options = LanguageModelling.name, dict[str, list[str]]()
    for name, _, value in _options(arguments):
        options.setdefault(name, []).append(value)
    if "--resume" in options:
        known = _task_of(Path(options.get("--out", ["."])[-1]) / CONFIG_FILE)
        said = known if known and known in TASKS else said  # a damaged file is named where the run is read
    for path in options.get("--config", []):
        said = _task_of(path) or said
    return options.get("--task", [said])[-1]


def _task_of(file: Any) -> str | None:
    """What a run's YAML, or its text, says of its task."""
    with suppress(GatedRNNError, OSError, yaml.YAMLError, ValueError):
        values = read_yaml(Path(file)) if Path(file).is_file() else parse_yaml(str(file))
        return values.get("task") if isinstance(values, dict) else None
    return None


def _keys(prefix: str, values: Any) -> set[str]:
    """Keys of a mapping and of those in it; none of what is no mapping."""
    each = values.items() if isinstance(values, dict) else ()
    return {f"{prefix}{key}" for key, _ in each}.union(*(_keys(f"{prefix}{key}.", value) for key, value in each))


def _mapping(value: str) -> Any:
    """What a section's option holds: a mapping, or the file of one."""
    with suppress(yaml.YAMLError):  # the parser refuses it
        values = parse_yaml(value)
        return read_yaml(Path(values)) if isinstance(values, str) else values
