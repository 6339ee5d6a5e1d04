"""`gatedrnn evaluate`: a run's score on a text, by the run's own task."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import Found, flag_of, option, place, settings
from gatedrnn.cli.output import status
from gatedrnn.cli.text import BEAM_NAMES, run_names
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.files import write_json
from gatedrnn.data.text import rereadable
from gatedrnn.models.beam import Beam
from gatedrnn.tasks import TASKS
from gatedrnn.tasks.cache import Cache
from gatedrnn.tasks.dynamic import Dynamic
from gatedrnn.tasks.task import Evaluation
from gatedrnn.training.run import Run, load_runs

_CACHE = {"cache_window": "window", "cache_theta": "theta", "cache_lambda": "lambda_"}
_DYNAMIC = {"dynamic_rate": "rate", "dynamic_decay": "decay", "dynamic_segment": "segment"}
_READERS = {
    name: [task for task, kind in TASKS.items() if name in kind.reads]
    for _, kind in TASKS.items()
    for name in kind.reads
}


_TOKENIZERS = ("none", "13a", "intl", "char", "zh")


@dataclass(frozen=True)
class Options(arguments.Options):
    """Of which run, on what, and how."""

    runs: tuple[str, ...] = place("RUN", "folder of a trained run; several side by side")
    data: str | None = option(
        None,
        "text, one sentence per line, .gz too; - for standard input; for translations, a TSV file, or the common part of "
        "two files that end in .SOURCE and .TARGET [the run's own test text]",
        "FILE",
    )
    batch_size: int = option(
        1, "parts of the text read side by side: 1 is exact; more is faster, but each part starts without context"
    )
    reset: bool = option(False, "start each sentence from a fresh state instead of carrying the state on")
    temperature: str = option(
        "1",
        "divide the logits by this number; auto uses the one of 0.8 … 1.25 that is best on the run's own validation text",
        "NUMBER|auto",
    )
    cache: Cache | None = settings(Cache, _CACHE, "cache", "mix the predictions with a continuous cache")
    dynamic: Dynamic | None = settings(
        Dynamic, _DYNAMIC, "dynamic", "dynamic evaluation: learn from each segment after it has been scored"
    )
    beam: Beam | None = settings(Beam, BEAM_NAMES)
    out: str | None = option(
        None, "folder to write results.json to, with the curve of accuracy by number of operators for inference", "DIR"
    )
    tokenize: str | None = option(
        None,
        "tokenisation for BLEU, sacrebleu's [none if the references look tokenised, else 13a]",
        choices=_TOKENIZERS,
    )


def run(options: Options) -> Found:
    """Every measure, of one run or by run. Raises: ArgumentError: an option that runs of a task do not read."""
    runs = load_runs(options.runs, None)
    for each in runs:
        _check_read(each, options)
    path = None if options.data is None else rereadable(options.data)
    found = {name: _evaluated(each, path, options) for name, each in zip(options.runs, runs, strict=True)}
    records = {name: each.record for name, each in found.items()}
    record = next(iter(records.values())) if len(records) == 1 else {"runs": records}
    if options.out:
        _write(Path(options.out), record, records)
    return Found(record, {name: each.lines for name, each in found.items()})


def show(found: Found, options: Options) -> None:
    """A few lines a run."""
    for name, lines in found.more.items():
        print("\n".join([name, *lines, ""] if len(found.more) > 1 else lines))
    if options.out:
        print(f"results are in {Path(options.out)}")


def _check_read(run: Run, options: Options) -> None:
    task = TASKS[run.config.task]
    own = {each.name: each.metadata.get("names", {}) for each in fields(Options)}
    for name, tasks in _READERS.items():
        said = next((n for n in (name, *own[name]) if n in options.given), None)
        if said is not None and name not in task.reads:
            kinds = f"task {tasks[0]}" if len(tasks) == 1 else f"tasks {' and '.join(tasks)}"
            flag, rule = flag_of(said), f"applies only to runs of the {kinds}"
            raise ArgumentError(flag, rule, f"a run of the task {task.name}", f"Drop {flag}")


def _evaluated(run: Run, path: Any, options: Options) -> Evaluation:
    task = TASKS[run.config.task]
    text = task.text(run.vocabulary, run.config.data, run.text_folder, path=path)
    how = {name: getattr(options, name) for name in task.reads}
    if options.temperature == "auto":
        if not run.text_folder.is_dir():
            rule = "must hold the run's own validation text, for --temperature auto"
            raise DataError(str(run.text_folder), rule, "no such folder", "Restore it, or write --temperature 0.95")
        how["valid"] = task.text(run.vocabulary, run.config.data, run.text_folder, split="valid")
    with status(f"reading with {run.folder}", quiet=options.json):
        return task.evaluate(run.model, run.vocabulary, text, how)


def _write(folder: Path, record: dict[str, Any], records: dict[str, dict[str, Any]]) -> None:
    """`results.json`, and where there is accuracy by operators, its curve."""
    write_json(folder / "results.json", record)
    curves = {name: each for name, each in records.items() if "by_operators" in each}
    if curves:
        from gatedrnn.plots.accuracy import by_operators
        from gatedrnn.plots.trees import save_all

        figure = by_operators(dict(zip(run_names([*curves]), curves.values(), strict=True)))
        save_all(figure, folder, "accuracy")
