"""Which operator of ONNX computes a cell, by its equation: LSTM, GRU or RNN with the cell's rows in the operator's order.

Dimensions: T time, B batch, D input, H hidden.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gatedrnn.cells import coupled, gru, lstm, peephole, rnn
from gatedrnn.cells.spec import Spec
from gatedrnn.core.torch_internals import Tensors
from gatedrnn.layers import RecurrentBase
from gatedrnn.sequence import Request, Result, fold, scale


@dataclass(frozen=True)
class _Operator:
    """Args: name: of the operator; rows: our gates in its order, "-" before one whose rows are negated, "" for zeros."""

    name: str
    rows: tuple[str, ...]
    attributes: tuple[tuple[str, int | str], ...] = ()


_INT32 = 6  # ONNX's number for the type
_LSTM = ("input_gate", "output_gate", "forget_gate", "cell_candidate")


def _operator(step: Any, spec: Spec) -> _Operator | None:
    """Of a cell; None for a Spec that is not the cell's own: with a hard gate, or a gate without its squash."""
    H = spec.hidden_size
    if step is lstm.step and spec == lstm.make_spec(H):
        return _Operator("LSTM", _LSTM)
    if step is peephole.step and spec == peephole.make_spec(H):
        return _Operator("LSTM", _LSTM)
    if step is coupled.step and spec == coupled.make_spec(H):
        rows = ("-forget_gate", "output_gate", "", "cell_candidate")  # its forget gate is 1 − its input gate
        return _Operator("LSTM", rows, (("input_forget", 1),))
    if step is gru.step and spec == gru.make_spec(H):
        rows = ("update_gate", "reset_gate", "cell_candidate")
        return _Operator("GRU", rows, (("linear_before_reset", 1),))
    if step is gru.step and spec == gru.make_spec(H, reset_after=False):
        return _Operator("GRU", ("-update_gate", "reset_gate", "cell_candidate"), (("linear_before_reset", 0),))
    for ours, theirs in (("tanh", "Tanh"), ("relu", "Relu")):
        if step is rnn.step and spec == rnn.make_spec(H, nonlinearity=ours):
            return _Operator("RNN", ("cell_candidate",), (("activation", theirs),))
    return None


class Standard(nn.Module):
    """A layer's and direction's weights as an operator reads them: W [1, G·H, D], R [1, G·H, H], B [1, 2·G·H], P [1, 3·H]."""

    def __init__(self, operator: _Operator, tensors: dict[str, Tensor], hidden_size: int, reverse: bool) -> None:
        super().__init__()
        self.operator, self.hidden_size, self.reverse = operator, hidden_size, reverse
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.contiguous())


def standard(layer: RecurrentBase, place: int) -> Standard | None:
    """Of a layer's place, where its cell is an operator of ONNX and it does not project; else None."""
    operator, spec = _operator(layer.cell.step, layer.spec), layer.spec
    if operator is None or layer.proj_size:
        return None
    own = layer.params(place)
    params = fold(own, spec, scale(spec, layer.gates, False, own.weight_hh))
    zeros = params.weight_ih.new_zeros(spec.rows)
    bias_x, bias_h = (zeros if bias is None else bias for bias in (params.bias_ih, params.bias_hh))

    def ordered(tensor: Tensor, names: tuple[str, ...]) -> Tensor:
        parts = dict(zip((gate.name for gate in spec.gates), tensor.split([g.rows for g in spec.gates]), strict=True))
        found = [
            torch.zeros_like(tensor[: spec.hidden_size]) if not name else parts[name.lstrip("-")] for name in names
        ]
        return torch.cat([-part if name.startswith("-") else part for part, name in zip(found, names, strict=True)])

    rows = operator.rows
    tensors = {"W": ordered(params.weight_ih, rows)[None], "R": ordered(params.weight_hh, rows)[None]}
    tensors["B"] = torch.cat([ordered(bias_x, rows), ordered(bias_h, rows)])[None]
    if spec.extras:
        i, f, o = params.extras[spec.extras[0].name].chunk(3)
        tensors["P"] = torch.cat([i, o, f])[None]
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    return Standard(operator, detached, spec.hidden_size, place % (1 + layer.bidirectional) == 1)


@torch.library.custom_op("gatedrnn_onnx::standard", mutates_args=())
def _standard(
    x: Tensor, states: Tensors, lengths: Tensor, W: Tensor, R: Tensor, B: Tensor, P: Tensor | None, name: str, how: str,
    hidden_size: int, reverse: bool,
) -> Tensors:  # fmt: skip
    """Stands for the operator in a graph: output [T, B, H] and final states [B, H]."""
    raise NotImplementedError("it is exported, not run")


@_standard.register_fake
def _(x, states, lengths, W, R, B, P, name, how, hidden_size, reverse):
    return [x.new_empty((x.shape[0], x.shape[1], hidden_size)), *(torch.empty_like(state) for state in states)]


def run_standard(own: Any, request: Request) -> Result:
    """One layer and direction by the operator."""
    x_TBD = request.x_TBD
    lengths = request.lengths_B
    if lengths is None:
        lengths = torch.full((x_TBD.shape[1],), x_TBD.shape[0], dtype=torch.int64)
    how = ";".join(f"{name}={value}" for name, value in own.operator.attributes)
    weights = (own.W, own.R, own.B, getattr(own, "P", None))
    output, *finals = torch.ops.gatedrnn_onnx.standard(
        x_TBD, list(request.state), lengths, *weights, own.operator.name, how, own.hidden_size, own.reverse
    )
    return Result(output, tuple(finals), None)


def translated(x: Any, states: Any, lengths: Any, W: Any, R: Any, B: Any, P: Any, name: str, how: str, hidden_size: int,
               reverse: bool) -> Any:  # fmt: skip
    """What the exporter writes for it."""
    from onnxscript import opset20

    op: Any = opset20

    lens = op.Cast(lengths, to=_INT32)
    axis = op.Constant(value_ints=[0])
    direction = "reverse" if reverse else "forward"
    before = [op.Unsqueeze(state, axis) for state in states]
    attributes: dict[str, Any] = {"hidden_size": hidden_size, "direction": direction}
    for each in how.split(";") if how else []:
        key, value = each.split("=")
        attributes |= {"activations": [value]} if key == "activation" else {key: int(value)}
    if name == "LSTM":
        y, h, c = op.LSTM(x, W, R, B, lens, *before, P, **attributes)
        finals = [h, c]
    else:
        y, h = getattr(op, name)(x, W, R, B, lens, *before, **attributes)
        finals = [h]
    return [op.Squeeze(y, op.Constant(value_ints=[1])), *(op.Squeeze(each, axis) for each in finals)]


TRANSLATIONS = {torch.ops.gatedrnn_onnx.standard.default: translated}
