"""Small forms of a weight matrix, as they are stored: what each keeps, and the matrix it stands for.

In `model.safetensors` a compressed weight is kept by blocks of rows: `layers.0.weight_hh_l0/0-400/int8/codes` is the part
`codes` of rows 0 … 399 in the form `int8`.
Dimensions: R rows, C columns, K rank.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from gatedrnn.core.errors import ArgumentError

Parts = dict[str, Tensor]


@dataclass(frozen=True)
class Block:
    """Rows first … last − 1 of a weight in one form."""

    first: int
    last: int
    form: str
    parts: Parts


_KEY = re.compile(r"(.+)/(\d+)-(\d+)/(\w+)/(\w+)")


def key(weight: str, first: int, last: int, form: str, part: str) -> str:
    """The name of one part of rows first … last − 1."""
    return f"{weight}/{first}-{last}/{form}/{part}"


def is_small(name: str) -> bool:
    """Whether a tensor of a file is a part of a compressed weight."""
    return _KEY.fullmatch(name) is not None


def gather(saved: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, list[Block]]:
    """Blocks of the compressed weights of a file, by weight.

    Args: shapes: of the model's own weights.
    Raises: ArgumentError: a part is unknown, missing or of another size, of no matrix, or rows are missing or there twice.
    """
    found: dict[str, dict[tuple[int, int, str], Parts]] = {}
    for name, value in saved.items():
        match = _KEY.fullmatch(name)
        if match:
            weight, first, last, form, part = match.groups()
            found.setdefault(weight, {}).setdefault((int(first), int(last), form), {})[part] = value
    for weight, parts in found.items():
        if weight not in shapes:
            raise ArgumentError(weight, "must be a weight of the model", "another name", "Restore the run's own file")
        if len(shapes[weight]) != 2:
            got = f"shape {list(shapes[weight])}"
            raise ArgumentError(weight, "must be a matrix to have a small form", got, "Restore the run's own file")
        _check(weight, parts, shapes[weight])
    return {weight: [Block(*place, parts) for place, parts in sorted(of.items())] for weight, of in found.items()}


def _check(weight: str, blocks: Mapping[tuple[int, int, str], Parts], shape: torch.Size) -> None:
    filled = 0
    for (first, last, form), parts in sorted(blocks.items()):
        if first != filled or last <= first or form not in FORMS:
            raise ArgumentError(
                weight, "must have every row once, in a known form", f"{first}-{last}/{form}", "Compress again"
            )
        wanted = {name: (type_, list(size)) for name, type_, size in _shapes(form, parts, last - first, shape[1])}
        if {name: (part.dtype, list(part.shape)) for name, part in parts.items()} != wanted:
            got = f"{form} with {', '.join(f'{name} {part.dtype} {list(part.shape)}' for name, part in parts.items())}"
            raise ArgumentError(weight, f"rows {first}-{last} must fit the model", got, "Compress again")
        filled = last
    if filled != shape[0]:
        raise ArgumentError(weight, "must have every row", f"{filled} of {shape[0]}", "Compress again")


def _shapes(form: str, parts: Parts, rows: int, columns: int) -> Iterable[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Names, types and shapes of a form's parts."""
    real, bytes_ = torch.float32, torch.uint8
    rank = len(parts["right"]) if "right" in parts and parts["right"].dim() == 2 else 1
    per_row, step = ("scale", real, (rows,)), ("step", real, (1,))
    return {
        "float32": [("values", real, (rows, columns))],
        "bf16": [("values", torch.bfloat16, (rows, columns))],
        "int8": [("codes", torch.int8, (rows, columns)), per_row],
        "int4": [("codes", bytes_, (rows, -(-columns // 2))), per_row],
        "binary": [("bits", bytes_, (rows, -(-columns // 8))), per_row],
        "grid4": [("codes", bytes_, (rows, -(-columns // 2))), step],
        "grid8": [("codes", torch.int8, (rows, columns)), step],
        "factors": [("left", real, (rows, rank)), ("right", real, (rank, columns))],
    }[form]


def part_of(blocks: Iterable[Block], first: int, last: int) -> list[Block]:
    """Rows first … last − 1 of a weight's blocks, counted from `first`."""
    found = []
    for block in blocks:
        a, b = max(first, block.first), min(last, block.last)
        if a < b:
            parts = _rows_of(block.parts, slice(a - block.first, b - block.first))
            found.append(Block(a - first, b - first, block.form, parts))
    return found


_SHARED = ("step", "right")
"""Parts that are not by row."""


def _rows_of(parts: Parts, rows: slice | Tensor) -> Parts:
    return {name: part if name in _SHARED else part[rows] for name, part in parts.items()}


def codes_of(block: Block, columns: int) -> Tensor:
    """The whole numbers of a form with codes, or the signs of `binary`, int8 [R, C]."""
    if block.form in ("int8", "grid8"):
        return block.parts["codes"]
    if block.form == "binary":
        return _signs(block.parts["bits"], columns)
    return _from_nibbles(block.parts["codes"], columns)


def dense(blocks: Iterable[Block], columns: int) -> Tensor:
    """The matrix [R, C] that blocks stand for, float32, whatever autocast would make of a product in it."""
    found = list(blocks)
    kind = next(iter(found[0].parts.values())).device.type
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        return torch.cat([FORMS[block.form](block.parts, columns) for block in found])


def rows(blocks: Iterable[Block], columns: int, index: Tensor) -> Tensor:
    """Rows `index` of it, [..., C]. Raises: IndexError: there is no such row."""
    flat, blocks = index.flatten(), list(blocks)
    count = max(block.last for block in blocks)
    low, high = (0, -1) if type(index) is not Tensor or not len(flat) else map(int, flat.aminmax())
    if low < 0 or high >= count:
        raise IndexError(f"index out of range: {low} … {high} of {count} rows")
    if len(blocks) == 1:
        return FORMS[blocks[0].form](_rows_of(blocks[0].parts, flat), columns).view(*index.shape, columns)
    found = torch.empty(index.numel(), columns, dtype=torch.float32, device=index.device)
    for block in blocks:
        here = ((flat >= block.first) & (flat < block.last)).nonzero().squeeze(1)
        parts = _rows_of(block.parts, flat[here] - block.first)
        found[here] = FORMS[block.form](parts, columns)
    return found.view(*index.shape, columns)


def _by_row(matrix: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Whole codes in −largest … largest and the scale of each row."""
    scale_R = (matrix.abs().amax(1) / largest).clamp_min(torch.finfo(torch.float32).tiny)
    return (matrix / scale_R[:, None]).round().clamp(-largest, largest).to(torch.int8), scale_R


def _int8(matrix: Tensor) -> Parts:
    codes, scale_R = _by_row(matrix, 127)
    return {"codes": codes, "scale": scale_R}


def _int4(matrix: Tensor) -> Parts:
    codes, scale_R = _by_row(matrix, 7)
    return {"codes": _nibbles(codes), "scale": scale_R}


def _nibbles(codes: Tensor) -> Tensor:
    """Codes in −8 … 7, two a byte, the even column low."""
    even = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2)).to(torch.int16) + 8
    return (even[:, ::2] | (even[:, 1::2] << 4)).to(torch.uint8)


def _from_nibbles(packed: Tensor, columns: int) -> Tensor:
    pairs = torch.stack((packed & 15, packed >> 4), -1).flatten(1)[:, :columns]
    return pairs.to(torch.int8) - 8


_BITS = 2 ** torch.arange(8, dtype=torch.int16, device="cpu")


def _binary(matrix: Tensor) -> Parts:
    """A bit a value, its sign, and the mean size of each row: the nearest matrix of that form."""
    signs = torch.nn.functional.pad(matrix >= 0, (0, -matrix.shape[1] % 8)).to(torch.int16)
    return {"bits": (signs.unflatten(1, (-1, 8)) * _BITS).sum(-1).to(torch.uint8), "scale": matrix.abs().mean(1)}


def _signs(bits: Tensor, columns: int) -> Tensor:
    return 2 * (bits[..., None].to(torch.int16) & _BITS).ne(0).flatten(1)[:, :columns].to(torch.int8) - 1


def grid(matrix: Tensor, step: float) -> tuple[str, Parts]:
    """The matrix rounded to multiples of `step`, and the form with the fewest bits that holds them."""
    codes = (matrix / step).round()
    largest = float(codes.abs().max()) if codes.numel() else 0.0
    size = torch.tensor([step], dtype=torch.float32, device=matrix.device)
    if not math.isfinite(largest) or not size.isfinite():
        rule = "must lie within float32's range, and so must weights divided by it"
        raise ArgumentError("compress.step", rule, step, "Give 0.01 … 1")
    if largest <= 7:
        return "grid4", {"codes": _nibbles(codes), "step": size}
    if largest <= 127:
        return "grid8", {"codes": codes.to(torch.int8), "step": size}
    return "float32", {"values": codes * step}


def low_rank(matrix: Tensor, rank: int) -> tuple[str, Parts]:
    """The nearest matrix of rank `rank`, as two factors [R, K] and [K, C]."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    root = s[:rank].sqrt()
    return "factors", {"left": (u[:, :rank] * root).float(), "right": (root[:, None] * v[:rank]).float()}


SMALL: dict[str, Callable[[Tensor], Parts]] = {
    "bf16": lambda matrix: {"values": matrix.bfloat16()},
    "int8": _int8,
    "int4": _int4,
    "binary": _binary,
}
"""Forms without a setting: what is stored of a matrix [R, C]."""

FORMS: dict[str, Callable[[Parts, int], Tensor]] = {
    "float32": lambda parts, columns: parts["values"],
    "bf16": lambda parts, columns: parts["values"].float(),
    "int8": lambda parts, columns: parts["codes"].float() * parts["scale"][:, None],
    "int4": lambda parts, columns: _from_nibbles(parts["codes"], columns).float() * parts["scale"][:, None],
    "binary": lambda parts, columns: _signs(parts["bits"], columns).float() * parts["scale"][:, None],
    "grid4": lambda parts, columns: _from_nibbles(parts["codes"], columns).float() * parts["step"],
    "grid8": lambda parts, columns: parts["codes"].float() * parts["step"],
    "factors": lambda parts, columns: parts["left"] @ parts["right"],
}
"""Every form by name: the float32 matrix of what is stored, given its C columns."""
