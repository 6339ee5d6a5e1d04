"""Pictures of gates: histograms of several models over each other, averages by word, update frequency by unit group."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatedrnn.plots.numbers import in_words
from gatedrnn.plots.trees import AGREED, FAINT, INK, OWN

COLORS = (AGREED, OWN, "#4338ca", "#a16207", "#0ea5e9", "#9f1239", "#64748b", "#65a30d")
"""Of models, in their order, and again from the first."""

_FILLED = 3  # models whose histograms are filled: more would mix to one grey


def histograms(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """A panel a gate and layer; the models' histograms lie over each other, each as a share of its values.

    In the model's colour stands how many of a gate's values are nearly binary: below 0.1 or above 0.9.

    Args: runs: by model the layers, each as `LayerStatistics` in plain values.
    """
    names = list(dict.fromkeys(name for layers in runs.values() for layer in layers for name in layer["gates"]))
    depth = max(map(len, runs.values()))
    figure = Figure(figsize=(2.5 * len(names) + 0.4, 1.9 * depth + 0.7), layout="constrained")
    panels: Any = figure.subplots(depth, len(names), squeeze=False)
    for row, column in np.ndindex(depth, len(names)):
        axes, name = panels[row, column], names[column]
        for color, (run, layers) in zip(cycle(COLORS), runs.items(), strict=False):
            found = layers[row]["gates"].get(name) if row < len(layers) else None
            if found is None:
                continue
            shares = 100 * np.asarray(found["counts"]) / max(1, sum(found["counts"]))
            edges = np.linspace(found["start"], 1, len(shares) + 1)
            if len(runs) <= _FILLED:
                axes.stairs(shares, edges, color=color, fill=True, alpha=0.28)
            axes.stairs(shares, edges, color=color, linewidth=1.3, label=run)
            if found["start"] == 0:  # a candidate is neither closed nor open
                share, line = 100 * (found["low"] + found["high"]), len(axes.texts)
                axes.text(0.5, 0.97 - 0.11 * line, f"{share:.0f} % outside 0.1…0.9", color=color, fontsize=6.5,
                          transform=axes.transAxes, ha="center", va="top")  # fmt: skip
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7, color=FAINT)
        axes.set_ylim(0, axes.get_ylim()[1] * (1 + 0.1 * len(axes.texts)))
        if row == 0:
            axes.set_title(in_words(name), fontsize=9, color=INK)
        if column == 0:
            axes.set_ylabel(f"layer {_name(runs, row)}\n% of values", fontsize=8)
    _name_models(figure, runs)
    return figure


def _name_models(figure: Figure, runs: Mapping[str, Any]) -> None:
    """A legend of several models; not every panel shows each of them."""
    if len(runs) > 1:
        drawn = {artist.get_label(): artist for axes in figure.axes for artist in (*axes.patches, *axes.lines)}
        each = [(name, drawn[name]) for name in runs if name in drawn]
        legend(figure, each, loc="outside lower center", ncols=len(each), fontsize=8)


def legend(place: Axes | Figure, drawn: Sequence[tuple[str, Any]], **how: Any) -> None:
    """A legend of names and what is drawn for them; also of names that begin with _, which matplotlib leaves out."""
    made = place.legend([artist for _, artist in drawn], ["?"] * len(drawn), frameon=False, **how)
    for text, (name, _) in zip(made.get_texts(), drawn, strict=True):
        text.set_text(name)
        text.set_parse_math(False)


def _name(runs: Mapping[str, Sequence[Mapping[str, Any]]], row: int) -> str:
    return next(layers[row].get("name", str(row + 1)) for layers in runs.values() if row < len(layers))


def update_frequencies(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """How often each group of units loses more than half of its state: a panel a layer, a line a model."""
    depth = max(map(len, runs.values()))
    figure = Figure(figsize=(2.7 * depth + 0.6, 2.6), layout="constrained")
    panels: Any = figure.subplots(1, depth, squeeze=False, sharey=True)
    for row, axes in enumerate(panels[0]):
        for color, (run, layers) in zip(cycle(COLORS), runs.items(), strict=False):
            values = layers[row]["update_frequency"] if row < len(layers) else []
            if values:
                places = (np.arange(len(values)) + 0.5) / len(values)
                axes.plot(
                    places, np.multiply(100, values), color=color, marker="o", markersize=3, linewidth=1.5, label=run
                )
        axes.set_title(f"layer {_name(runs, row)}", fontsize=9, color=INK)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 100)
        axes.set_xlabel("unit, low to high", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        if row == 0:
            axes.set_ylabel("% of steps updated", fontsize=8)
    _name_models(figure, runs)
    return figure


_LETTERS = 100  # of a word that are shown


def gates_of_words(words: Sequence[str], rows: Mapping[str, Sequence[float]]) -> Figure:
    """The average value of each gate at each word, as a table of shades with its numbers.

    Args: words: the columns; rows: values in [0, 1] by the row's name, drawn from the top.
    """
    words = [word if len(word) <= _LETTERS else f"{word[: _LETTERS - 1]}…" for word in words]
    tilted = 0.04 * max(map(len, words), default=0)  # inches that a tilted word may need above the table
    figure = Figure(figsize=(0.72 * len(words) + 2.2 + tilted, 0.3 * len(rows) + 0.9 + tilted), layout="constrained")
    axes = figure.add_subplot()
    _shades(axes, np.asarray(list(rows.values()), dtype=float).reshape(len(rows), len(words)))
    _word_ticks(axes, words)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8, parse_math=False)
    axes.xaxis.tick_top()
    return figure


def attention_and_gates(
    source: tuple[Sequence[str], Mapping[str, Sequence[float]]],
    target: tuple[Sequence[str], Mapping[str, Sequence[float]]],
    attention: Sequence[Sequence[float]],
) -> Figure:
    """The share of each source word at each word of its translation; the encoder's gates under the source, the decoder's beside.

    Args: source, target: words, and values in [0, 1] by the row's name; attention: [target words][source words].
    """
    (words, below), (written, beside) = source, target
    sizes = [max(1, len(each)) for each in (words, beside, written, below)]
    figure = Figure(
        figsize=(0.52 * (sizes[0] + sizes[1]) + 2.6, 0.3 * (sizes[2] + sizes[3]) + 2.2), layout="constrained"
    )
    panels: Any = figure.subplots(
        2, 2, squeeze=False, sharex="col", sharey="row", width_ratios=sizes[:2], height_ratios=sizes[2:]
    )
    _shades(panels[0, 0], np.asarray(attention, dtype=float), "Oranges")
    _word_ticks(panels[0, 0], words, 40)
    panels[0, 0].set_yticks(range(len(written)), written, fontsize=8.5, parse_math=False)
    _shades(panels[0, 1], np.asarray(list(beside.values()), dtype=float).reshape(len(beside), len(written)).T)
    panels[0, 1].set_xticks(range(len(beside)), list(beside), fontsize=7.5, rotation=40, ha="left")
    _shades(panels[1, 0], np.asarray(list(below.values()), dtype=float).reshape(len(below), len(words)))
    panels[1, 0].set_yticks(range(len(below)), list(below), fontsize=7.5)
    for axes in panels[0]:
        axes.xaxis.tick_top()
        axes.tick_params(labeltop=True, labelbottom=False)
    panels[1, 0].tick_params(labelbottom=False, labeltop=False)
    panels[1, 1].set_axis_off()
    return figure


def _shades(axes: Any, values: np.ndarray, colors: str = "YlGnBu") -> None:
    """A table of values in [0, 1] as shades with their numbers."""
    axes.imshow(values, aspect="auto", cmap=colors, vmin=0, vmax=1)
    for row, column in np.ndindex(values.shape):
        shade = "white" if values[row, column] > 0.55 else INK
        axes.text(column, row, f"{values[row, column]:.2f}", ha="center", va="center", fontsize=7, color=shade)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _word_ticks(axes: Any, words: Sequence[str], tilted: int = 30) -> None:
    rotation = tilted if max(map(len, words), default=0) > 8 or tilted > 30 else 0
    axes.set_xticks(range(len(words)))
    axes.set_xticklabels(
        words, fontsize=8.5, rotation=rotation, ha="left" if tilted > 30 else "center", parse_math=False
    )
