"""One binary tree out of many: minimum Bayes risk over spans.

Each tree votes for its spans. The binary tree with the greatest sum of votes has the greatest expected F1 against a tree drawn
from the voters, since all binary trees over n words have n − 1 spans. Found exactly, from narrow spans to wide ones.
"""

from collections import Counter
from collections.abc import Sequence, Set
from fractions import Fraction
from math import lcm

import numpy as np

from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.trees.spans import Span, cut_spans

LONGEST = 2000
"""Words of the longest sentence: time grows with their cube, memory with their square."""

_LARGEST_DENOMINATOR = 10_000  # of a weight such as 1/3 of 0.7


def consensus(voters: Sequence[Set[Span]], n: int, weights: Sequence[float] | None = None) -> set[Span]:
    """Spans of width ≥ 2 of the binary tree over n words that `voters` agree with most, the whole sentence among them.

    Equations: Goodman 1996, "Parsing algorithms and metrics" (labelled recall), for trees without labels. Departs: none.
    Args:
        voters: spans of each tree, at least one.
        n: words of the sentence, 1 … 2000.
        weights: how much the vote of each tree counts, above 0; None for 1 each.

    Returns: its spans; of several such trees the one that cuts first at its leftmost place, from the top.
    Raises: ArgumentError: no voter, weights that do not fit, a span outside the sentence, or a sentence that is too long.
    """
    positive_int("consensus.n", n)
    if not voters:
        raise ArgumentError("consensus.voters", "must have at least one tree", 0, "Give the trees of a model")
    if n > LONGEST:
        raise ArgumentError("consensus.n", f"must be at most {LONGEST} words", n, "Leave longer sentences to one model")
    votes = _votes(voters, weights)
    outside = next((span for span in votes if not 0 <= span[0] < span[1] <= n), None)
    if outside is not None:
        raise ArgumentError("consensus.voters", f"must have spans inside 0…{n}", outside, "Check the sentence's words")
    own = np.zeros((n + 1, n + 1))
    for span, count in votes.items():
        own[span] = count
    return best_tree(own)


def best_tree(worth: np.ndarray) -> set[Span]:
    """Spans of width ≥ 2 of the binary tree whose spans are worth most together.

    Equations: Goodman 1996, labelled recall, for trees without labels: with the probabilities of spans under a grammar for
        their worth, the tree of minimum Bayes risk. Departs: none.
    Args: worth: of each span (i, j) of n words [n + 1, n + 1]; n ≥ 1.
    Returns: its spans; of several such trees the one that cuts first at its leftmost place, from the top.
    """
    n = len(worth) - 1
    by_start = np.zeros((n + 1, n + 1))  # what the best tree of a span is worth, by start and width
    by_end = np.zeros((n + 1, n + 1))  # the same by end and width, so that both parts of a cut lie in a row
    cut = np.zeros((n + 1, n + 1), dtype=np.int32)  # where to cut each span [i, j): the leftmost of the best places
    for width in range(2, n + 1):
        starts = np.arange(n - width + 1)
        parts = by_start[: len(starts), 1:width] + by_end[width:, width - 1 : 0 : -1]
        places = parts.argmax(1)
        cut[starts, starts + width] = starts + 1 + places
        best = parts[starts, places] + worth.diagonal(width)
        by_start[: len(starts), width] = by_end[width:, width] = best
    return cut_spans(n, lambda i, j: int(cut[i, j]))


def _votes(voters: Sequence[Set[Span]], weights: Sequence[float] | None) -> Counter[Span]:
    """The votes for each span. Raises: ArgumentError: weights that do not fit."""
    if weights is None:
        return Counter(span for voter in voters for span in voter)
    if len(weights) != len(voters) or not all(0 < weight < float("inf") for weight in weights):
        got, advice = f"{list(weights)} for {len(voters)} trees", "Give one number above 0 per tree"
        raise ArgumentError("consensus.weights", "must be a finite number above 0 for each tree", got, advice)
    votes: Counter[Span] = Counter()
    for voter, weight in zip(voters, _whole(weights), strict=True):
        for span in voter:
            votes[span] += weight  # type: ignore[assignment]
    return votes


def _whole(weights: Sequence[float]) -> Sequence[float]:
    """Whole numbers in the same proportions, so that sums are exact and equal votes are equal; shares of the largest where there
    are none.
    """
    weights = [float(weight) for weight in weights]
    parts = [Fraction(weight).limit_denominator(_LARGEST_DENOMINATOR) for weight in weights]
    shared = lcm(*(part.denominator for part in parts))
    whole = [part * shared for part in parts]
    near = all(abs(float(part) - weight) <= 1e-14 * weight for part, weight in zip(parts, weights, strict=True))
    if near and sum(whole) * LONGEST < 1 << 53:
        return [float(each) for each in whole]
    return [weight / max(weights) for weight in weights]
