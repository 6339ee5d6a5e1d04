"""Sparse logistic noise, drawn as fast as it is used: a counter-based generator, so that any thread draws any row.

What is drawn depends on the seed and the place alone, not on threads or vector width. Dimensions: N rows, R columns.
"""

from numba import njit

from gatedrnn.sequence.backends.cpu.functions import log
from gatedrnn.sequence.backends.cpu.product import share
from gatedrnn.sequence.backends.cpu.simd import choose_positive, lanes, philox, splat, store, thread, threads


def draw(N, R, blocks, seed, starts, chance, out):
    """out[n, starts[2k] … starts[2k + 1] − 1]: scale · logit(u / p) where u < p, else 0; u uniform; chance: p, 1 / p, scale."""
    W = lanes(out)
    q, parts = thread(), threads()
    for n in range(share(N, q, parts), share(N, q + 1, parts)):
        for k in range(blocks):
            start, width = starts[2 * k], starts[2 * k + 1] - starts[2 * k]
            quarter = (width + 3) // 4  # a counter gives four numbers, a quarter of the block apart
            row = out + (n * R + start)
            for c in range(0, quarter, W):
                a, b, d, e = philox(out, seed, n * blocks + k, c)
                m = min(W, quarter - c)
                _put(row, c, min(m, width - c), a, chance)
                _put(row, c + quarter, min(m, width - c - quarter), b, chance)
                _put(row, c + 2 * quarter, min(m, width - c - 2 * quarter), d, chance)
                _put(row, c + 3 * quarter, min(m, width - c - 3 * quarter), e, chance)


@njit(forceinline=True)
def _put(row, at, n, u, chance):
    if n > 0:
        p = splat(row, chance[0])
        v = u / p
        inside = choose_positive(p - u, v, 0.5)
        store(row + at, log(inside / (1.0 - inside)) * splat(row, chance[2]), n)
