"""Scores of a model's trees beside the trivial parsers and the upper bound, all from one pipeline."""

import random
from collections.abc import Sequence, Set
from dataclasses import dataclass

from gatedrnn.core.checks import one_of, positive_int
from gatedrnn.core.errors import DataError
from gatedrnn.trees import BASELINES, PROTOCOLS, Gold, Score, Span, label_recall, random_spans, score, upper_bound

RANDOM_SEEDS = (1, 2, 3, 4, 5)
BASELINE_NAMES = ("left", "right", "balanced", "balanced_up", "random", "upper_bound")
DEFAULT_BASELINES = ("left", "right", "balanced", "random", "upper_bound")


@dataclass(frozen=True)
class ParsingResult:
    """Scores of one treebank.

    Args:
        sentences: scored, with at least one word that counts.
        max_words: longest sentence scored, None for any.
        scores: F1 in percent by parser ("model", "left", …) and protocol; "random" is the mean over five seeds.
        recall: of the model's gold constituents by label; empty without a model.
    """

    sentences: int
    max_words: int | None
    scores: dict[str, dict[str, float]]
    recall: dict[str, dict[str, float]]


def evaluate_parsing(
    gold: Sequence[Gold],
    predicted: Sequence[Set[Span]] | None = None,
    *,
    max_words: int | None = None,
    baselines: Sequence[str] = DEFAULT_BASELINES,
) -> ParsingResult:
    """Score trees and baselines.

    Args:
        gold: of every sentence of the treebank, in file order (the random baseline reads its numbers in this order).
        predicted: the model's spans of each, None for baselines alone.
        max_words: score only sentences with at most so many words.
        baselines: names from BASELINE_NAMES.

    Raises: ArgumentError: unknown baseline. DataError: no sentence is left.
    """
    if max_words is not None:
        positive_int("max_words", max_words)
    chosen = [k for k, tree in enumerate(gold) if len(tree) and (max_words is None or len(tree) <= max_words)]
    if not chosen:
        rule = "must hold a sentence with a word that counts"
        raise DataError("treebank", rule, f"{len(gold)} trees", "Try --words alnum or a larger --max-words")
    trees = [gold[k] for k in chosen]
    scores: dict[str, dict[str, float]] = {}
    recall: dict[str, dict[str, float]] = {}
    if predicted is not None:
        spans = [predicted[k] for k in chosen]
        scores["model"] = score(spans, trees).as_dict()
        recall = label_recall(spans, trees)
    for name in baselines:
        one_of("baseline", name, BASELINE_NAMES)
        runs = [score([run[k] for k in chosen], trees) for run in _baseline(name, gold)]
        scores[name] = _mean(runs)
    return ParsingResult(len(trees), max_words, scores, recall)


def _baseline(name: str, gold: Sequence[Gold]) -> list[list[set[Span]]]:
    if name == "random":
        return [[random_spans(len(g), generator) for g in gold] for generator in map(random.Random, RANDOM_SEEDS)]
    if name == "upper_bound":
        return [[upper_bound(len(g), g.spans) for g in gold]]
    return [[BASELINES[name](len(g)) for g in gold]]


def _mean(runs: Sequence[Score]) -> dict[str, float]:
    return {name: sum(getattr(run, name) for run in runs) / len(runs) for name in PROTOCOLS}
