"""Trees of plain sentences: words in, distances and a tree out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import tee
from typing import Any

from nltk.tree import Tree

from gatedrnn.core.checks import one_of
from gatedrnn.data import EOS, MAPPINGS, Vocabulary
from gatedrnn.models import LanguageModel
from gatedrnn.studies.parsing.distances import Layer, default_layer, read_sentences
from gatedrnn.trees import ALGORITHMS, Span, brackets, distances_to_spans, spans_to_tree


@dataclass(frozen=True)
class Parse:
    """One sentence's induced tree.

    Args:
        words: as written.
        distances: of each word; high where a large constituent closed before it.
        algorithm: that made the tree.
    """

    words: Sequence[str]
    distances: list[float]
    algorithm: str

    @cached_property
    def spans(self) -> set[Span]:
        """Spans of width ≥ 2."""
        return distances_to_spans(self.distances, self.algorithm) if self.words else set()

    @property
    def brackets(self) -> str:
        """`(X (X the cat) sleeps)`; nothing for no word."""
        return brackets(self.spans, self.words) if self.words else ""

    @property
    def tree(self) -> Tree:
        """As `nltk.Tree`, which draws itself with svgling in a notebook."""
        return spans_to_tree(self.spans, self.words)

    def record(self) -> dict[str, Any]:
        """As `parse --json` prints it."""
        return {"words": self.words, "tree": self.brackets, "distances": self.distances}


def parse_sentences(
    model: LanguageModel,
    vocabulary: Vocabulary,
    sentences: Iterable[Sequence[str]],
    *,
    layer: Layer | None = None,
    gate: str = "master_forget",
    algorithm: str = "unbiased",
    mapping: str = "number",
) -> Iterator[Parse]:
    """Parse sentences, in order, in constant memory for any number of them.

    Args:
        sentences: words of each, at least one.
        layer: from 1, or "mean"; None for the second, or the only one.
        gate, algorithm, mapping: as in `read_sentences`, `distances_to_spans` and `Vocabulary.encode_foreign`.

    Raises: ArgumentError: as those.
    """
    vocabulary.require_words("parse")
    chosen = default_layer(model) if layer is None else layer
    one_of("distances_to_spans.algorithm", algorithm, ALGORITHMS)
    one_of("mapping", mapping, MAPPINGS)
    words, again = tee(sentences)
    ids = (vocabulary.encode_foreign(sentence, mapping) for sentence in again)
    readings = read_sentences(model, ids, vocabulary.ids[EOS], [chosen], gate=gate)
    return (
        Parse(list(one), reading.distances[chosen], algorithm) for one, reading in zip(words, readings, strict=True)
    )
