"""Logical inference: which of seven relations holds between two formulae."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatedrnn.core.errors import CheckpointError, DataError
from gatedrnn.data import DataConfig, Vocabulary
from gatedrnn.data.config import PairDataConfig
from gatedrnn.data.labelled import LabelledPairs, PairBatch, find_pairs, pair_batches
from gatedrnn.data.logic import LABELS, Pair, make_splits, read_pairs, write_pairs
from gatedrnn.data.text import rereadable
from gatedrnn.data.vocabulary import VOCABULARY_FILE
from gatedrnn.models import PairClassifier, PairClassifierConfig
from gatedrnn.models.saving import check_vocabulary
from gatedrnn.models.surprisal import evaluating
from gatedrnn.tasks.config import WINDOWS, TrainingConfig
from gatedrnn.tasks.gates import LayerGates, WordGates, looked_up, sentence_gates, word_gates
from gatedrnn.tasks.task import Batches, Evaluation, Loss, Score
from gatedrnn.tasks.text import at_least_float32, checksum, on

MOST_OPERATORS = 12
"""Counted apart; pairs of more count as pairs of so many."""
_MADE = {"train": (20_000, range(5)), "valid": (1_000, range(5)), "test": (3_000, range(9))}


@dataclass(frozen=True)
class Accuracy:
    """Of a classifier on labelled pairs.

    Args:
        accuracy: the share of pairs whose label is found, in percent.
        loss_nats: the mean of −log P of the label.
        pairs: how many.
        majority: what the most frequent label alone gives, in percent.
        by_operators: the same by the larger number of operators: {number: {"accuracy", "pairs"}}; 12 for 12 or more.
    """

    accuracy: float
    loss_nats: float
    pairs: int
    majority: float
    by_operators: dict[int, dict[str, float]]


@final
class Inference:
    """The task; see `Task`. Args: pairs: of the splits train and valid; vocabulary: None to learn it from those of train."""

    name: ClassVar[str] = "inference"
    data: ClassVar[type] = PairDataConfig
    network: ClassVar[Any] = PairClassifier
    measure: ClassVar[str] = "accuracy"
    rated: ClassVar[str] = "accuracy"
    reads: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[str] = "pairs"
    files: ClassVar[tuple[str, ...]] = (VOCABULARY_FILE,)
    training: ClassVar[TrainingConfig] = TrainingConfig(
        epochs=20, batch_size=128, learning_rate=0.001, gradient_clip=1.0, evaluation_batch_size=256
    )
    ignores: ClassVar[tuple[str, ...]] = WINDOWS

    def __init__(self, pairs: dict[str, list[Pair]], vocabulary: Vocabulary | None = None) -> None:
        lines = [[side for pair in pairs["train"] for side in (pair.left, pair.right)]]
        self.vocabulary = vocabulary or Vocabulary.learn(iter(lines), DataConfig(min_count=1))
        self.pairs = {split: LabelledPairs(found, self.vocabulary) for split, found in pairs.items()}

    @classmethod
    def open(cls, data: PairDataConfig, folder: Path | str, run: Path | None = None) -> "Inference":
        """Read a folder's pairs, with the vocabulary of a run that has begun.

        Raises: DataError: as `find_pairs` and `read_pairs`, or no pair is left.
        """
        pairs = {}
        for split, paths in find_pairs(folder).items():
            most = None if split == "test" else data.operators
            pairs[split] = [p for path in paths for p in read_pairs(path) if most is None or p.operators <= most]
            if not pairs[split]:
                rule = "must hold a pair" + ("" if most is None else f" of at most {most} operators")
                raise DataError(str(paths[0]), rule, "none", "Check the file")
        return cls(pairs, None if run is None else Vocabulary.load(run / VOCABULARY_FILE))

    @staticmethod
    def make(folder: Path, seed: int, data: PairDataConfig) -> None:
        """Write a folder of made formulae: trained on to 4 operators, tested to 8, no pair in two splits (see `make_splits`)."""
        for split, pairs in make_splits(_MADE, seed).items():
            write_pairs(folder / f"{split}.tsv", pairs)

    @staticmethod
    def load(folder: Path, model: PairClassifierConfig, backend: str) -> tuple[PairClassifier, Vocabulary]:
        """A run's model and vocabulary. Raises: CheckpointError: the vocabulary is of another size than the model's."""
        vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
        check_vocabulary(folder / VOCABULARY_FILE, vocabulary, model.vocabulary_size)
        return PairClassifier.from_pretrained(folder, backend=backend, vocabulary=vocabulary), vocabulary

    @property
    def splits(self) -> Collection[str]:
        """Those that there are."""
        return self.pairs

    def describe(self) -> str:
        """Pairs by split, and the vocabulary's size."""
        sizes = ", ".join(f"{split} {len(pairs):,}" for split, pairs in self.pairs.items())
        return f"pairs: {sizes}; {len(self.vocabulary)} words"

    def complete(self, model: PairClassifierConfig) -> PairClassifierConfig:
        """With the vocabulary's size and the number of labels."""
        return replace(model, vocabulary_size=len(self.vocabulary), classes=len(LABELS))

    def checksum(self, split: str) -> int:
        """Of a split's pairs."""
        pairs = self.pairs[split]
        sides = (each for side in (pairs.left, pairs.right) for each in (side.lengths_N, side.tokens))
        return checksum(pairs.labels, *sides)

    def write(self, folder: Path) -> None:
        """The vocabulary."""
        self.vocabulary.save(folder / VOCABULARY_FILE)

    def cache(self, folder: Path) -> None:
        """Nothing: pairs are read within seconds."""

    def batches(self, training: TrainingConfig, epoch: int) -> Batches:
        """Pairs of about one length."""
        return pair_batches(self.pairs["train"], training.batch_size, training.seed, epoch)

    def loss(
        self,
        model: nn.Module,
        training: TrainingConfig,
        batch: PairBatch,
        carried: Any,
        divisor: float,
        device: torch.device,
    ) -> Loss:
        """Cross-entropy of the labels."""
        scores_BC = _scores(model, batch, device)
        return Loss(F.cross_entropy(at_least_float32(scores_BC), on(device, batch.labels_B), reduction="sum") / divisor)

    def score(self, model: nn.Module, training: TrainingConfig, split: str = "valid") -> Score:
        """Accuracy; what falls is the share of errors."""
        found = accuracy(model, self.pairs[split], batch_size=training.evaluation_batch_size)
        return Score(100 - found.accuracy, {"loss_nats": found.loss_nats, "accuracy": found.accuracy})

    def shown(self, nats: float) -> dict[str, float]:
        """The loss."""
        return {"loss_nats": nats}

    @staticmethod
    def text(
        held: Vocabulary, data: PairDataConfig, folder: Path | str, split: str = "test", path: Any = None
    ) -> LabelledPairs:
        """Labelled pairs; of a file that is named, and of the test split, of any number of operators."""
        most = data.operators if path is None and split != "test" else None
        files: Any = {split: [rereadable(path)]} if path is not None else find_pairs(folder)
        if split not in files:
            raise DataError(str(folder), f"must hold {split} pairs", ", ".join(files), "Give others with --data")
        found = (pair for file in files[split] for pair in read_pairs(file))
        pairs = LabelledPairs([pair for pair in found if most is None or pair.operators <= most], held)
        if not len(pairs):
            raise DataError(str(files[split][0]), "must hold at least one pair", "none", "Check the file")
        return pairs

    @staticmethod
    def evaluate(model: nn.Module, held: Vocabulary, text: LabelledPairs, how: Mapping[str, Any]) -> Evaluation:
        """Accuracy, by number of operators too."""
        found = accuracy(model, text)
        lines = [f"accuracy {found.accuracy:.2f} %  loss {found.loss_nats:.5f} nats per pair  {found.pairs} pairs"]
        lines += [f"always the most frequent label: {found.majority:.2f} %", "", "operators  accuracy   pairs"]
        each = found.by_operators.items()
        lines += [f"{number:9}  {of['accuracy']:8.2f}  {of['pairs']:6,}" for number, of in each]
        return Evaluation(asdict(found), lines)

    @staticmethod
    def rate(
        model: nn.Module, held: Vocabulary, text: LabelledPairs, batch_size: int, most: int | None = None
    ) -> tuple[float, int]:
        """Accuracy."""
        part = text.first(most)
        return accuracy(model, part, batch_size).accuracy, int(part.left.lengths_N.sum() + part.right.lengths_N.sum())

    @staticmethod
    def gates(model: Any, held: Vocabulary, text: LabelledPairs, batch_size: int) -> Iterator[list[LayerGates]]:
        """Of both formulae of every pair."""
        device = next(model.parameters()).device
        for chosen in text.by_length(batch_size):
            batch = text.batch(chosen)
            for ids_TB, lengths_B in ((batch.left_TB, batch.left_B), (batch.right_TB, batch.right_B)):
                yield sentence_gates(model.encoder, on(device, ids_TB), on(device, lengths_B))

    @staticmethod
    def gates_by_word(model: Any, held: Vocabulary, sentence: str, mapping: str) -> WordGates:
        """Of a formula."""
        tokens, ids = looked_up(held, sentence, mapping)
        ids_T1 = torch.tensor(ids, device=next(model.parameters()).device)[:, None]
        with torch.no_grad(), evaluating(model):
            traces = model.encoder(ids_T1, return_gates=True)[2]
        return word_gates(tokens, model.encoder.layers, traces)


@torch.no_grad()
def accuracy(model: nn.Module, pairs: LabelledPairs, batch_size: int = 128) -> Accuracy:
    """Accuracy of a PairClassifier, in any mode. Raises: CheckpointError: its scores are not finite."""
    device, right, nats = next(model.parameters()).device, np.zeros(len(pairs), bool), 0.0
    with evaluating(model):
        for chosen in pairs.by_length(batch_size):
            batch = pairs.batch(chosen)
            scores_BC = _scores(model, batch, device).cpu().double()
            right[chosen] = scores_BC.argmax(1).numpy() == batch.labels_B
            nats += float(F.cross_entropy(scores_BC, torch.from_numpy(batch.labels_B), reduction="sum"))
    if not np.isfinite(nats):
        raise CheckpointError(
            "accuracy", "must come from finite scores", nats, "The model holds NaN or infinity: train again"
        )
    counted = np.minimum(pairs.operators, MOST_OPERATORS)
    groups = {int(n): right[counted == n] for n in np.unique(counted)}
    by_operators = {n: {"accuracy": 100 * float(group.mean()), "pairs": len(group)} for n, group in groups.items()}
    majority = 100 * np.bincount(pairs.labels).max() / len(pairs)
    return Accuracy(100 * float(right.mean()), nats / len(pairs), len(pairs), float(majority), by_operators)


def _scores(model: nn.Module, batch: PairBatch, device: torch.device) -> Tensor:
    return model(*(on(device, array) for array in (batch.left_TB, batch.right_TB, batch.left_B, batch.right_B)))
