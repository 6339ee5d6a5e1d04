"""What `gatedrnn eval-syntax --suite` finds, prints and writes."""

import csv
import io
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gatedrnn.cli.arguments import Found
from gatedrnn.cli.output import say, show_table
from gatedrnn.cli.text import mapping_of
from gatedrnn.core.errors import DataError
from gatedrnn.core.files import write_json, write_text
from gatedrnn.data import Suite, read_suite
from gatedrnn.plots.numbers import judged_cells, percent
from gatedrnn.studies.syntax import SuiteResult, evaluate_suite, read_regions
from gatedrnn.training.run import Run, load_runs

COLUMNS = (
    "suite", "model_name", "item_number", "condition_name", "region_number", "region_name", "content", "metric_value",
)  # fmt: skip
"""Of regions.csv, as SyntaxGym exports surprisals."""

Options = Any


def judge_suites(options: Options) -> Found:
    """The record, and by run what it says of that run; `--out` is written."""
    runs = load_runs(options.runs)
    suites = [read_suite(path) for path in options.suite]
    names = [suite.name for suite in suites]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError("--suite", "must be suites of different names", f"{twice[0]} twice", "Rename one of them")
    results = {name: _judged(run, suites, options) for name, run in zip(options.runs, runs, strict=True)}
    found = {name: _record(run, results[name], options) for name, run in zip(options.runs, runs, strict=True)}
    record = (found[options.runs[0]] if len(found) == 1 else {"runs": found}) | {"unknown": options.unknown}
    if options.out:
        write_suites(Path(options.out), record, suites, results)
    return Found(record, found)


def print_suites(found: dict[str, dict[str, Any]], options: Options) -> None:
    """A row a suite, and a row a prediction where a suite has several; what was written."""
    title = f"share of items whose predictions hold, in percent ({unknown_words('items', found, options)})"
    counted = ("items", "skipped")
    table = judged_table(title, "suite", [*found], counted)
    first, *_ = found.values()
    for suite, judged in first["suites"].items():
        each = [one["suites"][suite] for one in found.values()]
        table.add_row(escape(suite), *judged_cells(each, counted))
        several = judged["predictions"] if len(judged["predictions"]) > 1 else []
        for k, prediction in enumerate(several):
            cells = judged_cells([one["predictions"][k] for one in each], counted)
            table.add_row(escape(f"  {prediction['formula']}"), *cells)
    if len(first["suites"]) > 1:
        table.add_row("mean of the suites", *(percent(one["macro_accuracy"]) for one in found.values()), "", "")
    show_table(table, 120)
    if options.out:
        say(f"wrote {Path(options.out) / 'regions.csv'}")


def judged_table(title: str, what: str, runs: Sequence[str], counted: Sequence[str]) -> Table:
    """A table with a column for what is judged, for the accuracy of each run, and for each count."""
    table = Table(title=escape(title))
    table.add_column(what, overflow="fold")
    for name in runs if len(runs) > 1 else ["accuracy"]:
        table.add_column(escape(name), justify="right", overflow="fold")
    for name in counted:
        table.add_column(name, justify="right")
    return table


def unknown_words(what: str, found: dict[str, dict[str, Any]], options: Options) -> str:
    """What was done with those of `what` that have unknown words, and how words were looked up."""
    said = "skipped" if options.unknown == "skip" else "judged as <unk>"
    mappings = ", ".join(sorted({one["mapping"] for one in found.values()}))
    return f"{what} with unknown words {said}; words looked up by rule {mappings}"


def write_suites(
    folder: Path, record: dict[str, Any], suites: list[Suite], results: dict[str, list[SuiteResult]]
) -> None:
    """Write results.json, and regions.csv: the surprisal of every region."""
    stream = io.StringIO()
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow(COLUMNS)
    for run, found in results.items():
        for suite, result in zip(suites, found, strict=True):
            for item in suite.items:
                for condition, regions in item.conditions.items():
                    for number, text in regions.items():
                        value = result.regions[item.number, condition][number]
                        place = (suite.name, run, item.number, condition, number, suite.regions.get(number, ""))
                        rows.writerow([*place, text, "" if value is None else f"{value:.6f}"])
    write_text(folder / "regions.csv", stream.getvalue())
    write_json(folder / "results.json", record)


def _judged(run: Run, suites: list[Suite], options: Options) -> list[SuiteResult]:
    score = partial(read_regions, run.model, run.vocabulary, mapping=mapping_of(run, options))
    found = []
    for suite in suites:
        if not options.json and sys.stderr.isatty():
            print(f"gatedrnn: judging {suite.name}", file=sys.stderr)
        found.append(evaluate_suite(suite, score, unknown=options.unknown))
    return found


def _record(run: Run, results: list[SuiteResult], options: Options) -> dict[str, Any]:
    accuracies = [one.whole.accuracy for one in results if one.whole.accuracy is not None]
    return {
        "suites": {one.name: one.as_dict() for one in results},
        "macro_accuracy": sum(accuracies) / len(accuracies) if accuracies else None,
        "mapping": mapping_of(run, options),
    }
