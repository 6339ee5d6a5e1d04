"""Which figures that need no gold tree say how well a run parses: rank correlations over runs.

    python benchmarks/criteria.py RUN RUN RUN ... --treebank dev.trees --text valid.txt

Of each run: F1 of its trees on the treebank (protocol A, percent), and figures without a gold tree: the validation perplexity
of the epoch whose weights it holds and, on the lines of --text, the mean agreement of its trees with those of the other runs,
their agreement with right-branching and with left-branching trees, and their mean depth beside that of the most balanced
trees. At the end Spearman's rank correlation of each with F1, and the 95 % interval of 10,000 bootstrap samples of the runs.
"""

import argparse
from collections.abc import Callable, Sequence
from itertools import islice
from math import ceil, log2
from pathlib import Path

import numpy as np

from gatedrnn.data import read_treebank
from gatedrnn.studies.parsing import induced_trees, parse_sentences, read_gold
from gatedrnn.training.run import Run, load_run, read_metrics
from gatedrnn.trees import Gold, Span, agreement, gold_tree, score
from gatedrnn.trees.baselines import left, right
from gatedrnn.trees.scores import depth

SAMPLES = 10_000
"""Bootstrap samples of the runs."""

Trees = Sequence[set[Span]]


def f1(run: Run, gold: Sequence[Gold]) -> float:
    """Of its trees, protocol A, in percent."""
    layer = run.model.config.layer_of_trees
    readings = read_gold(run.model, run.vocabulary, gold, [layer], gate=run.model.config.tree_gate)
    return score(induced_trees(readings, layer)["unbiased"], gold).A


def perplexity(run: Run) -> float:
    """On the validation text, of the weights that the run holds."""
    return [line for line in read_metrics(run.folder) if line["best"]][-1]["valid_perplexity"]


def against(trees: Trees, lengths: Sequence[int], baseline: Callable[[int], set[Span]]) -> float:
    """F1 of trees against a baseline's, in percent."""
    return agreement(trees, [baseline(n) for n in lengths], lengths)


def relative_depth(trees: Trees, lengths: Sequence[int]) -> float:
    """Mean depth of trees, that of the most balanced tree being 1."""
    each = [depth(spans, n) / ceil(log2(n)) for spans, n in zip(trees, lengths, strict=True) if n > 1]
    return float(np.mean(each))


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of the last axis; equal values share their mean rank."""
    less = (values[..., None, :] < values[..., :, None]).sum(-1)
    same = (values[..., None, :] == values[..., :, None]).sum(-1)
    return less + (same + 1) / 2


def rank_correlation(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Spearman's rank correlation, and the ends of its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).integers(0, len(one), (SAMPLES, len(one)))
    drawn = np.concatenate([np.arange(len(one))[None], drawn])
    a, b = (ranks(each[drawn]) for each in (one, other))
    a, b = a - a.mean(-1, keepdims=True), b - b.mean(-1, keepdims=True)
    scale = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    found = np.divide((a * b).sum(-1), scale, out=np.full(len(scale), np.nan), where=scale > 0)
    low, high = np.nanquantile(found[1:], (0.025, 0.975))
    return float(found[0]), float(low), float(high)


def main() -> None:
    """Print a row for each run, and the correlations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="runs of language models with master gates")
    parser.add_argument("--treebank", required=True, help="gold trees, for F1")
    parser.add_argument("--text", required=True, help="raw text, a sentence a line")
    parser.add_argument("--lines", type=int, default=1000, help="lines of the text that are read")
    asked = parser.parse_args()
    if len(asked.runs) < 3:
        parser.error(f"RUN: must be three or more, whose ranks are compared; got {len(asked.runs)}")
    gold = [gold_tree(tree, "ptb") for tree in read_treebank(asked.treebank)]
    with Path(asked.text).open(encoding="utf-8") as file:
        text = [line.split() for line in islice(file, asked.lines) if len(line.split()) > 1]
    lengths = [len(words) for words in text]
    runs = [load_run(name) for name in asked.runs]
    trees = [[parse.spans for parse in parse_sentences(run.model, run.vocabulary, text)] for run in runs]
    each = [[agreement(one, other, lengths) for other in trees] for one in trees]
    found = {
        "F1": [f1(run, gold) for run in runs],
        "valid perplexity": [perplexity(run) for run in runs],
        "agreement": [(sum(row) - 100) / (len(runs) - 1) for row in each],
        "right-branching": [against(spans, lengths, right) for spans in trees],
        "left-branching": [against(spans, lengths, left) for spans in trees],
        "depth": [relative_depth(spans, lengths) for spans in trees],
    }
    print(f"{'run':24}" + "".join(f"{name:>18}" for name in found))
    for name, row in zip(asked.runs, zip(*found.values(), strict=True), strict=True):
        print(f"{name:24}" + "".join(f"{value:18.2f}" for value in row))
    scored = np.array(found.pop("F1"))
    for name, values in found.items():
        rho, low, high = rank_correlation(scored, np.array(values))
        print(f"F1 and {name}: ρ = {rho:.2f} ({low:.2f} … {high:.2f}), {len(scored)} runs")


if __name__ == "__main__":
    main()
