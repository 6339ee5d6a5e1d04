"""A verb-final language with case marks, made of the built-in grammar's English: parallel text that needs no download.

Each tree of English is turned around: verbs come last, prepositions become postpositions, relative clauses stand before their
noun, subjects are marked by `ga`, objects by `o`, clauses that a verb takes by `to`. Each word has one other word.
"""

from pathlib import Path

from gatedrnn.core.files import write_text
from gatedrnn.data.grammar import LEXICON, new_trees
from gatedrnn.trees.tree import Tree

SOURCE, TARGET = "vf", "en"
"""Codes of the two languages, the endings of their files."""

_DROPPED = ("who", "whom", "that")
_CONSONANTS, _VOWELS = "kstnhmr", "aiueo"


def _words() -> dict[str, str]:
    """English word → its other word: two syllables by its number, so that no two are alike."""
    english = sorted({word for _, words in LEXICON.values() for word in words.split()} - set(_DROPPED))
    syllables = [c + v for c in _CONSONANTS for v in _VOWELS]
    return {word: syllables[k % 35] + syllables[(k // 35 + 7 * k) % 35] for k, word in enumerate(english)}


WORDS = _words()


def verb_final(tree: Tree, case: str = "") -> list[str]:
    """The words of an English tree of the grammar in the other language; `case` marks it as a whole, if it is an NP."""
    kids = list(tree)
    if isinstance(kids[0], str):
        return [] if kids[0] in _DROPPED else [WORDS[kids[0]], *_mark(tree, case)]
    labels = [kid.label() for kid in kids]
    if tree.label() == "S" and "CC" not in labels:
        return [word for kid in kids for word in verb_final(kid, "ga" if kid.label() == "NP" else "")]
    if tree.label() == "VP" and "CC" not in labels:  # what follows the verb comes before it
        return [
            word for kid in reversed(kids) for word in verb_final(kid, {"NP": "o", "SBAR": "to"}.get(kid.label(), ""))
        ]
    if tree.label() == "PP" or labels in (["NP", "PP"], ["NP", "SBAR"]):
        kids = kids[::-1]
    return [*(word for kid in kids for word in verb_final(kid)), *_mark(tree, case)]


def _mark(tree: Tree, case: str) -> list[str]:
    return [case] if case and tree.label() in ("NP", "NNP", "SBAR") else []


def write_parallel(folder: Path, seed: int, train: int = 20_000, valid: int = 1_000, test: int = 1_000) -> None:
    """Write train, valid and test of both languages.

    Args: train, valid, test: pairs; a held-out one never occurs in the training text.
    """
    seen: set[str] = set()
    for part, count in (("train", train), ("valid", valid), ("test", test)):
        pairs = [(" ".join(verb_final(tree)), line) for line, tree in new_trees(count, seed, part, seen)]
        seen.update(english for _, english in pairs)
        for side, code in enumerate((SOURCE, TARGET)):
            write_text(folder / f"{part}.{code}", "\n".join(pair[side] for pair in pairs) + "\n")
