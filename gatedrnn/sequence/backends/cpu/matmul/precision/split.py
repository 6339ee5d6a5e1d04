"""Nearly float32 on matrix registers: x y ≈ x₁ y₁ + x₁ y₂ + x₂ y₁, where x₁ is x rounded to bfloat16, x₂ what is left of it.

Each x₁ + x₂ has 16 bits: a product errs by 3 · 2⁻¹⁶ of itself at most; sums are float32. In both factors `GRAIN` pairs of first
parts, then those of second parts, take turns along the inner dimension, as the tiles of kind `split` read them: depth counts
both. Every panel lies once in memory, as many bytes as in float32.
"""

from gatedrnn.sequence.backends.cpu.matmul.tiling import transpose
from gatedrnn.sequence.backends.cpu.vector.convert import adjacent, as_pairs, beyond_bfloat16
from gatedrnn.sequence.backends.cpu.vector.simd import lanes, load, njit, store


@njit
def pack_split(A, ld, K, N, shift, scale, scaled, P, rows, panel, first, last):
    """`pack_transposed` into both parts, panels of `rows` rows."""
    W = lanes(A)
    P = as_pairs(P)
    for p in range(first, last):
        for v in range(0, panel, W):
            n = p * panel + v
            corner = P + (p * rows * panel + v)
            for k in range(0, rows, 2 * W):
                for j in range(W):  # W rows of A, as pairs, side by side; then transposed where they lie
                    row = n + j + shift if n + j + shift < N else n + j + shift - N
                    a = A + (row * ld + k)
                    left = max(0, K - k) if n + j < N else 0
                    x, y = load(a, min(W, left)), load(a + W, max(0, min(W, left - W)))
                    if scaled and n + j < N:
                        x, y = x * scale[n + j], y * scale[n + j]
                    store(corner + (k + j) * panel, adjacent(x, y), W)
                    store(corner + (k + W + j) * panel, adjacent(beyond_bfloat16(x), beyond_bfloat16(y)), W)
                transpose(corner + k * panel, panel, corner + k * panel, panel)
                transpose(corner + (k + W) * panel, panel, corner + (k + W) * panel, panel)


@njit
def split_rows(A, lda, rows, K, left, deep):
    """Both parts of `rows` rows of A, `deep` elements each, to `left`."""
    W = lanes(A)
    left = as_pairs(left)
    for r in range(rows):
        a, to = A + r * lda, left + r * deep
        for k in range(0, deep, 2 * W):
            rest = max(0, K - k)
            x, y = load(a + k, min(W, rest)), load(a + (k + W), max(0, min(W, rest - W)))
            store(to + k, adjacent(x, y), W)
            store(to + (k + W), adjacent(beyond_bfloat16(x), beyond_bfloat16(y)), W)
