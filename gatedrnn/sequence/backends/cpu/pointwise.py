"""Two further PyTorch operators: sparse logistic noise, and cross-entropy with its gradient.

Dimensions: N rows or tokens, R columns, V vocabulary.
"""

import torch
from torch import Tensor

from gatedrnn.sequence.backends.cpu import team
from gatedrnn.sequence.backends.cpu.arguments import draw_values
from gatedrnn.sequence.backends.cpu.kernels import kernel
from gatedrnn.sequence.backends.cpu.lightness import start_light
from gatedrnn.sequence.backends.cpu.sizes import ALONE, kind_of
from gatedrnn.sequence.backends.cpu.target import best


@torch.library.custom_op("gatedrnn::logistic_noise", mutates_args=())
def logistic_noise(
    seed: Tensor, rows: int, columns: int, blocks: list[int], chance: float, scale: float, like: Tensor
) -> Tensor:
    """[rows, columns] as `like`: scale · logistic with probability `chance` between blocks[0] and blocks[1] and so on, else 0."""
    out = like.new_empty(rows, columns)
    edges = [0, *blocks, columns]
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        out[:, a:b].zero_()
    values = {"N": rows, "R": columns, "out": out, **draw_values(seed, blocks, [chance, scale], out.dtype)}
    kernel("noise", "draw", best(), kind_of(out.dtype))(1 if out.numel() < ALONE else team.size(), values)
    return out


@logistic_noise.register_fake
def _logistic_noise_fake(seed, rows, columns, blocks, chance, scale, like):
    return like.new_empty(rows, columns)


@torch.library.custom_op("gatedrnn::cross_entropy_", mutates_args=("logits_NV",))
def cross_entropy_(
    logits_NV: Tensor, bias_V: Tensor, targets_N: Tensor, weights_N: Tensor, differentiate: bool
) -> tuple[Tensor, Tensor]:
    """−log softmax(logits + bias)[target] [N]. If `differentiate`, logits become weight · (softmax − one-hot), its sum [V].

    Args: logits_NV: contiguous; targets_N: int64 in 0 … V − 1.
    """
    N, V = logits_NV.shape
    dtype, threads = logits_NV.dtype, 1 if logits_NV.numel() < ALONE else team.size()
    losses, sums = torch.empty(N, dtype=dtype), torch.zeros(threads, V, dtype=dtype)
    values = {"N": N, "V": V, "differentiate": differentiate, "logits": logits_NV, "bias": bias_V.contiguous()}
    values |= {"targets": targets_N.contiguous(), "weights": weights_N.contiguous(), "losses": losses, "sums": sums}
    kernel("cross_entropy", "cross_entropy", best(), kind_of(dtype))(threads, values)
    return losses, sums.sum(0)


@cross_entropy_.register_fake
def _cross_entropy_fake(logits_NV, bias_V, targets_N, weights_N, differentiate):
    return logits_NV.new_empty(logits_NV.shape[0]), torch.empty_like(bias_V)


start_light(logistic_noise, cross_entropy_)
