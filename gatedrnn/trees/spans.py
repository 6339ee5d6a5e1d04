"""Half-open spans over the words of a sentence, and the trees they form."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gatedrnn.core.errors import ArgumentError
from gatedrnn.trees.tree import Tree

Span = tuple[int, int]

BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
"""By their names in treebanks."""

_ESCAPES = str.maketrans({"(": "-LRB-", ")": "-RRB-"})
_NAMES = re.compile("-[LR][RSC]B-")
_BLANK = re.compile(r"\s+")


@dataclass(frozen=True)
class Bracketed:
    """A sentence and its tree.

    Args:
        words: as written.
        spans: of width ≥ 2; none where there is no word.
    """

    words: Sequence[str]
    spans: set[Span]

    @property
    def brackets(self) -> str:
        """`(X (X the cat) sleeps)`; nothing for no word."""
        return brackets(self.spans, self.words) if self.words else ""

    @property
    def tree(self) -> Tree:
        """As `nltk.Tree`, which draws itself with svgling in a notebook."""
        return spans_to_tree(self.spans, self.words)


def cut_spans(n: int, where: Callable[[int, int], int]) -> set[Span]:
    """Spans of width ≥ 2 of the tree over n words that cuts each span (i, j) at `where(i, j)`; pre-order, left part first."""
    spans, stack = set(), [(0, n)]
    while stack:
        i, j = stack.pop()
        if j - i >= 2:
            spans.add((i, j))
            k = where(i, j)
            stack += [(k, j), (i, k)]
    return spans


def unescaped(word: str) -> str:
    """A treebank's word as people write it: -LRB- and -RRB- in it are parentheses; square and curly brackets likewise."""
    return _NAMES.sub(lambda found: BRACKETS[found[0]], word) if "-" in word else word


def brackets(spans: Iterable[Span], words: Sequence[str], label: str = "X") -> str:
    """One line that nltk.Tree.fromstring and evalb read: `(X (X the cat) sleeps)`.

    Args:
        spans: nested spans of width ≥ 2 over `words`; the whole sentence is added if it is missing.
        words: at least one; each is one leaf: parentheses in them become -LRB- and -RRB-, white space `_`, as does an empty
            word; a final backslash, which would escape a bracket, gets a `_`.
        label: the label of every constituent, because an induced tree has no labels.

    Raises: ArgumentError: no word.
    """
    if not words:
        raise ArgumentError("brackets.words", "must have at least one word", 0, "Skip empty sentences")
    opened: Counter[int] = Counter()
    closed: Counter[int] = Counter()
    for i, j in {*spans, (0, len(words))}:
        opened[i] += 1
        closed[j] += 1
    escaped = [_escape(word) for word in words]
    return " ".join(f"({label} " * opened[k] + word + ")" * closed[k + 1] for k, word in enumerate(escaped))


def _escape(word: str) -> str:
    """A word that bracket readers take whole: no parentheses, no white space, and no backslash before a closing bracket."""
    word = _BLANK.sub("_", word.translate(_ESCAPES)) or "_"
    return word + "_" if word.endswith("\\") else word


def spans_to_tree(spans: Iterable[Span], words: Sequence[str], label: str = "X") -> Tree:
    """The nltk.Tree of nested spans, its leaves the words as written; arguments and errors as `brackets`."""
    if not words:
        raise ArgumentError("spans_to_tree.words", "must have at least one word", 0, "Skip empty sentences")
    root = Tree(label, [])
    stack = [(root, len(words))]
    ordered = sorted({*spans} - {(0, len(words))}, key=lambda span: (span[0], -span[1]))
    position = 0
    for k, word in enumerate(words):
        while stack[-1][1] <= k:
            stack.pop()
        while position < len(ordered) and ordered[position][0] == k:
            node = Tree(label, [])
            stack[-1][0].append(node)
            stack.append((node, ordered[position][1]))
            position += 1
        stack[-1][0].append(word)
    return root
