"""Labelled pairs of sentences as token arrays, and their batches.

Dimensions: N pairs, B pairs of a batch, T steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import final

import numpy as np

from gatedrnn.core.errors import DataError
from gatedrnn.data.folders import file_in, files_in, folder_with
from gatedrnn.data.logic import LABELS, Pair
from gatedrnn.data.ragged import ChosenBatches, Ragged, by_length, columns_of
from gatedrnn.data.vocabulary import Vocabulary


@dataclass(frozen=True)
class PairBatch:
    """One batch.

    Args:
        left_TB, right_TB: int64 [T, B], each side's own T; what is beyond a length is 1.
        left_B, right_B: lengths.
        labels_B: int64 [B].
    """

    left_TB: np.ndarray
    right_TB: np.ndarray
    left_B: np.ndarray
    right_B: np.ndarray
    labels_B: np.ndarray

    @property
    def count(self) -> int:
        """B."""
        return len(self.labels_B)

    @property
    def steps(self) -> int:
        """T of the longer side."""
        return max(len(self.left_TB), len(self.right_TB))

    def part(self, index: int, parts: int) -> "PairBatch":
        """Part `index` of the pairs, shared out to `parts` processes."""
        here = columns_of(index, self.count, parts)
        sides = self.left_TB[:, here], self.right_TB[:, here]
        return PairBatch(*sides, self.left_B[here], self.right_B[here], self.labels_B[here])


@final
class LabelledPairs:
    """Pairs as token ids, in memory.

    Args: pairs: in order; vocabulary: of both sides.
    """

    def __init__(self, pairs: Sequence[Pair], vocabulary: Vocabulary) -> None:
        self._pairs, self._vocabulary = pairs, vocabulary
        self.left = Ragged.of(vocabulary.encode(pair.left.split(" ")) for pair in pairs)
        self.right = Ragged.of(vocabulary.encode(pair.right.split(" ")) for pair in pairs)
        self.labels = np.array([LABELS.index(pair.label) for pair in pairs], np.int64)
        self.operators = np.array([pair.operators for pair in pairs], np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, chosen: np.ndarray) -> PairBatch:
        """These pairs, by number."""
        (left_TB, left_B), (right_TB, right_B) = self.left.batch(chosen), self.right.batch(chosen)
        return PairBatch(left_TB, right_TB, left_B, right_B, self.labels[chosen])

    def first(self, tokens: int | None) -> "LabelledPairs":
        """The first pairs that hold so many tokens; None for all."""
        if tokens is None:
            return self
        count = 1 + int(np.searchsorted(np.cumsum(self.left.lengths_N + self.right.lengths_N), tokens))
        return LabelledPairs(self._pairs[:count], self._vocabulary)

    def by_length(self, batch_size: int, draw: np.random.Generator | None = None) -> list[np.ndarray]:
        """Numbers of the pairs of each batch, as `ragged.by_length` gives them."""
        return by_length(np.stack([self.left.lengths_N, self.right.lengths_N], 1), batch_size, draw)


def pair_batches(pairs: LabelledPairs, batch_size: int, seed: int, epoch: int) -> ChosenBatches[PairBatch]:
    """The batches of one epoch, by number: they depend on seed and epoch alone."""
    return ChosenBatches(pairs.batch, pairs.by_length(batch_size, np.random.default_rng([seed, epoch])))


def find_pairs(folder: Path | str) -> dict[str, list[Path]]:
    """Files of labelled pairs by split: train.tsv, valid.tsv or dev.tsv, and test*.tsv if there are any; each may be `.gz`.

    Raises: DataError: the folder, its training pairs or its validation pairs are missing, or one of these is no file.
    """
    folder = folder_with(folder, "train.tsv and valid.tsv")
    found = {split: _like(folder, stem) for split, stem in (("train", "train"), ("valid", "valid"), ("test", "test*"))}
    found["valid"] = found["valid"] or _like(folder, "dev")
    for split in ("train", "valid"):
        if not found[split]:
            raise DataError(str(folder), f"must hold {split}.tsv", files_in(folder), f"Add the {split} pairs")
    return {split: paths for split, paths in found.items() if paths}


def _like(folder: Path, stem: str) -> list[Path]:
    """Files of these names, in order; of a file and its `.gz`, the file."""
    ends, there = ("", ".gz"), [path.name for path in folder.glob("*")]
    plain = {name.removesuffix(end) for end in ends for name in there if fnmatchcase(name, f"{stem}.tsv{end}")}
    found = (file_in(folder, [f"{name}{end}" for end in ends]) for name in sorted(plain))
    return [path for path in found if path is not None]
