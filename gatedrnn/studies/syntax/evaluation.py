"""Targeted syntactic evaluation: accuracy by phenomenon over minimal pairs, with every pair that was not judged counted."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from unicodedata import category

from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, MinimalPair, Vocabulary
from gatedrnn.data.penn import penn_words_of_pieces
from gatedrnn.data.prompt import prompt_ids
from gatedrnn.models import LanguageModel
from gatedrnn.studies.syntax.pairs import beginning_log_probabilities, log_probabilities

_SYMBOLS = ("Sc", "Sm", "So")
"""Categories of Unicode whose signs are words: of currencies, of mathematics, and others such as emoji."""

UNKNOWN = ("skip", "unk")
METHODS = ("sentence", "prefix")
Encode = Callable[[str], list[int]]
Continue = Callable[[str, str, str], tuple[list[int], list[int]]]
"""A prefix, a word and the sentence that they are of → the ids of the prefix, and those of the word."""

Ids = tuple[list[int], list[int]]
"""Of what is compared: the good one's and the bad one's."""


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
        return asdict(self)


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
        method: "sentence" compares log P of whole sentences and their `<eos>`; "prefix" of the first word that differs, summed
            over all its tokens.
        append: a text added to the end of each sentence after a space, before `<eos>` (Marvin & Linzen add a full stop).
        mapping: how words are looked up, as in `Vocabulary.encode_foreign`.
        report: called with the name of each phenomenon before it is judged.

    Raises: ArgumentError: unknown choice, or `append` with the method "prefix". DataError: no pair.
    """
    one_of("eval-syntax.unknown", unknown, UNKNOWN)
    one_of("eval-syntax.method", method, METHODS)
    if append and method == "prefix":
        rule, advice = "works only with the method sentence", "Leave append out"
        raise ArgumentError("eval-syntax.append", rule, f"{append!r} with the method prefix", advice)
    by_name: dict[str, list[MinimalPair]] = {}
    for pair in pairs:
        by_name.setdefault(pair.phenomenon, []).append(pair)
    if not by_name:
        raise DataError("pairs", "must hold at least one pair", 0, "Check the file")

    @functools.cache
    def encode(text: str) -> list[int]:
        return sentence_ids(vocabulary, text, mapping)

    def follow(prefix: str, word: str, sentence: str) -> tuple[list[int], list[int]]:
        return continuation_ids(vocabulary, f"{prefix.rstrip()} ", word.strip(), mapping, sentence)

    score = log_probabilities if method == "sentence" else beginning_log_probabilities
    found = {}
    for name, group in by_name.items():
        report(name)
        ids = [_sentences(encode, one, append) if method == "sentence" else _words(follow, one) for one in group]
        found[name] = _judged(ids, unknown == "skip", lambda each: score(model, each, vocabulary.ids[EOS]))
        encode.cache_clear()
    accuracies = [judged.accuracy for judged in found.values() if judged.accuracy is not None]
    return SyntaxResult(found, sum(accuracies) / len(accuracies) if accuracies else None)


def sentence_ids(vocabulary: Vocabulary, text: str, mapping: str = "number") -> list[int]:
    """Ids of a sentence of raw text.

    Words are cut as in the Penn Treebank and looked up as `Vocabulary.encode_foreign` does; punctuation that the vocabulary lacks
    is left out. With `tokenize: none`, what stands between white space and is a word of the vocabulary (in lower case too, with
    a mapping but "exact") is not cut, but for a full stop at the end of a known word. Characters and subwords are the
    vocabulary's own, without white space at the end.
    """
    if vocabulary.cuts_words:
        return prompt_ids(vocabulary, vocabulary.tokens(text.rstrip()), mapping)
    return vocabulary.encode_foreign(words_of_pieces(vocabulary, text, mapping)[0], mapping)


def words_of_pieces(vocabulary: Vocabulary, text: str, mapping: str = "number") -> tuple[list[str], list[int]]:
    """Words of a sentence of raw text, without punctuation that the vocabulary lacks; cut as in `sentence_ids`.

    Returns: the words, and of each the number from 0 of the piece between white space that it is of.
    """

    def known(word: str) -> bool:
        return word in vocabulary.ids or (mapping != "exact" and word.lower() in vocabulary.ids)

    pieces = text.split()
    groups: list[list[str]] = [[] for _ in pieces]
    for word, k in zip(*penn_words_of_pieces(text), strict=True):
        groups[k].append(word)
    if vocabulary.tokenize == "none":
        whole = [known(piece) for piece in pieces]
        if pieces and pieces[-1].endswith(".") and known(pieces[-1][:-1]):  # `wash.` ends a sentence, and is no state
            whole[-1] = False
        groups = [[piece] if one else group for piece, group, one in zip(pieces, groups, whole, strict=True)]
    kept = [(word, k) for k, group in enumerate(groups) for word in group if counts(vocabulary, word)]
    return [word for word, _ in kept], [k for _, k in kept]


def continuation_ids(
    vocabulary: Vocabulary, before: str, text: str, mapping: str = "number", sentence: str = ""
) -> tuple[list[int], list[int]]:
    """Ids of the beginning of a text and of what follows it, cut as they stand together.

    Characters and subwords of `text` are those of the whole beyond those of `before`. Words are cut as `sentence_ids` does, so
    that `Mr.` at the end of `before` keeps its full stop; so does `U.S.` at the end of `text` where the sentence goes on.

    Args:
        before, text: side by side they are the whole; a space between them is one of either.
        sentence: what the whole is read in, if it begins with it.

    Returns: two lists; the second is empty where no token begins after `before`, as where a tokenizer joins both.
    """
    whole = before + text
    if vocabulary.cuts_words:
        ids, together = (sentence_ids(vocabulary, each, mapping) for each in (before.rstrip(), whole))
        return ids, together[len(ids) :] if together[: len(ids)] == ids else []
    rest = sentence[len(whole) :] if sentence.startswith(whole) else ""
    rest = "" if rest[:1].isalnum() else rest
    words, owners = words_of_pieces(vocabulary, f"{before} {text} {rest}", mapping)
    start, end = len(before.split()), len(before.split()) + len(text.split())
    ids = vocabulary.encode_foreign(words[: sum(k < end for k in owners)], mapping)
    first = sum(k < start for k in owners)
    return ids[:first], ids[first:]


def counts(vocabulary: Vocabulary, word: str) -> bool:
    """Whether a word is read: not punctuation that the vocabulary lacks."""
    return word in vocabulary.ids or any(category(c) in _SYMBOLS or c.isalnum() for c in word)


def _sentences(encode: Encode, pair: MinimalPair, append: str) -> Ids | None:
    """Of whole sentences; None where one has no token."""
    good, bad = (encode(f"{text.rstrip()} {append}" if append else text) for text in (pair.good, pair.bad))
    return (good, bad) if good and bad else None


def _words(follow: Continue, pair: MinimalPair) -> Ids | None:
    """Of the prefix and the word after it; None without a prefix that both have, or without a word."""
    if pair.prefix is None:
        return None
    prefix, good, bad = pair.prefix
    (before, one), (other, two) = follow(prefix, good, pair.good), follow(prefix, bad, pair.bad)
    return ([*before, *one], [*other, *two]) if before and before == other and one and two else None


def _judged(pairs: Sequence[Ids | None], skip: bool, score: Callable[[list[list[int]]], list[float]]) -> Judged:
    """What comes of pairs of token sequences, None for one that cannot be judged."""
    known = [pair for pair in pairs if pair is not None and not (skip and 0 in (*pair[0], *pair[1]))]
    different = [pair for pair in known if pair[0] != pair[1]]
    scores = score([ids for pair in different for ids in pair])
    wins = sum(good > bad for good, bad in zip(scores[::2], scores[1::2], strict=True))
    accuracy = wins / len(different) if different else None
    return Judged(accuracy, len(different), len(pairs) - len(known), len(known) - len(different))
