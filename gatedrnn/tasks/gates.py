"""Values of gates as tasks read them off their models: at every token of a text, and on average at the words of a sentence.

Dimensions: T time, B batch, M tokens that count, N units of a gate.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gatedrnn.cells import Spec, Trace
from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, Vocabulary, windows
from gatedrnn.data.batching import PAD_TARGET
from gatedrnn.data.prompt import prompt_ids
from gatedrnn.gates import syntactic_distance
from gatedrnn.models import Encoder, LanguageModel
from gatedrnn.models.finite import finite
from gatedrnn.models.surprisal import evaluating
from gatedrnn.tasks.text import on


@dataclass(frozen=True)
class LayerGates:
    """The gates of one layer in one direction.

    Args:
        name: "1", or "encoder 1 backward".
        spec: of its cell.
        trace_MN: {gate: [M, N]}.
    """

    name: str
    spec: Spec
    trace_MN: Trace


@dataclass(frozen=True)
class WordGates:
    """The mean gates at each word of one sentence.

    Args:
        words: tokens, as written.
        layers: for each layer the mean over units of each gate at each word, {gate: [words]}.
        distances: for each layer the distance of each word; none without master gates.
        names: of the layers.
        translation: of a model that translates, what it wrote, read by its decoder.
        attention: at each word of the translation the share of each of these.
    """

    words: list[str]
    layers: list[dict[str, list[float]]]
    distances: list[list[float]]
    names: list[str]
    translation: "WordGates | None" = None
    attention: list[list[float]] | None = None


def layer_gates(layers: Iterable[Any], traces: Sequence[Trace], counted_TB: Tensor, part: str = "") -> list[LayerGates]:
    """What layers traced at the tokens that count, layer by layer, both directions of each that has them."""
    found = zip(_names(layers, part), traces, strict=True)
    counted = counted_TB.cpu()
    return [
        LayerGates(name, spec, {gate: values.cpu()[counted].float() for gate, values in trace.items()})
        for (name, spec), trace in found
    ]


def word_gates(words: list[str], layers: Iterable[Any], traces: Sequence[Trace], **more: Any) -> WordGates:
    """The mean gates at each word, from traces [words, 1, N].

    Args: more: fields of `WordGates`.
    Raises: CheckpointError: a value is not finite.
    """
    means = [{name: gate[:, 0].double().mean(-1) for name, gate in trace.items()} for trace in traces]
    each = [{name: finite(f"gates.{name}", mean).tolist() for name, mean in layer.items()} for layer in means]
    masters = [trace["master_forget"][:, 0].double() for trace in traces if "master_forget" in trace]
    distances = [syntactic_distance(gate).tolist() for gate in masters]
    return WordGates(words, each, distances, [name for name, _ in _names(layers)], **more)


def _names(layers: Iterable[Any], part: str = "") -> Iterator[tuple[str, Spec]]:
    for number, layer in enumerate(layers, 1):
        for direction in (" forward", " backward") if layer.bidirectional else ("",):
            yield f"{part}{number}{direction}", layer.spec


def stream_gates(
    model: LanguageModel, tokens: np.ndarray, eos: int, batch_size: int, sequence_length: int = 70
) -> Iterator[list[LayerGates]]:
    """The gates over a stream of ids [N], which is read in `batch_size` stretches with the state carried.

    Raises: DataError: no token. ArgumentError: a size is not positive.
    """
    if not len(tokens):
        raise DataError("gates.tokens", "must hold at least one token", 0, "Check the text")
    stretches = min(positive_int("gates.batch_size", batch_size), len(tokens))
    states, device = None, model.embedding.weight.device
    with torch.no_grad(), evaluating(model):
        for window in windows(tokens, stretches, sequence_length, eos):
            if window.count:
                states, traces = model.gates(on(device, window.inputs_TB), states)
                counted = torch.from_numpy(window.targets_TB != PAD_TARGET)
                yield layer_gates(model.layers, traces, counted)


def sentence_gates(encoder: Encoder, tokens_TB: Tensor, lengths_B: Tensor) -> list[LayerGates]:
    """The gates of an encoder that reads a batch of whole sentences."""
    with torch.no_grad(), evaluating(encoder):
        traces = encoder(tokens_TB, lengths_B, return_gates=True)[2]
    counted_TB = torch.arange(len(tokens_TB))[:, None] < lengths_B.cpu()
    return layer_gates(encoder.layers, traces, counted_TB)


def gates_by_word(model: LanguageModel, vocabulary: Vocabulary, sentence: str, mapping: str = "number") -> WordGates:
    """The gates of a language model that reads a sentence from a fresh state after `<eos>`.

    Args: mapping: how words are looked up, as in `Vocabulary.encode_foreign`; of no use at other levels.
    """
    tokens, ids = looked_up(vocabulary, sentence, mapping)
    inputs_T1 = torch.tensor([vocabulary.ids[EOS], *ids], device=model.embedding.weight.device)[:, None]
    with torch.no_grad(), evaluating(model):
        traces = model.trace(inputs_T1, None, range(1, len(model.layers) + 1))
    return word_gates(tokens, model.layers, [{name: gate[1:] for name, gate in trace.items()} for trace in traces])


def looked_up(vocabulary: Vocabulary, sentence: str, mapping: str) -> tuple[list[str], list[int]]:
    """Tokens of a sentence, readable, and their ids. Raises: ArgumentError: there are none."""
    tokens = vocabulary.tokens(sentence)
    if not tokens:
        raise ArgumentError(
            "--sentence", "must have at least one word", repr(sentence), "Write --sentence 'a few words'"
        )
    return vocabulary.readable(tokens), prompt_ids(vocabulary, tokens, mapping)
