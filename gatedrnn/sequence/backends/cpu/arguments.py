"""What the loops are called with: a layer's sizes, worked out once, then addresses, and scratch for every thread.

Dimensions: N tokens, D input, B batch, H hidden, G columns of gates.
"""

import array
import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from gatedrnn.sequence.backends.cpu import memory, team
from gatedrnn.sequence.backends.cpu.kernels import Kernel, kernel
from gatedrnn.sequence.backends.cpu.sizes import (
    ALIGN,
    ALONE,
    KINDS,
    MATRIX_ROWS,
    REGISTERS,
    TOKENS,
    depth,
    left_bytes,
    round_up,
    rows_at_once,
)
from gatedrnn.sequence.backends.cpu.target import Target
from gatedrnn.sequence.plan import Plan

Values = dict[str, Tensor | int | None]


@dataclass(frozen=True)
class Loop:
    """A compiled loop with the sizes of one layer; called with the arguments that differ between calls.

    Args:
        kernel: the machine code.
        fixed: all its arguments in order, of which `free` (by name, where they stand) are still to be filled in.
        threads: a team's size.
        kind: of the products.
        real, packed: types of scratch and of panels.
        scratch, left: reals of scratch, elements of a left factor, for each thread.
        forward_room: elements of packed W and of packed U.
        backward_room: elements of whichever of them is the larger transposed.
        panel: columns of a panel.
    """

    kernel: Kernel
    fixed: list[int]
    free: dict[str, int]
    threads: int
    kind: str
    real: torch.dtype
    packed: torch.dtype
    scratch: int
    left: int
    forward_room: tuple[int, int]
    backward_room: int
    panel: int

    @property
    def form(self) -> tuple[str, int]:
        """What packed weights look like: they serve every loop of the same form."""
        return self.kind, self.panel

    def lend(self) -> tuple[int, int]:
        """Addresses of scratch and of room for a left factor, for all threads; this thread's until the next call."""
        scratch = memory.lend("scratch", self.threads * self.scratch, self.real)
        return scratch, memory.lend("left", self.threads * self.left, self.packed)

    def filled(self, values: Values) -> list[int]:
        """All arguments in order: tensors by address, None as address 0."""
        arguments = self.fixed.copy()
        for name, value in values.items():
            arguments[self.free[name]] = value.data_ptr() if isinstance(value, Tensor) else value or 0
        return arguments

    def __call__(self, values: Values) -> None:
        """Run it with `values` for all that is free but scratch, which is lent here."""
        values["scratch"], values["left"] = self.lend()
        assert len(values) == len(self.free), values.keys() ^ self.free.keys()
        team.run(self.kernel.address, array.array("q", self.filled(values)), self.threads)


def threads_for(plan: Plan, tokens: int, width: int) -> int:
    """Threads for a layer: one where waking the others takes longer than the products."""
    products = tokens * (plan.columns_x * width + (plan.columns_1 + plan.columns_2) * plan.hidden)
    return 1 if products < ALONE else team.size()


@functools.lru_cache(maxsize=256)
def loop(direction: str, plan: Plan, width: int, threads: int, target: Target, kind: str, rank: int = 0) -> Loop:
    """The loop `direction` for a layer of `width` inputs, with its sizes; `rank` as `pieces.rank_of` gives it.

    Raises: ImportError: Numba is missing.
    """
    H, half = plan.hidden, kind in ("bf16", "split")
    panel = target.panel // (2 if kind == "f64" else 1)
    tall = MATRIX_ROWS if half and target.half == "amx" else target.rows
    inner = max(width, H, plan.columns) if half else 0
    scratch = round_up(REGISTERS + tall * panel + 6 * (H + target.lanes) + 2 * plan.split_points, ALIGN)
    left = rows_at_once(tall) * max(depth(inner, kind), TOKENS)
    if kind == "small":
        left = left_bytes(panel, rank, max(width, H))
    across = round_up(plan.columns_x, panel), round_up(plan.columns_1, panel) + round_up(plan.columns_2, panel)
    deep = [depth(n, kind) for n in (plan.columns_x, plan.columns_1, plan.columns_2)]
    sizes = {**plan.integers(), "D": width, "ldg": leading(plan), "panel": panel, "tall": tall}
    sizes |= {"scratch_size": scratch, "left_size": left}
    compiled = kernel(plan.kernel, direction, target, kind)
    return Loop(
        kernel=compiled,
        fixed=[sizes.get(name, 0) for name in compiled.names],
        free={name: place for place, name in enumerate(compiled.names) if name not in sizes},
        threads=threads,
        kind=kind,
        real=torch.float64 if kind == "f64" else torch.float32,
        packed=KINDS[kind],
        scratch=scratch,
        left=left,
        forward_room=(across[0] * depth(width, kind), across[1] * depth(H, kind)),
        backward_room=max(deep[0] * round_up(width, panel), (deep[1] + deep[2]) * round_up(H, panel)),
        panel=panel,
    )


def leading(plan: Plan) -> int:
    """L, the distance between rows of gates."""
    return round_up(plan.columns, ALIGN)


@functools.lru_cache(maxsize=64)
def even(steps: int, batch: int, reverse: bool) -> tuple[Tensor, Tensor]:
    """Offsets [T + 1] and previous tokens [T·B] of sequences that all have T steps."""
    n, last = torch.arange(steps * batch), (steps - 1) * batch
    previous = torch.where(n >= last, last - 1 - n, n + batch) if reverse else torch.where(n < batch, -1 - n, n - batch)
    return torch.arange(steps + 1) * batch, previous


def draw_values(seed: Tensor | None, blocks: list[int], chance: list[float], dtype: torch.dtype) -> Values:
    """Arguments for noise to be drawn; none if `seed` is None."""
    if seed is None:
        return {"blocks": 0, "seed": 0, "starts": None, "chance": None}
    p, scale = chance
    starts = torch.tensor(blocks, dtype=torch.int64)
    chances = torch.tensor([p, 1.0 / p, scale], dtype=dtype)
    return {"blocks": len(blocks) // 2, "seed": int(seed), "starts": starts, "chance": chances}
