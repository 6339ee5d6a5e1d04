"""The functions of a row that the compiler wrote as text, for the loops."""

from typing import Any

from numba import njit

from gatedrnn.compiler import Compiled
from gatedrnn.sequence.backends.cpu import functions, lanewise, rowwise, simd

_KNOWN: dict[str, Compiled] = {}


def register(compiled: Compiled) -> str:
    """Let kernels be made of it; the name to ask for them by."""
    _KNOWN[compiled.name] = compiled
    return compiled.name


def known(name: str) -> Compiled | None:
    """What was registered under a name."""
    return _KNOWN.get(name)


@njit
def nothing(*arguments):
    """The second half of a step that has none."""


def rows(compiled: Compiled, direction: str) -> tuple[Any, Any]:
    """The function of a row, and that of its second half."""
    texts = compiled.forward if direction == "forward" else compiled.backward
    names = ("forward", "forward_second") if direction == "forward" else ("backward", "backward_second")
    return tuple(_function(text, name) if text else nothing for text, name in zip(texts, names, strict=True))  # type: ignore[return-value]


def _function(text: str, name: str) -> Any:
    space: dict[str, Any] = {"njit": njit}
    for module in (simd, lanewise, functions, rowwise):
        space |= {key: value for key, value in vars(module).items() if not key.startswith("_")}
    exec(compile(text, f"<{name}>", "exec"), space)
    return space[name]
