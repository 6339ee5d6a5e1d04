"""Which tokens of a line belong to which of its words, where words stand between white space."""

import re
from dataclasses import dataclass
from itertools import pairwise

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

    A token belongs to the word that holds its last visible character; white space alone to the word that follows it, at the
    end of the line to the last one. So subwords that begin with their space, and those that do not, sum to the same words.

    A line of white space alone has tokens, and no word for them.

    Args: mapping: how words are looked up, as in `Vocabulary.encode_foreign`; of no use at other levels.
    Raises: ArgumentError: unknown mapping.
    """
    if vocabulary.level == "word":
        words = vocabulary.tokens(line)
        return Aligned(words, vocabulary.encode_foreign(words, mapping), list(range(len(words))))
    spans = [match.span() for match in re.finditer(r"\S+", line)]
    ids, offsets = _tokens(vocabulary, line)
    owners, word = [], 0
    for start, end in offsets:
        visible = max((k for k in range(start, end) if not line[k].isspace()), default=max(start, end - 1))
        while word + 1 < len(spans) and spans[word][1] <= visible:
            word += 1
        owners.append(word)
    return Aligned([line[a:b] for a, b in spans], ids, owners)


def _tokens(vocabulary: Vocabulary, line: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids of a line's tokens, and where in the line each begins and ends."""
    if isinstance(vocabulary.splitter, Subwords):
        return vocabulary.splitter.encode_with_offsets(line)
    tokens = vocabulary.tokens(line)
    starts = [0]
    for token in tokens:
        starts.append(starts[-1] + len(token))
    return vocabulary.encode(tokens), list(pairwise(starts))
