"""Trees of a treebank's sentences by every layer of a run: the voters of a consensus, and a layer chosen among them."""

from collections.abc import Sequence

from gatedrnn.data import EOS, Vocabulary
from gatedrnn.models import LanguageModel
from gatedrnn.studies.parsing.distances import MEAN, Layer, Reading, read_sentences
from gatedrnn.trees import ALGORITHMS, Gold, Span, agreement, consensus, distances_to_spans, score
from gatedrnn.trees.consensus import LONGEST

Trees = dict[str, list[set[Span]]]
"""Spans of every sentence by algorithm; none where the sentence has no word."""


def read_gold(
    model: LanguageModel,
    vocabulary: Vocabulary,
    gold: Sequence[Gold],
    layers: Sequence[Layer],
    *,
    gate: str = "master_forget",
    mapping: str = "number",
    keep_gates: bool = False,
) -> list[Reading]:
    """The model's reading of the kept words of every gold tree; empty for a tree without words. The trees are not used.

    Args and Raises: as `read_sentences`.
    """
    vocabulary.require_words("eval-parsing")
    ids = (vocabulary.encode_foreign(tree.words, mapping) for tree in gold if len(tree))
    readings = read_sentences(model, ids, vocabulary.ids[EOS], layers, gate=gate, keep_gates=keep_gates)
    empty = Reading({layer: [] for layer in layers})
    return [next(readings) if len(tree) else empty for tree in gold]


def induced_trees(readings: Sequence[Reading], layer: Layer) -> Trees:
    """The trees of one layer."""
    each = [reading.distances[layer] for reading in readings]
    return {a: [distances_to_spans(found, a) if found else set() for found in each] for a in ALGORITHMS}


def agreed_trees(voters: Sequence[Trees], gold: Sequence[Gold], weights: Sequence[float] | None = None) -> Trees:
    """The consensus of the voters' trees; the first one's where a sentence is too long for it.

    Args: weights: as in `consensus`.
    """

    def one(algorithm: str, k: int) -> set[Span]:
        trees, n = [voter[algorithm][k] for voter in voters], len(gold[k])
        return consensus(trees, n, weights) if 0 < n <= LONGEST else trees[0]

    return {algorithm: [one(algorithm, k) for k in range(len(gold))] for algorithm in ALGORITHMS}


def family_weights(families: Sequence[str]) -> list[float] | None:
    """What the vote of each voter counts so that every family counts the same; None where there is one family.

    Args: families: of each voter.
    """
    if len(set(families)) < 2:
        return None
    return [1 / families.count(family) for family in families]


def agreements(voters: Sequence[Sequence[set[Span]]], gold: Sequence[Gold]) -> list[list[float]]:
    """F1 of every voter's trees against every voter's; nothing for one voter."""
    lengths = [len(tree) for tree in gold]
    return [[agreement(one, other, lengths) for other in voters] for one in voters] if len(voters) > 1 else []


def layers_by_gold(
    model: LanguageModel, vocabulary: Vocabulary, dev: Sequence[Gold], algorithm: str, *, gate: str, mapping: str
) -> dict[Layer, float]:
    """F1 (protocol B, percent) on dev trees by layer, `MEAN` too, best first: what a choice of a layer by gold trees looks at.

    Args: algorithm, gate, mapping: as in `distances_to_spans` and `read_gold`.
    Raises: DataError: no sentence has a word.
    """
    layers: list[Layer] = [*range(1, len(model.layers) + 1), *([MEAN] if len(model.layers) > 1 else [])]
    readings = read_gold(model, vocabulary, dev, layers, gate=gate, mapping=mapping)
    found = {layer: score(induced_trees(readings, layer)[algorithm], dev).B for layer in layers}
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))
