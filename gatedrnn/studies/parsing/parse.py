"""Trees of plain sentences: words in, distances and a tree out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import Any

from gatedrnn.core.checks import one_of
from gatedrnn.data import EOS, MAPPINGS, Vocabulary
from gatedrnn.models import LanguageModel
from gatedrnn.studies.parsing.distances import Layer, read_sentences
from gatedrnn.trees import ALGORITHMS, Bracketed, distances_to_spans


@dataclass(frozen=True)
class Parse(Bracketed):
    """One sentence's induced tree.

    Args:
        words, spans: as in `Bracketed`.
        distances: of each word; high where a large constituent closed before it.
    """

    distances: list[float]

    def record(self) -> dict[str, Any]:
        """As `parse --json` prints it."""
        return {"words": self.words, "tree": self.brackets, "distances": self.distances}


def parse_sentences(
    model: LanguageModel,
    vocabulary: Vocabulary,
    sentences: Iterable[Sequence[str]],
    *,
    layer: Layer | None = None,
    gate: str | None = None,
    algorithm: str = "unbiased",
    mapping: str = "number",
) -> Iterator[Parse]:
    """Parse sentences, in order, in constant memory for any number of them.

    Args:
        sentences: words of each, at least one.
        layer: from 1, or "mean"; None for the model's own (`tree_layer`).
        gate: None for the model's own (`tree_gate`).
        gate, algorithm, mapping: as in `read_sentences`, `distances_to_spans` and `Vocabulary.encode_foreign`.

    Raises: ArgumentError: as those.
    """
    vocabulary.require_words("parse")
    chosen = model.config.layer_of_trees if layer is None else layer
    one_of("distances_to_spans.algorithm", algorithm, ALGORITHMS)
    one_of("mapping", mapping, MAPPINGS)
    words, again = tee(sentences)
    ids = (vocabulary.encode_foreign(sentence, mapping) for sentence in again)
    readings = read_sentences(model, ids, vocabulary.ids[EOS], [chosen], gate=gate or model.config.tree_gate)
    each = ((list(one), reading.distances[chosen]) for one, reading in zip(words, readings, strict=True))
    return (Parse(one, distances_to_spans(distances, algorithm), distances) for one, distances in each)
