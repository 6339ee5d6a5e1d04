"""Test suites of SyntaxGym: surprisals of regions, and the share of items of which a prediction holds."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import DataError
from gatedrnn.data import EOS, UNK, Item, Suite, Vocabulary, align_words
from gatedrnn.models import LanguageModel, surprisals
from gatedrnn.studies.syntax.evaluation import UNKNOWN, words_of_pieces
from gatedrnn.studies.syntax.formula import EVERY, Formula, Region

_METRICS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "mean": statistics.fmean,
    "median": statistics.median,
    "range": lambda values: max(values) - min(values),
    "max": max,
    "min": min,
}
UNKNOWN_WORD, NO_WORD = "unknown word", "region without a word"
"""Why an item is skipped."""


@dataclass(frozen=True)
class RegionsRead:
    """One sentence as the model saw it.

    Args: bits: surprisals of the tokens of each region, those of the last one with the end's; unknown: whether a token is.
    """

    bits: Sequence[Sequence[float]]
    unknown: bool


Score = Callable[[Iterable[Sequence[str]]], Iterator[RegionsRead]]
"""Sentences as the texts of their regions → what the model says of each, in order."""


@dataclass(frozen=True)
class Judgement:
    """Of one prediction, or of all of a suite together.

    Args:
        accuracy: share of `items` of which it holds; None without items.
        items: judged.
        skipped: items that were not judged, counted by reason.
    """

    accuracy: float | None
    items: int
    skipped: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """{accuracy, items, skipped, reasons}."""
        return {
            "accuracy": self.accuracy,
            "items": self.items,
            "skipped": sum(self.skipped.values()),
            "reasons": self.skipped,
        }


@dataclass(frozen=True)
class SuiteResult:
    """A suite judged.

    Args:
        name: the suite's.
        whole: of every item, whether all predictions hold.
        predictions: each formula and how it was judged.
        regions: of each item and condition, what the metric makes of each region's surprisals, by its number; None where it has
            no word and the metric needs one.
    """

    name: str
    whole: Judgement
    predictions: list[tuple[str, Judgement]]
    regions: dict[tuple[int, str], dict[int, float | None]] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """{accuracy, items, skipped, reasons, predictions: [{formula, accuracy, items, skipped, reasons}]}."""
        each = [{"formula": formula} | judged.as_dict() for formula, judged in self.predictions]
        return self.whole.as_dict() | {"predictions": each}


def evaluate_suite(suite: Suite, score: Score, *, unknown: str = "skip") -> SuiteResult:
    """Judge a suite.

    Equations: Hu, Gauthier, Qian, Wilcox & Levy 2020; accuracy of a suite: the share of items of which every prediction holds.
    Departs: a region without a word has the sum 0, and no other metric.
    Args:
        score: what a model says of sentences, as `read_regions` gives it.
        unknown: "skip" items with an unknown word in a condition that the formula names, or judge them with "unk" in its place.

    Raises: ArgumentError: unknown choice. DataError: a formula that cannot be read, or that names a condition or a region that an
        item does not have.
    """
    one_of("eval-syntax.unknown", unknown, UNKNOWN)
    formulae = [Formula(text, f"{suite.path} predictions[{k}]") for k, text in enumerate(suite.predictions)]
    for formula in formulae:
        for item in suite.items:
            _check(suite, formula, item)
    reads = score([list(regions.values()) for item in suite.items for regions in item.conditions.values()])
    verdicts: list[list[bool | str]] = []
    found: dict[tuple[int, str], dict[int, float | None]] = {}
    for item in suite.items:
        read = {name: next(reads) for name in item.conditions}
        values = {name: _values(suite.metric, item.conditions[name], one) for name, one in read.items()}
        found |= {(item.number, name): by_region for name, by_region in values.items()}
        foreign = {name for name, one in read.items() if one.unknown and unknown == "skip"}
        verdicts.append([_verdict(formula, values, foreign) for formula in formulae])
    predictions = [(f.text, _judged([one[k] for one in verdicts])) for k, f in enumerate(formulae)]
    return SuiteResult(suite.name, _judged([_together(one) for one in verdicts]), predictions, found)


def read_regions(
    model: LanguageModel, vocabulary: Vocabulary, sentences: Iterable[Sequence[str]], *, mapping: str = "number"
) -> Iterator[RegionsRead]:
    """Surprisals in bits of sentences that are given as the texts of their regions, in order, each from a fresh state.

    Regions are joined with spaces and read as one sentence; a token is of the region that holds its last visible character. Words
    are cut and looked up as `sentence_ids` does. The end of the sentence counts to the last region, as in SyntaxGym.

    Raises: ArgumentError: unknown mapping.
    """
    eos, unknown = vocabulary.ids[EOS], vocabulary.ids[UNK]
    tokens = [_tokens(vocabulary, regions, mapping) for regions in sentences]
    different = list(dict.fromkeys(tuple(ids) for ids, _, _ in tokens))
    bits = dict(zip(different, surprisals(model, different, eos), strict=True))
    for ids, owners, size in tokens:
        of_region: list[list[float]] = [[] for _ in range(size)]
        for owner, value in zip([*owners, size - 1], bits[tuple(ids)], strict=True):
            of_region[owner].append(value)
        yield RegionsRead(of_region, unknown in ids)


def _tokens(vocabulary: Vocabulary, regions: Sequence[str], mapping: str) -> tuple[list[int], list[int], int]:
    """Ids of a sentence, the region of each, from 0, and how many regions there are."""
    text = " ".join(" ".join(regions).split())
    ends = list(accumulate(len(region.split()) for region in regions))  # in words between white space
    if not vocabulary.cuts_words:
        words, owners = words_of_pieces(vocabulary, text, mapping)
        ids = vocabulary.encode_foreign(words, mapping)
    else:
        aligned = align_words(vocabulary, text.split(), [True] * len(text.split()), mapping)
        ids, owners = aligned.ids, aligned.owners
    of_region = [next((k for k, end in enumerate(ends) if owner < end), len(regions) - 1) for owner in owners]
    return ids, of_region, len(regions)


def _check(suite: Suite, formula: Formula, item: Item) -> None:
    """Raises: DataError: the formula names what the item does not have."""
    for region, condition in formula.regions:
        place, shown = f"{suite.path} item {item.number}", f"({region};%{condition}%)"
        if condition not in item.conditions:
            got = ", ".join(item.conditions)
            raise DataError(place, f"must have the condition of {shown} in {formula.text!r}", got, "Fix one of them")
        numbers = item.conditions[condition]
        if region != EVERY and region not in numbers:
            got = ", ".join(map(str, numbers))
            raise DataError(place, f"must have the region of {shown} in {formula.text!r}", got, "Fix one of them")


def _values(metric: str, regions: Iterable[int], read: RegionsRead) -> dict[int, float | None]:
    """Surprisal of each region; None where the metric needs a token and there is none."""
    each = zip(regions, read.bits, strict=True)
    return {number: _METRICS[metric](bits) if bits or metric == "sum" else None for number, bits in each}


def _verdict(formula: Formula, values: dict[str, dict[int, float | None]], foreign: set[str]) -> bool | str:
    """Whether a formula holds of an item, or why it is skipped."""
    if any(condition in foreign for _, condition in formula.regions):
        return UNKNOWN_WORD
    found: dict[Region, float] = {}
    for region, condition in formula.regions:
        by_region = values[condition]
        each = list(by_region.values()) if region == EVERY else [by_region[int(region)]]
        known = [value for value in each if value is not None]
        if len(known) < (1 if region == EVERY else len(each)):
            return NO_WORD
        found[region, condition] = sum(known)
    return formula.holds(found.__getitem__)


def _together(verdicts: list[bool | str]) -> bool | str:
    return next((verdict for verdict in verdicts if isinstance(verdict, str)), all(verdicts))


def _judged(verdicts: list[bool | str]) -> Judgement:
    told = [verdict for verdict in verdicts if not isinstance(verdict, str)]
    reasons = Counter(verdict for verdict in verdicts if isinstance(verdict, str))
    return Judgement(sum(told) / len(told) if told else None, len(told), dict(reasons))
