"""A cell's compiled kernels as functions that Triton compiles or interprets, and what its arrays hold.

Dimensions: H hidden, R rows of W, G columns of gates, K logits of the gates that have not H, C units of a chunk.
"""

import functools
import linecache
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from gatedrnn.cells import Spec
from gatedrnn.compiler.cell import Compiled
from gatedrnn.compiler.kept import kept
from gatedrnn.compiler.outside import place
from gatedrnn.compiler.triton import Gpu
from gatedrnn.core.errors import BackendError
from gatedrnn.sequence.backends.triton import functions
from gatedrnn.sequence.plan import cell_of


@dataclass(frozen=True)
class Shape:
    """Sizes of one cell.

    Args:
        kernel: the cell, `Plan.kernel`.
        hidden, rows, own: H; R; rows of U whose product is done before the step.
        states: elements of a row of s_all.
        logits, chunk: K and C, the greater of K and H / C.
        extras: elements of all extras.
        gpu: the kernels, and what their arrays hold.
    """

    kernel: str
    hidden: int
    rows: int
    own: int
    states: int
    logits: int
    chunk: int
    extras: int
    gpu: Gpu


@functools.lru_cache(maxsize=1024)
def shape_of(kernel: str) -> Shape:
    """The sizes of a cell. Raises: BackendError: this process does not know it, or it has no kernels."""
    spec, found = _found(kernel)
    return Shape(
        kernel, spec.hidden_size, spec.rows, spec.recurrent_rows, spec.hidden_size * max(1, len(spec.states) - 1),
        found.plan.logits, found.plan.chunk, sum(spec.extra_shape(extra)[0] for extra in spec.extras), found.gpu,
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def missing(kernel: str) -> str | None:
    """None, or why a cell has no kernels for a GPU, with a line of its step's file."""
    step, spec = cell_of(kernel)
    found = kept(step, spec)
    if isinstance(found, Compiled):
        return f"{found.gpu}{place(step)}" if isinstance(found.gpu, str) else None
    return found


def _found(kernel: str) -> tuple[Spec, Any]:
    """A cell's Spec, and what was compiled for it."""
    if (reason := missing(kernel)) is not None:
        raise BackendError("backend='triton'", "cannot run this cell", reason, "Use backend='auto'")
    step, spec = cell_of(kernel)
    return spec, kept(step, spec)


@dataclass(frozen=True)
class Rows:
    """The kernels of a cell: forward, backward, each with a second half or None."""

    forward: Any
    backward: Any
    forward_second: Any = None
    backward_second: Any = None


@functools.lru_cache(maxsize=1024)
def rows_of(kernel: str) -> Rows:
    """The kernels of a cell."""
    gpu = _found(kernel)[1].gpu
    return Rows(*(_function(pair[second]) for second in (0, 1) for pair in (gpu.forward, gpu.backward)))


@functools.cache
def _function(text: str) -> Any:
    """The kernel that a text defines; cells with the same text share it."""
    if not text:
        return None
    name = f"<kernel {hash(text) & 0xFFFFFFFFFFFF:x}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name  # where Triton looks for its source
    space: dict[str, Any] = {**vars(functions), "CHANGING": ["t", "old", "new"], "triton": triton, "tl": tl}
    space["__name__"] = __name__
    exec(compile(text, name, "exec"), space)
    return next(value for key, value in space.items() if key.startswith(("forward", "backward")))
