"""Levels of tokens that need no library: words and characters; subwords are in `subwords.py`, sentences in `penn.py`.

In bulk a text is a list of lines, and each line is followed by `<eos>`. There is no Python per character, and per word only
a look-up.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Protocol, final

import numpy as np

from gatedrnn.data.characters import character_words, character_words_of_lines
from gatedrnn.data.penn import penn_text, penn_words

UNK = "<unk>"
EOS = "<eos>"

LineEncoder = Callable[[list[str]], np.ndarray]
"""Lines → their ids, each line followed by `<eos>`, int32 [tokens]."""

_CODE_POINTS = 0x110000


class Level(Protocol):
    """One way to cut lines into tokens."""

    name: str

    def tokens(self, line: str) -> list[str]:
        """Tokens of a line."""
        ...

    def join(self, tokens: Sequence[str]) -> str:
        """The line that these tokens make."""
        ...

    def encoder(self, ids: Mapping[str, int]) -> LineEncoder:
        """What encodes lines in bulk, unknown tokens as 0."""
        ...


@final
class Words:
    """Words of a line.

    Args: tokenize: "none" for what stands between white space, "penn" for sentences as people write them (`penn_words`),
        "characters" for every visible character (`character_words`).
    """

    name = "word"

    def __init__(self, tokenize: str = "none") -> None:
        self.tokenize = tokenize

    def tokens(self, line: str) -> list[str]:
        """Words of a line."""
        return _CUT[self.tokenize](line)

    def join(self, tokens: Sequence[str]) -> str:
        """Words with a space between them; with "penn", as people write them; with "characters", side by side."""
        return _JOIN[self.tokenize](tokens)

    def encoder(self, ids: Mapping[str, int]) -> LineEncoder:
        """Encodes lines in bulk; a word costs one look-up."""

        def encode(lines: list[str]) -> np.ndarray:
            words = self._words(lines)
            return np.fromiter(map(ids.get, words, repeat(0)), np.int32, len(words))

        return encode

    def count(self, batches: Iterable[list[str]]) -> Counter[str]:
        """How often each word occurs, `<eos>` once a line."""
        counts: Counter[str] = Counter()
        for lines in batches:
            counts.update(self._words(lines))
        return counts

    def _words(self, lines: list[str]) -> list[str]:
        """Words of all lines, `<eos>` after each line."""
        if self.tokenize == "penn":
            return [word for line in lines for word in (*penn_words(line), EOS)]
        if self.tokenize == "characters":
            return character_words_of_lines(lines, EOS)
        return f" {EOS} ".join([*lines, ""]).split()


_CUT: dict[str, Callable[[str], list[str]]] = {
    "none": str.split, "penn": penn_words, "characters": character_words,
}  # fmt: skip
_JOIN: dict[str, Callable[[Sequence[str]], str]] = {"none": " ".join, "penn": penn_text, "characters": "".join}


@final
class Characters:
    """Every character is a token, the space too."""

    name = "char"

    def tokens(self, line: str) -> list[str]:
        """Characters of a line."""
        return list(line)

    def join(self, tokens: Sequence[str]) -> str:
        """Characters side by side."""
        return "".join(tokens)

    def encoder(self, ids: Mapping[str, int]) -> LineEncoder:
        """Encodes lines in bulk, through a table over Unicode."""
        table = np.zeros(_CODE_POINTS, np.int32)
        for token, i in ids.items():
            if len(token) == 1:
                table[ord(token)] = i
        table[ord("\n")] = ids[EOS]
        return lambda lines: table[_code_points(lines)]

    def count(self, batches: Iterable[list[str]]) -> Counter[str]:
        """How often each character occurs, `<eos>` once a line."""
        counts = np.zeros(_CODE_POINTS, np.int64)
        for lines in batches:
            found = np.bincount(_code_points(lines))
            counts[: len(found)] += found
        return Counter({EOS if code == ord("\n") else chr(code): int(counts[code]) for code in np.flatnonzero(counts)})


def _code_points(lines: list[str]) -> np.ndarray:
    return np.frombuffer("\n".join([*lines, ""]).encode("utf-32-le"), np.uint32)
