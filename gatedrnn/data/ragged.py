"""Sentences of different lengths as one array, in memory, and batches of them. Dimensions: N sentences, B of a batch, T steps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar, final

import numpy as np

PADDING = 1
"""What stands beyond a sentence's length: `<eos>`."""

T = TypeVar("T")


@final
class Ragged:
    """Token ids of N sentences.

    Args:
        tokens: ids of them all, one after the other, whole numbers; a memory map will do, of which a batch's own tokens are read.
        lengths_N: of each sentence, int64 [N].
        starts_N: where each begins in `tokens`, int64 [N]; None where one follows the other.
    """

    def __init__(self, tokens: np.ndarray, lengths_N: np.ndarray, starts_N: np.ndarray | None = None) -> None:
        self.tokens, self.lengths_N = tokens, lengths_N
        self._starts_N = np.cumsum(lengths_N) - lengths_N if starts_N is None else starts_N

    @classmethod
    def of(cls, sentences: Iterable[Iterable[int]]) -> "Ragged":
        """The same from the ids of each sentence."""
        rows = [np.fromiter(ids, np.int32) for ids in sentences]
        return cls(np.concatenate([*rows, np.empty(0, np.int32)]), np.array([len(row) for row in rows], np.int64))

    def __len__(self) -> int:
        return len(self.lengths_N)

    def batch(self, chosen_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ids [T, B] of these sentences, by number, PADDING beyond their lengths; and the lengths [B], both int64."""
        lengths_B = self.lengths_N[chosen_B]
        steps_T1 = np.arange(lengths_B.max(initial=1))[:, None]
        places_TB = np.minimum(self._starts_N[chosen_B] + steps_T1, max(len(self.tokens) - 1, 0))
        padded = steps_T1 >= lengths_B
        ids_TB = self.tokens[places_TB] if len(self.tokens) else np.zeros_like(places_TB)
        return np.where(padded, PADDING, ids_TB).astype(np.int64), lengths_B


@final
class ChosenBatches(Generic[T]):
    """The batches of one epoch, by number. Args: batch: makes one of the numbers of its rows; chosen: these numbers of each."""

    def __init__(self, batch: Callable[[np.ndarray], T], chosen: Sequence[np.ndarray]) -> None:
        self._batch, self._chosen = batch, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> T:
        return self._batch(self._chosen[index])


def by_length(lengths_NS: np.ndarray, batch_size: int, draw: np.random.Generator | None = None) -> list[np.ndarray]:
    """Numbers of the rows of each batch, of about one length.

    Args:
        lengths_NS: of each row's sides.
        draw: puts batches, and rows of one length, in random order; None for the shortest first.
    """
    count = len(lengths_NS)
    chance_N = np.arange(count) if draw is None else draw.random(count)
    order_N = np.lexsort((chance_N, lengths_NS.sum(1), lengths_NS.max(1)))
    batches = [order_N[start : start + batch_size] for start in range(0, count, batch_size)]
    return batches if draw is None else [batches[k] for k in draw.permutation(len(batches))]


def within(batches: Sequence[np.ndarray], sizes_NK: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """The batches, in parts where rows × the product of the largest of each size is above `most`; a row alone may be above it."""
    for chosen in batches:
        parts = -(-len(chosen) // max(1, most // max(1, int(sizes_NK[chosen].max(0).prod()))))
        yield from np.array_split(chosen, parts)


def columns_of(index: int, size: int, parts: int) -> slice:
    """The columns of part `index` of `size` columns, shared out to `parts` processes."""
    return slice(index * size // parts, (index + 1) * size // parts)
