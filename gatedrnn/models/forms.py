"""Small forms of a weight matrix, as they are stored: what each keeps, and the matrix it stands for.

In `model.safetensors` a compressed weight is kept by blocks of rows: `layers.0.weight_hh_l0/0-400/int8/codes` is the part
`codes` of rows 0 … 399 in the form `int8`. Loading gives back the matrix.
Dimensions: R rows, C columns, K rank.
"""

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gatedrnn.core.errors import ArgumentError

Parts = dict[str, Tensor]
_KEY = re.compile(r"(.+)/(\d+)-(\d+)/(\w+)/(\w+)")


def key(weight: str, first: int, last: int, form: str, part: str) -> str:
    """The name of one part of rows first … last − 1."""
    return f"{weight}/{first}-{last}/{form}/{part}"


def is_small(name: str) -> bool:
    """Whether a tensor of a file is a part of a compressed weight."""
    return _KEY.fullmatch(name) is not None


def expand(saved: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Dense weights of a file's tensors; those that are no parts stay.

    Args: shapes: of the model's own weights.
    Raises: ArgumentError: a part is unknown, missing or of another size, or rows are missing or there twice.
    """
    dense = {name: value for name, value in saved.items() if not is_small(name)}
    blocks: dict[str, dict[tuple[int, int, str], Parts]] = {}
    for name, value in saved.items():
        found = _KEY.fullmatch(name)
        if found:
            weight, first, last, form, part = found.groups()
            blocks.setdefault(weight, {}).setdefault((int(first), int(last), form), {})[part] = value
    for weight, parts in blocks.items():
        if weight not in shapes:
            raise ArgumentError(weight, "must be a weight of the model", "another name", "Restore the run's own file")
        dense[weight] = _joined(weight, parts, shapes[weight])
    return dense


def _joined(weight: str, blocks: dict[tuple[int, int, str], Parts], shape: torch.Size) -> Tensor:
    matrix, filled = torch.empty(shape), 0
    for (first, last, form), parts in sorted(blocks.items()):
        if first != filled or form not in FORMS:
            raise ArgumentError(
                weight, "must have every row once, in a known form", f"{first}-{last}/{form}", "Compress again"
            )
        try:
            matrix[first:last] = FORMS[form](parts, shape[1])
        except (KeyError, RuntimeError) as error:
            got = f"{form} with {', '.join(f'{name} {list(part.shape)}' for name, part in parts.items())}"
            raise ArgumentError(weight, f"rows {first}-{last} must fit the model", got, "Compress again") from error
        filled = last
    if filled != shape[0]:
        raise ArgumentError(weight, "must have every row", f"{filled} of {shape[0]}", "Compress again")
    return matrix


def _by_row(largest: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Whole codes in −largest … largest and the scale of each row."""

    def codes(matrix: Tensor) -> tuple[Tensor, Tensor]:
        scale_R = (matrix.abs().amax(1) / largest).clamp_min(torch.finfo(torch.float32).tiny)
        return (matrix / scale_R[:, None]).round().clamp(-largest, largest).to(torch.int8), scale_R

    return codes


def _int8(matrix: Tensor) -> Parts:
    codes, scale_R = _by_row(127)(matrix)
    return {"codes": codes, "scale": scale_R}


def _int4(matrix: Tensor) -> Parts:
    codes, scale_R = _by_row(7)(matrix)
    return {"codes": _nibbles(codes), "scale": scale_R}


def _nibbles(codes: Tensor) -> Tensor:
    """Codes in −8 … 7, two a byte, the even column low."""
    even = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2)).to(torch.int16) + 8
    return (even[:, ::2] | (even[:, 1::2] << 4)).to(torch.uint8)


def _from_nibbles(packed: Tensor, columns: int) -> Tensor:
    pairs = torch.stack((packed & 15, packed >> 4), -1).flatten(1)[:, :columns]
    return pairs.float() - 8


_BITS = 2 ** torch.arange(8, dtype=torch.int16)


def _binary(matrix: Tensor) -> Parts:
    """A bit a value, its sign, and the mean size of each row: the nearest matrix of that form."""
    signs = torch.nn.functional.pad(matrix >= 0, (0, -matrix.shape[1] % 8)).to(torch.int16)
    return {"bits": (signs.unflatten(1, (-1, 8)) * _BITS).sum(-1).to(torch.uint8), "scale": matrix.abs().mean(1)}


def _from_binary(parts: Parts, columns: int) -> Tensor:
    bits = (parts["bits"][..., None].to(torch.int16) & _BITS).ne(0).flatten(1)[:, :columns]
    return torch.where(bits, 1.0, -1.0) * parts["scale"][:, None]


def grid(matrix: Tensor, step: float) -> tuple[str, Parts]:
    """The matrix rounded to multiples of `step`, and the form with the fewest bits that holds them."""
    codes = (matrix / step).round()
    largest = float(codes.abs().max()) if codes.numel() else 0.0
    size = torch.tensor([step])
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
    "int4": lambda parts, columns: _from_nibbles(parts["codes"], columns) * parts["scale"][:, None],
    "binary": _from_binary,
    "grid4": lambda parts, columns: _from_nibbles(parts["codes"], columns) * parts["step"],
    "grid8": lambda parts, columns: parts["codes"].float() * parts["step"],
    "factors": lambda parts, columns: parts["left"] @ parts["right"],
}
"""Every form by name: the float32 matrix of what is stored, given its C columns."""
