"""x Wᵀ + b for a weight in small forms: a decoder's logits. Dimensions: N rows, C columns in, V columns out."""

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gatedrnn.sequence.backends.cpu import memory, packs, team
from gatedrnn.sequence.backends.cpu.kernels import kernel
from gatedrnn.sequence.backends.cpu.pieces import pack_linear, rank_of
from gatedrnn.sequence.backends.cpu.sizes import ALIGN, ALONE, REGISTERS, left_bytes, round_up
from gatedrnn.sequence.backends.cpu.target import best

if TYPE_CHECKING:
    from gatedrnn.sequence.compressed import CompressedWeight


def linear(x: Tensor, weight: "CompressedWeight", bias: Tensor | None) -> Tensor:
    """[..., C] → [..., V], float32."""
    target, (V, C) = best(), weight.shape
    rows = x.reshape(-1, C).contiguous()
    form = ("small", target.panel)
    found = packs.find((weight,), form)
    if found is None:
        found = (pack_linear(weight.blocks, C, target.panel),)
        packs.keep((weight,), form, found)
    threads = 1 if len(rows) * C * V < ALONE else team.size()
    scratch = round_up(REGISTERS + target.rows * target.panel, ALIGN)
    left = left_bytes(target.panel, rank_of(weight.blocks), C)
    out = torch.empty(*x.shape[:-1], V)
    kernel("linear", "linear", target, "small")(
        threads,
        {
            "N": len(rows), "K": C, "columns": V, "ldg": V, "panel": target.panel, "tall": target.rows, "x": rows,
            "PW": found[0], "bias": _zeros(V) if bias is None else bias, "G": out, "scratch_size": scratch,
            "scratch": memory.borrow("scratch", threads * scratch, torch.float32), "left_size": left,
            "left": memory.borrow("left", threads * left, torch.uint8),
        },
    )  # fmt: skip
    return out


@functools.lru_cache(maxsize=8)
def _zeros(count: int) -> Tensor:
    return torch.zeros(count)
