"""Trees of a text that a language model learns beside the text itself: a student's master gates follow a teacher's trees.

Dimensions: T time, B batch, N tokens of a text, or units of a gate.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from gatedrnn.core.checks import positive_int, positive_number
from gatedrnn.core.checksums import check
from gatedrnn.core.config import from_dict
from gatedrnn.core.errors import CheckpointError, DataError, GatedRNNError
from gatedrnn.core.files import to_json, write_with
from gatedrnn.data import Corpus
from gatedrnn.data.batching import SentenceBatches, Window
from gatedrnn.gates import syntactic_distance
from gatedrnn.models import LanguageModelOutput, grammar
from gatedrnn.models.surprisal import evaluating
from gatedrnn.tasks.text import at_least_float32, checksum, on
from gatedrnn.tasks.tree_loss import tree_loss
from gatedrnn.trees import Span, agreement, distances_to_spans

TEACHER_FILE = "teacher.safetensors"
"""Of a run: the trees that it learns from."""

LONGEST = grammar.LONGEST
"""Words of the longest sentence that has a tree."""

GATE = "master_forget"
_VERSION = "1"
_BATCH = 32  # sentences side by side, for a score


@dataclass(frozen=True)
class DistilConfig:
    """How a student learns trees.

    Args:
        weight: factor of the tree loss in nats per split, which is added to the language model's loss in nats per token.
        layer: layer whose distances learn the trees, from 1: the one that `parse` reads.
        temperature: what distances, which lie between 0 and 1, are divided by before the softmax over possible splits.

    Raises: ArgumentError: a value is out of range.
    """

    weight: float = 1.0
    layer: int | None = None
    temperature: float = 0.02

    def __post_init__(self) -> None:
        positive_number("distil.weight", self.weight)
        positive_number("distil.temperature", self.temperature)
        if self.layer is not None:
            positive_int("distil.layer", self.layer)


@final
@dataclass(frozen=True)
class Teacher:
    """Trees of the sentences of a corpus.

    Args:
        heights: by split (train and valid), the height of the split before each token [N], as `spans_to_heights` gives it; 0
            throughout a sentence that has no tree.
        text: checksum of the tokens of each split.
        runs: the runs that voted, each with `run`, `task`, `weight` and `sha256` of its weights.
        how: how a student learns from them; its layer is set.
    """

    heights: Mapping[str, np.ndarray]
    text: Mapping[str, int]
    runs: Sequence[Mapping[str, Any]]
    how: DistilConfig

    @classmethod
    def of(
        cls, corpus: Corpus, heights: Mapping[str, np.ndarray], runs: Sequence[Mapping[str, Any]], how: DistilConfig
    ) -> "Teacher":
        """The teacher of a corpus. Args: as of the class."""
        return cls(heights, {split: checksum(corpus[split]) for split in heights}, runs, how)

    def save(self, folder: Path) -> None:
        """Write `teacher.safetensors`, atomically. Raises: DataError: it cannot be written."""
        from safetensors.numpy import save_file

        path = folder / TEACHER_FILE
        about = {"version": _VERSION, "text": dict(self.text), "runs": [*self.runs], "how": asdict(self.how)}
        text = {"teacher": to_json(about, str(path))}
        held = {split: np.ascontiguousarray(heights) for split, heights in self.heights.items()}
        write_with(path, lambda temporary: save_file(held, temporary, text))

    @classmethod
    def load(cls, folder: Path) -> "Teacher | None":
        """The teacher of a run; None where it has none. Raises: CheckpointError: its file is damaged, or has changed."""
        from safetensors import SafetensorError, safe_open

        path = folder / TEACHER_FILE
        if not path.is_file():
            return None
        check(path)
        try:
            with safe_open(path, "np") as file:
                about = json.loads((file.metadata() or {})["teacher"])
                heights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            if about["version"] != _VERSION:
                raise ValueError(f"version {about['version']}")
            return cls(heights, about["text"], about["runs"], from_dict(DistilConfig, about["how"], "distil"))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, GatedRNNError) as error:
            advice = "Restore the file, or start another run"
            raise CheckpointError(str(path), "is damaged", f"{type(error).__name__}: {error}", advice) from error

    def check_text(self, corpus: Corpus, owner: str) -> None:
        """Raises DataError, in the name of `owner`, if the trees are not of this corpus."""
        for split, known in self.text.items():
            if split not in corpus.files or checksum(corpus[split]) != known:
                got = f"another {split} text"
                advice = "Restore that text, or start another run"
                raise DataError(owner, "must hold the trees of the text that is read", got, advice)

    def checksum(self, split: str, before: int) -> int:
        """Of what is learned, or scored, of a split, after its text's `before`."""
        how = np.frombuffer(to_json(asdict(self.how)).encode(), np.uint8)
        return checksum(how, self.heights[split], before=before)

    def loss(self, output: LanguageModelOutput, batch: Window, device: torch.device) -> Tensor:
        """The weighted tree loss of a batch, of whose layers the gate `GATE` was asked for."""
        gate_TBN = (output.gates or [])[self._layer - 1][GATE]
        distances_TB = syntactic_distance(at_least_float32(gate_TBN))
        return self.how.weight * tree_loss(
            distances_TB, _heights(batch, device), self.how.temperature, batch.constituents
        )

    @torch.no_grad()
    def score(self, model: Any, tokens: np.ndarray, eos: int, split: str) -> dict[str, float]:
        """A student's `tree_loss`, not weighted, and `tree_f1`: the F1 of its trees against the teacher's, in percent.

        Args: tokens: ids [N] of `split`.
        """
        batches = SentenceBatches(tokens, _BATCH, eos, 0, 0, self.heights[split])
        device, total, count = next(model.parameters()).device, 0.0, 0.0
        trees: list[tuple[set[Span], set[Span], int]] = []
        with evaluating(model):
            for index in range(len(batches)):
                batch = batches[index]
                inputs_TB, heights_TB = on(device, batch.inputs_TB), _heights(batch, device)
                trace = model.trace(inputs_TB, on(device, np.asarray(batch.lengths_B)), [self._layer], (GATE,))[0]
                distances_TB = syntactic_distance(trace[GATE])
                total += float(tree_loss(distances_TB, heights_TB, self.how.temperature, 1))
                count += batch.constituents
                trees += _trees(distances_TB, heights_TB, batch)
        f1 = agreement(*(list(each) for each in zip(*trees, strict=True))) if trees else 100.0
        return {"tree_loss": total / max(count, 1), "tree_f1": f1}

    @property
    def _layer(self) -> int:
        return self.how.layer or 1


def _heights(batch: Window, device: torch.device) -> Tensor:
    assert batch.heights_TB is not None
    return on(device, batch.heights_TB)


def _trees(distances_TB: Tensor, heights_TB: Tensor, batch: Window) -> list[tuple[set[Span], set[Span], int]]:
    """By sentence that has a tree: its spans by its distances, its spans by the teacher, and its number of words."""
    assert batch.lengths_B is not None
    found = []
    for b, length in enumerate(batch.lengths_B.tolist()):
        far, high = distances_TB[1:length, b].tolist(), heights_TB[1:length, b].tolist()
        if any(high):
            found.append((distances_to_spans(far, "unbiased"), distances_to_spans(high, "unbiased"), len(far)))
    return found
