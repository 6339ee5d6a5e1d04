"""What compression costs, drawn: the change of the score against the bytes of the file."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.figure import Figure

from gatedrnn.plots.gates import COLORS, legend
from gatedrnn.plots.trees import FAINT, INK

_MARKS = "osD^vP*Xd<>"


def change_by_bytes(runs: Mapping[str, Sequence[Mapping[str, Any]]], score: str = "perplexity") -> Figure:
    """A mark a scheme, a colour a run; the file's size is relative to the run's own, the change in percent.

    Args: runs: by name the rows of the table, the original first: scheme, bytes, change_percent. Changes that are not finite, or
        over 100 %, lie on the upper edge.
        score: its name.
    """
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes, drawn = figure.add_subplot(), list[tuple[str, Any]]()
    schemes = list(dict.fromkeys(family(row["scheme"]) for rows in runs.values() for row in rows))[1:]
    for color, (run, rows) in zip(cycle(COLORS), runs.items(), strict=False):
        whole = rows[0]["bytes"]
        for row in rows[1:]:
            mark = _MARKS[schemes.index(family(row["scheme"])) % len(_MARKS)]
            change = row["change_percent"]
            if change is None:
                continue
            place = change if change <= _MOST else _MOST
            axes.plot(100 * row["bytes"] / whole, place, mark, color=color, markersize=7, alpha=0.85)
        drawn += [(run, line) for line in axes.plot([], [], color=color, linewidth=4)]
    for scheme, mark in zip(schemes, _MARKS * 2, strict=False):
        drawn += [(scheme, line) for line in axes.plot([], [], mark, color=FAINT, markersize=6)]
    axes.set_yscale("symlog", linthresh=1)
    low, high = axes.get_ylim()
    axes.set_yticks([tick for tick in _TICKS if low <= tick <= max(high, 1)])
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.set_xlim(0, 105)
    axes.set_xlabel("bytes, % of the original's", fontsize=9, color=INK)
    axes.set_ylabel(f"change of {score}, %", fontsize=9, color=INK)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    legend(figure, drawn, loc="outside right center", fontsize=8)
    return figure


_MOST = 100.0
_TICKS = (-10, -5, -2, -1, -0.5, 0, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100)


def family(scheme: str) -> str:
    """A scheme's name without its rank."""
    return scheme.split(" (")[0]
