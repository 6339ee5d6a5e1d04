"""The functions of a row that the compiler wrote as text, for the loops.

forward(g, h_prev, c_prev, c, h, extra, scratch, H, K, C)
    g: the row's pre-activations, replaced by gate values (σ, tanh, softmax), or these stand behind them; h, c: written.
    After products of level k, forward_k takes its place.
backward(g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C)
    grad_h, grad_g: what comes from outside, for h and for the gate values; dh, dc: from the next step, replaced by what goes to
    the step before (without the product's part); dg: gradients of the pre-activations, written.
"""

import functools
from typing import Any

from gatedrnn.compiler.cell import Compiled, level_name
from gatedrnn.compiler.kept import kept
from gatedrnn.sequence.backends.cpu.compile.kernels import Linked
from gatedrnn.sequence.plan import cell_of


def of(kernel: str) -> Compiled:
    """What was compiled for a plan's kernel. Raises: BackendError: this process does not know the cell."""
    found = kept(*cell_of(kernel))
    assert isinstance(found, Compiled)  # or there would be no plan
    return found


@functools.cache
def parts_of(kernel: str, direction: str) -> tuple[str, str, Linked | None]:
    """A loop, as `kernel` takes it: its name, where its function is, and the rows it calls; or "products", which calls none."""
    if kernel == "products":
        return kernel, "gatedrnn.sequence.backends.cpu.recurrence.bound:products", None

    def rows(real: Any) -> tuple[Any, list[Any]]:
        from gatedrnn.sequence.backends.cpu.recurrence import rows

        return rows.function_of(_rows(kernel, direction), direction), rows.arguments_of(direction, real)

    return (
        "loop",
        f"gatedrnn.sequence.backends.cpu.recurrence.loops:{direction}",
        Linked(of(kernel).name, f"{direction}_rows", rows),
    )


def _rows(kernel: str, direction: str) -> list[Any]:
    """The functions of a row, by level of products."""
    texts = enumerate(getattr(of(kernel), direction))
    return [_function(text, level_name(direction, level)) for level, text in texts]


def _function(text: str, name: str) -> Any:
    from gatedrnn.sequence.backends.cpu.vector import functions, lanewise, rowwise, simd

    space: dict[str, Any] = {"__name__": __name__}
    for module in (simd, lanewise, functions, rowwise):
        space |= {key: value for key, value in vars(module).items() if not key.startswith("_")}
    exec(compile(text, f"<{name}>", "exec"), space)
    return space[name]
