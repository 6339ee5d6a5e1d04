"""The table of `compress --table`: on the screen, as Markdown, and drawn."""

from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gatedrnn.cli.output import show_table

Rows = list[dict[str, Any]]
"""One a run and scheme: run, scheme, the score by its name, change_percent, bytes, tokens_per_second_1 and _64."""


def show(rows: Rows) -> None:
    """Print it."""
    title = "compression: round, clip and SVD change input and forget gates, the other schemes every weight"
    table = Table(title=title)
    for name in _columns(rows):
        table.add_column(name, overflow="fold", justify="left" if name in ("run", "scheme") else "right")
    for row in rows:
        table.add_row(*map(escape, _cells(row)))
    show_table(table)


def markdown(rows: Rows) -> str:
    """Scores with the runs side by side, as published; then everything, a line a run and scheme."""
    from gatedrnn.plots.compression import family

    schemes = list(dict.fromkeys(family(row["scheme"]) for row in rows))
    lines = [f"| {_columns(rows)[2]} | {' | '.join(schemes)} |", "|---|" + "--:|" * len(schemes)]
    for run, found in _by_run(rows).items():
        cells = {family(row["scheme"]): _cells(row) for row in found}
        given = (f"{own[2]} ({own[3]})" if (own := cells.get(scheme)) else "–" for scheme in schemes[1:])
        lines.append(f"| {run} | {cells[schemes[0]][2]} | {' | '.join(given)} |")
    lines += ["", f"| {' | '.join(_columns(rows))} |", "|---|---|--:|--:|--:|--:|--:|"]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(row))} |" for row in rows)]) + "\n"


def draw(rows: Rows, folder: Path) -> None:
    """Write table.pdf, .png and .svg."""
    from gatedrnn.plots.compression import change_by_bytes
    from gatedrnn.plots.trees import save_all

    save_all(change_by_bytes(_by_run(rows), _columns(rows)[2]), folder, "table")


def _columns(rows: Rows) -> list[str]:
    return ["run", "scheme", list(rows[0])[2], "change", "bytes", "tokens/s, B = 1", "tokens/s, B = 64"]


def _cells(row: dict[str, Any]) -> list[str]:
    score, *_ = list(row.values())[2:]
    speeds = [f"{row[f'tokens_per_second_{size}']:,.0f}" for size in (1, 64)]
    change = "–" if row["change_percent"] is None else f"{row['change_percent']:+.2f} %"
    return [row["run"], row["scheme"], f"{score:.2f}", change, f"{row['bytes']:,}", *speeds]


def _by_run(rows: Rows) -> dict[str, Rows]:
    runs: dict[str, Rows] = {}
    for row in rows:
        runs.setdefault(row["run"], []).append(row)
    return runs
