"""Which backend runs a request: the first that supports it, or the named one or an error with its reason."""

from typing import Protocol

from gatedrnn.core.checks import one_of
from gatedrnn.core.errors import BackendError
from gatedrnn.sequence.backends.cpu.backend import Cpu
from gatedrnn.sequence.backends.triton.backend import Triton
from gatedrnn.sequence.reference import Reference
from gatedrnn.sequence.request import Request, Result


class Backend(Protocol):
    """A way to run a request. `supports` returns None, or the reason why it cannot."""

    def supports(self, request: Request) -> str | None:
        """None, or the reason why it cannot run `request`."""
        ...

    def run(self, request: Request) -> Result:
        """Run it."""
        ...


BACKENDS: dict[str, Backend] = {"cpu": Cpu(), "triton": Triton(), "reference": Reference()}


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
