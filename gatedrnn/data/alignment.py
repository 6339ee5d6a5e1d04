"""Which tokens of a line belong to which of its words: what stands between white space, or given words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gatedrnn.data.penn import penn_words_of_pieces
from gatedrnn.data.prompt import prompt_ids
from gatedrnn.data.subwords import Subwords
from gatedrnn.data.vocabulary import Vocabulary


@dataclass(frozen=True)
class Aligned:
    """A line as words and as tokens.

    Args:
        words: as written.
        ids: of the tokens.
        owners: the word of each token, from 0, rising.
    """

    words: list[str]
    ids: list[int]
    owners: list[int]


def align(vocabulary: Vocabulary, line: str, mapping: str = "exact") -> Aligned:
    """Words and tokens of a line.

    A token belongs to the word that holds its last visible character. A token of white space belongs to the next word, or to the
    last word at the end of the line. Subwords that begin with a space and subwords that do not therefore sum to the same words.

    A line of only white space has tokens but no word.

    Args: mapping: how words are looked up, as in `Vocabulary.encode_foreign`; not used at other levels.
    Raises: ArgumentError: unknown mapping.
    """
    if vocabulary.level == "word":
        words = vocabulary.tokens(line)
        return Aligned(words, vocabulary.encode_foreign(words, mapping), list(range(len(words))))
    spans = [match.span() for match in re.finditer(r"\S+", line)]
    ids, offsets = _tokens(vocabulary, line)
    return Aligned([line[a:b] for a, b in spans], ids, _owners(line, spans, offsets))


def spaced_words(vocabulary: Vocabulary, line: str) -> tuple[list[str], list[bool]]:
    """The words of a line, as `align` has them, and whether white space, or nothing more, follows each."""
    words = align(vocabulary, line).words
    if vocabulary.tokenize == "penn":
        pieces = penn_words_of_pieces(line)[1]
        return words, [piece != after for piece, after in zip(pieces, [*pieces, None][1:], strict=True)]
    if vocabulary.tokenize != "characters":
        return words, [True] * len(words)
    between, end = [], 0
    for word in words:
        start = line.index(word, end)
        between.append(line[end:start])
        end = start + len(word)
    return words, [any(map(str.isspace, gap)) for gap in between[1:]] + [True] * bool(words)


def align_words(
    vocabulary: Vocabulary, words: Sequence[str], spaces: Sequence[bool], mapping: str = "exact"
) -> Aligned:
    """Given words, such as those of a treebank, and their tokens.

    A vocabulary of whole words looks each word up; one of white space alone has no token. Characters and subwords are those of
    the text that words and spaces make; a token that two words share belongs to the one with its last visible character, so that
    the other may have none.

    Args: spaces: whether a space follows each word; mapping: as in `align`.
    Raises: ArgumentError: unknown mapping.
    """
    if not vocabulary.cuts_words:
        owners = [k for k, word in enumerate(words) if word.strip()]
        return Aligned(list(words), vocabulary.encode_foreign([words[k] for k in owners], mapping), owners)
    line, spans = "", []
    for k, (word, space) in enumerate(zip(words, spaces, strict=True), 1):
        spans.append((len(line), len(line) + len(word)))
        line += word + " " * (space and k < len(words))
    ids, offsets = _tokens(vocabulary, line, mapping)
    return Aligned(list(words), ids, _owners(line, spans, offsets))


def _owners(line: str, spans: list[tuple[int, int]], offsets: list[tuple[int, int]]) -> list[int]:
    """The word of each token."""
    owners, word = [], 0
    for start, end in offsets:
        visible = max((k for k in range(start, end) if not line[k].isspace()), default=max(start, end - 1))
        while word + 1 < len(spans) and spans[word][1] <= visible:
            word += 1
        owners.append(word)
    return owners


def _tokens(vocabulary: Vocabulary, line: str, mapping: str = "exact") -> tuple[list[int], list[tuple[int, int]]]:
    """Ids of a line's tokens, and where in the line each begins and ends."""
    if isinstance(vocabulary.splitter, Subwords):
        return vocabulary.splitter.encode_with_offsets(line)
    tokens, spans, end = vocabulary.tokens(line), [], 0
    for token in tokens:
        start = line.index(token, end)
        end = start + len(token)
        spans.append((start, end))
    return prompt_ids(vocabulary, tokens, mapping), spans
