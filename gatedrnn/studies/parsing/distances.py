"""Distances of sentences, read in batches off the master gates of any of a model's layers.

Dimensions: T time, B batch, N units of the master gate.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from gatedrnn.cells import CELLS
from gatedrnn.core.checks import one_of, positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import syntactic_distance
from gatedrnn.models import LanguageModel
from gatedrnn.models.config import MEAN
from gatedrnn.models.config import TREE_GATES as GATES
from gatedrnn.models.finite import finite
from gatedrnn.models.surprisal import evaluating
from gatedrnn.sequence.modes import nearly_float32

Layer = int | str
"""A layer from 1 on, or `MEAN`."""

_SORTED_SENTENCES = 4096
_BATCH_TOKENS = 2048


@dataclass(frozen=True)
class Reading:
    """One sentence as the model saw it.

    Args:
        distances: of each word [T], by the layer asked for.
        gates: the master gate [T, N] of every layer read, if it was asked for; of both, the forget gate.
    """

    distances: dict[Layer, list[float]]
    gates: dict[int, np.ndarray] = field(default_factory=dict)


def cells_with_master_gates() -> list[str]:
    """Registered cells from which distances can be read."""
    return [name for name, cell in CELLS.items() if (spec := cell.example()) and _has_master_gates(spec)]


def has_distances(model: LanguageModel) -> bool:
    """Whether distances can be read off this model."""
    return _has_master_gates(model.layers[0].spec)


def layer_named(name: str) -> Layer:
    """The layer that a person wrote: a number, or "mean". Raises: ArgumentError: neither."""
    try:
        return MEAN if name == MEAN else int(name)
    except ValueError as error:
        rule = f"must be a whole number from 1, or {MEAN}"
        raise ArgumentError("parsing.layer", rule, repr(name), "Choose a layer of the model") from error


def read_sentences(
    model: LanguageModel,
    sentences: Iterable[list[int]],
    eos: int,
    layers: Sequence[Layer],
    *,
    gate: str = "master_forget",
    keep_gates: bool = False,
) -> Iterator[Reading]:
    """Read sentences, each from a fresh state after `<eos>`, in order; constant memory for any number of them.

    Equations: Shen et al. 2019, sec. 5.2: 1 − mean(f̃). Departs: none; `master_input`, mean(ĩ), `both` and `MEAN` are not
        in the paper.
    Args:
        sentences: word ids, each at least one.
        eos: the id that precedes a sentence.
        layers: from 1, or MEAN; all of them in one pass.
        gate: master_forget; master_input: the share of the units that are written; or both, the mean of the two distances.
        keep_gates: also keep the gate values.

    Raises: ArgumentError: the cell has no master gates (names those that have), a layer does not exist, an unknown gate, or a
        sentence is empty.
    """
    one_of("parsing.gate", gate, GATES)
    if not has_distances(model):
        able = ", ".join(cells_with_master_gates())
        advice = f"Cells that have them: {able}. Train one with --model.cell {cells_with_master_gates()[0]}"
        raise ArgumentError("parsing", "needs a cell with master gates", f"cell {model.config.cell!r}", advice)
    every = len(model.layers)
    for layer in layers:
        if layer != MEAN and positive_int("parsing.layer", layer) > every:
            raise ArgumentError(
                "parsing.layer", f"must lie in 1…{every}, or be {MEAN}", layer, "Choose a layer of the model"
            )
    return _read(model, iter(sentences), eos, tuple(layers), gate, keep_gates)


def _has_master_gates(spec: object) -> bool:
    return any(gate.name == "master_forget" for gate in spec.gates)  # type: ignore[attr-defined]


def _read(
    model: LanguageModel, sentences: Iterator[list[int]], eos: int, layers: tuple[Layer, ...], gate: str, keep: bool
) -> Iterator[Reading]:
    while chunk := list(islice(sentences, _SORTED_SENTENCES)):
        if not all(chunk):
            raise ArgumentError("parsing", "a sentence must have at least one word", "length 0", "Skip it")
        found: dict[int, Reading] = {}
        order = sorted(range(len(chunk)), key=lambda k: len(chunk[k]))
        while order:
            batch = _next_batch(order, chunk)
            found |= zip(batch, _batch(model, [chunk[k] for k in batch], eos, layers, gate, keep), strict=True)
        yield from (found[k] for k in range(len(chunk)))


def _next_batch(order: list[int], chunk: list[list[int]]) -> list[int]:
    """The longest sentences left in `order`, taken from its end: as many tokens as fit, with not much more padding than that."""
    width, tokens, batch = len(chunk[order[-1]]) + 1, 0, []
    while order and (not batch or (tokens < _BATCH_TOKENS and width * len(batch) < 3 * _BATCH_TOKENS)):
        batch.append(order.pop())
        tokens += len(chunk[batch[-1]]) + 1
    return batch


@torch.no_grad()
def _batch(
    model: LanguageModel, batch: list[list[int]], eos: int, layers: tuple[Layer, ...], gate: str, keep: bool
) -> list[Reading]:
    lengths = [len(ids) + 1 for ids in batch]
    tokens = torch.full((max(lengths), len(batch)), eos)
    for b, ids in enumerate(batch):
        tokens[1 : lengths[b], b] = torch.tensor(ids)
    every, names = range(1, len(model.layers) + 1), GATES[:2] if gate == "both" else (gate,)
    read = [layer for layer in every if MEAN in layers or layer in layers]
    with evaluating(model), nearly_float32():
        traces = model.trace(tokens.to(model.embedding.weight.device), lengths, read, names)
    gates = {layer: trace[names[0]].cpu() for layer, trace in zip(read, traces, strict=True)}
    by_layer: dict[Layer, Tensor] = {layer: _distances(trace) for layer, trace in zip(read, traces, strict=True)}
    if MEAN in layers:
        by_layer[MEAN] = torch.stack([by_layer[layer] for layer in every]).mean(0)
    return [
        Reading(
            {layer: finite("distances", by_layer[layer][1:length, b]).tolist() for layer in layers},
            {layer: gates_TBN[1:length, b].numpy().copy() for layer, gates_TBN in gates.items()} if keep else {},
        )
        for b, length in enumerate(lengths)
    ]


def _distances(trace: dict[str, Tensor]) -> Tensor:
    """[T, B] in float64, the mean of those by each gate [T, B, N]."""
    values = {name: gates.cpu().double() for name, gates in trace.items() if name in GATES}
    each = [syntactic_distance(v) if name == "master_forget" else v.mean(-1) for name, v in values.items()]
    return torch.stack(each).mean(0)
