"""The graphs of each kind of module: a name, inputs, and a function from tensors to a dictionary of tensors.

Dimensions: T time, B batch, V vocabulary, D input, H hidden, S source, M encoder output, P layers · directions.
"""

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gatedrnn.core.errors import ArgumentError
from gatedrnn.export.loops import prepared, state_sizes
from gatedrnn.gates.trace import syntactic_distance
from gatedrnn.layers import RecurrentBase
from gatedrnn.models import LanguageModel, PairClassifier, TranslationModel
from gatedrnn.models.translation import Source
from gatedrnn.weights.compressed import compressed

MASTERS = ("master_input", "master_forget")


@dataclass(frozen=True)
class Input:
    """An input of a graph.

    Args:
        name: in the ONNX file.
        sizes: its shape; "T", "B" and "S" are dynamic.
        kind: "real" for float32; "ids" for int64 in 0 … below − 1; "lengths" for int64 in 1 … T (or S); "flags" for bool.
        below: number of ids.
    """

    name: str
    sizes: tuple[str | int, ...]
    kind: str = "real"
    below: int = 0


@dataclass(frozen=True)
class Graph:
    """A graph to be written.

    Args:
        name: of its file, without `.onnx`.
        module: what is exported; takes the inputs in order and returns a dictionary of tensors.
        truth: the same of the module as given, which the graph is compared with.
        inputs: in order.
    """

    name: str
    module: nn.Module
    truth: nn.Module
    inputs: tuple[Input, ...]


Function = Callable[..., dict[str, Tensor]]


@dataclass(frozen=True)
class _Kind:
    """As `Graph`, with functions of the model and of the inputs; `truth` is `function` unless given."""

    name: str
    function: Function
    inputs: tuple[Input, ...]
    truth: Function | None = None


class _Called(nn.Module):
    """A function of a model as a module."""

    def __init__(self, model: nn.Module, function: Function) -> None:
        super().__init__()
        self.model, self._function = model, function

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """What the function returns."""
        return self._function(self.model, *inputs)


def graphs_of(module: nn.Module, operators: Collection[str]) -> list[Graph]:
    """The graphs of a layer or a model in evaluation mode, made of copies.

    Args: operators: ONNX operators that may stand for a cell.
    Raises: ArgumentError: no graph is known for such a module, or its weights are on meta or not finite float32.
    """
    kinds = next((made for kind, made in _KINDS.items() if isinstance(module, kind)), None)
    if kinds is None:
        known = ", ".join(kind.__name__ for kind in _KINDS)
        raise ArgumentError("export.onnx", f"takes one of {known}", type(module).__name__, "Export its layers")
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise ArgumentError("export.onnx", "needs weights with numbers", f"{name} on meta", "Load them first")
    model = _copy(module).cpu().eval()
    if any(compressed(parameter) for parameter in model.parameters()):
        model = model.expand()  # type: ignore[operator]
    _check_weights(model)
    model.requires_grad_(False)
    if isinstance(model, RecurrentBase):
        model.batch_first = False
    exported = prepared(copy.deepcopy(model), operators)
    return [
        Graph(kind.name, _Called(exported, kind.function), _Called(model, kind.truth or kind.function), kind.inputs)
        for kind in kinds(model)
    ]


def _copy(module: nn.Module) -> nn.Module:
    """Raises: ArgumentError: a weight is computed, as by torch.nn.utils.prune, so that PyTorch cannot copy it."""
    try:
        return copy.deepcopy(module)
    except RuntimeError as error:
        owners = [(f"{at}.{n}".lstrip("."), v) for at, each in module.named_modules() for n, v in vars(each).items()]
        got = next((name for name, value in owners if isinstance(value, Tensor) and not value.is_leaf), None)
        if got is None:
            raise
        advice = "Make it a parameter first: torch.nn.utils.prune.remove(module, name)"
        raise ArgumentError("export.onnx", "needs weights that are parameters", f"a computed {got}", advice) from error


def _check_weights(model: nn.Module) -> None:
    """Raises: ArgumentError: a weight is of another type than float32, or holds NaN or infinity."""
    for name, tensor in model.named_parameters():
        if tensor.dtype != torch.float32:
            advice = "Call .float() first"
            raise ArgumentError("export.onnx", "needs weights in float32", f"{tensor.dtype} in {name}", advice)
        if not bool(tensor.isfinite().all()):
            advice = "The weights are damaged: restore the run, or train again"
            raise ArgumentError("export.onnx", "needs finite weights", f"NaN or infinity in {name}", advice)


def _state_inputs(layers: list[Any]) -> list[Input]:
    """The states of a stack of layers, each [B, H]; layers count from 1."""
    return [
        Input(f"{name}_{k}", ("B", size))
        for k, layer in enumerate(layers, 1)
        for name, size in zip(layer.spec.states, state_sizes(layer), strict=True)
    ]


def _by_layer(layers: list[Any], states: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """States [B, H] as layers hold them: a tuple of [1, B, H] for each."""
    rest = iter(states)
    return [tuple(next(rest)[None] for _ in layer.spec.states) for layer in layers]


def _state_outputs(layers: list[Any], states: list[Any], end: str = "_out") -> dict[str, Tensor]:
    names = [f"{name}_{k}{end}" for k, layer in enumerate(layers, 1) for name in layer.spec.states]
    return dict(zip(names, (state[0] for layer in states for state in layer), strict=True))


def _masters(traces: list[Any]) -> dict[str, Tensor]:
    """Master gates and distances by layer, from 1; nothing for cells without them."""
    found: dict[str, Tensor] = {}
    for k, trace in enumerate(traces, 1):
        found |= {f"{name}_{k}": trace[name] for name in MASTERS if name in trace}
        if MASTERS[1] in trace:
            found[f"distance_{k}"] = syntactic_distance(trace[MASTERS[1]])
    return found


def _traced(layer: Any) -> tuple[str, ...] | bool:
    """The gates that graphs of a layer's cell give out; False for none."""
    names = {gate.name for gate in layer.spec.gates}
    return tuple(name for name in MASTERS if name in names) or False


Read = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Outputs [T, B, ...] and states after the last step."""


def _sequence_and_step(
    read: Callable[[Any, Tensor, Tensor | None, tuple[Tensor, ...]], Read],
) -> tuple[Function, Function]:
    """The functions of both graphs. Args: read: of the model, input [T, B, ...], lengths [B] or None, and states."""

    def sequence(model: Any, given: Tensor, lengths: Tensor, *states: Tensor) -> dict[str, Tensor]:
        outputs, after = read(model, given, lengths, states)
        return outputs | after

    def step(model: Any, given: Tensor, *states: Tensor) -> dict[str, Tensor]:
        outputs, after = read(model, given[None], None, states)
        return {name: value[0] for name, value in outputs.items()} | after

    return sequence, step


def _language_model(model: Any) -> list[_Kind]:
    """`sequence`: tokens [T, B], lengths [B], states → logits, master gates, distances, states; `step`: of tokens [B]."""
    layers, V = list(model.layers), model.embedding.num_embeddings

    def read(model: Any, tokens: Tensor, lengths: Tensor | None, states: tuple[Tensor, ...]) -> Read:
        hidden, finals, traces, outputs = model.embedding(tokens), [], [], []
        for layer, state in zip(model.layers, _by_layer(layers, states), strict=True):
            hidden, after, *trace = layer(hidden, state, lengths=lengths, return_gates=_traced(layer))
            finals.append(after if isinstance(after, tuple) else (after,))
            traces += trace[0] if trace else []
            outputs.append(hidden)
        return {"logits": model.decoder(model.combined(outputs))} | _masters(traces), _state_outputs(layers, finals)

    def truth(model: Any, tokens: Tensor, lengths: Tensor, *states: Tensor) -> dict[str, Tensor]:
        found = model(tokens, _by_layer(layers, states), lengths=lengths, return_gates=True)
        return {"logits": found.logits} | _masters(found.gates) | _state_outputs(layers, found.states)

    sequence, step = _sequence_and_step(read)
    own = _state_inputs(layers)
    many = Input("tokens", ("T", "B"), "ids", V), Input("lengths", ("B",), "lengths")
    one = Input("tokens", ("B",), "ids", V)
    return [_Kind("sequence", sequence, (*many, *own), truth), _Kind("step", step, (one, *own))]


def _layer(layer: Any) -> list[_Kind]:
    """`sequence`: input [T, B, D], lengths [B], states [P, B, H] → output, states, gates; `step`, of one direction: [B, D]."""
    P, D = layer.num_layers * (1 + layer.bidirectional), layer.input_size
    names = layer.spec.states
    own = [Input(f"{name}_0", (P, "B", size)) for name, size in zip(names, state_sizes(layer), strict=True)]

    def read(model: Any, x: Tensor, lengths: Tensor | None, states: tuple[Tensor, ...]) -> Read:
        output, after, *trace = model(x, states, lengths=lengths, return_gates=_traced(layer))
        finals = after if isinstance(after, tuple) else (after,)
        named = {f"{name}_n": state for name, state in zip(names, finals, strict=True)}
        return {"output": output} | _masters(trace[0] if trace else []), named

    sequence, step = _sequence_and_step(read)
    many = Input("input", ("T", "B", D)), Input("lengths", ("B",), "lengths")
    found = [_Kind("sequence", sequence, (*many, *own))]
    return found if layer.bidirectional else [*found, _Kind("step", step, (Input("input", ("B", D)), *own))]


def _classifier(model: Any) -> list[_Kind]:
    """`sequence`: ids of both sides [T, B] and [S, B], their lengths → logits [B, C]."""
    V = model.encoder.embedding.num_embeddings
    inputs = (
        Input("left", ("T", "B"), "ids", V),
        Input("right", ("S", "B"), "ids", V),
        Input("left_lengths", ("B",), "lengths"),
        Input("right_lengths", ("B",), "lengths"),
    )

    def sequence(model: Any, left: Tensor, right: Tensor, *lengths: Tensor) -> dict[str, Tensor]:
        one, two = (model.encode(side, own) for side, own in zip((left, right), lengths, strict=True))
        return {"logits": model.compare(one, two)}

    return [_Kind("sequence", sequence, inputs, lambda model, *given: {"logits": model(*given)})]


def _translation(model: Any) -> list[_Kind]:
    """`encoder`: source [S, B], lengths [B] → what `step` reads beside tokens [B] → logits, attention, states."""
    layers, H = list(model.layers), model.layers[0].hidden_size
    V_source, V_target = model.encoder.embedding.num_embeddings, model.embedding.num_embeddings

    def encoder(model: Any, source: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        found = model.encode(source, lengths)
        known = {"memory": found.memory_BSM, "keys": found.keys_BSH, "beyond": found.beyond_BS}
        return known | _state_outputs(layers, found.states, "")

    def step(
        model: Any, tokens: Tensor, memory: Tensor, keys: Tensor, beyond: Tensor, *states: Tensor
    ) -> dict[str, Tensor]:
        found = model.decode(Source(memory, keys, beyond, _by_layer(layers, states)), tokens[None])
        after = _state_outputs(layers, found.source.states)
        return {"logits": found.scores[0], "attention": found.attention[0]} | after

    M = model.encoder.output_size
    sources = Input("source", ("S", "B"), "ids", V_source), Input("lengths", ("B",), "lengths")
    known = Input("memory", ("B", "S", M)), Input("keys", ("B", "S", H)), Input("beyond", ("B", "S"), "flags")
    token = Input("tokens", ("B",), "ids", V_target)
    return [_Kind("encoder", encoder, sources), _Kind("step", step, (token, *known, *_state_inputs(layers)))]


_KINDS: dict[type, Callable[[Any], list[_Kind]]] = {
    LanguageModel: _language_model,
    RecurrentBase: _layer,
    PairClassifier: _classifier,
    TranslationModel: _translation,
}
