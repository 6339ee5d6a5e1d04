"""Weights in small forms as the kernels read them: a table of pieces, all in one run of bytes.

A product's right factor has panels of NR columns. A piece is what one form gives to one panel: `depth` rows of NR numbers, row
after row, and NR scales. Columns of the panel that belong to another form have scale 0 (or are 0). In int64, from the start:

    header    panels; where `at`, `starts`, pieces and factors begin (in int64); columns of T; where a second table begins (in
              bytes); panels of all right factors; bytes beside a product that a thread has
    at        [panels + 1]: the panel with j / panels of the work before it: threads share work, not panels
    starts    [panels + 1]: first piece of a panel
    pieces    PIECE numbers each: form, data, scales (bytes), factor or −1, depth
    factors   FACTOR numbers each: panels of the right factor (bytes), rank K, its first column in T, depth

Low rank, W = L·R: T = x·Rᵀ comes first and is the left factor of the piece that L makes.
Dimensions: N columns of the kernel (rows of the weight), C inner, NR panel, K rank.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.sequence.backends.cpu.matmul.sizes import left_bytes, round_up
from gatedrnn.sequence.backends.cpu.runtime.memory import LINE_BYTES, aligned
from gatedrnn.sequence.plan import Plan
from gatedrnn.weights.compressed import CompressedWeight, blocks_of
from gatedrnn.weights.forms import Block, codes_of, part_of

FLOAT32, INT8, BFLOAT16, INT4, BINARY = range(5)
_KINDS = {
    "float32": FLOAT32,
    "factors": FLOAT32,
    "int8": INT8,
    "grid8": INT8,
    "bf16": BFLOAT16,
    "int4": INT4,
    "grid4": INT4,
    "binary": BINARY,
}
PIECE, FACTOR, _HEADER = 5, 4, 9


def rank_of(*weights: list[Block]) -> int:
    """Columns of T: all ranks of the weight that has the most, each rounded up to a cache line of reals."""
    return max(sum(round_up(len(right), 16) for right in _rights(blocks)) for blocks in weights)


def tables(
    plan: Plan, weight_ih: Tensor, weight_hh: Tensor, scale_G: Tensor | None, panel: int
) -> tuple[Tensor, Tensor]:
    """Tables of W and U of a layer, of which at least one is compressed; each product with U has one behind that before it.

    A compressed weight never changes and keeps its tables; one of a dense weight is made at every call.
    """
    width, H = weight_ih.shape[1], plan.hidden
    room = left_bytes(panel, rank_of(blocks_of(weight_ih), blocks_of(weight_hh)), max(width, H))
    key = plan, panel, room, None if scale_G is None else scale_G.numpy().tobytes()

    def of_w() -> Tensor:
        scales = None if scale_G is None else scale_G[: plan.columns_x]
        return _table(_rotated(blocks_of(weight_ih), plan.shift), width, scales, panel, room)

    def of_u() -> Tensor:
        blocks, found = blocks_of(weight_hh), []
        for p in plan.products:
            scales = None if scale_G is None else scale_G[p.column : p.column + p.rows]
            found.append(_table(part_of(blocks, p.row, p.row + p.rows), H, scales, panel, room))
        for table in found[:-1]:
            table[: _HEADER * 8].view(torch.int64)[6] = len(table)
        return torch.cat(found) if len(found) > 1 else found[0]

    return _kept(weight_ih, ("W", *key), of_w), _kept(weight_hh, ("U", *key), of_u)


def linear_table(weight: CompressedWeight, panel: int) -> Tensor:
    """The table of a weight [N, C] by itself."""
    blocks, width = weight.blocks, weight.shape[1]
    room = left_bytes(panel, rank_of(blocks), width)
    return _kept(weight, ("linear", panel), lambda: _table(blocks, width, None, panel, room))


def _kept(weight: Tensor, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
    def made() -> Tensor:
        table = make()
        return aligned(len(table), torch.uint8).copy_(table)

    return weight.remembered(key, made) if isinstance(weight, CompressedWeight) else made()


def _rotated(blocks: list[Block], shift: int) -> list[Block]:
    """Blocks in the kernel's columns: row n + shift is column n, the first rows come last."""
    if not shift:
        return blocks
    rows = blocks[-1].last
    later = part_of(blocks, 0, shift)
    moved = [Block(b.first + rows - shift, b.last + rows - shift, b.form, b.parts) for b in later]
    return part_of(blocks, shift, rows) + moved


def _rights(blocks: list[Block]) -> list[Tensor]:
    """The right factors of low-rank blocks, each once."""
    found: dict[int, Tensor] = {}
    for block in blocks:
        if block.form == "factors":
            found.setdefault(block.parts["right"].data_ptr(), block.parts["right"])
    return list(found.values())


@dataclass
class _Bytes:
    """Data of a table, each on a cache line."""

    parts: list[Tensor] = field(default_factory=list)
    size: int = 0

    def add(self, values: Tensor) -> int:
        """Where these are put, from the data's begin."""
        raw = values.contiguous().view(-1).view(torch.uint8)
        raw = F.pad(raw, (0, -len(raw) % LINE_BYTES))
        self.parts.append(raw)
        self.size += len(raw)
        return self.size - len(raw)


def _table(blocks: list[Block], width: int, scale_N: Tensor | None, panel: int, room: int) -> Tensor:
    columns, data = blocks[-1].last, _Bytes()
    panels = -(-columns // panel)
    rights = _rights(blocks)
    factors, start = [], 0
    for right in rights:
        factors.append([data.add(_panels(right, 0, panel)), len(right), start, right.shape[1]])
        start += round_up(len(right), 16)
    pieces: list[list[list[int]]] = [[] for _ in range(panels)]
    cost = [0] * panels
    for block in blocks:
        for p, piece in _pieces(block, width, scale_N, panel, data, [right.data_ptr() for right in rights]):
            pieces[p].append(piece)
            cost[p] += piece[4]
    starts, flat = [0], []
    for of_panel in pieces:
        flat += of_panel
        starts.append(len(flat))
    index = [_shares(cost), starts, [n for piece in flat for n in piece], [n for factor in factors for n in factor]]
    places = [_HEADER]
    for numbers in index:
        places.append(places[-1] + len(numbers))
    begin = round_up(8 * places[-1], LINE_BYTES)
    for k in range(len(flat)):
        index[2][PIECE * k + 1] += begin
        index[2][PIECE * k + 2] += begin
    for k in range(len(factors)):
        index[3][FACTOR * k] += begin
    across = sum(-(-len(right) // panel) for right in rights)
    header = [panels, *places[:4], start, 0, across, room]
    numbers = torch.tensor([*header, *(n for numbers in index for n in numbers)], dtype=torch.int64, device="cpu").view(
        torch.uint8
    )
    return torch.cat((F.pad(numbers, (0, begin - len(numbers))), *data.parts))


def _pieces(
    block: Block, width: int, scale_N: Tensor | None, panel: int, data: _Bytes, rights: list[int]
) -> list[tuple[int, list[int]]]:
    """A block's pieces, each with its panel."""
    first, last = block.first // panel, -(-block.last // panel)
    lead, own = block.first - first * panel, None if scale_N is None else scale_N[block.first : block.last]
    values, scales = _stored(block, width, own)
    depth = values.shape[1]
    packed = data.add(_in_form(_KINDS[block.form], _panels(values, lead, panel)))
    each = (data.size - packed) // (last - first)  # a panel is whole cache lines
    padded = F.pad(scales, (lead, (last - first) * panel - lead - len(scales)))
    put = data.add(padded)
    factor = rights.index(block.parts["right"].data_ptr()) if block.form == "factors" else -1
    return [
        (p, [_KINDS[block.form], packed + k * each, put + 4 * panel * k, factor, depth])
        for k, p in enumerate(range(first, last))
    ]


def _stored(block: Block, width: int, own: Tensor | None) -> tuple[Tensor, Tensor]:
    """What is read of a block [N, C or K] and a scale for each of its columns [N]."""
    kind, parts = _KINDS[block.form], block.parts
    count = block.last - block.first
    one = torch.ones(count, dtype=torch.float32, device="cpu") if own is None else own.float()
    if kind == FLOAT32:
        values = parts["left"] if block.form == "factors" else parts["values"]
        return (values if own is None else values * own[:, None]), one
    if kind == BFLOAT16:
        return parts["values"].view(torch.int16), one
    return codes_of(block, width), (parts["scale"] if "scale" in parts else parts["step"].expand(count)) * one


def _panels(values: Tensor, lead: int, panel: int) -> Tensor:
    """[N, C], the first in column `lead` of its panel, as [panels, C, NR]."""
    rows = round_up(lead + len(values), panel)
    padded = F.pad(values, (0, 0, lead, rows - lead - len(values)))
    return padded.view(-1, panel, values.shape[1]).transpose(1, 2).contiguous()


def _in_form(kind: int, panels: Tensor) -> Tensor:
    """Panels [panels, C, NR] with numbers packed as the kernel widens them, each panel in whole cache lines."""
    if kind in (INT8, INT4, BFLOAT16):  # rows 2k and 2k + 1 side by side
        panels = F.pad(panels, (0, 0, 0, panels.shape[1] % 2)).unflatten(1, (-1, 2)).transpose(2, 3).contiguous()
    if kind == INT4:  # the panel's second vector in the upper nibbles
        low, high = (panels.flatten(2).to(torch.int16) + 8).chunk(2, -1)
        panels = (low | (high << 4)).to(torch.uint8)
    elif kind == BINARY:
        bits = panels.gt(0).to(torch.int16).unflatten(2, (-1, 8))
        panels = (bits << torch.arange(8, dtype=torch.int16, device="cpu")).sum(-1).to(torch.uint8)
    raw = panels.flatten(1)
    size = raw.element_size()
    return F.pad(raw, (0, round_up(raw.shape[1], LINE_BYTES // size) - raw.shape[1]))


def _shares(cost: list[int]) -> list[int]:
    """at[j]: the first panel with j / panels of all work before it."""
    panels, whole = len(cost), sum(cost)
    at, done, p = [], 0, 0
    for j in range(panels):
        while done * panels < j * whole:
            done += cost[p]
            p += 1
        at.append(p)
    return [*at, panels]
