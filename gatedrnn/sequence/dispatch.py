"""Which backend runs a request: the first that supports it, or the named one or an error with its reason."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gatedrnn.cells import Cell, Params, Spec, State, Trace
from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import BackendError
from gatedrnn.sequence import reference


@dataclass(frozen=True)
class Request:
    """One layer and direction over a sequence.

    Args:
        cell, spec, params: what is computed; temperature already folded into `params`.
        x_TBD: input [T, B, D].
        state: initial states, each [B, H].
        noise_TBR: ε / τ, added to W x; None for none.
        lengths_B: steps that count in each row, int64 [B] in 1…T; None for all.
        reverse: run from each row's last step to its first.
        return_gates: whether the trace is wanted.
    """

    cell: Cell
    spec: Spec
    params: Params
    x_TBD: Tensor
    state: State
    noise_TBR: Tensor | None = None
    lengths_B: Tensor | None = None
    reverse: bool = False
    return_gates: bool = False


@dataclass(frozen=True)
class Result:
    """Output [T, B, H] (0 beyond a row's length), final states [B, H], and the trace [T, B, N] by gate name or None."""

    output_TBH: Tensor
    state: State
    trace: Trace | None


class Backend(Protocol):
    """A way to run a request. `supports` returns None, or the reason why it cannot."""

    def supports(self, request: Request) -> str | None: ...

    def run(self, request: Request) -> Result: ...


class Reference:
    """Eager PyTorch, one step at a time: the truth."""

    def supports(self, request: Request) -> str | None:
        return None

    def run(self, request: Request) -> Result:
        return Result(*reference.run(request))


BACKENDS: dict[str, Backend] = {"reference": Reference()}


def choices() -> list[str]:
    """What a layer's `backend` argument accepts."""
    return ["auto", *BACKENDS]


def backend_for(request: Request, name: str = "auto") -> Backend:
    """The backend that will run `request`.

    Raises: ArgumentError: unknown name. BackendError: the named backend does not support the request; its reason.
    """
    one_of("backend", name, choices())
    if name != "auto":
        reason = BACKENDS[name].supports(request)
        if reason is not None:
            raise BackendError(f"backend={name!r}", "cannot run this request", reason, "Use backend='auto'")
        return BACKENDS[name]
    return next(backend for backend in BACKENDS.values() if backend.supports(request) is None)
