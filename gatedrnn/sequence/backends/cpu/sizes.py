"""Sizes that the kernels and their callers share; imports neither Numba nor LLVM, so that a warm start stays light."""

import torch

K_BLOCK = 256
"""Rows of a panel at once."""
M_BLOCK = 96
"""Rows of A whose block stays in the second-level cache."""
GRAIN = 16
"""Pairs a matrix register takes in: a bfloat16 panel's depth is a multiple."""
TOKENS = 256
"""Tokens a weight gradient takes in at once."""
REGISTERS = 16
"""Reals that hold a layout of matrix registers."""
ALIGN = 16
"""Reals: rows of gates begin on a cache line."""
ALONE = 1 << 18
"""Multiply-adds, or elements, that one thread does before another is awake."""


def round_up(n: int, step: int) -> int:
    """The least multiple of `step` that is not below n."""
    return -(-n // step) * step


def depth(rows: int, products: torch.dtype) -> int:
    """Rows of a panel: `depth` of product.py."""
    return round_up(-(-rows // 2), GRAIN) if products == torch.bfloat16 else rows


def element(products: torch.dtype) -> torch.dtype:
    """What packed panels hold: reals, pairs of bfloat16, or bytes."""
    return torch.int32 if products == torch.bfloat16 else products


def left_bytes(panel: int, rank: int, inner: int) -> int:
    """Room of each thread beside a product in small forms: a widened block, a row in int16, first products of `rank` columns."""
    return round_up(4 * K_BLOCK * panel + 2 * (inner + 2 * ALIGN), 64) + 4 * M_BLOCK * rank
