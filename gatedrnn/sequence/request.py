"""What is asked of a backend, and what it gives."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gatedrnn.cells import Cell, Params, Spec, State, Trace
from gatedrnn.sequence.compressed import CompressedWeight
from gatedrnn.sequence.modes import plain
from gatedrnn.sequence.perturb import Draw


@dataclass(frozen=True)
class Request:
    """One layer and direction over a sequence.

    Args:
        cell, spec, params: what is computed.
        x_TBD: input [T, B, D].
        state: initial states, each [B, H].
        scale_R: 1 / τ by row: multiplies W x + U h' + b (and peepholes); None for 1.
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

    def tensors(self) -> list[Tensor]:
        """All that is given."""
        given = [self.x_TBD, *self.state, *self.params.tensors()]
        return given if self.noise is None or isinstance(self.noise, Draw) else [*given, self.noise]

    def only_numbers(self) -> bool:
        """Whether nothing but numbers is wanted: see `plain`."""
        return plain(*(tensor for tensor in self.tensors() if not isinstance(tensor, CompressedWeight)))

    def wants(self, gate: str) -> bool:
        """Whether the trace of this gate is wanted."""
        return gate in self.return_gates if isinstance(self.return_gates, tuple) else self.return_gates

    def drawn_noise(self) -> Tensor | None:
        """The noise as a tensor, drawn now if it was still to be drawn."""
        if not isinstance(self.noise, Draw):
            return self.noise
        T, B, _ = self.x_TBD.shape
        return self.noise.rows(T * B, self.spec.rows, self.params.weight_ih).view(T, B, -1)

    def mixture(self) -> str | None:
        """None, or how input and weights differ: in device, or in type where no autocast makes them equal."""
        x, weight = self.x_TBD, self.params.weight_hh
        if x.device != weight.device:
            return f"the input is on {x.device}, the weights on {weight.device}"
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            return f"the input is {x.dtype}, the weights {weight.dtype}"
        return None

    def misfit(self) -> str | None:
        """None, or which tensor has not the type or shape that a kernel, which checks nothing, would read."""
        p, spec, (_, B, D) = self.params, self.spec, self.x_TBD.shape
        R, H, weight = spec.rows, spec.hidden_size, p.weight_hh
        expected = [("weight_ih", p.weight_ih, (R, D)), ("weight_hh", weight, (R, H))]
        expected += [("bias_ih", p.bias_ih, (R,)), ("bias_hh", p.bias_hh, (R,))]
        expected += [(extra.name, p.extras[extra.name], spec.extra_shape(extra)) for extra in spec.extras]
        for name, tensor, shape in expected:
            if tensor is not None and (
                tensor.shape != shape or tensor.dtype != weight.dtype or tensor.device != weight.device
            ):
                got = f"{tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}"
                return f"{name} is {got}, not {weight.dtype} of {list(shape)}"
        for state in self.state:
            if state.shape != (B, H) or not state.is_floating_point() or state.device != weight.device:
                return f"a state is {state.dtype} of shape {list(state.shape)} on {state.device}, not of {[B, H]}"
        return None


@dataclass(frozen=True)
class Result:
    """Output [T, B, H] (0 beyond a row's length), final states [B, H], and the trace [T, B, N] by gate name or None."""

    output_TBH: Tensor
    state: State
    trace: Trace | None
