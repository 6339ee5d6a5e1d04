"""Surprisal of a sentence, a bar a word."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from gatedrnn.plots.trees import AGREED, FAINT, INK, OWN


def surprisal_bars(words: Sequence[str], bits: Sequence[float], unknown: Sequence[bool]) -> Figure:
    """Draw bits of each word, `<eos>` last, with their numbers; unknown words in another colour."""
    figure = Figure(figsize=(0.78 * len(words) + 0.4, 1.9), layout="constrained")
    axes = figure.add_subplot()
    colors = [OWN if each else AGREED for each in unknown]
    axes.bar(range(len(words)), bits, width=0.5, color=colors, alpha=0.85)
    for k, (word, value) in enumerate(zip(words, bits, strict=True)):
        axes.annotate(f"{value:.2f}", (k, value), (0, 3), textcoords="offset points", ha="center", size=8, color=FAINT)
        place = {"ha": "center", "va": "top", "transform": axes.get_xaxis_transform()}
        axes.text(k, -0.06, word, fontsize=min(9.5, 100 / len(word)), color=INK, parse_math=False, **place)
    axes.set_xlim(-0.5, len(words) - 0.5)
    axes.set_ylim(0, 1.18 * max(*bits, 0.1))
    axes.axis("off")
    return figure
