"""Cells without rows of their own: the functions of a row that the compiler wrote as text, for the loops."""

from typing import Any

from gatedrnn.compiler import Compiled
from gatedrnn.core.errors import BackendError

_KNOWN: dict[str, Compiled] = {}
_MARK = "step-"


def register(compiled: Compiled) -> str:
    """Let kernels be made of it; the name to ask for them by."""
    name = _MARK + compiled.name
    _KNOWN[name] = compiled
    return name


def known(name: str) -> Compiled | None:
    """What was registered under a name, or None for the cells that have rows of their own.

    Raises: BackendError: it was registered in another process, as that of a graph which was loaded here.
    """
    if name.startswith(_MARK) and name not in _KNOWN:
        advice = "Run a layer of that cell once, then the graph"
        raise BackendError("backend='cpu'", "a graph's cell must be known to this process", name, advice)
    return _KNOWN.get(name)


def rows(compiled: Compiled, direction: str) -> tuple[Any, Any]:
    """The function of a row, and that of its second half."""
    from gatedrnn.sequence.backends.cpu.rows.shared import nothing

    texts = compiled.forward if direction == "forward" else compiled.backward
    names = ("forward", "forward_second") if direction == "forward" else ("backward", "backward_second")
    return tuple(_function(text, name) if text else nothing for text, name in zip(texts, names, strict=True))  # type: ignore[return-value]


def _function(text: str, name: str) -> Any:
    from numba import njit

    from gatedrnn.sequence.backends.cpu import functions, lanewise, rowwise, simd

    space: dict[str, Any] = {"njit": njit}
    for module in (simd, lanewise, functions, rowwise):
        space |= {key: value for key, value in vars(module).items() if not key.startswith("_")}
    exec(compile(text, f"<{name}>", "exec"), space)
    return space[name]
