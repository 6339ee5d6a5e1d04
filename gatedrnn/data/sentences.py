"""Sentences of some length, each by itself, in batches of about one length: what a grammar learns from.

Dimensions: N tokens of a text, T words, B batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.data.config import DataConfig
from gatedrnn.data.ragged import ChosenBatches, Ragged, by_length, columns_of

SHORTEST = 2
"""Words of the shortest sentence that has a binary tree of two branches."""


@dataclass(frozen=True)
class GrammarDataConfig(DataConfig):
    """The section `data` of a run that learns a grammar.

    Args:
        folder: with train.txt, valid.txt or dev.txt, and test.txt if there is one (.gz too); none for the built-in grammar.
        level: word.
        min_count: words rarer than this become <unk> [1 if the training text has <unk> of its own, else 2].
        tokenize: none for words between white space, penn for sentences as people write them (`ends.` is `ends` and `.`),
            characters for every character as a word, in scripts without spaces between words.
        mapping: how words of trees are looked up: exact, lower (lower case too) or number (N for numbers too).
        words: which terminals of a tree count: ptb (by tag) or alnum (with a letter or digit).
        longest: sentences of more words are not trained on.
        first_longest: in the first epoch; a word more in each further one, up to `longest`.

    Raises: ArgumentError: a value is out of range, or of no use for a grammar.
    """

    longest: int = 40
    first_longest: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("longest", "first_longest"):
            positive_int(f"data.{name}", getattr(self, name), minimum=SHORTEST)
        for name, only in (("level", "word"), ("empty_lines", "skip")):
            if getattr(self, name) != only:
                got = f"{name}={getattr(self, name)}"
                raise ArgumentError(f"data.{name}", f"must be {only} for a grammar", got, "Leave it out")

    def longest_in(self, epoch: int) -> int:
        """Words of the longest sentence that epoch `epoch` (from 1) trains on."""
        return min(self.longest, self.first_longest + epoch - 1)


@dataclass(frozen=True)
class SentenceBatch:
    """One batch.

    Args:
        tokens_TB: int64 [T, B], PADDING beyond a sentence's length.
        lengths_B: words of each sentence.
    """

    tokens_TB: np.ndarray
    lengths_B: np.ndarray

    @property
    def count(self) -> int:
        """Words."""
        return int(self.lengths_B.sum())

    @property
    def steps(self) -> int:
        """T."""
        return len(self.tokens_TB)

    def part(self, index: int, parts: int) -> "SentenceBatch":
        """Part `index` of the sentences, shared out to `parts` processes."""
        here = columns_of(index, len(self.lengths_B), parts)
        return SentenceBatch(self.tokens_TB[:, here], self.lengths_B[here])


def sentence_batches(sentences: Ragged, batch_size: int, seed: int, epoch: int) -> ChosenBatches[SentenceBatch]:
    """The batches of one epoch, by number: they depend on seed and epoch alone.

    Args: sentences: without their ends; the other arguments: as for `SentenceBatches`.
    """
    chosen = by_length(sentences.lengths_N[:, None], batch_size, np.random.default_rng([seed, epoch]))
    return ChosenBatches(lambda chosen_B: SentenceBatch(*sentences.batch(chosen_B)), chosen)


def of_length(tokens: np.ndarray, eos: int, shortest: int, longest: int) -> Ragged:
    """The sentences of a token array, each with `eos` at its end, that have shortest … longest words; without `eos`."""
    ends = np.flatnonzero(tokens == eos)
    lengths = np.diff(ends, prepend=-1) - 1
    kept = (lengths >= shortest) & (lengths <= longest)
    return Ragged(tokens, lengths[kept], (ends - lengths)[kept])


def by_room(sentences: Ragged, cells: int) -> Iterator[np.ndarray]:
    """Numbers of the sentences of each batch, short ones first, at most `cells` spans of words a batch, or one sentence."""
    batch: list[int] = []
    for k in np.argsort(sentences.lengths_N, kind="stable").tolist():
        if batch and (len(batch) + 1) * int(sentences.lengths_N[k] + 1) ** 2 > cells:
            yield np.array(batch)
            batch = []
        batch.append(k)
    if batch:
        yield np.array(batch)
