"""From syntactic distances to binary trees, top-down: split before the word with the largest distance, recurse; and back.

Both algorithms are Cartesian trees, built here in O(n) with a stack, so that a line of any length parses.
"""

import math
from collections.abc import Iterable, Sequence

from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import ArgumentError
from gatedrnn.trees.spans import Span

ALGORITHMS = ("biased", "unbiased")


def distances_to_spans(distances: Sequence[float], algorithm: str) -> set[Span]:
    """Spans of width ≥ 2 of the tree that `distances` give, the whole sentence among them.

    `biased` is the published procedure: at the word with the largest distance it makes (left (word right)), so it cannot
    reach every tree (n = 5: 13 of 14) and leans to the right. `unbiased` splits between words only: before the largest
    distance among words 2…n; every binary tree can be reached. In a tie, the first one is used.

    Equations: Shen et al. 2018 (PRPN), app. A; Shen et al. 2019, sec. 5.2. Departs: `unbiased` is not in the papers' code.
    Args:
        distances: d_t of word t, n ≥ 1 finite numbers; high where a large constituent closed before word t.
        algorithm: "biased" or "unbiased".

    Returns: set of (i, j), 0 ≤ i < j ≤ n, j − i ≥ 2; empty for one word.
    Raises: ArgumentError: no distance, a distance that is not finite, or an unknown algorithm.
    """
    one_of("distances_to_spans.algorithm", algorithm, ALGORITHMS)
    values = [float(value) for value in distances]
    if not values:
        rule, advice = "must have one distance per word", "Skip empty sentences"
        raise ArgumentError("distances_to_spans.distances", rule, "none", advice)
    if not all(map(math.isfinite, values)):
        raise ArgumentError("distances_to_spans.distances", "must be finite", values, "Did training diverge?")
    if algorithm == "unbiased":
        return {(a, b + 1) for a, _, b in _maximal_intervals(values[1:])}
    spans = set()
    for a, k, b in _maximal_intervals(values):
        spans |= {(a, b), (k, b)}
    return {(i, j) for i, j in spans if j - i >= 2}


def spans_to_heights(spans: Iterable[Span], n: int) -> list[int]:
    """Height of the split before each word of a tree: distances from which `unbiased` builds the same tree.

    Equations: Shen et al. 2018 ("Straight to the Tree"), alg. 1. Departs: none.
    Args:
        spans: nested spans of width ≥ 2 over n words; the whole sentence is added if it is missing.
        n: words of the sentence, at least 1.

    Returns: n integers: 0 for the first word; else the levels of the smallest constituent around the word and the one before
        it, 1 for a constituent of two words. All splits of a constituent with more than two children have the same height.
    """
    heights = [0] * n
    for i, j in sorted({*spans, (0, n)}, key=lambda span: span[1] - span[0]):
        top = 1 + max(heights[i + 1 : j], default=0)
        heights[i + 1 : j] = [height or top for height in heights[i + 1 : j]]
    return heights


def _maximal_intervals(values: list[float]) -> list[tuple[int, int, int]]:
    """For each k the largest interval [a, b) in which values[k] is the first maximum, as (a, k, b)."""
    start, end, stack = [0] * len(values), [len(values)] * len(values), []
    for k, value in enumerate(values):
        while stack and values[stack[-1]] < value:
            end[stack.pop()] = k
        start[k] = stack[-1] + 1 if stack else 0
        stack.append(k)
    return [(start[k], k, end[k]) for k in range(len(values))]
