"""Sparse logistic noise on a GPU, as one PyTorch operator: the uniform numbers of `gates.noise`, drawn as they are used.

Dimensions: N rows, R columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gatedrnn.core.torch_internals import Ints
from gatedrnn.sequence.backends.triton.graphs import launching

_BLOCK = 256


@triton.jit
def put(out, word, place, mask, p, scale):
    """The noise of one word where it stands."""
    u = (tl.cast(word >> 9, out.dtype.element_ty) + 0.5) * 1.1920928955078125e-07
    v = tl.minimum(u / p, 0.999999940395355224609375)
    tl.store(out + place, tl.where(u < p, tl.log(v / (1.0 - v)) * scale, 0.0), mask=mask)


@triton.jit(do_not_specialize=["blocks", "k", "first", "width", "columns"])
def draw(out, key, blocks, k, first, width, columns, p, scale, BLOCK: tl.constexpr):
    """A row's block k: columns first … first + width − 1 of it; a counter's four words stand a quarter of the block apart."""
    n = tl.cast(tl.program_id(0), tl.int64)
    quarter = (width + 3) // 4
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    number, zero = n * blocks + k, tl.zeros([BLOCK], tl.uint32)
    c2, c3 = zero + tl.cast(number, tl.uint32), zero + tl.cast(number >> 32, tl.uint32)
    first_word, second, third, fourth = tl.philox(tl.load(key), tl.cast(c, tl.uint32), zero, c2, c3, 7)  # type: ignore[arg-type]
    row, inside = out + n * columns + first, c < quarter
    put(row, first_word, c, inside & (c < width), p, scale)
    put(row, second, c + quarter, inside & (c + quarter < width), p, scale)
    put(row, third, c + 2 * quarter, inside & (c + 2 * quarter < width), p, scale)
    put(row, fourth, c + 3 * quarter, inside & (c + 3 * quarter < width), p, scale)


@torch.library.custom_op("gatedrnn::logistic_noise_triton", mutates_args=())
def logistic_noise(
    seed: Tensor, rows: int, columns: int, blocks: Ints, chance: float, scale: float, like: Tensor
) -> Tensor:
    """[rows, columns] as `like`, float32 or float64; see `gatedrnn::logistic_noise`, the operator for the CPU."""
    out, key = like.new_zeros(rows, columns), seed.to(like.device)
    pairs, exact = list(zip(blocks[::2], blocks[1::2], strict=True)), like.dtype == torch.float64
    with launching(like.device):
        for k, (first, last) in enumerate(pairs):
            width = last - first
            if rows and width:
                grid = rows, triton.cdiv((width + 3) // 4, _BLOCK)
                factor = 1.0 if exact else scale  # a kernel's numbers are of float32
                draw[grid](out, key, len(pairs), k, first, width, columns, chance, factor, _BLOCK)  # type: ignore[arg-type]
    return out.mul_(scale) if exact else out


@logistic_noise.register_fake
def _logistic_noise_fake(seed, rows, columns, blocks, chance, scale, like):
    return like.new_empty(rows, columns)
