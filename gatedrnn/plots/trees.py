"""One sentence in one picture: gold tree above the words, induced tree below, master gate under each word."""

import io
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, ScalarFormatter

from gatedrnn.core.files import write_with
from gatedrnn.plots.fonts import fit_fonts
from gatedrnn.plots.xml import well_formed

Span = tuple[int, int]

AGREED, OWN, INK, FAINT = "#0f766e", "#c2410c", "#1f2937", "#9ca3af"
KINDS = ("pdf", "png", "svg")
"""Of files of a figure."""
_SOFT = ("#64748b", "#b45309", "#9ca3af", "#7c3aed", "#cbd5e1")
_HEAT = 0.95  # inches of a heat map
_MISSING = "Glyph .* missing from font"  # how matplotlib warns
_CLEAR = 0.34  # room between a word and the lowest constituent, in levels


def tree_and_gates(
    words: Sequence[str],
    gold: Sequence[tuple[str, Span]],
    induced: Sequence[Span],
    gates: Mapping[str, Sequence[Sequence[float]]],
    distances: Sequence[float] = (),
) -> Figure:
    """Draw a sentence.

    Args:
        words: the columns.
        gold: (label, span) of the gold constituents; empty for a sentence without a gold tree.
        induced: spans of the induced tree. A constituent in both is green, in one alone orange.
        gates: master gates [words, units] by name, one heat map each; low units are drawn at the bottom.
        distances: of each word, drawn as a bar at the boundary before it.
    """
    gold_spans, induced_spans = {span for _, span in gold}, set(induced)
    gold_levels, induced_levels = _levels(gold_spans), _levels(induced_spans)
    heights = [_height(gold_levels), 0.32, _height(induced_levels), 0.75 if len(distances) else 0.01]
    top, middle, below, bars, *heats = _axes(len(words), heights, len(gates))
    labels = {span: label for label, span in gold}
    _draw_tree(top, gold_levels, induced_spans, labels)
    _draw_tree(below, induced_levels, gold_spans if gold else induced_spans, {})
    below.invert_yaxis()
    for k, word in enumerate(words):
        place = {"ha": "center", "va": "center", "transform": middle.get_xaxis_transform()}
        middle.text(k, 0.5, word, fontsize=min(9.5, 100 / len(word)), color=INK, parse_math=False, **place)
    if len(distances):
        _draw_distances(bars, distances)
    for axes, name in ((top, "gold" if gold else ""), (below, "induced"), (bars, "distance" if len(distances) else "")):
        place = {"ha": "right", "va": "center", "transform": axes.transAxes}
        axes.text(-0.08 / _width(len(words)), 0.5, name, fontsize=8.5, color=FAINT, **place)
    for axes, (name, gates_TN) in zip(heats, gates.items(), strict=True):
        _draw_gates(axes, name, np.asarray(gates_TN, dtype=float).T)
    if heats:
        legend = "master gate of each word, low units at the bottom: pale is 0, dark is 1"
        heats[-1].set_xlabel(legend, fontsize=7.5, color=FAINT)
    figure = top.figure
    assert isinstance(figure, Figure)
    return figure


def length_curves(names: Sequence[str], sentences: Sequence[int], series: Mapping[str, Sequence[float]]) -> Figure:
    """F1 in percent by length of sentence, one line a parser; the first one is drawn thick.

    Args: names: of the buckets; sentences: in each; series: F1 by parser.
    """
    figure = Figure(figsize=(6.8, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for k, (name, values) in enumerate(series.items()):
        width, color = (2.4, AGREED) if k == 0 else (1.3, _SOFT[(k - 1) % len(_SOFT)])
        axes.plot(range(len(names)), values, marker="o", markersize=3 + width, linewidth=width, color=color, label=name)
    axes.set_xticks(range(len(names)), [f"{name}\n({count})" for name, count in zip(names, sentences, strict=True)])
    axes.set_xlabel("words in the sentence (sentences)")
    axes.set_ylabel("F1, protocol B")
    axes.set_ylim(0, 100)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def curve(epochs: Sequence[int], series: Mapping[str, Sequence[float]]) -> Figure:
    """Perplexity by epoch on a logarithmic axis, one line a series."""
    figure = Figure(figsize=(6.4, 2.6), layout="constrained")
    axes = figure.add_subplot()
    for (name, values), color in zip(series.items(), (FAINT, AGREED), strict=False):
        axes.plot(epochs, values, marker="o", markersize=4, linewidth=1.8, color=color, label=name)
        axes.annotate(
            f"{values[-1]:.1f}", (epochs[-1], values[-1]), (6, 0), textcoords="offset points", va="center", color=color
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(FormatStrFormatter("%.0f"))
    axes.set_xticks(list(epochs))
    axes.set_xlabel("epoch")
    axes.set_ylabel("perplexity")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


_UNDATED: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # so that bytes can be reproduced
_AS_TEXT: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "gatedrnn"}  # as text, not as outlines of letters


def to_svg(figure: Figure) -> str:
    """A figure as an inline SVG element: text as text, reproducible bytes."""
    stream = io.StringIO()
    style: dict[Any, Any] = _AS_TEXT | {"font.family": "sans-serif"}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", _MISSING)  # what reads the text has fonts of its own
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = well_formed(stream.getvalue())
    return text[text.index("<svg") :]


def save(figure: Figure, path: Path, kind: str | None = None) -> None:
    """Write a figure as PNG, PDF or SVG: `kind`, else by the file's ending. The same figure gives the same bytes."""
    fit_fonts(figure)
    kind = (kind or path.suffix[1:]).lower()
    with matplotlib.rc_context(_AS_TEXT), warnings.catch_warnings():
        warnings.filterwarnings("ignore", _MISSING)  # `fit_fonts` has told them all at once
        figure.savefig(path, dpi=160, facecolor="white", format=kind or None, metadata=_UNDATED.get(kind))
    if kind == "svg":
        path.write_text(well_formed(path.read_text(encoding="utf-8")), encoding="utf-8", newline="")


def save_all(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as `name.pdf` and so on into a folder, each atomically. Raises: DataError: they cannot be written."""
    for kind in KINDS:
        write_with(folder / f"{name}.{kind}", partial(save, figure, kind=kind))


def _width(words: int) -> float:
    """Inches: a column a word, and room for the names at the left."""
    return 0.78 * words + 1.1


def _height(levels: dict[Span, int]) -> float:
    """Inches of a tree."""
    return 0.3 * max(levels.values()) + 0.2 if levels else 0.01


def _axes(words: int, heights: list[float], heats: int) -> list[Axes]:
    """Gold tree, words, induced tree, distances and heat maps, one below the other, a column a word."""
    every, width = [*heights, *[_HEAT] * heats], _width(words)
    figure = Figure(figsize=(width, sum(every) + 0.5))
    sides = {"left": 1.0 / width, "right": 0.99, "top": 0.99, "bottom": 0.3 / (sum(every) + 0.5)}
    grid = figure.add_gridspec(len(every), 1, height_ratios=every, hspace=0.0, **sides)
    panels = [figure.add_subplot(grid[k]) for k in range(len(every))]
    for axes in panels[: len(heights)]:
        axes.set_xlim(-0.5, words - 0.5)
        axes.axis("off")
    return panels


def _draw_distances(axes: Axes, distances: Sequence[float]) -> None:
    """A bar before each word but the first, whose distance cuts nothing; heights from the smallest to the largest."""
    values = np.asarray(distances[1:], dtype=float)
    axes.bar(0.5 + np.arange(len(values)), values, width=0.16, color=INK)
    if len(values):
        low, high = float(values.min()), float(values.max())
        room = (high - low) or 1.0
        axes.set_ylim(low - 0.25 * room, high + 0.15 * room)


def _draw_gates(axes: Axes, name: str, image_NT: np.ndarray) -> None:
    axes.imshow(image_NT, aspect="auto", origin="lower", cmap="YlGnBu", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([(len(image_NT) - 1) / 2], [name], fontsize=8.5, color=FAINT)
    axes.tick_params(length=0)
    axes.spines[:].set(color="white", linewidth=4)


def _levels(spans: set[Span]) -> dict[Span, int]:
    """Height of each constituent: one more than the highest inside it."""
    levels: dict[Span, int] = {}
    for span in sorted(spans, key=lambda s: s[1] - s[0]):
        inside = [level for other, level in levels.items() if span[0] <= other[0] and other[1] <= span[1]]
        levels[span] = 1 + max(inside, default=0)
    return levels


def _draw_tree(axes: Axes, levels: dict[Span, int], other: set[Span], labels: dict[Span, str]) -> None:
    def center(span: Span) -> float:
        children = _children(span, levels)
        return (position(children[0]) + position(children[-1])) / 2

    def position(node: Span) -> float:
        return node[0] if node[1] - node[0] == 1 else center(node)

    for span, level in levels.items():
        color = AGREED if span in other else OWN
        x, children = center(span), _children(span, levels)
        for child in children:
            low = levels.get(child, _CLEAR - 1)
            axes.plot([position(child), position(child), x], [low, level, level], color=color, linewidth=1.5)
        if labels:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
            how: dict[str, Any] = {"ha": "center", "va": "bottom", "size": 7.5, "weight": "bold", "zorder": 3}
            axes.text(x, level + 0.1, labels.get(span, ""), color=color, bbox=box, parse_math=False, **how)
    axes.set_ylim(-0.2, max(levels.values(), default=0) + 0.75)


def _children(span: Span, levels: dict[Span, int]) -> list[Span]:
    """The constituents and words directly below `span`, left to right."""
    i, j = span
    children: list[Span] = []
    while i < j:
        ends = [b for a, b in levels if a == i and b <= j and (a, b) != span]
        end = max(ends, default=i + 1)
        children.append((i, end))
        i = end
    return children
