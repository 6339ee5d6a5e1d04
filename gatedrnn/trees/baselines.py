"""Trivial parsers, and the best that any binary tree can do. Spans of width ≥ 2, the whole sentence among them."""

import random
from collections.abc import Callable, Iterable

from gatedrnn.trees.spans import Span, cut_spans


def left(n: int) -> set[Span]:
    """Left-branching: ((a b) c)."""
    return {(0, j) for j in range(2, n + 1)}


def right(n: int) -> set[Span]:
    """Right-branching: (a (b c))."""
    return {(i, n) for i in range(n - 1)}


def balanced(n: int) -> set[Span]:
    """Cut in the middle; the left part is smaller if the width is odd."""
    return cut_spans(n, lambda i, j: i + (j - i) // 2)


def balanced_up(n: int) -> set[Span]:
    """Cut in the middle; the left part is larger if the width is odd."""
    return cut_spans(n, lambda i, j: i + (j - i + 1) // 2)


def random_spans(n: int, generator: random.Random) -> set[Span]:
    """Cut at a uniform position, pre-order, left part first."""
    return cut_spans(n, lambda i, j: generator.randint(i + 1, j - 1))


def upper_bound(n: int, gold: Iterable[Span]) -> set[Span]:
    """A binarisation of the gold tree that keeps all its spans: no binary tree scores higher against it."""
    spans = {*gold} | ({(0, n)} if n >= 2 else set())
    result = set(spans)
    stack: list[tuple[Span, list[int]]] = []  # open constituents, and where their parts start
    for i, j in [*sorted(spans, key=lambda span: (span[0], -span[1])), (n, n)]:
        while stack and stack[-1][0][1] <= i:
            (_, end), starts = stack.pop()
            starts += range(starts.pop(), end)
            result |= {(start, end) for start in starts[1:] if end - start >= 2}
            if stack:
                stack[-1][1].append(end)
        if stack:
            starts = stack[-1][1]
            starts += range(starts.pop(), i)
            starts.append(i)
        stack.append(((i, j), [i]))
    return result


BASELINES: dict[str, Callable[[int], set[Span]]] = {
    "left": left,
    "right": right,
    "balanced": balanced,
    "balanced_up": balanced_up,
}
"""Parsers that look at the length alone and need no seed."""
