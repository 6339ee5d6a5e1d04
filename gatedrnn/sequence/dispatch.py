"""Which backend runs a request: the named one, or an error with its reason; else the first able one, on a GPU the fastest."""

from collections.abc import Sequence
from typing import Any

from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import BackendError
from gatedrnn.sequence import timing
from gatedrnn.sequence.backends.cpu.backend import Cpu
from gatedrnn.sequence.backends.pytorch import PyTorch
from gatedrnn.sequence.backends.triton.backend import Triton
from gatedrnn.sequence.reference import Reference
from gatedrnn.sequence.request import Backend, Request

BACKENDS: dict[str, Backend] = {"cpu": Cpu(), "triton": Triton(), "torch": PyTorch(), "reference": Reference()}
"""By name, in the order in which they are asked; the reference runs what none of the others supports."""


def choices() -> list[str]:
    """What a layer's `backend` argument accepts."""
    return ["auto", *BACKENDS]


def backend_for(request: Request, name: str = "auto") -> Backend:
    """The backend that runs `request`: they are asked; nothing is timed.

    Raises: ArgumentError: unknown name. BackendError: the named backend does not support the request; its reason.
    """
    able = _able(request, name)
    return BACKENDS[(timing.known(able, request) if len(able) > 1 else None) or able[0]]


def measure(request: Request, name: str = "auto") -> None:
    """Where several backends on a GPU can run `request`: time them, once for its size; what `backend_for` then takes."""
    if name != "auto" or not timing.measurable(request.x_TBD.device):
        return
    able = _able(request, name)
    if len(able) > 1 and timing.known(able, request) is None:
        timing.measure({key: BACKENDS[key].run for key in able}, request, _lost)


def _able(request: Request, name: str) -> list[str]:
    """Names of the backends that can run it, in order; the reference, which is the slowest, only where it is the only one."""
    if name == "auto":
        able = (key for key, backend in BACKENDS.items() if backend.supports(request) is None)
        first = next(able)
        if not timing.measurable(request.x_TBD.device):  # nobody asks for the second
            return [first]
        return [key for key in (first, *able) if key != "reference"] or [first]
    one_of("backend", name, choices())
    reason = BACKENDS[name].supports(request)
    if reason is not None:
        advice = f"Use backend='auto' for the cell {request.cell.name}"
        raise BackendError(f"backend={name!r}", "cannot run this request", reason, advice)
    return [name]


def prepare(requests: Sequence[Request], name: str = "auto") -> Any:
    """How to run requests like these, of layers upon one another, at once; None where no backend can.

    Returns: (x_TBD, states, params) → (output, final states), states [L, B, H] each.
    """
    for request in requests:
        measure(request, name)
    backends = {backend_for(request, name) for request in requests}
    return backends.pop().prepare(requests) if len(backends) == 1 else None


def _lost(name: str) -> None:
    """Free what a backend keeps that was timed and is not taken."""
    if name == "triton":
        from gatedrnn.sequence.backends.triton import graphs

        graphs.drop()
