"""Distances of sentences, read in batches off one layer's master forget gate.

Dimensions: T time, B batch, N units of the master gate.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from gatedrnn.cells import CELLS
from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import syntactic_distance
from gatedrnn.models import LanguageModel

_SORTED_SENTENCES = 1024
_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Reading:
    """One sentence as the model saw it: distance of each word [T], and the master forget gate [T, N] if it was asked for."""

    distances: list[float]
    master_forget_TN: np.ndarray | None


def cells_with_master_gates() -> list[str]:
    """Registered cells from which distances can be read."""
    return [name for name, cell in CELLS.items() if _has_master_gates(cell.make_spec(1))]


def default_layer(model: LanguageModel) -> int:
    """The layer read unless one is named: the second, as in the paper, or the only one."""
    return min(2, len(model.layers))


def read_sentences(
    model: LanguageModel, sentences: Iterable[list[int]], eos: int, layer: int, *, keep_gates: bool = False
) -> Iterator[Reading]:
    """Read sentences, each from a fresh state after `<eos>`, in order; constant memory for any number of them.

    Equations: Shen et al. 2019, sec. 5.2. Departs: none.
    Args:
        sentences: word ids, each at least one.
        eos: the id that precedes a sentence.
        layer: from 1.
        keep_gates: also keep the gate values.

    Raises: ArgumentError: the cell has no master gates (names those that have), the layer does not exist, or a sentence is empty.
    """
    if not _has_master_gates(model.layers[0].spec):
        able = ", ".join(cells_with_master_gates())
        advice = f"Cells that have them: {able}. Train one with --model.cell {cells_with_master_gates()[0]}"
        raise ArgumentError("parsing", "needs a cell with master gates", f"cell {model.config.cell!r}", advice)
    positive_int("parsing.layer", layer)
    if layer > len(model.layers):
        raise ArgumentError("parsing.layer", f"must lie in 1…{len(model.layers)}", layer, "Name a layer of the model")
    return _read(model, iter(sentences), eos, layer, keep_gates)


def _has_master_gates(spec: object) -> bool:
    return any(gate.name == "master_forget" for gate in spec.gates)  # type: ignore[attr-defined]


def _read(
    model: LanguageModel, sentences: Iterator[list[int]], eos: int, layer: int, keep_gates: bool
) -> Iterator[Reading]:
    while chunk := list(islice(sentences, _SORTED_SENTENCES)):
        if any(not ids for ids in chunk):
            raise ArgumentError("parsing", "a sentence must have at least one word", "length 0", "Skip it")
        found: dict[int, Reading] = {}
        order = sorted(range(len(chunk)), key=lambda k: len(chunk[k]))
        while order:
            width = len(chunk[order[-1]]) + 1
            batch = [order.pop() for _ in range(min(len(order), max(1, _BATCH_TOKENS // width)))]
            found |= zip(batch, _batch(model, [chunk[k] for k in batch], eos, layer, keep_gates), strict=True)
        yield from (found[k] for k in range(len(chunk)))


@torch.no_grad()
def _batch(model: LanguageModel, batch: list[list[int]], eos: int, layer: int, keep_gates: bool) -> list[Reading]:
    lengths = [len(ids) + 1 for ids in batch]
    tokens = torch.full((max(lengths), len(batch)), eos)
    for b, ids in enumerate(batch):
        tokens[1 : lengths[b], b] = torch.tensor(ids)
    gates_TBN = model.trace(tokens.to(model.embedding.weight.device), lengths, layer)["master_forget"].cpu()
    distances_TB = syntactic_distance(gates_TBN.double())
    readings = []
    for b, length in enumerate(lengths):
        gate = gates_TBN[1:length, b].numpy().copy() if keep_gates else None
        readings.append(Reading(distances_TB[1:length, b].tolist(), gate))
    return readings
