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
    """What packed panels hold: reals, or pairs of bfloat16."""
    return torch.int32 if products == torch.bfloat16 else products
