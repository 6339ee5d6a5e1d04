"""`gatedrnn eval-syntax`: accuracy of runs on minimal pairs, or on test suites of SyntaxGym."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import Found, option, place
from gatedrnn.cli.output import say, show_table
from gatedrnn.cli.suites import judge_suites, judged_table, print_suites, unknown_words
from gatedrnn.cli.text import mapping_of, mapping_option, run_names
from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.files import write_json
from gatedrnn.data import CONSTRUCTIONS, DEEPER, MinimalPair, agreement_pairs, read_pairs
from gatedrnn.plots.numbers import judged_cells, percent
from gatedrnn.studies.syntax import METHODS, UNKNOWN, evaluate_pairs
from gatedrnn.training.run import load_runs

OWN = {"grammar": CONSTRUCTIONS, "grammar-deeper": DEEPER}
"""Constructions of the built-in grammar, by the name of --pairs."""
_PAIRS = 200  # of each construction of the grammar


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which runs, which pairs, and how they are judged."""

    runs: tuple[str, ...] = place("RUN", "folder of a trained run; several side by side")
    pairs: str | None = option(
        None,
        "JSON lines with good, bad and phenomenon (or BLiMP's names), .gz too; `grammar` for pairs of the built-in grammar, "
        "`grammar-deeper` for pairs that nest deeper than its text",
        "FILE",
    )
    suite: tuple[str, ...] = option((), "test suite of SyntaxGym (JSON), .gz too; repeatable", "FILE")
    unknown: str = option("skip", "pairs or items with unknown words: skip, or judge as <unk>", choices=UNKNOWN)
    method: str = option(
        "sentence", "how pairs are compared: whole sentences, or the word after a common prefix", choices=METHODS
    )
    append: str = option(
        "", "text to add after a space at the end of each sentence of --pairs, such as a full stop", "TEXT"
    )
    mapping: str | None = mapping_option("[the run's]")
    out: str | None = option(
        None, "folder to write results.json to, with report.html for pairs or regions.csv for suites", "DIR"
    )


def run(options: Options) -> Found:
    """Accuracy by phenomenon or by suite, of one run or by run; `--out` is written."""
    _check(options)
    if options.suite:
        return judge_suites(options)
    runs = load_runs(options.runs)
    pairs = list(_own(OWN[options.pairs]) if options.pairs in OWN else read_pairs(options.pairs or ""))
    found = {name: _judged(run, pairs, options) for name, run in zip(options.runs, runs, strict=True)}
    how = {"unknown": options.unknown, "method": options.method, "append": options.append}
    record = (next(iter(found.values())) if len(found) == 1 else {"runs": found}) | how
    if options.out:
        _report(Path(options.out), record, found, options)
    return Found(record, found)


def show(found: Found, options: Options) -> None:
    """A table, and what to open."""
    if options.suite:
        print_suites(found.more, options)
        return
    _print_table(found.more, options)
    if options.out:
        say(f"open {Path(options.out) / 'report.html'}")


def _check(options: Options) -> None:
    """Raises: ArgumentError: pairs and suites, or neither; an option that does not fit."""
    if bool(options.suite) == (options.pairs is not None):
        got = "both" if options.suite else "neither"
        advice = "Give --pairs FILE, or --suite FILE"
        raise ArgumentError("eval-syntax", "needs either minimal pairs or test suites", got, advice)
    for name in ("method", "append"):
        if options.suite and name in options.given:
            raise ArgumentError(f"--{name}", "works only with --pairs", "--suite", f"Leave --{name} out")
    if options.method == "prefix" and "append" in options.given:
        raise ArgumentError("--append", "works only with --method sentence", "--method prefix", "Leave --append out")


def _judged(run: Any, pairs: list[MinimalPair], options: Options) -> dict[str, Any]:
    quiet = options.json or not sys.stderr.isatty()
    mapping = mapping_of(run, options)
    result = evaluate_pairs(
        run.model,
        run.vocabulary,
        pairs,
        unknown=options.unknown,
        method=options.method,
        append=options.append,
        mapping=mapping,
        report=(lambda name: None) if quiet else (lambda name: print(f"gatedrnn: judging {name}", file=sys.stderr)),
    )
    return result.as_dict() | {"mapping": mapping}


def _own(constructions: Iterable[str]) -> Iterable[MinimalPair]:
    """Pairs of the built-in grammar."""
    for construction in constructions:
        for pair in agreement_pairs(construction, _PAIRS, 1):
            yield MinimalPair(construction, " ".join(pair.good), " ".join(pair.bad))


def _print_table(found: dict[str, dict[str, Any]], options: Options) -> None:
    title = f"share of pairs judged correctly, in percent ({_how(found, options)})"
    counted = ("pairs", "skipped", "identical")
    table = judged_table(title, "phenomenon", run_names([*found]), counted)
    first, *_ = found.values()
    for name in first["phenomena"]:
        each = [one["phenomena"][name] for one in found.values()]
        table.add_row(escape(name), *judged_cells(each, counted))
    table.add_row("mean of the phenomena", *(percent(one["macro_accuracy"]) for one in found.values()), "", "", "")
    show_table(table, 120)


def _how(found: dict[str, dict[str, Any]], options: Options) -> str:
    ending = f"; {options.append!r} appended" if options.append else ""
    return f"method {options.method}; {unknown_words('pairs', found, options)}{ending}"


def _report(folder: Path, record: dict[str, Any], found: dict[str, dict[str, Any]], options: Options) -> None:
    from gatedrnn.plots.evaluations import write_syntax_report

    name = "the built-in grammar" if options.pairs in OWN else Path(options.pairs or "").name
    about = {"how": f"Share of pairs whose grammatical sentence is the more probable one: {_how(found, options)}."}
    write_syntax_report(folder, found, about | {"pairs": name, "command": options.said})
    write_json(folder / "results.json", record)
