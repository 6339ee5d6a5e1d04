"""`gatedrnn compress`: a run in a small form, and what that costs; or the table of all published schemes."""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gatedrnn.cells import CELLS
from gatedrnn.cli import arguments, compression_table
from gatedrnn.cli.arguments import flag_of, option, place, settings
from gatedrnn.cli.output import status
from gatedrnn.cli.processes import processes
from gatedrnn.cli.text import GO_ON, check_recurrent, run_names
from gatedrnn.core.checks import positive_int, positive_number
from gatedrnn.core.checksums import CHECKSUMS_FILE, checksum
from gatedrnn.core.config import to_dict
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.files import write_json, write_text
from gatedrnn.data.text import rereadable
from gatedrnn.layers import RecurrentBase
from gatedrnn.models.saving import CONFIG_FILE, WEIGHTS_FILE, notes_of, save_config, save_tensors
from gatedrnn.studies.compression import METHODS, WEIGHTS, Projection, Scheme, compressed, published
from gatedrnn.tasks import TASKS
from gatedrnn.tasks.task import unread
from gatedrnn.training.config import RunConfig, read_run_config
from gatedrnn.training.run import (
    LISTED,
    TOKENS_FOLDER,
    Run,
    accept_run,
    check_begun,
    check_free,
    checkpoints,
    load_run,
    load_runs,
    locked,
    with_text,
)
from gatedrnn.training.schedule import gates_at
from gatedrnn.training.scores import COMPRESSION_FILE, compression_figures
from gatedrnn.weights.compressed import CompressedWeight

_WHOLE = ("bf16", "int8", "int4")
"""Methods for every weight, that the table has besides the published ones."""
_TOGETHER = 20  # stretches, sentences or pairs side by side, for a score
_TIMED_TOKENS = {1: 2_000, 64: 60_000}
"""Tokens read to measure the speed, by batch size."""

_NAMES = {name: name for name in ("method", "gates", "weights", "step", "clip", "rank")}
_READERS = {"step": ("round", "clip"), "clip": ("clip",), "rank": ("svd",)}


def _gates(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(","))


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which runs, by which scheme, and whether they are trained on."""

    runs: tuple[str, ...] = place("RUN", "folder of a trained run; several with --table")
    scheme: Scheme | None = settings(
        Scheme, _NAMES, reads={"gates": _gates}, choices={"method": METHODS, "weights": WEIGHTS}
    )
    data: str | None = option(None, "text to measure on [the run's validation text]", "FILE")
    out: str | None = option(
        None, "folder for the compressed run; with --table, for table.md, .json, .pdf, .png and .svg", "DIR"
    )
    table: bool = option(False, "compare round, round & clip, SVD, SVD+, bf16, int8 and int4 in a table")
    retrain: int = option(0, "epochs of further training, with the weights projected at every step", "EPOCHS")
    learning_rate: float | None = option(
        None, "learning rate at the start of --retrain; it falls to 0 [a tenth of the run's]"
    )
    resume: bool = option(False, "continue a --retrain that was interrupted")


def run(options: Options) -> dict[str, Any] | list[dict[str, Any]]:
    """Size, score and speed before and after, or of every scheme. Raises: ArgumentError: options that do not fit."""
    _check_used(options)
    if processes() > 1:
        raise ArgumentError("compress", "runs in one process", f"{processes()} of torchrun's", "Start it alone")
    if options.table:
        return _table(options)
    scheme = options.scheme
    if len(options.runs) != 1 or scheme is None or options.out is None:
        got = f"{len(options.runs)} runs, --method {scheme and scheme.method}, --out {options.out}"
        raise ArgumentError(
            "compress", "needs one RUN, --method and --out, or --table", got, "Try --method int8 --out DIR"
        )
    folder, out = Path(options.runs[0]), Path(options.out)
    run = load_run(folder, None)
    check_recurrent("compress", run)
    if not (options.resume and options.retrain):
        check_free(out)
    elif finished := _finished(run, out, scheme, options):
        return finished
    text = _text(run, options.data)
    with status(f"measuring {folder}", quiet=options.json):
        before = _measured(run, folder, text)
    if options.retrain:
        _retrain(run, scheme, options, out)
    with status(f"compressing {folder}", quiet=options.json):
        record = _compressed(run, scheme, options, text, before)
    if record["bytes_after"] >= record["bytes_before"]:
        made = "compress the run that it was made from, or use" if _is_compressed(run) else "use"
        print(f"gatedrnn: {out} is not smaller than before: {made} a method with smaller weights", file=sys.stderr)
    return record


def show(found: Any, options: Options) -> None:
    """Lines, or the table."""
    if isinstance(found, list):
        compression_table.show(found)
        return
    print(f"{found['bytes_before']:,} → {found['bytes_after']:,} bytes ({_percent(found, 'bytes'):.1f} %)")
    name = next(name for name in found if name.endswith("_before") and not name.startswith(("bytes", "tokens")))
    name = name.removesuffix("_before")
    if found[f"{name}_before"] is not None:
        before, after = found[f"{name}_before"], found[f"{name}_after"]
        change = f" ({_percent(found, name) - 100:+.2f} %)" if before else ""
        print(f"{name} {before:.2f} → {after:.2f}{change}")
        print(f"{found['tokens_per_second_before']:,.0f} → {found['tokens_per_second_after']:,.0f} tokens/s")
    print(f"the compressed run is in {Path(options.out or '')}")


def _percent(found: dict[str, Any], name: str) -> float:
    return 100 * found[f"{name}_after"] / found[f"{name}_before"]


def _check_used(options: Options) -> None:
    """Raises ArgumentError if an option is given that this method, or the table, does not read."""
    for name in (*_NAMES, "retrain", "learning_rate", "resume"):
        flag, scheme = flag_of(name), options.scheme
        if name not in options.given:
            continue
        if options.table:
            raise ArgumentError(
                "compress", "takes either --table or the options of one method", flag, "Leave one of them out"
            )
        if name in _READERS and (scheme is None or scheme.method not in _READERS[name]):
            got = f"{getattr(scheme, name)} with --method {scheme.method}" if scheme else "no --method"
            raise ArgumentError(f"compress {flag}", f"applies only to {' and '.join(_READERS[name])}", got, "Drop it")
        if name in ("learning_rate", "resume") and not options.retrain:
            raise ArgumentError(f"compress {flag}", "needs --retrain", "none", f"Add --retrain EPOCHS, or drop {flag}")
    positive_int("compress.retrain", options.retrain, minimum=0)
    if options.learning_rate is not None:
        positive_number("compress.learning_rate", options.learning_rate)


def _compressed(run: Run, scheme: Scheme, options: Options, text: Any, before: dict[str, Any]) -> dict[str, Any]:
    """Write the run, or what was trained on from it, in small forms, and what that changes, which is returned."""
    out = Path(options.out or "")

    def told() -> dict[str, Any]:
        after = _measured(load_run(out, None), out, text)
        record = {
            f"{name}_{when}": one[name] for name in before for when, one in (("before", before), ("after", after))
        }
        write_json(out / COMPRESSION_FILE, _about(run, scheme, options) | record)
        return record

    with locked(out):
        if options.retrain:
            check_begun(out)
            trained = load_run(out, None)
            if not _is_compressed(trained):  # as one stays that was killed here
                save_tensors(out, compressed(trained.model, scheme), notes_of(trained.model))
            record = told()
            for path in checkpoints(out):
                path.unlink()
            return record
        check_free(out)  # again: it may have been trained into
        try:
            _write(run, out, scheme)
            return told()
        except BaseException:  # whatever stops it: no half-written run stays
            for name in (*LISTED, CHECKSUMS_FILE):
                (out / name).unlink(missing_ok=True)
            raise


def _is_compressed(run: Run) -> bool:
    return any(isinstance(value, CompressedWeight) for value in run.model.state_dict().values())


_RATE = 0.1  # of the run's learning rate, to train on with


def _retrain(run: Run, scheme: Scheme, options: Options, out: Path) -> None:
    """Train `out` from the run's weights, projected at every step. Raises: KeyboardInterrupt."""
    from gatedrnn.training.loop import train
    from gatedrnn.training.progress import TrainingDisplay

    config = _config(run, options, out)
    console = Console(stderr=True, quiet=options.json)
    source = f"weights {checksum(run.folder / WEIGHTS_FILE)['sha256'][:16]}"
    weights, project = run.model.expand().state_dict(), Projection(run.model, scheme, source)
    project(weights)  # what the scheme refuses, it refuses before anything is written
    if not options.resume:
        check_free(out)  # again: it may have been trained into
    with console.status("reading the text"):
        task = TASKS[run.config.task].open(run.config.data, run.text_folder, run.folder)
        task.cache(out / TOKENS_FOLDER)
    with TrainingDisplay(console, config.training.epochs, task) as display:
        outcome = train(config, task, out, display, resume=options.resume, weights=weights, project=project)
    if outcome.stopped == "interrupted":
        raise KeyboardInterrupt(f"{GO_ON} in {out}")


def _finished(run: Run, out: Path, scheme: Scheme, options: Options) -> dict[str, Any] | None:
    """What was measured of `out`, if this command has trained and compressed it before."""
    kept = None if checkpoints(out) else compression_figures(out, _about(run, scheme, options))
    figures = "bytes", TASKS[run.config.task].rated, "tokens_per_second"
    if kept is None or kept.keys() != {f"{name}_{when}" for name in figures for when in ("before", "after")}:
        return None
    trained = load_run(out, None)
    same = trained.config.training == _config(run, options, out).training
    return kept if same and _is_compressed(trained) else None


def _about(run: Run, scheme: Scheme, options: Options) -> dict[str, Any]:
    """What a compressed run tells of how it was made."""
    source, weights = run.folder, checksum(run.folder / WEIGHTS_FILE)
    return to_dict(scheme) | {"from": str(source), "from_weights": weights, "data": options.data}


def _config(run: Run, options: Options, out: Path) -> RunConfig:
    """The configuration to train `out` with; a setting that has no effect is as in `out`, if that has begun, else the default.

    Raises: ArgumentError: `out` has begun with a model of other sizes or another cell.
    """
    task: Any = TASKS[run.config.task]
    own = run.config.training
    training = replace(
        own, epochs=options.retrain, learning_rate=options.learning_rate or _RATE * own.learning_rate, schedule="cosine",
        warmup_steps=0, minutes=None, patience=None, finetune_epochs=0, average_interval=None, average_epoch=None,
        final_temperature=None, final_noise_probability=None, average_decay=None, peak_beta=None,
    )  # fmt: skip
    config, kept, model = with_text(run), task.training, run.config.model
    if (own.final_temperature, own.final_noise_probability) != (None, None):  # those that training was to end with
        model = replace(model, gates=gates_at(own, model.gates or CELLS[model.cell].gates, 1, 2))
    if options.resume and (out / CONFIG_FILE).is_file():
        begun = read_run_config(out / CONFIG_FILE, written=True)  # perhaps by an earlier version, which kept no text
        same = type(begun.model) is type(model) and replace(begun.model, gates=None) == replace(model, gates=None)
        if not same:
            raise ArgumentError(
                "compress --resume", "must continue what it began", f"{out}, of another model", "Choose another --out"
            )
        config, kept, model = run.config if begun.data == run.config.data else config, begun.training, begun.model
    plain = {name: getattr(kept, name) for name in unread(task, training)}
    return replace(config, model=model, training=replace(training, **plain))


def _text(run: Run, path: str | None) -> Any:
    """The text at `path`, for None the run's own validation text, None where that is gone."""
    task = TASKS[run.config.task]
    try:
        return task.text(run.vocabulary, run.config.data, run.text_folder, "valid", path)
    except DataError:
        if path is not None:
            raise
        return None


def _write(run: Run, out: Path, scheme: Scheme) -> None:
    """A run's folder with its weights in a small form; the weights last, so that a run is whole or none."""
    kept = compressed(run.model, scheme)
    for name in LISTED:
        if name not in (CONFIG_FILE, WEIGHTS_FILE) and (run.folder / name).exists():
            write_text(out / name, (run.folder / name).read_text(encoding="utf-8"))
    save_config(out, to_dict(with_text(run)))
    save_tensors(out, kept, notes_of(run.model))
    accept_run(out)


def _measured(run: Run, folder: Path, text: Any) -> dict[str, Any]:
    """Size of the weights' file; score and tokens a second (64 side by side) where there is a text."""
    size, name = (folder / WEIGHTS_FILE).stat().st_size, TASKS[run.config.task].rated
    score, speed = (None, None) if text is None else (_rate(run, text, _TOGETHER)[0], _speed(run, text, 64))
    return {"bytes": size, name: score, "tokens_per_second": speed}


def _rate(run: Run, text: Any, batch_size: int, most: int | None = None) -> tuple[float, int]:
    return TASKS[run.config.task].rate(run.model, run.vocabulary, text, batch_size, most)


def _speed(run: Run, text: Any, batch_size: int) -> float:
    """Tokens a second of a second reading: the first one compiles and packs."""
    began, count = 0.0, 0
    for _ in range(2):
        began = time.perf_counter()
        _, count = _rate(run, text, batch_size, _TIMED_TOKENS[batch_size])
    return count / (time.perf_counter() - began)


def _table(options: Options) -> list[dict[str, Any]]:
    """Every published scheme, and a deployer's, for every run."""
    runs = load_runs(options.runs, None)
    for run in runs:
        check_recurrent("compress", run)
    if len({run.config.task for run in runs}) > 1:
        got = ", ".join(f"{run.folder} of {run.config.task}" for run in runs)
        raise ArgumentError("compress --table", "needs runs of one task", got, "Run it once per task")
    text = None if options.data is None else rereadable(options.data)
    named = zip(run_names(options.runs), runs, strict=True)
    rows = [row for name, run in named for row in _rows(name, run, options, text)]
    if options.out:
        write_json(Path(options.out) / "table.json", rows)
        write_text(Path(options.out) / "table.md", compression_table.markdown(rows))
        compression_table.draw(rows, Path(options.out))
    return rows


def _rows(name: str, run: Run, options: Options, path: Any) -> Iterator[dict[str, Any]]:
    """The rows of a run. Args: name: by which the table calls it."""
    text, rated = _text(run, path), TASKS[run.config.task].rated
    if text is None:
        got = "no --data, and the run's own text is gone"
        raise ArgumentError("compress --table", "needs a text", got, "Add --data FILE")
    schemes: dict[str, Scheme | None] = {"original": None}
    if _has_their_gates(run):
        schemes |= published(max(run.config.model.sizes), run.config.task)
    else:
        told = "round, clip and SVD are left out: they change input and forget gates, which its cell does not have"
        print(f"gatedrnn: {run.folder}: {told}", file=sys.stderr)
    schemes, first = schemes | {each: Scheme(each) for each in _WHOLE}, 0.0
    for title, scheme in schemes.items():
        with status(f"{run.folder}: {title}", quiet=options.json), _copy(run, scheme) as copy:
            score, _ = _rate(copy, text, _TOGETHER)
            first = score if scheme is None else first
            rank = f" (rank {scheme.rank})" if scheme and scheme.rank else ""
            yield {
                "run": name,
                "scheme": title + rank,
                rated: score,
                "change_percent": 100 * (score / first - 1) if first else None,
                "bytes": (copy.folder / WEIGHTS_FILE).stat().st_size,
                "tokens_per_second_1": _speed(copy, text, 1),
                "tokens_per_second_64": _speed(copy, text, 64),
            }


def _has_their_gates(run: Run) -> bool:
    """Whether every layer has the gates that the published schemes change."""
    layers = (module for module in run.model.modules() if isinstance(module, RecurrentBase))
    return all({"input_gate", "forget_gate"} <= {gate.name for gate in layer.spec.gates} for layer in layers)


@contextmanager
def _copy(run: Run, scheme: Scheme | None) -> Iterator[Run]:
    """A run under a scheme, in a folder of its own while it is needed; the run itself for None."""
    if scheme is None:
        yield run
        return
    with tempfile.TemporaryDirectory() as folder:
        _write(run, Path(folder), scheme)
        yield load_run(folder, None)
