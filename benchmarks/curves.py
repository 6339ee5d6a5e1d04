"""Perplexity of runs against time: `python benchmarks/curves.py --out FILE.png NAME=RUN [NAME=RUN …]`."""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from gatedrnn.plots.gates import legend
from gatedrnn.training.run import read_metrics

COLOURS = ("#0f766e", "#c2410c", "#4338ca", "#a16207")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    options = parser.parse_args()
    figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=150)
    drawn = []
    for colour, given in zip(COLOURS * len(options.runs), options.runs, strict=False):
        name, _, folder = given.partition("=")
        lines = read_metrics(Path(folder))
        minutes = [line["seconds"] / 60 for line in lines]
        valid = [line["valid_perplexity"] for line in lines]
        train = [line["train_perplexity"] for line in lines]
        (solid,) = axes.plot(minutes, valid, color=colour, marker="o", markersize=3.5)
        (dotted,) = axes.plot(minutes, train, color=colour, linestyle=":")
        drawn += [(f"{name}, validation: {min(valid):.2f}", solid), (f"{name}, training", dotted)]
    axes.set_yscale("log")
    ticks = [60, 70, 80, 90, 100, 120, 150, 200, 300, 500]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("perplexity")
    axes.grid(color="#e5e7eb")
    axes.spines[["top", "right"]].set_visible(False)
    legend(axes, drawn)
    figure.tight_layout()
    figure.savefig(options.out)


if __name__ == "__main__":
    main()
