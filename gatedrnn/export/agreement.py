"""Weights of a graph in fewer bytes, as long as it still reads sentences as the model does.

Dimensions: T time, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gatedrnn.data import EOS
from gatedrnn.models import surprisals
from gatedrnn.models.surprisal import window_losses
from gatedrnn.studies.parsing import GATES, MEAN, has_distances, read_sentences
from gatedrnn.training.run import Run
from gatedrnn.trees import Span, distances_to_spans

_LARGE = 256
"""Tensors of fewer numbers stay in float32."""


@dataclass(frozen=True)
class Readings:
    """What a model makes of sentences. Args: bits: of each token and of the end; trees: spans, where `gatedrnn parse` has any."""

    bits: list[list[float]]
    trees: list[set[Span]]


def readings_of(run: Run, sentences: Sequence[list[int]]) -> Readings:
    """By the model itself, as `gatedrnn surprisal` and `gatedrnn parse` give them."""
    eos = run.vocabulary.ids[EOS]
    bits = list(surprisals(run.model, sentences, eos))
    if not _has_trees(run):
        return Readings(bits, [])
    layer = run.model.config.layer_of_trees
    read = read_sentences(run.model, sentences, eos, [layer], gate=run.model.config.tree_gate)
    return Readings(bits, [distances_to_spans(each.distances[layer], "unbiased") for each in read])


def _has_trees(run: Run) -> bool:
    return has_distances(run.model) and run.vocabulary.level == "word"


def readings_by_graph(run: Run, graph: bytes, sentences: Sequence[list[int]]) -> Readings:
    """The same by a graph `sequence`, in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    states = {
        each.name: np.zeros((1, each.shape[1]), np.float32)
        for each in session.get_inputs()
        if each.name not in ("tokens", "lengths")
    }
    eos, layer = run.vocabulary.ids[EOS], run.model.config.layer_of_trees if _has_trees(run) else None
    every = range(1, len(run.model.layers) + 1) if layer == MEAN else [] if layer is None else [layer]
    gate = run.model.config.tree_gate
    traced = [f"{name}_{k}" for k in every for name in (GATES[:2] if gate == "both" else (gate,))]
    bits, trees = [], []
    for ids in sentences:
        tokens = np.array([eos, *ids], np.int64)[:, None]
        found: Any = session.run(["logits", *traced], {"tokens": tokens, "lengths": np.array([len(tokens)]), **states})
        losses_T1 = window_losses(torch.from_numpy(found[0]).double(), torch.tensor([*ids, eos])[:, None])
        bits.append((losses_T1[:, 0] / math.log(2)).tolist())
        if every:
            means = [values[1:, 0].astype(np.float64).mean(-1) for values in found[1:]]
            signed = [1 - mean if "forget" in name else mean for name, mean in zip(traced, means, strict=True)]
            distances = np.mean(signed, 0)
            trees.append(distances_to_spans(distances.tolist(), "unbiased"))
    return Readings(bits, trees)


def alike(one: Readings, other: Readings) -> bool:
    """Whether all trees are the same, and all surprisals to half a unit of the third digit (of the third decimal below 1)."""
    pairs = [pair for a, b in zip(one.bits, other.bits, strict=True) for pair in zip(a, b, strict=True)]
    return one.trees == other.trees and all(abs(a - b) <= _half_unit(a) for a, b in pairs)


def _half_unit(value: float) -> float:
    return 0.5 * 10 ** (math.floor(math.log10(value)) - 2) if value >= 1 else 5e-4


def in_float16(graph: bytes) -> bytes:
    """A graph whose weights are stored as float16 and computed with as float32; what float16 cannot hold stays as it is."""
    import onnx

    model = onnx.load_from_string(graph)
    casts = []
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if tensor.data_type != onnx.TensorProto.FLOAT or values.size < _LARGE or np.abs(values).max() > 6e4:
            continue
        name = tensor.name
        tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float16), f"{name}.float16"))
        casts.append(onnx.helper.make_node("Cast", [f"{name}.float16"], [name], to=onnx.TensorProto.FLOAT))
    for node in reversed(casts):
        model.graph.node.insert(0, node)
    return model.SerializeToString()
