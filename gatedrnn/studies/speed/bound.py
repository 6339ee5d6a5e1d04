"""The products of a layer by themselves: the time that no kernel of ours can go below."""

from collections.abc import Callable

import torch
from torch import Tensor

from gatedrnn.compiler.plan import Plan, Product
from gatedrnn.sequence.backends.cpu.matmul.sizes import TOKENS, depth, round_up
from gatedrnn.sequence.backends.cpu.recurrence.arguments import Values, leading, loop, threads_for
from gatedrnn.sequence.backends.cpu.runtime import memory, team
from gatedrnn.sequence.backends.cpu.runtime.target import best


def bound(steps: int, batch: int, width: int, hidden: int, columns: int, parts: int, kind: str) -> Callable[[], None]:
    """A function that runs `parts` (bits, as `PARTS`) of the products of a layer on weights packed beforehand."""
    plan, tokens = Plan("products", hidden, columns, columns, 0, (Product(0, 0, columns, 0, 0),)), steps * batch
    run = loop("products", plan, width, threads_for(plan, tokens, width, team.size()), best(), kind)

    def panels(rows: int, across: int) -> Tensor:
        return memory.aligned(depth(rows, kind) * round_up(across, run.panel), run.packed).zero_()

    values: Values = {
        "T": steps, "B": batch, "which": parts, "x": torch.randn(tokens, width),
        "PW": panels(width, columns), "PU": panels(hidden, columns),
        "QW": panels(columns, width), "QU": panels(columns, hidden),
        "G": torch.zeros(tokens, leading(plan)), "out": torch.randn(tokens, hidden), "h0": torch.zeros(batch, hidden),
        "dh": torch.zeros(batch, hidden), "dx": torch.zeros(tokens, width), "db": torch.zeros(columns),
        "dW": torch.zeros(columns, width), "dU": torch.zeros(columns, hidden), "prev": torch.zeros(tokens).long(),
        "shared": memory.aligned(TOKENS * round_up(max(width, hidden), run.panel), run.packed),
    }  # fmt: skip
    return lambda: run(values)
