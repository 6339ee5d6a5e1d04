"""Sizes that the kernels and their callers share; imports neither Numba nor LLVM, so that a warm start stays light."""

import torch

K_BLOCK = 256
"""Rows of a panel at once."""
M_BLOCK = 96
"""Rows of A whose block stays in the second-level cache."""
MATRIX_ROWS = 32
"""Rows of a tile on matrix registers."""
GRAIN = 16
"""Pairs a matrix register takes in: a bfloat16 panel's depth is a multiple."""
DIRECT_TOKENS = 64
"""Up to so many tokens a weight is multiplied as it lies: packing it would take longer than it saves."""
HALF_STEPS = 4
"""So many steps of a single row are worth rounding U to bfloat16, which halves its reading."""


def direct(steps: int, batch: int, tokens: int, half: bool) -> tuple[bool, bool]:
    """Whether W and U are read as they lie; half: whether products are of bfloat16."""
    few = tokens <= DIRECT_TOKENS
    if batch == 1:
        return few, not half or steps < HALF_STEPS
    return few, few


TOKENS = 256
"""Tokens a weight gradient takes in at once."""
SUMMED = 16
"""Tokens whose gradients of a bias are summed one by one; their sums are summed in turn, which loses fewer digits."""
FOLDED = 64
"""The same of extras."""
OWN_ROWS = 8
"""So many rows of the batch are worth a product of a thread's own."""
OWN_NUMBERS = 1 << 19
"""Up to so many numbers of U stay in the second-level cache of each core."""
STRETCH = 1 << 16
"""Numbers of gates whose biases are written before threads wait for one another: they stay in the second-level cache."""
REGISTERS = 16
"""Reals that hold a layout of matrix registers."""
LINE = 16
"""Reals on a cache line (of float64, on two)."""
ALIGN = 16
"""Reals: rows of gates begin on a cache line."""
ALONE = 1 << 18
"""Multiply-adds, or elements, that one thread does before another is awake."""


def round_up(n: int, step: int) -> int:
    """The least multiple of `step` that is not below n."""
    return -(-n // step) * step


KINDS = {
    "f32": torch.float32,
    "f64": torch.float64,
    "widened": torch.float32,
    "bf16": torch.int32,
    "split": torch.int32,
    "small": torch.uint8,
}
"""Kinds of products, and what their packed panels hold: reals, pairs of bfloat16, or bytes.

"widened": float32, with weights that lie in bfloat16 and are not packed.
"""


def kind_of(dtype: torch.dtype) -> str:
    """The kind of float32 or float64 as they are."""
    return "f64" if dtype == torch.float64 else "f32"


def rows_at_once(tall: int) -> int:
    """`M_BLOCK` for tiles of `tall` rows: on matrix registers twice as many: a panel is fetched from afar for each block."""
    return 2 * M_BLOCK if tall == MATRIX_ROWS else M_BLOCK


def depth_at_once(tall: int) -> int:
    """`K_BLOCK` for tiles of `tall` rows: on matrix registers mostly a whole panel, read from the second-level cache."""
    return 8 * K_BLOCK if tall == MATRIX_ROWS else K_BLOCK


def depth(rows: int, kind: str) -> int:
    """Rows of a panel: as `depth` of panels.py."""
    halves = {"bf16": 1, "split": 2}.get(kind)
    return halves * round_up(-(-rows // 2), GRAIN) if halves else rows


def left_bytes(panel: int, rank: int, inner: int) -> int:
    """Room of each thread beside a product in small forms: a widened block, a row in int16, first products of `rank` columns."""
    return round_up(4 * K_BLOCK * panel + 2 * (inner + 2 * ALIGN), 64) + 4 * M_BLOCK * rank
