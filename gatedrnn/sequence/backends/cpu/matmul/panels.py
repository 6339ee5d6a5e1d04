"""Packed panels, and the tiles of a product on them, for one thread of a team.

A panel is NR = `panel` columns of the right factor, one row of NR after the other, padded with zeros; panel p of a matrix with
`depth` rows starts at P + p·depth·NR. Threads share a product by panels, or by strips of rows where the left factor is
transposed. The inner dimension is taken in blocks, so that a panel's block stays in the first-level cache (on matrix registers
the second), and no sum runs over more than `depth_at_once` rows.
Dimensions: M rows, N columns, K inner; ld… the distance between rows.
"""

from typing import Any

from numba import types

from gatedrnn.sequence.backends.cpu.matmul import sizes
from gatedrnn.sequence.backends.cpu.matmul.sizes import GRAIN
from gatedrnn.sequence.backends.cpu.matmul.tiling import configure, tile
from gatedrnn.sequence.backends.cpu.vector.convert import as_counts, pairs
from gatedrnn.sequence.backends.cpu.vector.simd import lanes, load, njit, overload, store

rows_at_once, depth_at_once = njit(sizes.rows_at_once), njit(sizes.depth_at_once)


@njit
def share(count, index, parts):
    """Where part `index` of `parts` begins when `count` things are shared out."""
    return count * index // parts


@njit
def ceil_div(a, b):
    """⌈a / b⌉ of whole a ≥ 0, b > 0."""
    return (a + b - 1) // b


def of_reals(P: Any) -> bool:
    """Whether panels are of reals."""
    return isinstance(P.real, types.Float)


def of_pieces(P: Any) -> bool:
    """Whether they are a table of pieces in small forms."""
    return P.real == types.uint8


def of_halves(A: Any) -> bool:
    """Whether a matrix lies in bfloat16."""
    return A.real == types.uint16


def of_parts(P: Any) -> bool:
    """Whether they are of two parts of bfloat16, which make nearly float32."""
    return P.real == types.int32


def depth(P: Any, K: Any) -> Any:
    """Rows of a panel of a matrix with K rows."""


@overload(depth)
def _depth(P, K):
    if of_reals(P) or of_pieces(P):
        return lambda P, K: K
    parts = 2 if of_parts(P) else 1
    return lambda P, K: ceil_div(K, 2 * GRAIN) * GRAIN * parts


def beyond(P: Any, panels: Any, depth: Any, panel: Any) -> Any:
    """Where another matrix's panels begin that were packed after so many of P."""


@overload(beyond)
def _beyond(P, panels, depth, panel):
    if of_pieces(P):
        return lambda P, panels, depth, panel: P + as_counts(P)[6]
    return lambda P, panels, depth, panel: P + panels * panel * depth


def pack(A: Any, ld: Any, K: Any, N: Any, shift: Any, P: Any, rows: Any, panel: Any, first: Any, last: Any) -> None:
    """Panels first … last − 1 of the [K, N] matrix at A, rows ld apart, row `shift` first, into panels of `rows` rows."""


@overload(pack)
def _pack(A, ld, K, N, shift, P, rows, panel, first, last):
    def reals(A, ld, K, N, shift, P, rows, panel, first, last):
        W = lanes(A)
        for p in range(first, last):
            for k in range(K):
                row = k + shift if k + shift < K else k + shift - K
                to = P + (p * rows + k) * panel
                for v in range(0, panel, W):
                    n = p * panel + v
                    store(to + v, load(A + (row * ld + n), max(0, min(W, N - n))), W)

    def halves(A, ld, K, N, shift, P, rows, panel, first, last):
        W = lanes(A)
        for p in range(first, last):
            for k in range(rows):
                one = 2 * k + shift if 2 * k + shift < K else 2 * k + shift - K
                two = one + 1 if one + 1 < K else one + 1 - K
                to = P + (p * rows + k) * panel
                for v in range(0, panel, W):
                    n = p * panel + v
                    width = max(0, min(W, N - n))
                    low = load(A + (one * ld + n), width if 2 * k < K else 0)
                    high = load(A + (two * ld + n), width if 2 * k + 1 < K else 0)
                    store(to + v, pairs(low, high), W)

    return reals if of_reals(P) else halves


def packed_in(right: Any) -> Any:
    """The type of a record's panels."""
    return right.types[right.fields.index("at")]


@njit
def tiles(A, M, right, grain, C, first, last, add, work):
    """The product of M ≤ `rows_at_once` rows; blocks of K begin at multiples of `grain`, which divides K."""
    K, N, panel, tall = right.K, right.N, work.panel, work.tall
    blocks, tiles, shape = ceil_div(K, depth_at_once(tall)), ceil_div(M, tall), 0
    for i in range(abs(last - first)):
        p = first + i if first < last else first - 1 - i
        n = p * panel
        for block in range(blocks):
            k0, k1 = share(K // grain, block, blocks) * grain, share(K // grain, block + 1, blocks) * grain
            more = 1 if add or block else 0
            after = k1 if block + 1 < blocks else (K if first < last else -K)  # row of the panel that is read next
            rows, step = k1 - k0, max(1, panel // tiles) if tiles > 1 else 0
            for t in range(tiles):
                r0, r1 = share(M, t, tiles), share(M, t + 1, tiles)
                if r1 - r0 != shape:
                    shape = r1 - r0
                    configure(shape)
                a, b, c = A.at + (r0 * A.ld + k0), right.at + (p * K + k0) * panel, C.at + (r0 * C.ld + n)
                soon = right.at + ((p * K + after) * panel + share(rows * panel, t, tiles))
                if n + panel <= N:
                    tile(shape, a, A.ld, b, rows, c, C.ld, more, soon, step)
                else:
                    tile(shape, a, A.ld, b, rows, work.edge, panel, 0, soon, step)
                    copy_edge(work.edge, c, C.ld, shape, N - n, panel, more)


@njit
def copy_edge(edge, C, ldc, rows, columns, panel, add):
    """Copy or add the first columns of a scratch tile."""
    W = lanes(C)
    for i in range(rows):
        for j in range(0, columns, W):
            n = min(W, columns - j)
            x = load(edge + (i * panel + j), W)
            if add:
                x = x + load(C + (i * ldc + j), n)
            store(C + (i * ldc + j), x, n)
