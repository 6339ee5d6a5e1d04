"""Sparse logistic noise, drawn as fast as it is used: a counter-based generator, so that any thread draws any row.

What is drawn depends on the seed and the place alone, not on threads or vector width. Dimensions: N rows, R columns.
"""

from gatedrnn.sequence.backends.cpu.matmul.panels import share
from gatedrnn.sequence.backends.cpu.matmul.tiling import thread, threads
from gatedrnn.sequence.backends.cpu.vector.functions import log
from gatedrnn.sequence.backends.cpu.vector.lanewise import choose_positive, minimum, philox
from gatedrnn.sequence.backends.cpu.vector.simd import lanes, load, njit, splat, store


def draw(call):
    """out[n, starts[2k] … starts[2k + 1] − 1]: scale · logit(u / p) where u < p, else 0; u uniform; chance: p, 1 / p, scale."""
    q, parts, starts = thread(), threads(), call.starts
    for n in range(share(call.N, q, parts), share(call.N, q + 1, parts)):
        for k in range(call.blocks):
            row, width = call.out + (n * call.R + starts[2 * k]), starts[2 * k + 1] - starts[2 * k]
            draw_block(n * call.blocks + k, row, width, call.seed, call.chance, 0)


@njit
def draw_block(number, row, width, seed, chance, add):
    """row[0 … width − 1] = (or +=, if `add`) the noise of block `number`."""
    W = lanes(row)
    quarter = (width + 3) // 4  # a counter gives four numbers, a quarter of the block apart
    for c in range(0, quarter, W):
        a, b, d, e = philox(row, seed, number, c)
        m = min(W, quarter - c)
        _put(row + c, min(m, width - c), a, chance, add)
        _put(row + (c + quarter), min(m, width - c - quarter), b, chance, add)
        _put(row + (c + 2 * quarter), min(m, width - c - 2 * quarter), d, chance, add)
        _put(row + (c + 3 * quarter), min(m, width - c - 3 * quarter), e, chance, add)


@njit(forceinline=True)
def _put(row, n, u, chance, add):
    if n > 0:
        p = splat(row, chance[0])
        inside = choose_positive(p - u, minimum(u * splat(row, chance[1]), 1.0 - 2.0**-24), 0.5)
        noise = log(inside / (1.0 - inside)) * splat(row, chance[2])
        store(row, noise + load(row, n) if add else noise, n)
