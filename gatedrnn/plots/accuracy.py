"""Accuracy of classifiers by how hard the pairs are."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from matplotlib.figure import Figure

from gatedrnn.plots.gates import COLORS, legend
from gatedrnn.plots.trees import FAINT, INK


def by_operators(runs: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A line a model over the number of operators; what the most frequent label alone gives is dashed.

    Args: runs: by model the record of `evaluate`: by_operators and majority.
    """
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes, drawn = figure.add_subplot(), list[tuple[str, Any]]()
    for color, (name, record) in zip(cycle(COLORS), runs.items(), strict=False):
        found = {int(number): each["accuracy"] for number, each in record["by_operators"].items()}
        how: dict[str, Any] = {"color": color, "marker": "o", "markersize": 4, "linewidth": 1.6}
        drawn += [(name, line) for line in axes.plot(list(found), list(found.values()), label=name, **how)]
    majority = [record["majority"] for record in runs.values()]
    for value in sorted(set(majority)):
        axes.axhline(value, color=FAINT, linewidth=1, linestyle="--")
    axes.annotate("most frequent label", (1, majority[0]), xycoords=("axes fraction", "data"), fontsize=7.5, color=INK,
                  ha="right", va="bottom")  # fmt: skip
    axes.set_xlabel("operators in the longer formula", fontsize=9, color=INK)
    axes.set_ylabel("accuracy, %", fontsize=9, color=INK)
    axes.set_xticks(sorted({int(number) for record in runs.values() for number in record["by_operators"]}))
    axes.set_ylim(top=101)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    legend(axes, drawn, fontsize=8, loc="best")
    return figure
