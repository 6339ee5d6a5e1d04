"""Modules in the form that torch.export turns into short graphs: an ONNX operator or a Scan for each recurrent layer.

Dimensions: T time, B batch, D input, E embedding, V tokens, P layers · directions.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatedrnn.cells import Params, State, Trace
from gatedrnn.core.torch_internals import scan
from gatedrnn.export.standard import Standard, run_standard, standard
from gatedrnn.layers import RecurrentBase
from gatedrnn.sequence import Request, Result, fold
from gatedrnn.sequence.reference import one_step, recurrent_rows


def prepared(model: nn.Module, operators: Collection[str]) -> nn.Module:
    """The model with each part that needs another form replaced in place.

    Args: operators: ONNX operators that may stand for a cell; other cells become a Scan.
    """
    if isinstance(model, RecurrentBase):
        return ExportedLayer(model, operators)
    _share_tied(model)
    for name, child in list(model.named_modules()):
        if isinstance(child, RecurrentBase):
            model.set_submodule(name, ExportedLayer(child, operators))
    return model


def _share_tied(model: nn.Module) -> None:
    """Let an embedding and a product that share a weight [V, E] read one tensor [E, V], so that a graph stores it once."""
    modules = list(model.named_modules())
    linear = {id(module.weight): name for name, module in modules if isinstance(module, nn.Linear)}
    for name, module in modules:
        if isinstance(module, nn.Embedding) and id(module.weight) in linear:
            product = model.get_submodule(linear[id(module.weight)])
            if isinstance(product, nn.Linear):
                product = _Product(product)
                model.set_submodule(linear[id(module.weight)], product)
            model.set_submodule(name, _Columns(product))


class _Product(nn.Module):
    """A linear layer with its weight as [E, V]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight_EV = nn.Parameter(linear.weight.detach().t().contiguous(), requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x [..., E] → [..., V]."""
        product = x @ self.weight_EV
        return product if self.bias is None else product + self.bias


class _Columns(nn.Module):
    """An embedding whose vectors are columns of a product's weight."""

    def __init__(self, product: Any) -> None:
        super().__init__()
        self.weight_EV, self.num_embeddings = product.weight_EV, product.weight_EV.shape[1]

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [T, B] → [T, B, E]."""
        return self.weight_EV.index_select(1, ids.flatten()).t().unflatten(0, ids.shape)


class ExportedLayer(nn.Module):
    """A layer in evaluation mode, with the same arguments, time first; its graph holds one step, for any T.

    Args: operators: as `prepared`.
    """

    def __init__(self, layer: RecurrentBase, operators: Collection[str]) -> None:
        super().__init__()
        self.layer, self.spec = layer, layer.spec
        self.places = layer.num_layers * (1 + layer.bidirectional)
        found = [standard(layer, place) for place in range(self.places)]
        self.standard = nn.ModuleList(
            own if own is not None and own.operator.name in operators else nn.Identity() for own in found
        )

    def forward(
        self,
        x_TBD: Tensor,
        hx: Any = None,
        *,
        lengths: Tensor | None = None,
        return_gates: bool | tuple[str, ...] = False,
    ) -> Any:
        """As `RecurrentBase.forward`, of a batch as a tensor."""
        layer, directions = self.layer, 1 + self.layer.bidirectional
        states = self._states(hx, x_TBD)
        finals, traces = list[State](), list[Trace]()
        for depth in range(layer.num_layers):
            outputs = []
            for place in range(depth * directions, (depth + 1) * directions):
                request = layer.request(place, x_TBD, states[place], lengths_B=lengths, return_gates=return_gates)
                own = self.standard[place]
                by_operator = isinstance(own, Standard) and not return_gates
                result = run_standard(own, request) if by_operator else run(request)
                outputs.append(result.output_TBH)
                finals.append(result.state)
                traces.append(result.trace or {})
            x_TBD = torch.cat(outputs, -1) if directions > 1 else outputs[0]
        after = tuple(torch.stack(each) for each in zip(*finals, strict=True))
        found = x_TBD, after[0] if len(after) == 1 else after
        return (*found, traces) if return_gates else found

    def _states(self, hx: Any, x_TBD: Tensor) -> list[State]:
        """Initial states of each layer and direction, each [B, H]; zeros for None."""
        if hx is None:
            nothing = x_TBD.new_zeros((1, x_TBD.shape[1], 1))
            hx = tuple(nothing.expand(self.places, -1, size) for size in state_sizes(self.layer))
        given = (hx,) if isinstance(hx, Tensor) else hx
        return [tuple(state[place] for state in given) for place in range(self.places)]


def state_sizes(layer: RecurrentBase) -> list[int]:
    """Units of each state; a projected layer's h is the projection."""
    return [layer.proj_size or layer.hidden_size, *[layer.hidden_size] * (len(layer.spec.states) - 1)]


def run(request: Request) -> Result:
    """One layer and direction: its cell's step inside a scan, or by itself where one step is exported."""
    params = fold(request.params, request.spec, request.scale_R)
    given = [F.linear(request.x_TBD, params.weight_ih, params.bias_ih)]
    steps = request.x_TBD.shape[0]
    if isinstance(steps, int) and steps == 1 and request.lengths_B is None:
        recurrent = recurrent_rows(request, params)
        new, output, trace = one_step(request, params, recurrent, given[0][0], request.state, None)
        return Result(output[None], new, {name: gate[None] for name, gate in trace.items()})
    if request.lengths_B is not None:
        t = torch.arange(steps, device=request.lengths_B.device)
        given.append(t[:, None] < request.lengths_B)
    names = list[str]()

    def body(*values: Tensor) -> list[Tensor]:
        state, here = values[:S], list(values[S : S + len(given)])
        own = _with_weights(params, values[S + len(given) :])
        alive = here[1] if len(here) > 1 else None
        new, output, trace = one_step(request, own, recurrent_rows(request, own), here[0], state, alive)
        names[:] = trace
        return [value.clone() for value in (*new, output, *trace.values())]

    S = len(request.state)
    if request.reverse:
        given = [value.flip(0) for value in given]
    found = scan(body, [state.clone() for state in request.state], given, _weights(params))
    outputs = [value.flip(0) if request.reverse else value for value in found[S:]]
    trace = dict(zip(names, outputs[1:], strict=True))
    return Result(outputs[0], tuple(found[:S]), trace if request.return_gates else None)


def _weights(params: Params) -> tuple[Tensor, ...]:
    """The tensors that a step reads."""
    own = (params.weight_hh, params.bias_hh, params.weight_hr, *params.extras.values())
    return tuple(tensor for tensor in own if tensor is not None)


def _with_weights(params: Params, weights: Sequence[Tensor]) -> Params:
    """The same parameters with the tensors of `_weights` in another form."""
    rest = iter(weights)
    own = (params.weight_hh, params.bias_hh, params.weight_hr)
    hh, bias, hr = (None if each is None else next(rest) for each in own)
    extras = {name: next(rest) for name in params.extras}
    return replace(params, weight_hh=hh, bias_hh=bias, weight_hr=hr, extras=extras)  # type: ignore[arg-type]
