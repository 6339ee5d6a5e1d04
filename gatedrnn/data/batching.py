"""Batches for training: windows of the stream, whose state is carried on, or whole sentences, whose state starts afresh.

The stream is cut into B equal stretches read side by side, so that a carried state always continues. Every token is
predicted exactly once: the first of the stream, or of a sentence, from `<eos>`; what is short is followed by padding.
What an epoch draws depends on the seed and the epoch alone, so that a batch is known by its number.
Dimensions: T steps of a window, B batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import DataError
from gatedrnn.data.ragged import PADDING, Ragged, by_length, columns_of

PAD_TARGET = -100
"""Target of a position that predicts nothing; torch's cross-entropy ignores it."""

_SHORTEST = 5
_HALF_PROBABILITY, _DEVIATION = 0.05, 5.0


@dataclass(frozen=True)
class Window:
    """One batch.

    Args:
        inputs_TB, targets_TB: int64 [T, B]; padded targets are PAD_TARGET.
        count: the other targets' number.
        lengths_B: steps that count in each column, at least 1; None for all.
        heights_TB: a value for each input token (of words of a tree, the height of the split before them), 0 for `<eos>` and
            padding; None for none.
        constituents: number of constituents of three words or more (heights above 1), which a loss is the mean over; in a part
            of a batch, the batch's number over that of parts.
        whole_B: lengths of all columns of the batch that this is a part of, None for `lengths_B`; parts: how many it has.
    """

    inputs_TB: np.ndarray
    targets_TB: np.ndarray
    count: int
    lengths_B: np.ndarray | None = None
    heights_TB: np.ndarray | None = None
    constituents: float = 0.0
    whole_B: np.ndarray | None = None
    parts: int = 1

    @property
    def steps(self) -> int:
        """T."""
        return len(self.inputs_TB)

    def part(self, index: int, parts: int) -> "Window":
        """Part `index` of the columns, shared out to `parts` processes."""
        here = columns_of(index, self.inputs_TB.shape[1], parts)
        targets_TB = self.targets_TB[:, here]
        lengths_B = None if self.lengths_B is None else self.lengths_B[here]
        heights_TB = None if self.heights_TB is None else self.heights_TB[:, here]
        count = int((targets_TB != PAD_TARGET).sum())
        constituents = self.constituents / parts
        inputs_TB, whole_B = self.inputs_TB[:, here], self.lengths_B
        return Window(inputs_TB, targets_TB, count, lengths_B, heights_TB, constituents, whole_B, parts)


class StreamBatches:
    """Windows of `lengths` steps, one after the other (the last may be cut), over B stretches of a stream.

    Args:
        tokens: ids [N], a memory map will do: only a window's own tokens are read.
        batch_size: B, stretches side by side.
        lengths: T of each window, as `window_lengths` gives them.
        first_input: the id that precedes the stream, `<eos>`.
        rotation: seed and epoch, to rotate each stretch by a random number of its tokens (Press 2019, Partially shuffling the
            training data to improve language models); None for the text's own order.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        batch_size: int,
        lengths: Sequence[int],
        first_input: int,
        rotation: tuple[int, int] | None = None,
    ) -> None:
        self._tokens, self._size, self._first = tokens, batch_size, first_input
        self._stretch = -(-len(tokens) // batch_size)
        self._shifts = self._rotations(rotation)
        self._ends = np.minimum(np.cumsum(lengths), self._stretch)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Window:
        begin, end = int(self._ends[index - 1]) if index else 0, int(self._ends[index])
        inputs = np.full((end - begin, self._size), self._first, np.int64)
        targets = np.full((end - begin, self._size), PAD_TARGET, np.int64)
        for b in range(self._size):
            start = b * self._stretch
            stop = min(start + self._stretch, len(self._tokens))
            size = stop - start
            for at, low, high in self._pieces(begin, min(end, size), size, int(self._shifts[b])):
                count = high - low
                targets[at : at + count, b] = self._tokens[start + low : start + high]
                skip = 1 if start + low == 0 else 0
                inputs[at + skip : at + count, b] = self._tokens[start + low - 1 + skip : start + high - 1]
        return Window(inputs, targets, int((targets != PAD_TARGET).sum()))

    def _rotations(self, draw: tuple[int, int] | None) -> np.ndarray:
        """By how many tokens each stretch is rotated."""
        if draw is None:
            return np.zeros(self._size, np.int64)
        sizes = np.clip(len(self._tokens) - self._stretch * np.arange(self._size), 1, self._stretch)
        return np.random.default_rng([*draw, 1]).integers(sizes)

    @staticmethod
    def _pieces(begin: int, end: int, size: int, shift: int) -> Iterator[tuple[int, int, int]]:
        """Where tokens begin … end − 1 of a rotated stretch lie: (place in the window, first, last + 1 in the stretch)."""
        turn = size - shift  # from here on, what was the beginning
        for low, high, moved in ((begin, min(end, turn), shift), (max(begin, turn), end, -turn)):
            if low < high:
                yield low - begin, low + moved, high + moved


class SentenceBatches:
    """Sentences of about one length side by side; each epoch draws another order, and other neighbours of the same length.

    Args:
        tokens: ids [N], `<eos>` after each sentence.
        batch_size: B; the last batch may be smaller.
        eos: the id of `<eos>`.
        seed, epoch: what the order depends on.
        heights: of each token [N], as a window has them; None for none.
    """

    def __init__(
        self, tokens: np.ndarray, batch_size: int, eos: int, seed: int, epoch: int, heights: np.ndarray | None = None
    ) -> None:
        ends = np.flatnonzero(tokens == eos) + 1
        if not len(ends) or ends[-1] != len(tokens):
            ends = np.append(ends, len(tokens))
        lengths = np.diff(ends, prepend=0)
        self._sentences = Ragged(tokens, lengths)
        self._heights = None if heights is None else Ragged(heights, lengths)
        self._chosen = by_length(lengths[:, None], batch_size, np.random.default_rng([seed, epoch]))

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Window:
        chosen = self._chosen[index]
        inputs_TB, targets_TB, lengths_B = next_tokens(*self._sentences.batch(chosen))
        heights_TB, constituents = None, 0.0
        if self._heights is not None:  # a sentence's word t is its input t + 1
            heights_TB = np.roll(self._heights.batch(chosen)[0], 1, 0).astype(self._heights.tokens.dtype)
            heights_TB[0], heights_TB[targets_TB == PAD_TARGET] = 0, 0
            constituents = float((heights_TB > 1).sum())
        return Window(inputs_TB, targets_TB, int(lengths_B.sum()), lengths_B, heights_TB, constituents)


def next_tokens(ids_TB: np.ndarray, lengths_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs [T, B], `<eos>` and all but the last token; targets [T, B], all tokens, PAD_TARGET beyond; the lengths again."""
    inputs_TB = np.concatenate([np.full_like(ids_TB[:1], PADDING), ids_TB[:-1]])
    beyond_TB = np.arange(len(ids_TB))[:, None] >= lengths_B
    return inputs_TB, np.where(beyond_TB, PAD_TARGET, ids_TB), lengths_B


def window_lengths(
    tokens: int, batch_size: int, sequence_length: int, draw: tuple[int, int] | None = None
) -> Sequence[int]:
    """T of every window of an epoch.

    Args:
        tokens: N.
        draw: seed and epoch, for lengths as AWD-LSTM draws them: normal around `sequence_length` (95 %) or half of it, with
            deviation 5, at least 5; None for `sequence_length` throughout.
    """
    stretch = -(-tokens // batch_size)
    if draw is None:
        return [sequence_length] * -(-stretch // sequence_length)
    random = np.random.default_rng(list(draw))
    lengths: list[int] = []
    while stretch > 0:
        middle = sequence_length / 2 if random.random() < _HALF_PROBABILITY else sequence_length
        lengths.append(max(_SHORTEST, int(random.normal(middle, _DEVIATION))))
        stretch -= lengths[-1]
    return lengths


def windows(tokens: np.ndarray, batch_size: int, sequence_length: int, first_input: int) -> Iterator[Window]:
    """Windows of `sequence_length` steps (the last may be shorter) over B stretches of a stream, see `StreamBatches`.

    Raises: ArgumentError: a size is not positive. DataError: no token.
    """
    positive_int("training.batch_size", batch_size)
    positive_int("training.sequence_length", sequence_length)
    if len(tokens) == 0:
        raise DataError("windows.tokens", "must hold at least one token", 0, "Check the text")
    batches = StreamBatches(tokens, batch_size, window_lengths(len(tokens), batch_size, sequence_length), first_input)
    for index in range(len(batches)):
        yield batches[index]
