"""Which backend runs a request: the named one, or an error with its reason; else the first able one, on a GPU the fastest."""

from collections.abc import Sequence
from typing import Any, Protocol

from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import BackendError
from gatedrnn.sequence.backends.cpu.backend import Cpu
from gatedrnn.sequence.backends.pytorch import PyTorch
from gatedrnn.sequence.backends.triton.backend import Triton
from gatedrnn.sequence.reference import Reference
from gatedrnn.sequence.request import Request, Result
from gatedrnn.sequence.timing import fastest, measurable


class Backend(Protocol):
    """A way to run a request. `supports` returns None, or the reason why it cannot."""

    def supports(self, request: Request) -> str | None:
        """None, or the reason why it cannot run `request`."""
        ...

    def run(self, request: Request) -> Result:
        """Run it."""
        ...

    def prepare(self, requests: Sequence[Request]) -> Any:
        """How to run requests like these, of layers upon one another, which it supports, at once; None where it cannot."""
        ...


BACKENDS: dict[str, Backend] = {"cpu": Cpu(), "triton": Triton(), "torch": PyTorch(), "reference": Reference()}
"""By name, in the order in which they are asked; the reference runs what none of the others supports."""


def choices() -> list[str]:
    """What a layer's `backend` argument accepts."""
    return ["auto", *BACKENDS]


def backend_for(request: Request, name: str = "auto") -> Backend:
    """The backend that will run `request`.

    Raises: ArgumentError: unknown name. BackendError: the named backend does not support the request; its reason.
    """
    if name != "auto":
        one_of("backend", name, choices())
        reason = BACKENDS[name].supports(request)
        if reason is not None:
            raise BackendError(f"backend={name!r}", "cannot run this request", reason, "Use backend='auto'")
        return BACKENDS[name]
    able = (key for key, backend in BACKENDS.items() if backend.supports(request) is None)
    first = next(able)
    if not measurable(request.x_TBD.device):
        return BACKENDS[first]
    runs = {key: BACKENDS[key].run for key in (first, *able) if key != "reference"}  # which is the slowest
    return BACKENDS[fastest(runs, request, _lost) if len(runs) > 1 else first]


def prepare(requests: Sequence[Request], name: str = "auto") -> Any:
    """How to run requests like these, of layers upon one another, at once; None where no backend can.

    Returns: (x_TBD, states, params) → (output, final states), states [L, B, H] each.
    """
    backends = {backend_for(request, name) for request in requests}
    return backends.pop().prepare(requests) if len(backends) == 1 else None


def _lost(name: str) -> None:
    """Free what a backend keeps that was timed and is not taken."""
    if name == "triton":
        from gatedrnn.sequence.backends.triton import graphs

        graphs.drop()
