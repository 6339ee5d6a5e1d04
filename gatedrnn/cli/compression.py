"""`gatedrnn compress`: a run in a small form, and what that costs; or the table of all published schemes."""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gatedrnn.cli.text import GO_ON, INTERRUPTED
from gatedrnn.core.checks import positive_int, positive_number
from gatedrnn.core.checksums import CHECKSUMS_FILE
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.files import to_json, write_json, write_text, write_with
from gatedrnn.data import Corpus, find_splits
from gatedrnn.data.text import rereadable
from gatedrnn.models.saving import WEIGHTS_FILE, save_tensors
from gatedrnn.studies.compression import Projection, Scheme, compressed, published
from gatedrnn.tasks import TASKS
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
)
from gatedrnn.weights.compressed import CompressedWeight

COMPRESSION_FILE = "compression.json"
_WHOLE = ("bf16", "int8", "int4")
"""Methods for every weight, that the table has besides the published ones."""
_TIMED_TOKENS = {1: 2_000, 64: 60_000}
"""Tokens read to measure the speed, by batch size."""


def compress(options: Any) -> int:
    """`gatedrnn compress`."""
    _check_used(options)
    if options.table:
        _table(options)
        return 0
    if len(options.run) != 1 or options.method is None or options.out is None:
        got = f"{len(options.run)} runs, --method {options.method}, --out {options.out}"
        raise ArgumentError(
            "compress", "needs one RUN, --method and --out, or --table", got, "Try --method int8 --out DIR"
        )
    scheme, folder, out = _scheme(options), Path(options.run[0]), Path(options.out)
    run = load_run(folder)
    tokens = _tokens(run, None if options.data is None else rereadable(str(options.data)))
    if not (options.resume and options.retrain):
        check_free(out)
    console = Console(stderr=True, quiet=options.json)
    with console.status(f"measuring {folder}"):
        before = _measured(run, folder, tokens)
    if options.retrain and not _retrain(run, scheme, options, out):
        return INTERRUPTED
    with console.status(f"compressing {folder}"):
        record = _compressed(run, scheme, options, tokens, before)
    if record["bytes_after"] >= record["bytes_before"]:
        made = "compress the run that it was made of, or by" if _is_compressed(run) else "compress by"
        print(f"gatedrnn: {out} is larger than before: {made} a smaller method", file=sys.stderr)
    if options.json:
        print(to_json(record))
    else:
        _print(record, out)
    return 0


def _check_used(options: Any) -> None:
    """Raises ArgumentError if an option is given that this method, or the table, does not read."""
    readers = {"step": ("round", "clip"), "clip": ("clip",), "rank": ("svd",)}
    for name in ("method", "gates", "weights", "step", "clip", "rank", "retrain", "learning_rate", "resume"):
        value, option = options[name], f"--{name.replace('_', '-')}"
        if value in (None, False, 0):
            continue
        if options.table:
            raise ArgumentError("compress", "takes --table or options of one method", option, "Drop one of them")
        if name in readers and options.method not in readers[name]:
            got = f"{value} with --method {options.method}"
            raise ArgumentError(f"compress {option}", f"is read by {' and '.join(readers[name])} only", got, "Drop it")
        if name in ("learning_rate", "resume") and not options.retrain:
            advice = f"Add --retrain EPOCHS, or drop {option}"
            raise ArgumentError(f"compress {option}", "needs --retrain", "none", advice)


def _compressed(
    run: Run, scheme: Scheme, options: Any, tokens: np.ndarray | None, before: dict[str, Any]
) -> dict[str, Any]:
    """Write the run, or what was trained on from it, in small forms, and what that changes, which is returned."""
    out = Path(options.out)

    def told() -> dict[str, Any]:
        after = _measured(load_run(out), out, tokens)
        record = {
            f"{name}_{when}": one[name] for name in before for when, one in (("before", before), ("after", after))
        }
        write_json(out / COMPRESSION_FILE, {"method": options.method, "from": str(run.folder), **record})
        return record

    with locked(out):
        if options.retrain:
            check_begun(out)
            trained = load_run(out)
            if not _is_compressed(trained):  # as one stays that was killed here
                save_tensors(out, compressed(trained.model, scheme))
            record = told()
            for path in checkpoints(out):
                path.unlink()
            return record
        check_free(out)  # again: it may have been trained into
        try:
            _write(run, run.folder, out, scheme)
            return told()
        except BaseException:  # whatever stops it: no half-written run stays
            for name in (*LISTED, CHECKSUMS_FILE):
                (out / name).unlink(missing_ok=True)
            raise


def _is_compressed(run: Run) -> bool:
    return any(isinstance(value, CompressedWeight) for value in run.model.state_dict().values())


def _print(record: dict[str, Any], out: Path) -> None:
    share = 100 * record["bytes_after"] / record["bytes_before"]
    print(f"{record['bytes_before']:,} → {record['bytes_after']:,} bytes ({share:.1f} %)")
    if record["perplexity_before"] is not None:
        change = 100 * (record["perplexity_after"] / record["perplexity_before"] - 1)
        print(f"perplexity {record['perplexity_before']:.2f} → {record['perplexity_after']:.2f} ({change:+.2f} %)")
    print(f"the compressed run is in {out}")


_RATE = 0.1  # of the run's learning rate, to train on with


def _retrain(run: Run, scheme: Scheme, options: Any, out: Path) -> bool:
    """Train `out` from the run's weights, projected at every step; whether it came to the end."""
    from gatedrnn.training.loop import train
    from gatedrnn.training.progress import TrainingDisplay

    own = run.config.training
    training = replace(
        own, epochs=options.retrain, learning_rate=options.learning_rate or _RATE * own.learning_rate, schedule="cosine",
        warmup_steps=0, minutes=None, patience=None, finetune_epochs=0, average_interval=None, average_epoch=None,
        final_temperature=None, final_noise_probability=None,
    )  # fmt: skip
    console = Console(stderr=True, quiet=options.json)
    weights, project = run.model.expand().state_dict(), Projection(run.model, scheme)
    project(weights)  # what the scheme refuses, it refuses before anything is written
    if not options.resume:
        check_free(out)  # again: it may have been trained into
    with console.status("reading the text"):
        task = TASKS[run.config.task].open(run.config.data, run.config.data.folder or run.folder / "text", run.folder)
        task.cache(out / TOKENS_FOLDER)
    with TrainingDisplay(console, training.epochs, task) as display:
        config = replace(run.config, training=training)
        outcome = train(config, task, out, display, resume=options.resume, weights=weights, project=project)
    if outcome.stopped == "interrupted":
        console.print(f"interrupted: {GO_ON} in {out}", highlight=False, soft_wrap=True)
    return outcome.stopped != "interrupted"


def _scheme(options: Any) -> Scheme:
    positive_int("compress.retrain", options.retrain, minimum=0)
    if options.learning_rate is not None:
        positive_number("compress.learning_rate", options.learning_rate)
    gates = None if options.gates is None else tuple(name.strip() for name in options.gates.split(","))
    given = {name: options[name] for name in ("step", "clip", "rank") if options[name] is not None}
    return Scheme(options.method, gates, options.weights, **given)


def _tokens(run: Run, text: Any) -> np.ndarray | None:
    """Tokens of a text, for None of the run's own validation text, None where that is gone."""
    if text is None:
        try:
            text = find_splits(run.config.data.folder or run.folder / "text")["valid"]
        except DataError:
            return None
    return Corpus({"text": text}, run.vocabulary, empty_lines=run.config.data.empty_lines)["text"]


def _write(run: Run, folder: Path, out: Path, scheme: Scheme) -> None:
    """A run's folder with its weights in a small form; the weights last, so that a run is whole or none."""
    kept = compressed(run.model, scheme)
    for name in LISTED:
        if name != WEIGHTS_FILE and (folder / name).exists():
            write_text(out / name, (folder / name).read_text(encoding="utf-8"))
    save_tensors(out, kept)
    accept_run(out)


def _measured(run: Run, folder: Path, tokens: np.ndarray | None) -> dict[str, Any]:
    """Size of the weights' file; perplexity and tokens a second (64 side by side) where there is a text."""
    size = (folder / WEIGHTS_FILE).stat().st_size
    if tokens is None:
        return {"bytes": size, "perplexity": None, "tokens_per_second": None}
    return {"bytes": size, "perplexity": _perplexity(run, tokens), "tokens_per_second": _speed(run, tokens, 64)}


def _perplexity(run: Run, tokens: np.ndarray) -> float:
    from gatedrnn.tasks.perplexity import evaluate

    return evaluate(run.model, tokens, run.vocabulary, batch_size=min(20, len(tokens))).perplexity


def _speed(run: Run, tokens: np.ndarray, batch_size: int) -> float:
    """Tokens a second of a second reading: the first one compiles and packs."""
    from gatedrnn.tasks.perplexity import evaluate

    part, size = tokens[: _TIMED_TOKENS[batch_size]], min(batch_size, len(tokens))
    began = 0.0
    for _ in range(2):
        began = time.perf_counter()
        evaluate(run.model, part, run.vocabulary, batch_size=size)
    return len(part) / (time.perf_counter() - began)


def _table(options: Any) -> None:
    """Every published scheme, and a deployer's, for every run."""
    text = None if options.data is None else rereadable(str(options.data))
    rows = [row for run in load_runs(options.run) for row in _rows(run, options, text)]
    if options.out:
        write_json(Path(options.out) / "table.json", rows)
        write_text(Path(options.out) / "table.md", _markdown(rows))
        _draw(rows, Path(options.out))
    if options.json:
        print(to_json(rows))
        return
    table = Table(title="compression: round, clip and SVD of input and forget gates, the others of every weight")
    for name in _COLUMNS:
        table.add_column(name, overflow="fold", justify="left" if name in ("run", "scheme") else "right")
    for row in rows:
        table.add_row(*map(escape, _cells(row)))
    Console(width=max(Console().width, 110)).print(table)


def _rows(run: Run, options: Any, text: Any) -> Iterator[dict[str, Any]]:
    tokens = _tokens(run, text)
    if tokens is None:
        raise ArgumentError(
            "compress --table", "needs a text", "no --data, and the run's own is gone", "Add --data FILE"
        )
    hidden = max(run.config.model.hidden_sizes)
    schemes: dict[str, Scheme | None] = {"original": None} | published(hidden)
    schemes |= {name: Scheme(name) for name in _WHOLE}
    first = 0.0
    for name, scheme in schemes.items():
        with (
            Console(stderr=True, quiet=options.json).status(f"{run.folder}: {name}"),
            _copy(run, scheme) as (copy, folder),
        ):
            perplexity = _perplexity(copy, tokens)
            first = first or perplexity
            rank = f" (rank {scheme.rank})" if scheme and scheme.rank else ""
            yield {
                "run": run.folder.name,
                "scheme": name + rank,
                "perplexity": perplexity,
                "change_percent": 100 * (perplexity / first - 1),
                "bytes": (folder / WEIGHTS_FILE).stat().st_size,
                "tokens_per_second_1": _speed(copy, tokens, 1),
                "tokens_per_second_64": _speed(copy, tokens, 64),
            }


@contextmanager
def _copy(run: Run, scheme: Scheme | None) -> Iterator[tuple[Run, Path]]:
    """A run under a scheme, in a folder of its own while it is needed; the run itself for None."""
    if scheme is None:
        yield run, run.folder
        return
    with tempfile.TemporaryDirectory() as folder:
        _write(run, run.folder, Path(folder), scheme)
        yield load_run(folder), Path(folder)


_COLUMNS = ("run", "scheme", "perplexity", "change", "bytes", "tokens/s, B = 1", "tokens/s, B = 64")


def _cells(row: dict[str, Any]) -> list[str]:
    speeds = [f"{row[f'tokens_per_second_{size}']:,.0f}" for size in (1, 64)]
    change = f"{row['change_percent']:+.2f} %"
    return [row["run"], row["scheme"], f"{row['perplexity']:.2f}", change, f"{row['bytes']:,}", *speeds]


def _by_run(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault(row["run"], []).append(row)
    return runs


def _markdown(rows: list[dict[str, Any]]) -> str:
    """Perplexities with the runs side by side, as published; then everything, a line a run and scheme."""
    runs = _by_run(rows)
    schemes = [row["scheme"].split(" (")[0] for row in next(iter(runs.values()))]
    lines = [f"| perplexity | {' | '.join(schemes)} |", "|---|" + "--:|" * len(schemes)]
    for run, found in runs.items():
        first, *others = (_cells(row) for row in found)
        lines.append(f"| {run} | {first[2]} | {' | '.join(f'{cells[2]} ({cells[3]})' for cells in others)} |")
    lines += ["", f"| {' | '.join(_COLUMNS)} |", "|---|---|--:|--:|--:|--:|--:|"]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in rows)]) + "\n"


def _draw(rows: list[dict[str, Any]], folder: Path) -> None:
    from gatedrnn.plots.compression import change_by_bytes
    from gatedrnn.plots.trees import save

    figure = change_by_bytes(_by_run(rows))
    for kind in ("pdf", "png", "svg"):
        write_with(folder / f"table.{kind}", lambda path, kind=kind: save(figure, path, kind))
