"""What the kernels' operators have no formula for."""

from collections.abc import Callable
from typing import Any

from gatedrnn.core.errors import BackendError


def no_second_derivative(backend: str) -> Callable[..., Any]:
    """A backward formula for a backward operator of `backend`. It raises BackendError."""

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise BackendError(
            f"backend={backend!r}",
            "supports first derivatives only",
            "a backward pass through a backward pass",
            "Use backend='reference' for higher derivatives",
        )

    return refuse
