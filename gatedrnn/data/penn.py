"""Sentences as people write them ↔ words as in the Penn Treebank, by rules of our own that no version of a library changes.

White space cuts a line into pieces, and each piece is cut by itself, so that a piece that was seen before costs one look-up.
Two rules look at the whole line: the full stop at its end, and the direction of a quotation mark that stands alone.
"""

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import final

from gatedrnn.trees.spans import BRACKETS

_EOS = "<eos>"
_OPEN, _CLOSE, _OPEN_SINGLE = "``", "''", "`"
_EITHER = '"'  # a double quotation mark whose direction the line decides

_DOUBLE = '"“”„‟«»'
_SINGLE = str.maketrans(dict.fromkeys("‘’‚‛", "'"))
_CLOSERS = frozenset([_CLOSE, "'", ")", "]", "}", ">"])
"""What may follow the full stop of a sentence."""

_NO_SPACE_BEFORE = frozenset([".", ",", ";", ":", "?", "!", ")", "]", "}", _CLOSE, "'", "..."])
_NO_SPACE_AFTER = frozenset(["(", "[", "{", "$", "#", _OPEN, _OPEN_SINGLE])
_SHOWN = {_OPEN: '"', _CLOSE: '"', _OPEN_SINGLE: "'"}

_SCAN = re.compile(
    r"</?[A-Za-z][\w-]*>"  # marks such as <unk>
    r"|-[LR][RSC]B-"
    r"|''|``|`"
    rf"|[{_DOUBLE}]"
    r"|[A-Za-z]{1,3}\$"  # US$
    r"|[()\[\]{}<>;?!@#$%&]"
    r"|\*+|\.{2,}|-{2,}|[‒–—―…]"
    r"|[:,](?!\d)"
    rf"|(?:[A-Za-z]++|(?<=\w)&(?=\w)|(?!</?[A-Za-z][\w-]*>|-[LR][RSC]B-|''|\.\.|--|[:,](?!\d))[^`{_DOUBLE}()\[\]{{}}<>;?!@#$%&*‒–—―…])++"
)
_SPLIT_WORDS = re.compile(r"(can)(not)|(gim|lem)(me)|(gon|wan)(na)|(got)(ta)|(more)('n)|(d)('ye)|('t)(is|was)", re.I)
_CONTRACTION = re.compile(r"(.*[^'])('s|'m|'d|'ll|'re|'ve|n't|')", re.I | re.S)
_OPENING_APOSTROPHE = re.compile(r"'(?!(?:re|ve|ll|m|t|s|d|n|em|ye|tis|twas)\b|\d\ds?\b)(?=\w)", re.I)
_BEFORE_OPENING = frozenset("([{<-‒–—―='`/\"“„«")
_AFTER_CLOSING = frozenset(".,;:?!)]}>'")

_REMEMBERED, _LONGEST = 1 << 19, 64  # pieces, and the letters of one
_ROUNDS = 8


@final
class _Pieces(dict[str, tuple[str, ...]]):
    """Pieces and the words in them, found when they are asked for."""

    def __missing__(self, piece: str) -> tuple[str, ...]:
        found = tuple(_cut(piece))
        if len(piece) <= _LONGEST:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[piece] = found
        return found


_known = _Pieces()


def penn_words(line: str) -> list[str]:
    """Words of a line, which should be one sentence: a full stop is a word of its own at the line's end only.

    What is cut already stays as it is: `penn_words(" ".join(penn_words(line)))` gives the same words. A mark in angle brackets,
    such as `<unk>`, is one word.
    """
    return list(chain.from_iterable(_grouped(line.split())))


def penn_words_of_pieces(line: str) -> tuple[list[str], list[int]]:
    """As `penn_words`, and for each word the number from 0 of the piece between white space that it is of."""
    groups = _grouped(line.split())
    return list(chain.from_iterable(groups)), [k for k, group in enumerate(groups) for _ in group]


def penn_forms(words: Sequence[str]) -> list[str]:
    """Words of a treebank as `penn_words` writes them, one for one: brackets, quotation marks and apostrophes."""
    plain = [BRACKETS.get(word, word.translate(_SINGLE)) for word in words]
    groups = [(_alone(word),) if len(word) == 1 and word in _DOUBLE else (word,) for word in plain]
    return [word for (word,) in _directed(groups)]


def penn_text(words: Sequence[str]) -> str:
    """The line that these words make: what reads as they do, but for full stops inside it, which join the word before them.

    Cut and joined again, it does not change.
    """
    text = _joined(words)
    for _ in range(_ROUNDS):
        text, before = _joined(penn_words(text)), text
        if text == before:
            break
    return text


def _grouped(pieces: list[str]) -> list[tuple[str, ...]]:
    """The words of each piece of a line."""
    groups = list(map(_known.__getitem__, pieces))
    marked = any(_EOS in piece for piece in pieces)
    if any(_EITHER in group for group in groups):
        groups = _directed(groups)
    ends = [(k, i) for k, group in enumerate(groups) for i, word in enumerate(group) if word == _EOS] if marked else []
    for k, i in [(len(groups), 0), *reversed(ends)]:
        _end_sentence(groups, k, i)
    return groups


def _end_sentence(groups: list[tuple[str, ...]], k: int, i: int) -> None:
    """Make the full stop of the sentence that ends before word `i` of group `k` a word."""
    while i or k:
        if not i:
            k, i = k - 1, len(groups[k - 1])
        i -= 1
        group, word = groups[k], groups[k][i]
        if word not in _CLOSERS:
            if len(word) > 1 and word[-1] == "." and word[-2] != ".":
                groups[k] = (*group[:i], *_known[word[:-1]], ".", *group[i + 1 :])
            return


def _directed(groups: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """With a direction for every quotation mark: closing where one is open."""
    found, open_ = [], False
    for group in groups:
        words = []
        for word in group:
            made = (_CLOSE if open_ else _OPEN) if word == _EITHER else word
            open_ = made == _OPEN or (open_ and made != _CLOSE)
            words.append(made)
        found.append(tuple(words))
    return found


def _cut(piece: str) -> Iterator[str]:
    """Words of what stands between white space; `_EITHER` for a quotation mark without a direction."""
    piece = piece.translate(_SINGLE)
    for match in _SCAN.finditer(piece):
        token, (start, end) = match[0], match.span()
        if len(token) == 1 and token in _DOUBLE:
            yield _quotation(token, piece[max(0, start - 1) : start], piece[end : end + 1])
        elif token in BRACKETS:
            yield BRACKETS[token]
        elif token[0] == "<":
            yield token
        else:
            yield from _cut_word(token)


def _quotation(mark: str, before: str, after: str) -> str:
    """The direction of a double quotation mark between two characters, each empty at an end of the piece."""
    if before and before not in _BEFORE_OPENING:
        return _CLOSE
    return _OPEN if after and after not in _AFTER_CLOSING else _alone(mark)


def _alone(mark: str) -> str:
    """The direction of a double quotation mark that stands alone."""
    return _EITHER if mark == '"' else _OPEN if mark in "“„«" else _CLOSE


def _cut_word(word: str) -> Iterator[str]:
    """Words of what holds no other separator: punctuation of other scripts at its ends, apostrophes, contractions."""
    left = [word]
    while left:
        parts = _halved(left.pop())
        if len(parts) == 1:
            yield parts[0]
        else:
            left += reversed(parts)


def _halved(word: str) -> list[str]:
    """A word in two, or as it is."""
    if len(word) == 1 or len(word) > _LONGEST:
        return [word]
    if word[0] in _marks():
        return [word[0], word[1:]]
    if word[-1] in _marks() or word[-1] == "&":
        return [word[:-1], word[-1]]
    if opening := _OPENING_APOSTROPHE.match(word):
        return [_OPEN_SINGLE, word[opening.end() :]]
    split = _SPLIT_WORDS.fullmatch(word) or _CONTRACTION.fullmatch(word)
    return [part for part in split.groups() if part] if split else [word]


@cache
def _marks() -> frozenset[str]:
    """Punctuation and currency beyond ASCII."""
    letters = map(chr, range(128, sys.maxunicode + 1))
    return frozenset(each for each in letters if unicodedata.category(each) in ("Ps", "Pe", "Pi", "Pf", "Po", "Sc"))


def _joined(words: Sequence[str]) -> str:
    parts, before = [], ""
    for word in words:
        if before and not _close(before, word):
            parts.append(" ")
        parts.append(_SHOWN.get(word, word))
        before = word
    return "".join(parts)


def _close(before: str, word: str) -> bool:
    """Whether no space stands between two words: not where they would read as others."""
    if word in _NO_SPACE_BEFORE or (word == "%" and before[-1].isdigit()) or _is_mark(word, "Pe", "Pf", "Po"):
        if word == ".":
            return before[-1] != "." and before not in (_OPEN, _OPEN_SINGLE)
        plain = any(letter.isalnum() for letter in before)
        return _known[before + _SHOWN.get(word, word)] == (before, word) if plain else before[-1:] != word[:1]
    if before in _NO_SPACE_AFTER or _is_mark(before, "Ps", "Pi", "Sc") or before in ("¿", "¡"):
        return _known[_SHOWN.get(before, before) + word] == (before, word)
    second = word.lower() in _SECONDS and before[-1:].isalpha()
    return ("'" in word or second) and _known[before + word] == (before, word)


_SECONDS = frozenset(["not", "me", "na", "ta", "is", "was"])


def _is_mark(word: str, *categories: str) -> bool:
    return len(word) == 1 and word > "\x7f" and word not in "¿¡" and unicodedata.category(word) in categories
