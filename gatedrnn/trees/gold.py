"""Gold trees as sets of spans over the words that count."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gatedrnn.core.checks import one_of
from gatedrnn.trees.spans import Span, unescaped
from gatedrnn.trees.tree import Tree

_WORD_TAGS = (
    "CC CD DT EX FW IN JJ JJR JJS LS MD NN NNS NNP NNPS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH "
    "VB VBD VBG VBN VBP VBZ WDT WP WP$ WRB"
)
WORD_TAGS = frozenset(_WORD_TAGS.split())
"""The 36 Penn Treebank word tags; punctuation, $, # and traces are not among them."""

ROOT_LABELS = frozenset({"ROOT", "TOP", ""})

KEEP_RULES: dict[str, Callable[[str, str], bool]] = {
    "ptb": lambda word, tag: tag in WORD_TAGS,
    "alnum": lambda word, tag: tag != "-NONE-" and any(character.isalnum() for character in unescaped(word)),
}
"""Which terminals count: by tag (English), or those with a letter or digit (the name of a bracket, -LRB-, has none)."""


def keep_word(words: str) -> Callable[[str, str], bool]:
    """The keep rule called `words`: (word, tag) → whether it counts.

    Raises: ArgumentError: unknown rule.
    """
    return KEEP_RULES[one_of("words", words, KEEP_RULES)]


@dataclass(frozen=True)
class Gold:
    """A gold tree over its kept words.

    Args:
        words, tags: the kept terminals, in order.
        spans: half-open spans of width ≥ 2, the whole sentence among them if a constituent covers it.
        labelled: (label without function tags, span) of every such constituent, repeats kept, in pre-order.
        whole_below_root: how many constituents other than a ROOT, TOP or empty root cover all words (protocol B*).
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    spans: frozenset[Span]
    labelled: tuple[tuple[str, Span], ...]
    whole_below_root: int

    def __len__(self) -> int:
        return len(self.words)

    @property
    def whole(self) -> Span:
        """The span of the whole sentence."""
        return (0, len(self.words))


def gold_tree(tree: Tree, words: str = "ptb", cut: Callable[[str], list[str]] | None = None) -> Gold:
    """Read an nltk.Tree: keep the terminals that the rule `words` keeps and collect the spans of its constituents.

    A terminal's tag is the label of its parent if the parent has no other child, else "". No recursion: any depth.

    Args: cut: the pieces of a kept word: each is a word then, and they are a constituent labelled by its tag, or "word".
    Raises: ArgumentError: unknown rule.
    """
    keep = keep_word(words)
    kept: list[tuple[str, str]] = []
    opened: list[tuple[str, int, int]] = []  # label, start, place in pre-order
    found: list[tuple[int, str, Span, bool]] = []
    stack: list[tuple[Any, str | None, int]] = [(tree, None, 0)]
    count = 0
    while stack:
        node, closing, depth = stack.pop()
        if closing is not None:
            label, start, place = opened.pop()
            found.append((place, label, (start, len(kept)), depth == 0))
        elif (terminal := _terminal(node)) is not None:
            word, tag = terminal
            if keep(word, tag):
                start = len(kept)
                kept.extend((piece, tag) for piece in (cut(unescaped(word)) if cut else [word]))
                found.append((count, tag or "word", (start, len(kept)), depth == 0))
                count += 1
        else:
            opened.append((str(node.label()), len(kept), count))
            count += 1
            stack.append((node, "close", depth))
            stack.extend((child, None, depth + 1) for child in reversed(node))
    whole = (0, len(kept))
    constituents = [entry for entry in sorted(found) if entry[2][1] - entry[2][0] >= 2]
    below = sum(span == whole and not (top and label in ROOT_LABELS) for _, label, span, top in constituents)
    return Gold(
        tuple(word for word, _ in kept),
        tuple(tag for _, tag in kept),
        frozenset(span for _, _, span, _ in constituents),
        tuple((_base(label), span) for _, label, span, _ in constituents),
        below,
    )


def _terminal(node: Any) -> tuple[str, str] | None:
    """Word and tag, if a node is a terminal or has nothing but one."""
    if not isinstance(node, Tree):
        return str(node), ""
    return (str(node[0]), str(node.label())) if len(node) == 1 and not isinstance(node[0], Tree) else None


def _base(label: str) -> str:
    """NP-SBJ-1 → NP; labels that start with a dash, such as -LRB-, stay."""
    return label if label.startswith("-") else label.split("-")[0].split("=")[0]
