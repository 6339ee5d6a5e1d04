"""Targeted syntactic evaluation: accuracy by phenomenon over minimal pairs, with every pair that was not judged counted."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import DataError
from gatedrnn.data import EOS, MinimalPair, Vocabulary
from gatedrnn.data.penn import penn_words
from gatedrnn.data.prompt import prompt_ids
from gatedrnn.models import LanguageModel
from gatedrnn.studies.syntax.pairs import log_probabilities, next_word_log_probabilities

UNKNOWN = ("skip", "unk")
METHODS = ("sentence", "prefix")
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Judged:
    """One phenomenon.

    Args:
        accuracy: share of `pairs` whose good sentence is the more probable one (a tie is no win); None without pairs.
        pairs: judged.
        skipped: with an unknown word, or without the prefix that the method needs.
        identical: the same sentence twice once unknown words are `<unk>`; not judged.
    """

    accuracy: float | None
    pairs: int
    skipped: int
    identical: int


@dataclass(frozen=True)
class SyntaxResult:
    """Phenomena in the file's order, and the mean of their accuracies (of those with a pair; None without any)."""

    phenomena: dict[str, Judged]
    macro_accuracy: float | None

    def as_dict(self) -> dict[str, object]:
        """{phenomena: {name: {accuracy, pairs, skipped, identical}}, macro_accuracy}."""
        found = {name: asdict(judged) for name, judged in self.phenomena.items()}
        return {"phenomena": found, "macro_accuracy": self.macro_accuracy}


def evaluate_pairs(
    model: LanguageModel,
    vocabulary: Vocabulary,
    pairs: Iterable[MinimalPair],
    *,
    unknown: str = "skip",
    method: str = "sentence",
    append: str = "",
    mapping: str = "number",
    report: Callable[[str], None] = lambda name: None,
) -> SyntaxResult:
    """Judge minimal pairs.

    Equations: Marvin & Linzen 2018 (whole sentences); Warstadt et al. 2020 (one prefix). Departs: none.
    Args:
        unknown: "skip" pairs with an unknown word, or judge them with "unk" in its place.
        method: "sentence" compares log P of whole sentences and their `<eos>`; "prefix" of the first word that differs.
        append: a word added to the end of each sentence before `<eos>` (Marvin & Linzen add a full stop).
        mapping: how words are looked up, as in `Vocabulary.encode_foreign`.
        report: called with the name of each phenomenon before it is judged.

    Raises: ArgumentError: unknown choice. DataError: no pair.
    """
    one_of("eval-syntax.unknown", unknown, UNKNOWN)
    one_of("eval-syntax.method", method, METHODS)
    by_name: dict[str, list[MinimalPair]] = {}
    for pair in pairs:
        by_name.setdefault(pair.phenomenon, []).append(pair)
    if not by_name:
        raise DataError("pairs", "must hold at least one pair", 0, "Check the file")
    judge = _by_sentence if method == "sentence" else _by_prefix

    @functools.cache
    def encode(text: str) -> list[int]:
        return sentence_ids(vocabulary, text, mapping)

    found = {}
    for name, group in by_name.items():
        report(name)
        found[name] = judge(model, vocabulary.ids[EOS], encode, group, unknown == "skip", append)
        encode.cache_clear()
    accuracies = [judged.accuracy for judged in found.values() if judged.accuracy is not None]
    return SyntaxResult(found, sum(accuracies) / len(accuracies) if accuracies else None)


def sentence_ids(vocabulary: Vocabulary, text: str, mapping: str = "number") -> list[int]:
    """Ids of a sentence of raw text.

    Words are cut as in the Penn Treebank, also with `tokenize: none`, and looked up as `Vocabulary.encode_foreign` does;
    punctuation that the vocabulary lacks is left out. Characters and subwords are the vocabulary's own.
    """
    if vocabulary.cuts_words:
        return prompt_ids(vocabulary, vocabulary.tokens(text), mapping)
    return vocabulary.encode_foreign([word for word in penn_words(text) if counts(vocabulary, word)], mapping)


def counts(vocabulary: Vocabulary, word: str) -> bool:
    """Whether a word is read: not punctuation that the vocabulary lacks."""
    return word in vocabulary.ids or any(c.isalnum() for c in word)


def _by_sentence(
    model: LanguageModel, eos: int, encode: Encode, pairs: list[MinimalPair], skip: bool, append: str
) -> Judged:
    kept = [(encode(f"{pair.good} {append}"), encode(f"{pair.bad} {append}")) for pair in pairs]
    known = [(good, bad) for good, bad in kept if good and bad and not (skip and 0 in (*good, *bad))]
    different = [(good, bad) for good, bad in known if good != bad]
    scores = log_probabilities(model, [one for pair in different for one in pair], eos)
    wins = sum(good > bad for good, bad in zip(scores[::2], scores[1::2], strict=True))
    return _judged(wins, len(different), len(pairs) - len(known), len(known) - len(different))


def _by_prefix(
    model: LanguageModel, eos: int, encode: Encode, pairs: list[MinimalPair], skip: bool, append: str
) -> Judged:
    asked = [pair.prefix for pair in pairs if pair.prefix is not None]
    ids = [[encode(text) for text in parts] for parts in asked]
    known = [found for found in ids if all(found) and not (skip and any(0 in part for part in found))]
    different = [(prefix, [good[0], bad[0]]) for prefix, good, bad in known if good[0] != bad[0]]
    scores = next_word_log_probabilities(model, [p for p, _ in different], [words for _, words in different], eos)
    wins = sum(good > bad for good, bad in scores)
    return _judged(wins, len(different), len(pairs) - len(known), len(known) - len(different))


def _judged(wins: int, pairs: int, skipped: int, identical: int) -> Judged:
    return Judged(wins / pairs if pairs else None, pairs, skipped, identical)
