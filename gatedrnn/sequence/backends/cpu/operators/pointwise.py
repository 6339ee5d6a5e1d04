"""Two further PyTorch operators: sparse logistic noise, and cross-entropy with its gradient.

A kernel checks nothing, so the operators check all that they pass on, at every call, in a compiled graph too.
Dimensions: N rows or tokens, R columns, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.torch_internals import Ints, start_light
from gatedrnn.sequence.backends.cpu.compile.kernels import kernel
from gatedrnn.sequence.backends.cpu.matmul.sizes import ALONE, kind_of
from gatedrnn.sequence.backends.cpu.operators.checks import drawable, real, together, trusted
from gatedrnn.sequence.backends.cpu.runtime import team
from gatedrnn.sequence.backends.cpu.runtime.target import best

_DRAW = "gatedrnn.sequence.backends.cpu.operators.drawing:draw"
_CROSS_ENTROPY = "gatedrnn.sequence.backends.cpu.operators.likelihood:cross_entropy"


@torch.library.custom_op("gatedrnn::logistic_noise", mutates_args=())
def logistic_noise(
    seed: Tensor, rows: int, columns: int, blocks: Ints, chance: float, scale: float, like: Tensor
) -> Tensor:
    """[rows, columns] as `like`: scale · logistic with probability `chance` between blocks[0] and blocks[1] and so on, else 0.

    Args: seed: int64 [1]; blocks: ascending, in 0 … columns; like: of float32 or float64.
    Raises: ArgumentError: an argument is of another type, size or range.
    """
    trusted("logistic_noise.seed", seed, torch.int64, (1,))
    trusted("logistic_noise.like", like, real("logistic_noise.like", like), like.shape)
    drawable("logistic_noise", blocks, [chance, scale], columns)
    if rows < 0:
        raise ArgumentError("logistic_noise.rows", "must not be negative", rows, "Give a number of rows")
    edges = [0, *blocks, columns]
    out = like.new_empty(rows, columns)
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        out[:, a:b].zero_()
    values = {"N": rows, "R": columns, "out": out, **draw_values(seed, blocks, [chance, scale], out.dtype)}
    kernel("noise", "draw", best(), kind_of(out.dtype), _DRAW)(1 if out.numel() < ALONE else team.size(), values)
    return out


@logistic_noise.register_fake
def _logistic_noise_fake(seed, rows, columns, blocks, chance, scale, like):
    together("logistic_noise", seed, like)
    return like.new_empty(rows, columns)


@torch.library.custom_op("gatedrnn::cross_entropy_", mutates_args=("logits_NV",))
def cross_entropy_(
    logits_NV: Tensor, bias_V: Tensor, targets_N: Tensor, weights_N: Tensor, differentiate: bool
) -> tuple[Tensor, Tensor]:
    """−log softmax(logits + bias)[target] [N]. If `differentiate`, logits become weight · (softmax − one-hot), its sum [V].

    Args: logits_NV: contiguous, float32 or float64, as the others are; targets_N: int64 in 0 … V − 1.
    Raises: ArgumentError: an argument is of another type, size or range.
    """
    dtype, shape = real("cross_entropy_.logits_NV", logits_NV), logits_NV.shape
    if len(shape) != 2 or not logits_NV.is_contiguous():
        got = f"{list(shape)} of strides {logits_NV.stride()}"
        raise ArgumentError("cross_entropy_.logits_NV", "must be contiguous [N, V]", got, "Call .contiguous()")
    N, V = shape
    trusted("cross_entropy_.logits_NV", logits_NV, dtype, (N, V))
    bias_V = trusted("cross_entropy_.bias_V", bias_V, dtype, (V,))
    targets_N = trusted("cross_entropy_.targets_N", targets_N, torch.int64, (N,))
    weights_N = trusted("cross_entropy_.weights_N", weights_N, dtype, (N,))
    if N and (wrong := targets_N[(targets_N < 0) | (targets_N >= V)]).numel():
        advice = "Encode with the model's vocabulary"
        raise ArgumentError("cross_entropy_.targets_N", f"ids must lie in 0…{V - 1}", int(wrong[0]), advice)
    threads = 1 if logits_NV.numel() < ALONE else team.size()
    losses, sums = logits_NV.new_empty(N), logits_NV.new_zeros(threads, V)
    values = {"N": N, "V": V, "differentiate": differentiate, "logits": logits_NV, "bias": bias_V}
    values |= {"targets": targets_N, "weights": weights_N, "losses": losses, "sums": sums}
    kernel("cross_entropy", "cross_entropy", best(), kind_of(dtype), _CROSS_ENTROPY)(threads, values)
    return losses, sums.sum(0)


@cross_entropy_.register_fake
def _cross_entropy_fake(logits_NV, bias_V, targets_N, weights_N, differentiate):
    together("cross_entropy_", logits_NV, bias_V, targets_N, weights_N)
    return logits_NV.new_empty(logits_NV.shape[0]), torch.empty_like(bias_V)


def draw_values(seed: Tensor, blocks: list[int], chance: list[float], dtype: torch.dtype) -> dict[str, Any]:
    """Arguments for noise to be drawn."""
    p, scale = chance
    starts = torch.tensor(blocks, dtype=torch.int64, device="cpu")
    chances = torch.tensor([p, 1.0 / p, scale], dtype=dtype, device="cpu")
    return {"blocks": len(blocks) // 2, "seed": int(seed), "starts": starts, "chance": chances}


start_light(logistic_noise, cross_entropy_)
