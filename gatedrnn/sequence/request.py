"""What is asked of a backend, and what it gives."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from gatedrnn.cells import Cell, Params, Spec, State, Trace
from gatedrnn.sequence.modes import described, readable
from gatedrnn.sequence.perturb import Draw, real_of


@dataclass(slots=True, eq=False)
class Request:
    """One layer and direction over a sequence.

    Args:
        cell, spec, params: what is computed.
        x_TBD: input [T, B, D].
        state: initial states, each [B, H].
        scale_R: 1 / τ by row: multiplies W x + U h' + b (and further parameters); None for 1.
        noise: ε / τ, added after that: [T, B, R], or a `Draw` of [T·B, R]; None for none.
        lengths_B: steps that count in each row, int64 [B] in 1…T; None for all.
        reverse: run from each row's last step to its first.
        return_gates: whether the trace is wanted, or the gates of it that are, by name.
    """

    cell: Cell
    spec: Spec
    params: Params
    x_TBD: Tensor
    state: State
    scale_R: Tensor | None = None
    noise: Tensor | Draw | None = None
    lengths_B: Tensor | None = None
    reverse: bool = False
    return_gates: bool | tuple[str, ...] = False
    _described: tuple[Hashable, ...] | bool | None = field(default=False, init=False, repr=False)

    def tensors(self) -> list[Tensor]:
        """All that is given."""
        return [tensor for tensor in self._slots() if tensor is not None]

    def _slots(self) -> tuple[Tensor | None, ...]:
        p, noise = self.params, None if isinstance(self.noise, Draw) else self.noise
        weights = (p.weight_ih, p.weight_hh, p.bias_ih, p.bias_hh, p.weight_hr, *p.extras.values())
        return self.x_TBD, *self.state, *weights, noise, self.lengths_B

    def description(self) -> tuple[Hashable, ...] | None:
        """What decides whether a backend can run it, where nothing but numbers is wanted (see `described`); else None.

        Worked out once: a request is for the call that made it. A Spec stands in it by its id: hold the Spec beside it.
        """
        if self._described is False:
            found = described(self._slots())
            self._described = found and (self.cell.step, id(self.spec), *found)
        return self._described  # type: ignore[return-value]

    def only_numbers(self) -> bool:
        """Whether nothing but numbers is wanted: no gradient, graph or subclass that an operator serves."""
        return self.description() is not None

    def wants(self, gate: str) -> bool:
        """Whether the trace of this gate is wanted."""
        return gate in self.return_gates if isinstance(self.return_gates, tuple) else self.return_gates

    def live(self, values_TBX: Tensor) -> Tensor:
        """The same with 0 beyond each row's length: NaN there would reach the gradients of weights as 0 · NaN."""
        if self.lengths_B is None:
            return values_TBX
        return blank(values_TBX, torch.arange(values_TBX.shape[0], device=values_TBX.device)[:, None] >= self.lengths_B)

    def drawn_noise(self, logistic: Callable[..., Tensor] | None = None) -> Tensor | None:
        """The noise as a tensor [T, B, R], drawn now if it was still to be drawn.

        Args: logistic: the operator that draws it for sigmoid gates, as `gatedrnn::logistic_noise`; None for plain PyTorch.
        """
        draw, weight = self.noise, self.params.weight_hh
        if not isinstance(draw, Draw):
            return None if draw is None else self.live(draw)
        T, B, _ = self.x_TBD.shape
        count, columns = T * B, self.spec.rows
        if logistic is None:
            return draw.rows(count, columns, weight.dtype).view(T, B, columns)
        like = torch.empty(0, dtype=real_of(weight.dtype), device=weight.device)
        edges = [edge for block in draw.blocks for edge in block]
        noise = logistic(draw.seed, count, columns, edges, draw.probability, draw.scale, like)
        return draw.with_distributions(noise).view(T, B, columns)

    def mixture(self) -> str | None:
        """None, or how input and weights differ: in device, or in type where no autocast makes them equal."""
        x, weight = self.x_TBD, self.params.weight_hh
        if x.device != weight.device:
            return f"the input is on {x.device}, the weights on {weight.device}"
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            return f"the input is {x.dtype}, the weights {weight.dtype}"
        return None

    def misfit(self) -> str | None:
        """None, or which tensor has not the kind, type or shape that a kernel, which checks nothing, would read."""
        if not (self.only_numbers() or torch.compiler.is_compiling()):  # a compiler's tensors stand for those to come
            for tensor in self.tensors():
                if not readable(type(tensor)):
                    return f"a tensor is {_described(tensor)}"
        p, spec, (T, B, D) = self.params, self.spec, self.x_TBD.shape
        R, H, like = spec.rows, spec.hidden_size, p.weight_hh
        J = H if p.weight_hr is None else len(p.weight_hr)
        dtype, device = like.dtype, like.device
        expected = [("weight_ih", p.weight_ih, (R, D)), ("weight_hh", like, (R, J)), ("weight_hr", p.weight_hr, (J, H))]
        expected += [("bias_ih", p.bias_ih, (R,)), ("bias_hh", p.bias_hh, (R,))]
        if spec.extras:
            expected += [(extra.name, p.extras[extra.name], spec.extra_shape(extra)) for extra in spec.extras]
        for name, tensor, shape in expected:
            if tensor is not None and (
                tensor.dtype != dtype or tensor.shape != shape or tensor.device != device or tensor.layout != _STRIDED
            ):
                return f"{name} is {_described(tensor)}, not {dtype} of {list(shape)} on {device}"
        for place, state in enumerate(self.state):
            if state.shape != (B, H if place else J) or state.device != device or not state.is_floating_point():
                return f"a state is {_described(state)}, not of {[B, H if place else J]} on {device}"
        noise = None if isinstance(self.noise, Draw) else self.noise
        if noise is not None and (noise.shape != (T, B, R) or noise.device != device or noise.layout != _STRIDED):
            return f"the noise is {_described(noise)}, not of {[T, B, R]} on {device}"
        lengths = self.lengths_B
        if lengths is not None and (lengths.dtype != torch.int64 or lengths.shape != (B,) or lengths.device != device):
            return f"the lengths are {_described(lengths)}, not int64 of {[B]} on {device}"
        return None


_STRIDED = torch.strided


def _described(tensor: Tensor) -> str:
    kind = "" if readable(type(tensor)) else f"a {type(tensor).__name__}, "
    return f"{kind}{tensor.dtype}, {tensor.layout}, of shape {list(tensor.shape)} on {tensor.device}"


def blank(values: Tensor, dead: Tensor) -> Tensor:
    """The same [*dead.shape, …] with 0 where `dead`."""
    return values.masked_fill(dead.view(*dead.shape, *[1] * (values.dim() - dead.dim())), 0)


@dataclass(slots=True, eq=False)
class Result:
    """Output [T, B, H] (0 beyond a row's length), final states [B, H], and the trace [T, B, …] by gate name or None."""

    output_TBH: Tensor
    state: State
    trace: Trace | None


class Backend(Protocol):
    """A way to run a request. `supports` returns None, or the reason why it cannot."""

    def supports(self, request: Request) -> str | None:
        """None, or the reason why it cannot run `request`."""
        ...

    def run(self, request: Request) -> Result:
        """Run it."""
        ...

    def prepare(self, requests: Sequence[Request]) -> Any:
        """How to run requests like these, of layers upon one another, which it supports, at once; None for one by one."""
        return None
