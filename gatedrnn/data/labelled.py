"""Labelled pairs of sentences as token arrays, and their batches.

Dimensions: N pairs, B pairs of a batch, T steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from gatedrnn.core.errors import DataError
from gatedrnn.data.logic import LABELS, Pair
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
        low, high = index * self.count // parts, (index + 1) * self.count // parts
        sides = self.left_TB[:, low:high], self.right_TB[:, low:high]
        return PairBatch(*sides, self.left_B[low:high], self.right_B[low:high], self.labels_B[low:high])


@final
class LabelledPairs:
    """Pairs as token ids, in memory.

    Args: pairs: in order; vocabulary: of both sides.
    """

    def __init__(self, pairs: Sequence[Pair], vocabulary: Vocabulary) -> None:
        sides = [text.split(" ") for pair in pairs for text in (pair.left, pair.right)]
        self.tokens = np.fromiter((vocabulary.ids.get(word, 0) for side in sides for word in side), np.int32)
        self.ends = np.cumsum([len(side) for side in sides], dtype=np.int64)
        self.lengths = np.diff(self.ends, prepend=0).reshape(-1, 2)
        self.labels = np.array([LABELS.index(pair.label) for pair in pairs], np.int64)
        self.operators = np.array([pair.operators for pair in pairs], np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, chosen: np.ndarray) -> PairBatch:
        """These pairs, by number."""
        left_B, right_B = self.lengths[chosen].T
        sides = self._side(2 * chosen, left_B), self._side(2 * chosen + 1, right_B)
        return PairBatch(*sides, left_B, right_B, self.labels[chosen])

    def _side(self, numbers: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        ids = np.ones((int(lengths.max(initial=1)), len(numbers)), np.int64)
        for b, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
            ids[:length, b] = self.tokens[self.ends[number] - length : self.ends[number]]
        return ids

    def by_length(self, batch_size: int, draw: np.random.Generator | None = None) -> list[np.ndarray]:
        """Numbers of the pairs of each batch, of about one length; with `draw`, batches and what shares one in random order."""
        chance = np.arange(len(self)) if draw is None else draw.random(len(self))
        order = np.lexsort((chance, self.lengths.sum(1), self.lengths.max(1)))
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        return batches if draw is None else [batches[k] for k in draw.permutation(len(batches))]


@final
class PairBatches:
    """The batches of one epoch, by number: they depend on seed and epoch alone."""

    def __init__(self, pairs: LabelledPairs, batch_size: int, seed: int, epoch: int) -> None:
        self._pairs, self._chosen = pairs, pairs.by_length(batch_size, np.random.default_rng([seed, epoch]))

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> PairBatch:
        return self._pairs.batch(self._chosen[index])


def find_pairs(folder: Path | str) -> dict[str, list[Path]]:
    """Files of labelled pairs by split: train.tsv, valid.tsv or dev.tsv, and test*.tsv if there are any; each may be `.gz`.

    Raises: DataError: the folder, its training pairs or its validation pairs are missing.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(str(folder), "must be a folder with train.tsv and valid.tsv", "no such folder", "Check --data")
    found = {
        split: sorted(path for end in ("", ".gz") for path in folder.glob(f"{split}*.tsv{end}"))
        for split in ("train", "valid", "test")
    }
    found["valid"] = found["valid"] or sorted(path for end in ("", ".gz") for path in folder.glob(f"dev*.tsv{end}"))
    for split in ("train", "valid"):
        if not found[split]:
            there = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "an empty folder"
            raise DataError(str(folder), f"must hold {split}.tsv", there, f"Add the {split} pairs")
    return {split: paths for split, paths in found.items() if paths}


def _like(folder: Path, stem: str) -> list[Path]:
    return sorted(path for end in ("", ".gz") for path in folder.glob(f"{stem}*.tsv{end}"))
