"""What is asked of a backend, and what it gives."""

from dataclasses import dataclass

from torch import Tensor

from gatedrnn.cells import Cell, Params, Spec, State, Trace
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
        return_gates: whether the trace is wanted.
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
    return_gates: bool = False

    def drawn_noise(self) -> Tensor | None:
        """The noise as a tensor, drawn now if it was still to be drawn."""
        if not isinstance(self.noise, Draw):
            return self.noise
        T, B, _ = self.x_TBD.shape
        return self.noise.rows(T * B, self.spec.rows, self.params.weight_ih).view(T, B, -1)


@dataclass(frozen=True)
class Result:
    """Output [T, B, H] (0 beyond a row's length), final states [B, H], and the trace [T, B, N] by gate name or None."""

    output_TBH: Tensor
    state: State
    trace: Trace | None
