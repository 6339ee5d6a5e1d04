"""What `gatedrnn eval-parsing` prints and writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gatedrnn.cli.output import say, show_table
from gatedrnn.core.files import write_json
from gatedrnn.plots.numbers import PROTOCOLS, in_words, interval, score

Options = Any
_FAMILIES = {"right": "right-branching prior"}


def how(record: dict[str, Any]) -> str:
    """What was read and chosen, in a sentence."""
    said = f"words counted by rule {record['words']}"
    if record["mapping"] is not None:
        said += f"; words looked up by rule {record['mapping']}"
    if record["gate"] is not None:
        gates = [record["gate"]] if isinstance(record["gate"], str) else record["gate"]
        each = ["both master gates" if gate == "both" else f"the {in_words(gate)} gate" for gate in gates]
        said += f"; distances from {' and '.join(each)}"
    if record.get("weights"):
        each = ", ".join(f"{_FAMILIES.get(family, family)} {weight:g}" for family, weight in record["weights"].items())
        said += f"; weights of families in the vote: {each}"
    selection = record.get("selection", {"runs": {}})
    for name, one in selection["runs"].items():
        found = ", ".join(f"{layer} {value:.1f}" for layer, value in one["B"].items())
        said += (
            f"; gold trees of {selection['treebank']} were used to choose layer {one['layer']} of {name} (B: {found})"
        )
    return said


def print_scores(record: dict[str, Any], rows: list[tuple[str, dict[str, float | None]]], options: Options) -> None:
    """The table of scores and what belongs to it."""
    title = f"unlabelled F1 in percent, {record['sentences']:,} sentences"
    _print_table(title, PROTOCOLS, [(name, [score(value, 2) for value in found.values()]) for name, found in rows])
    say(how(record))
    if "intervals" in record:
        each = record["intervals"].items()
        found = [(in_words(name), list(map(interval, by.values()))) for name, by in each]
        title = f"95 % intervals ({options.algorithm}), {options.bootstrap} samples of the sentences"
        _print_table(title, PROTOCOLS, found)
    if options.by_length:
        parts = record["by_length"]
        title = f"F1 by protocol B and length ({options.algorithm})"
        of = [f"{name} words ({part['sentences_B']})" for name, part in parts.items()]
        values = [part["scores"] for part in parts.values()]
        found = [(in_words(name), [score(part[name]["B"]) for part in values]) for name in record["scores"]]
        _print_table(title, of, found)
    depths = "  ".join(f"{in_words(name)} {value:.1f}" for name, value in record["depth"].items())
    say(f"mean depth of trees ({options.algorithm}): {depths}")
    if record["label_recall"]:
        frequent = list(record["label_recall"].items())[:12]
        recall = "  ".join(f"{label} {r['recall']:.1f} ({r['count']})" for label, r in frequent)
        say(f"recall by label ({options.algorithm}), in percent (constituents): {recall}")
    if any("without" in voter for voter in record.get("voters", ())):
        _print_without(record, options.algorithm)
    for k, others in enumerate(record.get("agreement", ()), 1):
        found = ", ".join(map(score, others))
        say(f"agreement of voter {k} with each voter ({options.algorithm}): F1 {found}")
    for error in record.get("skipped", ()):
        say(f"skipped: {error}")
    if options.out:
        say(f"open {Path(options.out) / 'report.html'}")


def _print_without(record: dict[str, Any], algorithm: str) -> None:
    """How well the others agree with gold trees without each voter, and what it adds."""
    whole = record["scores"]["model"]["B"]
    rows = []
    for k, voter in enumerate(record["voters"], 1):
        found = voter["without"]
        adds = "–" if whole is None else f"{whole - found['B']:+.2f}"
        rows.append((f"without voter {k}, {voter['run']}", [*(score(value, 2) for value in found.values()), adds]))
    _print_table(f"consensus of the others ({algorithm})", [*PROTOCOLS, "it adds to B"], rows)


def _print_table(title: str, columns: Sequence[str], rows: list[tuple[str, list[str]]]) -> None:
    table = Table(title=title)
    table.add_column("trees")
    for name in columns:
        table.add_column(name, justify="right")
    for name, cells in rows:
        table.add_row(escape(name), *cells)
    show_table(table)


def write_report(
    folder: Path, record: dict[str, Any], rows: Any, drawn: list[dict[str, Any]], options: Options
) -> None:
    """Write results.json, report.html and the figures into `folder`."""
    from gatedrnn.plots.evaluations import write_parsing_report

    names = ", ".join(options.runs) or "trivial parsers alone"
    row = next((name for name, _ in reversed(rows) if name.endswith((f", {options.algorithm}", ", grammar"))), "")
    about = {"how": f"{names}; {how(record)}.", "treebank": Path(options.treebank).name}
    about |= {"row": row, "command": options.said}
    write_parsing_report(folder, record, rows, drawn, about)
    write_json(folder / "results.json", record)
