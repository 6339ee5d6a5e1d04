"""The built-in grammar: a weighted context-free grammar of English-like sentences, the text that needs no download.

Number agrees at a distance: across prepositional phrases, subject and object relative clauses; clauses and phrases
coordinate; some verbs take a clause. A symbol is LABEL.number, number one of sg, pl; in a rule `#` and `@` stand for either,
the same one at each place. Sentences longer than MAX_WORDS are drawn again.
"""

import random
from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.files import write_text
from gatedrnn.core.seeds import stream
from gatedrnn.trees.tree import Tree

MAX_WORDS = 24

RULES = """
S        12  NP.# VP.#
S         4  PP NP.# VP.#
S         2  ADVP NP.# VP.#
S         2  S0 CC S0
S0        1  NP.# VP.#
NP.sg     2  NNP
NP.#      4  DT.# N.#
NP.#      3  DT.# JJ N.#
NP.#      5  NB.# PP
NP.#      2  NB.# SBAR_subject.#
NP.#      3  NB.# SBAR_object
NP.pl     2  NB.# CC NB.@
NB.#      3  DT.# N.#
NB.#      1  DT.# JJ N.#
PP        6  P NB.#
PP        1  P NNP
SBAR_subject.#  1  WHO SV.#
SV.#      1  VP_short.#
SBAR_object     1  WHICH SO
SO        1  NB.# VT_only.#
VT_only.#       1  VT.#
VP.#      7  VI.#
VP.#      6  VT.# NB.#
VP.#      2  VT.# NP.@
VP.#      3  VI.# PP
VP.#      3  VI.# ADV
VP.#      2  VC.# SBAR_that
VP.#      3  VP_short.# CC VP_short.#
VP_short.#      2  VI.#
VP_short.#      3  VT.# NB.@
SBAR_that       1  THAT S0
ADVP      1  ADV
"""

LABELS = {
    "S0": "S", "SV": "S", "SO": "S", "NB": "NP", "SBAR_subject": "SBAR", "SBAR_object": "SBAR", "SBAR_that": "SBAR",
    "VP_short": "VP", "VT_only": "VP",
}  # fmt: skip

LEXICON = {
    "N.sg": ("NN", "author pilot teacher farmer dancer guard lawyer senator doctor painter nurse student"),
    "N.pl": ("NNS", "authors pilots teachers farmers dancers guards lawyers senators doctors painters nurses students"),
    "NNP": ("NNP", "Mary John Anna Peter Ruth Paul"),
    "DT.sg": ("DT", "the the every this each"),
    "DT.pl": ("DT", "the the some many these"),
    "JJ": ("JJ", "old young tall clever happy quiet famous tired"),
    "VI.sg": ("VBZ", "laughs sleeps swims sings waits smiles runs"),
    "VI.pl": ("VBP", "laugh sleep swim sing wait smile run"),
    "VT.sg": ("VBZ", "likes admires helps follows knows sees avoids"),
    "VT.pl": ("VBP", "like admire help follow know see avoid"),
    "VC.sg": ("VBZ", "thinks says believes hopes"),
    "VC.pl": ("VBP", "think say believe hope"),
    "P": ("IN", "near behind beside with beyond opposite"),
    "ADV": ("RB", "often quietly today outside"),
    "WHO": ("WP", "who"),
    "WHICH": ("WDT", "whom"),
    "THAT": ("IN", "that"),
    "CC": ("CC", "and or"),
}
"""Terminal symbol → (part-of-speech tag, its words; a word written twice is twice as likely)."""

NUMBERS = ("sg", "pl")


def _expand() -> dict[str, list[tuple[float, tuple[str, ...]]]]:
    rules: dict[str, list[tuple[float, tuple[str, ...]]]] = {}
    for line in RULES.strip().splitlines():
        left, weight, *right = line.split()
        text = " ".join([left, *right])
        marks = [mark for mark in "#@" if mark in text]
        free = [mark for mark in marks if mark not in left]
        for numbers in product(NUMBERS, repeat=len(marks)):
            symbols = text
            for mark, number in zip(marks, numbers, strict=True):
                symbols = symbols.replace(mark, number)
            head, *rest = symbols.split()
            rules.setdefault(head, []).append((float(weight) / 2 ** len(free), tuple(rest)))
    return rules


GRAMMAR = _expand()


def sample_trees(count: int, seed: int, part: str = "train") -> Iterator[Tree]:
    """Draw `count` gold trees, tagged with Penn Treebank tags, from a separate random stream for each `part`.

    Raises: ArgumentError: count is negative.
    """
    if count < 0:
        raise ArgumentError("sample_trees.count", "must not be negative", count, "Give a whole number from 0 on")
    rng = stream(seed, "grammar", part)
    while count:
        tree = _sample("S", rng, MAX_WORDS)
        if tree is not None:
            count -= 1
            yield tree


def new_trees(count: int, seed: int, part: str, seen: Set[str]) -> Iterator[tuple[str, Tree]]:
    """`count` gold trees of a part, each after its line; but for the part `train`, none whose line is in `seen`."""
    for tree in sample_trees(count * 20, seed, part):
        line = " ".join(tree.leaves())
        if part == "train" or line not in seen:
            yield line, tree
            count -= 1
        if not count:
            return


def _sample(symbol: str, rng: random.Random, room: int) -> Tree | None:
    """A tree of `symbol` with at most `room` words, or None if it grew beyond."""
    if symbol in LEXICON:
        tag, words = LEXICON[symbol]
        return Tree(tag, [rng.choice(words.split())])
    rules = GRAMMAR[symbol]
    (right,) = rng.choices([r for _, r in rules], [w for w, _ in rules])
    children: list[Tree] = []
    for part in right:
        child = _sample(part, rng, room) if room > 0 else None
        if child is None:
            return None
        room -= len(child.leaves())
        children.append(child)
    if room < 0:
        return None
    name = symbol.split(".")[0]
    return Tree(LABELS.get(name, name), children)


@dataclass(frozen=True)
class Pair:
    """Two sentences that differ in the number of one verb: `good` agrees with its subject, `bad` does not."""

    construction: str
    good: tuple[str, ...]
    bad: tuple[str, ...]


CONSTRUCTIONS = {
    "simple": "NB.# VI.#!",
    "in_sentential_complement": "NB.@ VC.@ THAT NB.# VI.#!",
    "across_prepositional_phrase": "NB.# P NB.~ VI.#!",
    "across_subject_relative_clause": "NB.# WHO VT.# NB.~ VI.#!",
    "across_object_relative_clause": "NB.# WHICH NB.~ VT.~ VI.#!",
    "in_object_relative_clause": "NB.~ WHICH NB.# VT.#! VI.~",
    "in_verb_phrase_coordination": "NB.# VI.# CC VI.#!",
}
"""Patterns of agreement pairs: `#` the subject's number, `~` the other number (the attractor), `@` any, `!` the verb tested."""

DEEPER = {
    "across_two_prepositional_phrases": "NB.# P NB.~ P NB.~ VI.#!",
    "across_prepositional_phrase_and_object_relative_clause": "NB.# P NB.~ WHICH NB.~ VT.~ VI.#!",
    "across_subject_and_object_relative_clause": "NB.# WHO VT.# NB.~ WHICH NB.~ VT.~ VI.#!",
    "across_two_object_relative_clauses": "NB.# WHICH NB.~ WHICH NB.~ VT.~ VT.~ VI.#!",
    "in_object_relative_clause_around_another": "NB.~ WHICH NB.# WHICH NB.~ VT.~ VT.#! VI.~",
    "in_object_relative_clause_across_prepositional_phrase": "NB.~ WHICH NB.# P NB.~ VT.#! VI.~",
}
"""The same for sentences that nest one level deeper than the grammar ever does: no sentence of its text shows how."""


def agreement_pairs(construction: str, count: int, seed: int) -> list[Pair]:
    """Draw `count` agreement pairs of a construction, half of them with a plural subject.

    Args: construction: a name of `CONSTRUCTIONS` or of `DEEPER`.
    Raises: ArgumentError: unknown construction.
    """
    patterns = CONSTRUCTIONS | DEEPER
    one_of("agreement_pairs.construction", construction, patterns)
    rng = stream(seed, "pairs", construction)
    pairs = []
    for k in range(count):
        number, other = NUMBERS if k % 2 == 0 else NUMBERS[::-1]
        any_number = rng.choice(NUMBERS)
        good: list[str] = []
        bad: list[str] = []
        for slot in patterns[construction].split():
            symbol = slot.rstrip("!").replace("#", number).replace("~", other).replace("@", any_number)
            words = _phrase(symbol, rng)
            good += words
            bad += [_other_number(symbol, words[0])] if slot.endswith("!") else words
        pairs.append(Pair(construction, tuple(good), tuple(bad)))
    return pairs


def _phrase(symbol: str, rng: random.Random) -> list[str]:
    tree = None
    while tree is None:
        tree = _sample(symbol, rng, MAX_WORDS)
    return tree.leaves()


def _other_number(symbol: str, word: str) -> str:
    name, number = symbol.split(".")
    here = LEXICON[symbol][1].split()
    there = LEXICON[f"{name}.{NUMBERS[number == 'sg']}"][1].split()
    return there[here.index(word)]


def write_corpus(folder: Path | str, seed: int, train: int = 20_000, valid: int = 1_000, test: int = 1_000) -> None:
    """Write train.txt, valid.txt and test.txt of the grammar, and valid.trees and test.trees with their gold trees.

    Args: train, valid, test: sentences. A held-out sentence never occurs in the training text.
    """
    folder, seen = Path(folder), set[str]()
    for part, count in (("train", train), ("valid", valid), ("test", test)):
        lines: list[str] = []
        trees: list[str] = []
        for line, tree in new_trees(count, seed, part, seen):
            lines.append(line)
            trees.append(tree.pformat(margin=10**9))
        seen.update(lines)
        write_text(folder / f"{part}.txt", "\n".join(lines) + "\n")
        if part != "train":
            write_text(folder / f"{part}.trees", "\n".join(trees) + "\n")
