"""Curves of many short trainings."""

from collections.abc import Sequence
from itertools import cycle, product
from typing import Any

from matplotlib.figure import Figure

from gatedrnn.plots.gates import COLORS, legend
from gatedrnn.plots.trees import INK

Line = tuple[str, int, bool, Sequence[tuple[float, float]]]
"""A trial's label and number, whether it is in the last round, and its points (minutes, score)."""


def curves(lines: Sequence[Line], named: str, lower: bool) -> Figure:
    """A line a training over minutes, a look a trial; those of the last round are thick, and stand in the legend.

    Args: named: the vertical axis; lower: whether less is better, which is drawn on a logarithmic axis.
    """
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    drawn: list[tuple[str, Any]] = []
    numbers = list(dict.fromkeys(number for _, number, *_ in sorted(lines, key=lambda line: not line[2])))
    looks = dict(zip(numbers, cycle(product(("-", "--", ":", "-."), COLORS)), strict=False))
    for label, number, last, points in lines:
        if not points:
            continue
        minutes, scores = zip(*points, strict=True)
        style, color = looks[number]
        (line,) = axes.plot(
            minutes, scores, color=color, linestyle=style, linewidth=2.0 if last else 0.8, alpha=1.0 if last else 0.6,
            marker="o", markersize=4 if last else 2,
        )  # fmt: skip
        drawn += [(label, line)] if last else []
    if lower:
        axes.set_yscale("log")
        for each in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            each(lambda value, _: f"{value:g}")
    axes.set_xlabel("minutes of training", fontsize=9, color=INK)
    axes.set_ylabel(named, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    if drawn:
        legend(axes, drawn, fontsize=8, loc="best")
    return figure
