"""`gatedrnn sweep`: which of some settings trains best, by successive halving."""

import itertools
import json
import math
import sys
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gatedrnn.cells.own import imported_files, imported_texts
from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import Found, option, place, required
from gatedrnn.cli.text import INTERRUPTED
from gatedrnn.core.checks import positive_int, positive_number, real
from gatedrnn.core.config import from_dict, to_dict
from gatedrnn.core.errors import ArgumentError, ConfigError, DataError
from gatedrnn.core.files import read_yaml, write_json, write_text, write_with, yaml_text
from gatedrnn.data.text import rereadable
from gatedrnn.layers import Recurrent
from gatedrnn.models.config import DECIDED_BY_DATA, CellSection
from gatedrnn.studies.sweep import Round, Trial, best_first, combinations, rounds
from gatedrnn.studies.sweep.running import Job, cores, run_jobs
from gatedrnn.tasks import TASKS
from gatedrnn.tasks.task import check_read, settled
from gatedrnn.training.config import RunConfig, TrainingConfig, read_run_config
from gatedrnn.training.run import CHECKPOINT_FOLDER, IN_TRAINING, METRICS_FILE, locked, read_metrics

SWEEP_FILE = "sweep.json"
_MORE_IS_BETTER = ("accuracy",)
_OF_TRAINING_TEXT = "data.longest", "data.first_longest"
"""Keys of the section `data` that leave the validation text as it is."""


@dataclass(frozen=True)
class Options(arguments.Options):
    """What is compared, how long, and where."""

    config: str = place("CONFIG", "YAML of a run; the trials change the keys that --over names")
    over: tuple[str, ...] = option(
        (), "key and the values to try, such as training.learning_rate=0.001,0.002; repeatable", "KEY=A,B"
    )
    minutes: float = required("minutes for the whole sweep, shared by its rounds", "M")
    data: str | None = option(None, "folder of the data [the configuration's, or the built-in grammar]", "DIR")
    out: str = required("new folder, or the folder of a sweep to continue", "DIR")
    processes: int = option(0, "trials to run at once, each on its share of the cores [one per core]")


def run(options: Options) -> Found:
    """Every trial of every round with its score, and the best. Raises: KeyboardInterrupt, with what resumes the sweep."""
    out, trials = Path(options.out), combinations(options.over)
    _check_own_keys(options, trials, (out / SWEEP_FILE).exists())
    processes = positive_int("--processes", options.processes or cores())
    plan = rounds(len(trials), positive_number("--minutes", options.minutes), processes)
    file: Any = rereadable(options.config)
    given = _absolute(read_yaml(file) or {})
    configs = {trial.number: _config(options.config, given, trial) for trial in trials}
    settings = {"config": given, "over": list(options.over), "minutes": options.minutes}
    data = None if options.data is None else str(Path(options.data).absolute())
    settings |= {"data": data, "processes": processes}
    if texts := imported_texts():
        settings["import"] = texts
    with TemporaryDirectory() as folder:
        measure, files = _checked(configs, Path(folder), data, (out / SWEEP_FILE).exists())
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        sweep = _Sweep(out, settings, _begun(out, settings), measure, {trial.number: trial for trial in trials}, files)
        for number, text in configs.items():
            write_text(out / f"trial-{number}.yaml", text)
        try:
            sweep.train(plan, processes)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the same command resumes the sweep") from None
        best = sweep.ranked(len(plan))[0]
        lines = sweep.lines()
        write_with(out / "sweep.png", lambda path: sweep.draw(path, lines))
    record = {"measure": f"valid_{measure}", "best": sweep.row(len(plan), best), "trials": sweep.rows(len(plan))}
    return Found(record, measure)


def show(found: Found, options: Options) -> None:
    """A table, the best last."""
    for row in found.record["trials"]:
        score = "failed" if row["score"] is None else f"{row['score']:.2f}"
        print(f"round {row['round']}  {row['minutes']:6.1f} min  valid {found.more} {score:>8}  {row['settings']}")
    best = found.record["best"]
    print(f"best: {best['settings']}, valid {found.more} {best['score']:.2f}; its run is in {best['run']}")
    print(f"curves are in {Path(options.out) / 'sweep.png'}")


@dataclass
class _Sweep:
    """The state of a sweep: `results` by "round-1/trial-2", kept in `sweep.json` after every trial."""

    out: Path
    settings: dict[str, Any]
    results: dict[str, Any]
    measure: str
    trials: dict[int, Trial]
    files: set[str]

    @property
    def higher(self) -> bool:
        """Whether more of the measure is better."""
        return self.measure in _MORE_IS_BETTER

    def train(self, plan: list[Round], processes: int) -> None:
        """All rounds, each of the better half of the one before."""
        left = list(self.trials)
        for k, each in enumerate(plan, 1):
            left = self.ranked(k - 1)[: each.count] if k > 1 else left
            self.run_round(k, len(plan), each, left, processes)

    def ranked(self, number: int) -> list[int]:
        """The trials of a round that have a score, the best first. Raises: DataError: none has one."""
        scores = {trial: score for trial, score in self.scores(number).items() if score is not None}
        if not scores:
            log = self.out / f"round-{number}" / f"trial-{min(self.scores(number))}.log"
            advice = f"See {log}. To train these trials again, delete {self.out} or choose another --out"
            raise DataError(
                str(self.out), f"must have at least one trial with a score in round {number}", "none", advice
            )
        return best_first(scores, self.higher)

    def run_round(self, number: int, of: int, plan: Round, chosen: list[int], processes: int) -> None:
        """Train the chosen trials that have no result yet, resuming those that have begun. Raises: DataError: one is live."""
        folder = self.out / f"round-{number}"
        folder.mkdir(exist_ok=True)
        left = [n for n in chosen if f"round-{number}/trial-{n}" not in self.results]
        _check_there(self.files if left else ())
        for n in left:
            _check_not_live(folder / f"trial-{n}")
        jobs = [self._job(folder, n, plan) for n in left]
        done, killed = len(chosen) - len(jobs), set[str]()

        def ended(job: Job, code: int) -> Job | None:
            nonlocal done
            if code == INTERRUPTED:
                raise KeyboardInterrupt
            n, run = int(job.name.rpartition("-")[2]), self.out / job.name
            if code:
                _check_not_live(run)  # if it failed because of that, it has no result yet
            live = code > 0 and IN_TRAINING in _last_line(job.log)  # until a moment ago
            if (code < 0 or live) and job.name not in killed:  # perhaps not of its own fault: memory was needed
                killed.add(job.name)
                told = f"{'in use' if live else f'killed by signal {-code}'}, and continued once"
                print(f"round {number} of {of}: {self.trials[n].label}: {told}", file=sys.stderr)
                return self._job(folder, n, plan)
            done += 1
            score = self._score(run) if code == 0 else None
            self.results[job.name] = {"round": number, "trial": n, "minutes": plan.minutes, "score": score}
            write_json(self.out / SWEEP_FILE, {"settings": self.settings, "results": self.results})
            why = f"killed by signal {-code}" if code < 0 else _last_line(job.log)
            told = f"valid {self.measure} {score:.2f}" if score is not None else f"failed: {why}"
            print(f"round {number} of {of}, {done} of {len(chosen)}: {self.trials[n].label}: {told}", file=sys.stderr)
            return None

        run_jobs(jobs, processes, ended)

    def _job(self, folder: Path, number: int, plan: Round) -> Job:
        name = f"{folder.name}/trial-{number}"
        run, training = self.out / name, ["--training.minutes", repr(plan.minutes)]
        data = [] if self.settings["data"] is None else ["--data", self.settings["data"]]
        known = [part for file in imported_files() for part in ("--import", str(file))]
        given = [*known, "--config", str(self.out / f"trial-{number}.yaml"), *data, *training]
        return Job(name, ["train", *given, "--out", str(run), "--resume"], folder / f"trial-{number}.log")

    def _score(self, run: Path) -> float | None:
        values = [line[f"valid_{self.measure}"] for line in read_metrics(run)]
        return (max if self.higher else min)(values) if values else None

    def scores(self, number: int) -> dict[int, float | None]:
        """By trial of a round."""
        return {each["trial"]: each["score"] for each in self.results.values() if each["round"] == number}

    def row(self, number: int, trial: int) -> dict[str, Any]:
        """What is told of a trial in a round."""
        name = f"round-{number}/trial-{trial}"
        return self.results[name] | {"settings": self.trials[trial].label, "run": str(self.out / name)}

    def rows(self, last: int) -> list[dict[str, Any]]:
        """All of them, each round from the worst to the best."""
        return [self.row(k, n) for k in range(1, last + 1) for n in reversed(best_first(self.scores(k), self.higher))]

    def lines(self) -> list[Any]:
        """Every trial with its validation measure over its minutes; one whose log is lost or damaged has no points."""
        last = max(each["round"] for each in self.results.values())
        lines = []
        for name, each in self.results.items():
            points = []
            try:
                points = self._points(self.out / name) if each["score"] is not None else []
            except (DataError, OSError) as error:
                print(f"{self.out / name} has no curve in sweep.png: {error}", file=sys.stderr)
            lines.append((self.trials[each["trial"]].label, each["trial"], each["round"] == last, points))
        return lines

    def _points(self, run: Path) -> list[tuple[float, float]]:
        """Minutes and score of each epoch, as a log has them. Raises: DataError: it lacks them. OSError: it cannot be read."""
        read = [(real(line.get("seconds")) / 60, real(line.get(f"valid_{self.measure}"))) for line in read_metrics(run)]
        if not read or not all(map(math.isfinite, itertools.chain(*read))):
            rule, got = f"must have seconds and valid_{self.measure} of each epoch", "none, or other values"
            raise DataError(str(run / METRICS_FILE), rule, got, "Restore it")
        return read

    def draw(self, path: Path, lines: list[Any]) -> None:
        """Those lines, the last round's thick."""
        from gatedrnn.plots.sweep import curves
        from gatedrnn.plots.trees import save

        save(curves(lines, f"validation {self.measure}", not self.higher), path, "png")


def _check_not_live(run: Path) -> None:
    """Raises DataError if a sweep that was killed left a training that goes on."""
    if (run / CHECKPOINT_FOLDER).exists():
        with locked(run):
            pass


def _config(file: str, given: Any, trial: Trial) -> str:
    """The trial's YAML: what the file gives, changed. Raises: ConfigError: a key leads into what is no mapping."""
    values = {"": deepcopy(given)}
    for key, value in trial.settings.items():
        *path, last = key.split(".")
        place: Any = values
        for k, part in enumerate(["", *path]):
            place[part] = {} if place.get(part) is None else place[part]
            place = place[part]
            if not isinstance(place, dict):
                rule = f"must hold keys and values in {'.'.join(path[:k])}" if k else "must hold keys and values"
                raise ConfigError(file, rule, repr(place), f"Change it, or leave --over {key} out")
        place[last] = value
    return yaml_text(_settled(values[""], given, trial))


def _settled(values: dict[str, Any], given: dict[str, Any], trial: Trial) -> dict[str, Any]:
    """Without what the file gives for a cell, an optimiser or the like that the trial replaces, unless the trial says it too."""
    if "model.cell" in trial.settings:
        before, said = given.get("model") or {}, {key.removeprefix("model.") for key in trial.settings}
        options = before.get("options") if "options" not in said else None
        own = options if isinstance(options, dict) else {}
        names = {f"{begin}{key}" for key in [*before, *own] for begin in ("", "options.")}
        names -= said | {key.partition(".")[0] for key in said}
        values = values | {"model": RunConfig.types(values)["model"].without_unread(values["model"], names)}
    if isinstance(values.get("training"), dict):
        values = values | {"training": TrainingConfig.without_clashes(values["training"], trial.settings)}
    config: Any = from_dict(RunConfig, values, "")
    kept = settled(TASKS[config.task], config.training, trial.settings)
    left = {field.name for field in fields(kept) if getattr(kept, field.name) != getattr(config.training, field.name)}
    if not left:
        return values
    return values | {"training": {key: value for key, value in values["training"].items() if key not in left}}


def _check_own_keys(options: Options, trials: list[Trial], begun: bool) -> None:
    """Raises ArgumentError: --over names a key that the sweep sets itself, or one that changes the validation text.

    Args: begun: whether the sweep was checked before, perhaps by an earlier version.
    """
    keys = {"training.minutes": "each round sets it from --minutes"}
    if not begun:
        keys |= dict.fromkeys(DECIDED_BY_DATA, "the data decide it")
        keys |= {"training.evaluation_batch_size": "scores of other stretches cannot be compared"}
        named = list(trials[0].settings)
        keys |= {key: f"{whole} holds it" for key in named for whole in named if key.startswith(f"{whole}.")}
    keys |= {"data.folder": "--data sets it"} if options.data is not None else {}
    for key in trials[0].settings:
        if key.startswith("data.") and key not in _OF_TRAINING_TEXT:
            keys.setdefault(key, "scores on other texts or units cannot be compared")
        if key in keys:
            raise ArgumentError("--over", f"cannot change {key}: {keys[key]}", key, "Leave one of them out")


def _absolute(given: Any) -> Any:
    """What a file gives, with the paths of its data absolute: another sitting may begin in another folder."""
    data = given.get("data") if isinstance(given, dict) else None
    if not isinstance(data, dict):
        return given
    paths = {name: data[name] for name in ("folder", "tokenizer") if isinstance(data.get(name), str) and data[name]}
    return given | {"data": data | {name: str(Path(path).absolute()) for name, path in paths.items()}}


def _check_there(files: Iterable[str]) -> None:
    """Raises DataError: what the trials read is missing; each of them would fail."""
    for path in files:
        if not Path(path).exists():
            raise DataError(path, "must exist", "no such file or folder", "Check --data, and section data of CONFIG")


def _checked(configs: dict[int, str], folder: Path, data: str | None, begun: bool) -> tuple[str, set[str]]:
    """The measure of the trials' task, and the files and folders that they read.

    Raises: ArgumentError, ConfigError: a key or a value of one of them is wrong. DataError: a new sweep's text is missing.
    Args:
        folder: to write the configurations into, which are read as `train` does.
        data: what --data gives.
        begun: whether the sweep was checked before, perhaps by an earlier version.
    """
    tasks, texts, files, seen = set(), set(), set(), list[str]()
    for number, text in configs.items():
        path = folder / f"trial-{number}.yaml"
        path.write_text(text, encoding="utf-8")
        config = read_run_config(path)
        task: Any = TASKS[config.task]
        if not begun:
            if (same := yaml_text(to_dict(config))) in seen:
                rule, got = (
                    "must give each trial settings of its own",
                    f"trials {seen.index(same) + 1} and {number} alike",
                )
                raise ArgumentError("--over", rule, got, "Leave out a value that changes nothing")
            seen.append(same)
            check_read(task, config.training)
            if isinstance(config.model, CellSection):
                _check_layers(config.model)
        tasks.add(config.task)
        read = data or config.data.folder
        files |= {each for each in (read, getattr(config.data, "tokenizer", None)) if each is not None}
        texts |= {config.training.seed} if read is None else set()
    if len(texts) > 1:
        rule = "cannot change training.seed without --data: the built-in text depends on the seed"
        raise ArgumentError("--over", rule, f"seeds {', '.join(map(str, sorted(texts)))}", "Give --data DIR")
    if len(tasks) > 1:
        raise ArgumentError(
            "--config", "the trials must have one task", ", ".join(sorted(tasks)), "Run one sweep per task"
        )
    if not begun:
        _check_there(files)
    return TASKS[tasks.pop()].measure, files


def _check_layers(model: Any) -> None:
    """Raises: ArgumentError: as a layer of the model whose cell refuses an option."""
    for size in model.sizes:
        Recurrent(model.cell, 1, size, device="meta", **model.options)


def _begun(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """What a sweep of these settings in `out` has found so far. Raises: DataError: the folder holds something else."""
    file = out / SWEEP_FILE
    if not file.exists():
        if {path.name for path in out.iterdir()} - {CHECKPOINT_FOLDER}:
            raise DataError(str(out), "must be a new folder", "files but no sweep.json", "Choose another --out")
        write_json(file, {"settings": settings, "results": {}})
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise DataError(str(file), "must be JSON", "another text", "Choose another --out") from None
    if not _is_ours(found):
        raise DataError(str(file), "must be what a sweep wrote", "other JSON", "Choose another --out")
    config = _absolute(found["settings"].get("config"))  # earlier versions kept paths as typed
    had = {"import": settings.get("import")} | found["settings"] | {"config": config}  # which they did not keep
    if others := _differing(json.loads(json.dumps(settings)), had):
        advice = "Give the same settings, or choose another --out"
        raise DataError(str(out), "must hold a sweep with the same settings", "; ".join(others), advice)
    return found["results"]


def _is_ours(found: Any) -> bool:
    """Whether a sweep can have written this."""
    if not isinstance(found, dict) or not all(isinstance(found.get(name), dict) for name in ("settings", "results")):
        return False
    kinds = {"round": int, "trial": int, "minutes": int | float, "score": int | float | None}
    return all(
        isinstance(each, dict) and each.keys() == kinds.keys() and all(isinstance(each[k], kinds[k]) for k in kinds)
        for each in found["results"].values()
    )


def _differing(settings: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Each setting that differs, with its value and the one before."""
    new, old = _by_key(settings), _by_key(before)
    names = [name for name in dict.fromkeys([*new, *old]) if new.get(name) != old.get(name)]
    return [f"{name} {_shown(new.get(name))}, and {_shown(old.get(name))} before" for name in names]


def _by_key(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by option, and the values of the configuration by key, such as model.cell."""
    found = {f"--{name}": value for name, value in settings.items() if name != "config"}
    left = [("", settings.get("config"))]
    for key, value in left:
        if isinstance(value, dict):
            left += [(f"{key}.{name}".lstrip("."), inner) for name, inner in value.items()]
        else:
            found[key] = value
    return found


def _shown(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "see its log"
