"""Trees of a treebank's sentences by every layer of a run: the voters of a consensus, and a layer chosen among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gatedrnn.core.errors import DataError
from gatedrnn.data import EOS, Vocabulary
from gatedrnn.models import LanguageModel
from gatedrnn.studies.parsing.distances import MEAN, Layer, Reading, read_sentences
from gatedrnn.studies.parsing.votes import PRIOR, agreed, voter_weights
from gatedrnn.trees import ALGORITHMS, Gold, Span, agreement, distances_to_spans, score
from gatedrnn.trees.baselines import right

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


@dataclass(frozen=True)
class Ballot:
    """Trees of the same gold sentences by several voters, which vote for each sentence's tree.

    Args:
        voters: trees of each, at least one.
        families: of each voter.
        gold: the sentences; of their trees only the words are looked at.
        told: weights of families, as in `voter_weights`; that of `PRIOR` adds a right-branching tree.

    Raises: ArgumentError: as `voter_weights`.
    """

    voters: Sequence[Trees]
    families: Sequence[str]
    gold: Sequence[Gold]
    told: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        voter_weights(self._all_families, self.told)

    @property
    def weights(self) -> list[float] | None:
        """Of each voter; None for 1 each."""
        found = voter_weights(self._all_families, self.told)
        return found and found[: len(self.voters)]

    @property
    def by_family(self) -> dict[str, float]:
        """The weight of each family; nothing for one family."""
        each = dict.fromkeys(self._all_families, 1.0)
        return {**each, **self.told} if len(each) > 1 else {}

    def trees(self, algorithm: str) -> list[set[Span]]:
        """The consensus; the only voter's trees, and the first voter's where a sentence is too long for a consensus."""
        weights = voter_weights(self._all_families, self.told)
        each = [voter[algorithm] for voter in self.voters]
        if PRIOR in self.told:
            each.append([right(len(tree)) for tree in self.gold])
        if len(each) == 1:
            return each[0]
        votes = zip(self.gold, zip(*each, strict=True), strict=True)
        return [agreed(trees, len(of), weights) for of, trees in votes]

    def without(self, k: int) -> "Ballot":
        """The vote of the others; a family that has no voter left has no weight."""
        others = [j for j in range(len(self.voters)) if j != k]
        families = [self.families[j] for j in others]
        told = {family: weight for family, weight in self.told.items() if family in (*families, PRIOR)}
        return Ballot([self.voters[j] for j in others], families, self.gold, told)

    @property
    def _all_families(self) -> list[str]:
        return [*self.families, *([PRIOR] if PRIOR in self.told else [])]


def agreements(voters: Sequence[Sequence[set[Span]]], gold: Sequence[Gold]) -> list[list[float | None]]:
    """F1 of every voter's trees against every voter's, None where no sentence has two words; nothing for one voter."""
    lengths = [len(tree) for tree in gold]
    if len(voters) < 2:
        return []
    if max(lengths, default=0) < 2:
        return [[None] * len(voters) for _ in voters]
    return [[agreement(one, other, lengths) for other in voters] for one in voters]


def layers_by_gold(
    model: LanguageModel, vocabulary: Vocabulary, dev: Sequence[Gold], algorithm: str, *, gate: str, mapping: str
) -> dict[Layer, float]:
    """F1 (protocol B, percent) on dev trees by layer, `MEAN` too, best first: what a choice of a layer by gold trees looks at.

    Args: algorithm, gate, mapping: as in `distances_to_spans` and `read_gold`.
    Raises: DataError: no sentence has a word, or none has two.
    """
    layers: list[Layer] = [*range(1, len(model.layers) + 1), *([MEAN] if len(model.layers) > 1 else [])]
    readings = read_gold(model, vocabulary, dev, layers, gate=gate, mapping=mapping)
    found: dict[Layer, float] = {}
    for layer in layers:
        value = score(induced_trees(readings, layer)[algorithm], dev).B
        if value is None:
            advice = "Give longer sentences, or choose another word rule"
            raise DataError("--dev", "must have a sentence of two words that count", "none", advice)
        found[layer] = value
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))
