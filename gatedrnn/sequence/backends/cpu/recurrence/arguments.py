"""What the loops are called with: a layer's sizes, worked out once, then addresses, and scratch for every thread.

Dimensions: T steps, N tokens, D input, B batch, H hidden, G columns of gates.
"""

import array
import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.core.errors import ArgumentError
from gatedrnn.sequence.backends.cpu.compile.kernels import Kernel, kernel
from gatedrnn.sequence.backends.cpu.matmul.sizes import (
    ALIGN,
    ALONE,
    KINDS,
    MATRIX_ROWS,
    OWN_NUMBERS,
    OWN_ROWS,
    REGISTERS,
    TOKENS,
    depth,
    left_bytes,
    round_up,
    rows_at_once,
)
from gatedrnn.sequence.backends.cpu.recurrence import compiled
from gatedrnn.sequence.backends.cpu.runtime import memory, team
from gatedrnn.sequence.backends.cpu.runtime.target import Target
from gatedrnn.sequence.plan import Plan

Values = dict[str, Tensor | int | None]
_WHOLE = (int, bool)


@dataclass(frozen=True)
class Loop:
    """A compiled loop with the sizes of one layer; called with the arguments that differ between calls.

    Args:
        kernel: the machine code.
        plan: of the cell.
        fixed: all its arguments in order, 0 where they are still to be filled in.
        places: where each argument stands.
        rooms: place and start of each room that is lent for a call, `room_bytes` in all.
        threads: a team's size.
        packed: type of panels.
        apart: L, the distance between rows of gates.
        forward_room: elements of packed W and of packed U.
        backward_room: elements of whichever of them is the larger transposed.
        panel: columns of a panel.
        tables: what addresses among `fixed` point to.
    """

    kernel: Kernel
    plan: Plan
    fixed: "array.array[int]"
    places: dict[str, int]
    rooms: tuple[tuple[int, int], ...]
    room_bytes: int
    threads: int
    packed: torch.dtype
    apart: int
    forward_room: tuple[int, int]
    backward_room: int
    panel: int
    tables: tuple[Tensor, ...]

    def given(self, values: dict[str, int], rooms_bytes: dict[str, int]) -> "Loop":
        """The loop with some arguments set for good, and room of so many bytes lent for others."""
        fixed, rooms, end = self.fixed[:], list(self.rooms), self.room_bytes
        for name, value in values.items():
            fixed[self.places[name]] = value
        for name, size in rooms_bytes.items():
            rooms.append((self.places[name], end))
            end += round_up(size, memory.LINE_BYTES)
        return replace(self, fixed=fixed, rooms=tuple(rooms), room_bytes=end)

    def __call__(self, values: Values) -> None:
        """Run it with these arguments, tensors by address; what is not given is 0."""
        held = memory.lend(self.room_bytes)
        begin = held.data_ptr()
        begin += -begin % memory.LINE_BYTES
        arguments, places = self.fixed[:], self.places
        for place, start in self.rooms:
            arguments[place] = begin + start
        for name, value in values.items():
            if value is not None:
                arguments[places[name]] = value if type(value) in _WHOLE else value.data_ptr()  # type: ignore[union-attr]
        team.run(self.kernel.address, arguments, self.threads)


def threads_for(plan: Plan, tokens: int, width: int, team_size: int) -> int:
    """Threads for a layer: one where waking the others takes longer than the products."""
    products = tokens * (plan.columns_x * width + plan.rows * plan.hidden)
    return 1 if products < ALONE else team_size


def by_rows(run: "Loop", steps: int, batch: int, tokens: int) -> bool:
    """Whether each thread keeps to its rows of the batch at all steps: the team waits less, and each reads all of U.

    Beside a busy program the threads do not wait for the one that it delays.
    """
    few = run.threads == 1 or batch < OWN_ROWS * run.threads or tokens < steps * batch
    return not few and run.plan.rows * run.plan.hidden <= OWN_NUMBERS


@functools.lru_cache(maxsize=256)
def loop(direction: str, plan: Plan, width: int, threads: int, target: Target, kind: str, rank: int = 0) -> Loop:
    """The loop `direction` for a layer of `width` inputs, with its sizes; `rank` as `pieces.rank_of` gives it.

    Raises: ImportError: Numba is missing.
    """
    H, half = plan.hidden, kind in ("bf16", "split")
    panel = target.panel // (2 if kind == "f64" else 1)
    tall = MATRIX_ROWS if half and target.half == "amx" else target.rows
    inner = max(width, H, plan.columns) if half else 0
    row = max(H, plan.logits) + target.lanes
    scratch = round_up(REGISTERS + tall * panel + plan.slots * row, ALIGN)
    left = rows_at_once(tall) * max(depth(inner, kind), TOKENS)
    if kind == "small":
        left = left_bytes(panel, rank, max(width, H))
    across = round_up(plan.columns_x, panel), sum(round_up(product.rows, panel) for product in plan.products)
    deep = depth(plan.columns_x, kind), sum(depth(product.rows, kind) for product in plan.products)
    tables = _tables(plan)
    sizes = {**plan.integers(), "D": width, "ldg": leading(plan), "panel": panel, "tall": tall}
    sizes |= {"scratch_size": scratch, "left_size": left, "levels": 1 + max(product.level for product in plan.products)}
    sizes |= {"products": tables[0].data_ptr(), "count": len(tables[0])}
    sizes |= {"ranges": tables[1].data_ptr(), "ranged": len(tables[1])}
    name, function, linked = compiled.parts_of(plan.kernel, direction)
    made = kernel(name, direction, target, kind, function, linked)
    places, packed = {name: place for place, name in enumerate(made.names)}, KINDS[kind]
    bare = Loop(
        kernel=made,
        plan=plan,
        fixed=array.array("q", [sizes.get(name, 0) for name in made.names]),
        places=places,
        rooms=(),
        room_bytes=0,
        threads=threads,
        packed=packed,
        apart=leading(plan),
        forward_room=(across[0] * depth(width, kind), across[1] * depth(H, kind)),
        backward_room=max(deep[0] * round_up(width, panel), deep[1] * round_up(H, panel)),
        panel=panel,
        tables=tables,
    )
    real = 8 if kind == "f64" else 4
    return bare.given({}, {"scratch": threads * scratch * real, "left": threads * left * packed.itemsize})


def _tables(plan: Plan) -> tuple[Tensor, Tensor]:
    """`products` and `ranges` of the loops' sizes."""
    products, seen, level = [], set(), [0] * plan.columns
    for p in plan.products:  # what an earlier product, or the step, has put there already is added to
        first = p.left not in seen
        products.append([*p, int(not first or (p.level == 0 and (p.left > 0 or plan.carries)))])
        seen.add(p.left)
        for column in range(p.column, p.column + p.rows):
            level[column] = max(level[column], p.level)
    edges = [k for k in range(plan.columns) if k == 0 or level[k] != level[k - 1]]
    ranges = [[level[a], a, b - a] for a, b in itertools.pairwise([*edges, plan.columns])]
    return torch.tensor(products, device="cpu"), torch.tensor(ranges, device="cpu")


def leading(plan: Plan) -> int:
    """L, the distance between rows of gates."""
    return round_up(max(plan.columns, plan.kept and plan.kept + plan.columns_x), ALIGN)


@dataclass(frozen=True)
class Layout:
    """How the tokens of a batch lie packed, the longest sequence first.

    Args:
        offsets: first token of each step, and the number of tokens, int64 [T + 1].
        count: N.
        previous: the token before each in its sequence, −1 − b where that is initial state b; int64 [N].
        order: the batch's rows, longest first [B]; None, and what follows, where all have T steps: then tokens lie as they are.
        index: the place of each token in [T · B], [N].
        dead: the places in [T · B] without a token.
    """

    offsets: Tensor
    count: int
    previous: Tensor
    order: Tensor | None = None
    index: Tensor | None = None
    dead: Tensor | None = None

    @contextmanager
    def rooms(self, dtype: torch.dtype, *widths: int) -> Iterator[list[Any]]:
        """Borrowed memory [N, width] for packed tokens; None for each where they lie packed as they are."""
        if self.index is None:
            yield [None] * len(widths)
            return
        with memory.borrowed([(self.count, width) for width in widths], dtype) as found:
            yield found

    def packed(self, values_TBX: Tensor, room_NX: Tensor | None = None) -> Tensor:
        """What belongs to places [T, B, X] as tokens [N, X], in `room_NX` if it has to be copied."""
        flat = values_TBX.reshape(-1, values_TBX.shape[-1])
        return flat.contiguous() if self.index is None else torch.index_select(flat, 0, self.index, out=room_NX)

    def padded(self, values_NX: Tensor, T: int, B: int) -> Tensor:
        """What belongs to tokens as places [T, B, X], 0 where there is no token."""
        X = values_NX.shape[-1]
        if self.index is None or self.dead is None:
            return values_NX.view(T, B, X)
        padded = memory.empty(T * B, X, dtype=values_NX.dtype)
        return padded.index_copy_(0, self.index, values_NX).index_fill_(0, self.dead, 0).view(T, B, X)

    def sorted(self, rows_BX: Tensor) -> Tensor:
        """Rows of the batch, longest first."""
        return rows_BX.contiguous() if self.order is None else rows_BX.index_select(0, self.order)

    def unsorted(self, rows_BX: Tensor) -> Tensor:
        """The rows in the batch's own order again."""
        return rows_BX if self.order is None else torch.empty_like(rows_BX).index_copy_(0, self.order, rows_BX)


_SMALL_TOKENS = 1 << 12
"""Layouts up to this size are kept."""


def layout(lengths_B: Tensor | None, steps: int, batch: int, reverse: bool) -> Layout:
    """The layout of sequences of these lengths, or of all T steps. Raises: ArgumentError: lengths are no int64 [B] in 1 … T."""
    if lengths_B is None:
        return (_even if steps * batch <= _SMALL_TOKENS else _even.__wrapped__)(steps, batch, reverse)
    if lengths_B.dtype != torch.int64 or lengths_B.shape != (batch,) or lengths_B.device.type != "cpu":
        got = f"{lengths_B.dtype} of shape {list(lengths_B.shape)} on {lengths_B.device}"
        raise ArgumentError("recurrence.lengths", f"must be int64 of shape [{batch}] on the CPU", got, "Convert them")
    low, high = map(int, lengths_B.aminmax()) if batch else (1, 1)
    if low < 1 or high > steps:
        advice = "Drop empty rows, or pad the input"
        raise ArgumentError("recurrence.lengths", f"must lie in 1…{steps}", f"{low}…{high}", advice)
    return _ragged(lengths_B, steps, batch, reverse)


@functools.lru_cache(maxsize=64)
def _even(steps: int, batch: int, reverse: bool) -> Layout:
    n, last = torch.arange(steps * batch, device="cpu"), (steps - 1) * batch
    previous = torch.where(n >= last, last - 1 - n, n + batch) if reverse else torch.where(n < batch, -1 - n, n - batch)
    return Layout(torch.arange(steps + 1, device="cpu") * batch, len(n), previous)


def _ragged(lengths_B: Tensor, T: int, B: int, reverse: bool) -> Layout:
    order = torch.argsort(lengths_B, descending=True, stable=True)
    sorted_B = lengths_B.index_select(0, order)
    alive_TB = torch.arange(T, device="cpu")[:, None] < sorted_B
    offsets = F.pad(alive_TB.sum(1).cumsum(0), (1, 0))
    t, b = alive_TB.nonzero().unbind(1)
    if reverse:
        first = t + 1 == sorted_B[b]
        previous = torch.where(first, -1 - b, offsets[(t + 1).clamp_max(T)] + b)
    else:
        previous = torch.where(t == 0, -1 - b, offsets[(t - 1).clamp_min(0)] + b)
    dead = (torch.arange(T, device="cpu")[:, None] >= lengths_B).flatten().nonzero().flatten()
    return Layout(offsets, len(t), previous, order, t * B + order[b], dead)


def token_places(lengths_B: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """The token at each place of a ragged batch [T · B], and which places have none [T · B].

    By operations that compilers see through: shapes depend on shapes alone.
    """
    order = torch.argsort(lengths_B, descending=True, stable=True)
    alive_TB = torch.arange(steps, device=lengths_B.device)[:, None] < lengths_B
    rank_B = torch.argsort(order)
    offsets_T = F.pad(alive_TB.sum(1).cumsum(0), (1, 0))[:-1]
    places_TB = (offsets_T[:, None] + rank_B).masked_fill(~alive_TB, 0)
    return places_TB.flatten(), ~alive_TB.flatten()
