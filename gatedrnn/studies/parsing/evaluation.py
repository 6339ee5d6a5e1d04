"""Scores of a model's trees beside the trivial parsers and the upper bound, all from one pipeline."""

import random
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass

from gatedrnn.core.checks import one_of, positive_int
from gatedrnn.core.errors import DataError
from gatedrnn.trees import (
    BASELINES,
    PROTOCOLS,
    Gold,
    Score,
    Span,
    depth,
    label_recall,
    random_spans,
    score,
    upper_bound,
)
from gatedrnn.trees.scores import bootstrap_mean

RANDOM_SEEDS = (1, 2, 3, 4, 5)
BASELINE_NAMES = ("left", "right", "balanced", "balanced_up", "random", "upper_bound")
LENGTHS = ((1, 10), (11, 20), (21, 30), (31, 40), (41, None))
DEFAULT_BASELINES = ("left", "right", "balanced", "random", "upper_bound")


@dataclass(frozen=True)
class ParsingResult:
    """Scores of one treebank.

    Args:
        sentences: scored, with at least one word that counts; sentences_B: with at least two, which protocol B averages.
        max_words: longest sentence scored, None for any.
        scores: F1 in percent by parser ("model", "left", …) and protocol, None where the protocol counts no sentence; "random" is
            the mean over five seeds.
        recall: of the model's gold constituents by label; empty without a model.
        intervals: 95 % intervals of the same (low, high); empty unless asked for.
        depth: mean depth of the trees by parser, of "gold" too: the most constituents over one word.
    """

    sentences: int
    sentences_B: int
    max_words: int | None
    scores: dict[str, dict[str, float | None]]
    recall: dict[str, dict[str, float]]
    intervals: dict[str, dict[str, tuple[float, float] | None]]
    depth: dict[str, float]


def evaluate_parsing(
    gold: Sequence[Gold],
    predicted: Sequence[Set[Span]] | None = None,
    *,
    min_words: int = 1,
    max_words: int | None = None,
    baselines: Sequence[str] = DEFAULT_BASELINES,
    samples: int = 0,
) -> ParsingResult:
    """Score trees and baselines.

    Args:
        gold: of every sentence of the treebank, in file order (the random baseline reads its numbers in this order).
        predicted: the model's spans of each, None for baselines alone.
        min_words, max_words: score only sentences with so many words.
        baselines: names from BASELINE_NAMES.
        samples: of the bootstrap, 0 for none.

    Raises: ArgumentError: unknown baseline. DataError: no sentence is left.
    """
    if max_words is not None:
        positive_int("max_words", max_words)
    chosen = [
        k for k, tree in enumerate(gold) if len(tree) >= min_words and (max_words is None or len(tree) <= max_words)
    ]
    if not chosen:
        rule = "must hold a sentence with a word that counts"
        raise DataError("treebank", rule, f"{len(gold)} trees", "Try --words alnum or a larger --max-words")
    trees = [gold[k] for k in chosen]
    parsers: dict[str, Sequence[Sequence[Set[Span]]]] = {"model": [predicted]} if predicted is not None else {}
    for name in baselines:
        one_of("baseline", name, BASELINE_NAMES)
        parsers[name] = _baseline(name, gold)
    scores, intervals = {}, {}
    depths = {"gold": _mean_depth([tree.spans for tree in trees], trees)}
    for name, runs in parsers.items():
        spans = [[run[k] for k in chosen] for run in runs]
        scores[name] = _mean([score(run, trees) for run in spans])
        depths[name] = sum(_mean_depth(run, trees) for run in spans) / len(spans)
        if samples:
            intervals[name] = bootstrap_mean(spans, trees, positive_int("bootstrap", samples))
    recall = label_recall([predicted[k] for k in chosen], trees) if predicted is not None else {}
    long = sum(len(tree) > 1 for tree in trees)
    return ParsingResult(len(trees), long, max_words, scores, recall, intervals, depths)


def by_length(
    gold: Sequence[Gold],
    predicted: Sequence[Set[Span]] | None = None,
    baselines: Sequence[str] = DEFAULT_BASELINES,
    max_words: int | None = None,
) -> dict[str, ParsingResult]:
    """`evaluate_parsing` of sentences of 1–10, 11–20, 21–30, 31–40 and more words, where there are any."""
    found = {}
    for low, high in LENGTHS:
        limit = min(high or sys.maxsize, max_words or sys.maxsize)
        if any(low <= len(tree) <= limit for tree in gold):
            name = f"{low}–{high}" if high else f"{low}+"
            found[name] = evaluate_parsing(
                gold, predicted, min_words=low, max_words=limit if limit < sys.maxsize else None, baselines=baselines
            )
    return found


def _mean_depth(trees: Sequence[Set[Span]], gold: Sequence[Gold]) -> float:
    return sum(depth(spans, len(tree)) for spans, tree in zip(trees, gold, strict=True)) / len(gold)


def _baseline(name: str, gold: Sequence[Gold]) -> Sequence[Sequence[Set[Span]]]:
    if name == "random":
        return [[random_spans(len(g), generator) for g in gold] for generator in map(random.Random, RANDOM_SEEDS)]
    if name == "upper_bound":
        return [[upper_bound(len(g), g.spans) for g in gold]]
    return [[BASELINES[name](len(g)) for g in gold]]


def _mean(runs: Sequence[Score]) -> dict[str, float | None]:
    """By protocol; the runs are of the same sentences, so all or none of them have a score."""
    each = {name: [getattr(run, name) for run in runs] for name in PROTOCOLS}
    return {name: None if None in values else sum(values) / len(values) for name, values in each.items()}
