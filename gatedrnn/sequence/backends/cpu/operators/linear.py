"""x Wᵀ + b for a weight in small forms: a decoder's logits. Dimensions: N rows, C columns in, V columns out."""

import torch
from torch import Tensor

from gatedrnn.sequence.backends.cpu.compile.kernels import kernel
from gatedrnn.sequence.backends.cpu.matmul.pieces import linear_table, rank_of
from gatedrnn.sequence.backends.cpu.matmul.sizes import ALIGN, ALONE, REGISTERS, left_bytes, round_up
from gatedrnn.sequence.backends.cpu.runtime import memory, team
from gatedrnn.sequence.backends.cpu.runtime.target import best
from gatedrnn.weights.compressed import CompressedWeight


def linear(x: Tensor, weight: CompressedWeight, bias: Tensor | None) -> Tensor:
    """[..., C] → [..., V], float32."""
    target, (V, C) = best(), weight.shape
    rows = x.reshape(-1, C).contiguous()
    threads = 1 if len(rows) * C * V < ALONE else team.size()
    scratch = round_up(REGISTERS + target.rows * target.panel, ALIGN)
    left = left_bytes(target.panel, rank_of(weight.blocks), C)
    out = memory.empty(*x.shape[:-1], V, dtype=torch.float32)
    held, size = memory.lend(threads * (4 * scratch + left)), memory.LINE_BYTES
    edge = held.data_ptr() + -held.data_ptr() % size
    bias = memory.empty(V, dtype=torch.float32).zero_() if bias is None else bias.contiguous()
    kernel("linear", "linear", target, "small", "gatedrnn.sequence.backends.cpu.operators.linear_loop:linear")(
        threads,
        {
            "N": len(rows), "K": C, "columns": V, "ldg": V, "panel": target.panel, "tall": target.rows, "x": rows,
            "pieces": linear_table(weight, target.panel), "bias": bias, "out": out, "scratch_size": scratch, "scratch": edge,
            "left_size": left, "left": edge + 4 * threads * scratch,
        },
    )  # fmt: skip
    return out
