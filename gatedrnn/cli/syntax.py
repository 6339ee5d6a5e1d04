"""`gatedrnn eval-syntax`: accuracy of a run on minimal pairs."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from gatedrnn.data import CONSTRUCTIONS, MinimalPair, agreement_pairs, read_pairs
from gatedrnn.training.run import load_run

GRAMMAR = "grammar"
_PAIRS = 200  # of each construction of the grammar


def eval_syntax(options: Any) -> None:
    """`gatedrnn eval-syntax`."""
    from gatedrnn.studies.syntax import evaluate_pairs

    run = load_run(options.run)
    pairs = _own() if options.pairs == GRAMMAR else read_pairs(options.pairs)
    quiet = options.json or not sys.stderr.isatty()
    result = evaluate_pairs(
        run.model,
        run.vocabulary,
        pairs,
        unknown=options.unknown,
        method=options.method,
        append=options.append,
        report=(lambda name: None) if quiet else (lambda name: print(f"gatedrnn: judging {name}", file=sys.stderr)),
    )
    how = {"unknown": options.unknown, "method": options.method, "append": options.append}
    if options.json:
        print(json.dumps(result.as_dict() | how))
        return
    said = "skipped" if options.unknown == "skip" else "judged as <unk>"
    table = Table(title=f"share of pairs judged right, in percent ({options.method}; pairs with unknown words {said})")
    table.add_column("phenomenon")
    for name in ("accuracy", "pairs", "skipped", "identical"):
        table.add_column(name, justify="right")
    for name, judged in result.phenomena.items():
        table.add_row(
            name, _percent(judged.accuracy), *(f"{n:,}" for n in (judged.pairs, judged.skipped, judged.identical))
        )
    table.add_row("mean of the phenomena", _percent(result.macro_accuracy), "", "", "")
    Console().print(table)


def _own() -> Iterator[MinimalPair]:
    """Pairs of the built-in grammar."""
    for construction in CONSTRUCTIONS:
        for pair in agreement_pairs(construction, _PAIRS, 1):
            yield MinimalPair(construction, " ".join(pair.good), " ".join(pair.bad))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
