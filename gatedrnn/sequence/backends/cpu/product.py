"""Matrix products on packed panels, for one thread of a team.

A panel is NR = `panel` columns of the right factor, one row of NR after the other, padded with zeros; panel p of a matrix with
`depth` rows starts at P + p·depth·NR. Threads share a product by panels, or by strips of rows where the left factor is
transposed. The inner dimension is taken in blocks, so that a panel's block stays in the first-level cache (on matrix registers
the second), and no sum runs over more than `depth_at_once` rows.

P decides the precision: panels of reals, or of pairs of bfloat16 (rows 2k and 2k + 1 of the matrix side by side, so that depth
is half as much), for which the left factor is converted as it is used; sums are float32 then too. Or of two such parts, which
make nearly float32 (`split`). Or P is a table of pieces in small forms, packed beforehand (`small`).
Dimensions: M rows, N columns, K inner; ld… the distance between rows.
"""

from typing import Any

from numba import njit, types
from numba.extending import overload

from gatedrnn.sequence.backends.cpu import sizes
from gatedrnn.sequence.backends.cpu.simd import lanes, load, store
from gatedrnn.sequence.backends.cpu.sizes import GRAIN, M_BLOCK
from gatedrnn.sequence.backends.cpu.tiling import configure, strip, tile, transpose
from gatedrnn.sequence.backends.cpu.widening import adjacent, pairs

rows_at_once, depth_at_once = njit(sizes.rows_at_once), njit(sizes.depth_at_once)


@njit
def share(count, index, parts):
    """Where part `index` of `parts` begins when `count` things are shared out."""
    return count * index // parts


@njit
def ceil_div(a, b):
    """⌈a / b⌉ of whole a ≥ 0, b > 0."""
    return (a + b - 1) // b


def _reals(P: Any) -> bool:
    return isinstance(P.real, types.Float)


def _small(P: Any) -> bool:
    return P.real == types.uint8


def _split(P: Any) -> bool:
    return P.real == types.int32


def depth(P: Any, K: Any) -> Any:
    """Rows of a panel of a matrix with K rows."""


@overload(depth, strict=False)
def _depth(P, K):
    if _reals(P) or _small(P):
        return lambda P, K: K
    parts = 2 if _split(P) else 1
    return lambda P, K: ceil_div(K, 2 * GRAIN) * GRAIN * parts


def beyond(P: Any, panels: Any, depth: Any, panel: Any) -> Any:
    """Where another matrix's panels begin that were packed after so many of P."""


@overload(beyond, strict=False)
def _beyond(P, panels, depth, panel):
    if _small(P):
        from gatedrnn.sequence.backends.cpu.widening import as_counts

        return lambda P, panels, depth, panel: P + as_counts(P)[6]
    return lambda P, panels, depth, panel: P + panels * panel * depth


def pack(A: Any, ld: Any, K: Any, N: Any, shift: Any, P: Any, rows: Any, panel: Any, first: Any, last: Any) -> None:
    """Panels first … last − 1 of the [K, N] matrix at A, rows ld apart, row `shift` first, into panels of `rows` rows."""


@overload(pack, strict=False)
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

    return reals if _reals(P) else halves


def pack_transposed(
    A: Any, ld: Any, K: Any, N: Any, shift: Any, scale: Any, scaled: Any, P: Any, panel: Any, first: Any, last: Any
) -> None:
    """Panels first … last − 1 of the transpose of the [N, K] matrix at A, rows ld apart, row `shift` first.

    Column n is multiplied by scale[n] if `scaled`.
    """


@overload(pack_transposed, strict=False)
def _pack_transposed(A, ld, K, N, shift, scale, scaled, P, panel, first, last):
    def reals(A, ld, K, N, shift, scale, scaled, P, panel, first, last):
        W = lanes(A)
        for p in range(first, last):
            for v in range(0, panel, W):
                n = p * panel + v
                row = n + shift if n + shift < N else n + shift - N
                whole = K - K % W if n + W <= N and row + W <= N else 0
                for k in range(0, whole, W):
                    transpose(A + (row * ld + k), ld, P + ((p * K + k) * panel + v), panel)
                for k in range(whole, K):
                    for j in range(W):
                        row = n + j + shift if n + j + shift < N else n + j + shift - N
                        P[(p * K + k) * panel + v + j] = A[row * ld + k] if n + j < N else 0.0
                if scaled:
                    factor = load(scale + n, max(0, min(W, N - n)))
                    for k in range(K):
                        to = P + ((p * K + k) * panel + v)
                        store(to, load(to, W) * factor, W)

    def halves(A, ld, K, N, shift, scale, scaled, P, panel, first, last):
        W = lanes(A)
        rows = depth(P, K)
        for p in range(first, last):
            for v in range(0, panel, W):
                n = p * panel + v
                corner = P + (p * rows * panel + v)
                for k in range(0, rows, W):
                    for j in range(W):  # W rows of A, as pairs, side by side; then transposed where they lie
                        row = n + j + shift if n + j + shift < N else n + j + shift - N
                        a = A + (row * ld + 2 * k)
                        left = max(0, K - 2 * k) if n + j < N else 0
                        x, y = load(a, min(W, left)), load(a + W, max(0, min(W, left - W)))
                        if scaled and n + j < N:
                            x, y = x * scale[n + j], y * scale[n + j]
                        store(corner + (k + j) * panel, adjacent(x, y), W)
                    transpose(corner + k * panel, panel, corner + k * panel, panel)

    if _small(P):
        return lambda A, ld, K, N, shift, scale, scaled, P, panel, first, last: None
    if _split(P):
        from gatedrnn.sequence.backends.cpu.split import pack_split

        def split(A, ld, K, N, shift, scale, scaled, P, panel, first, last):
            pack_split(A, ld, K, N, shift, scale, scaled, P, depth(P, K), panel, first, last)

        return split
    return reals if _reals(P) else halves


def multiply(
    A: Any, lda: Any, M: Any, P: Any, K: Any, C: Any, ldc: Any, N: Any, panel: Any, tall: Any, first: Any, last: Any,
    add: Any, edge: Any, left: Any,
) -> None:  # fmt: skip
    """C[M, N] (+)= A[M, K] · P for panels first … last − 1; downwards, first − 1 … last, where first > last.

    tall: rows of a full tile. edge: a tile of scratch. left: scratch for `rows_at_once` · depth of A in another precision.
    """


@overload(multiply, strict=False)
def _multiply(A, lda, M, P, K, C, ldc, N, panel, tall, first, last, add, edge, left):
    def reals(A, lda, M, P, K, C, ldc, N, panel, tall, first, last, add, edge, left):
        for m in range(0, M, M_BLOCK):
            rows = min(M_BLOCK, M - m)
            _tiles(A + m * lda, lda, rows, P, K, 1, C + m * ldc, ldc, N, panel, tall, first, last, add, edge)

    def halves(A, lda, M, P, K, C, ldc, N, panel, tall, first, last, add, edge, left):
        W = lanes(A)
        deep, most = depth(P, K), rows_at_once(tall)
        for m in range(0, M, most):
            rows = min(most, M - m)
            for r in range(rows if first != last else 0):
                a, to = A + (m + r) * lda, left + r * deep
                for k in range(0, deep, W):
                    rest = max(0, K - 2 * k)
                    x = load(a + 2 * k, min(W, rest))
                    y = load(a + (2 * k + W), max(0, min(W, rest - W)))
                    store(to + k, adjacent(x, y), W)
            _tiles(left, deep, rows, P, deep, GRAIN, C + m * ldc, ldc, N, panel, tall, first, last, add, edge)

    if _small(P):
        from gatedrnn.sequence.backends.cpu.small import multiply_pieces  # which is made of what stands here

        def small(A, lda, M, P, K, C, ldc, N, panel, tall, first, last, add, edge, left):
            multiply_pieces(A, lda, M, P, C, ldc, N, panel, tall, first, last, add, edge, left)

        return small
    if _split(P):
        from gatedrnn.sequence.backends.cpu.split import split_rows

        def split(A, lda, M, P, K, C, ldc, N, panel, tall, first, last, add, edge, left):
            deep, most = depth(P, K), rows_at_once(tall)
            for m in range(0, M if first != last else 0, most):
                rows = min(most, M - m)
                split_rows(A + m * lda, lda, rows, K, left, deep)
                _tiles(left, deep, rows, P, deep, 2 * GRAIN, C + m * ldc, ldc, N, panel, tall, first, last, add, edge)

        return split
    return reals if _reals(P) else halves


@njit
def _tiles(A, lda, M, P, K, grain, C, ldc, N, panel, tall, first, last, add, edge):
    """The product of M ≤ `rows_at_once` rows; blocks of K begin at multiples of `grain`, which divides K."""
    blocks, tiles, shape = ceil_div(K, depth_at_once(tall)), ceil_div(M, tall), 0
    for i in range(abs(last - first)):
        p = first + i if first < last else first - 1 - i
        n = p * panel
        for block in range(blocks):
            k0, k1 = share(K // grain, block, blocks) * grain, share(K // grain, block + 1, blocks) * grain
            more = 1 if add or block else 0
            for t in range(tiles):
                r0, r1 = share(M, t, tiles), share(M, t + 1, tiles)
                if r1 - r0 != shape:
                    shape = r1 - r0
                    configure(shape)
                a, b, c = A + (r0 * lda + k0), P + (p * K + k0) * panel, C + (r0 * ldc + n)
                if n + panel <= N:
                    tile(shape, a, lda, b, k1 - k0, c, ldc, more)
                else:
                    tile(shape, a, lda, b, k1 - k0, edge, panel, 0)
                    _copy_edge(edge, c, ldc, shape, N - n, panel, more)


@njit
def _copy_edge(edge, C, ldc, rows, columns, panel, add):
    """Copy or add the first columns of a scratch tile."""
    W = lanes(C)
    for i in range(rows):
        for j in range(0, columns, W):
            n = min(W, columns - j)
            x = load(edge + (i * panel + j), W)
            if add:
                x = x + load(C + (i * ldc + j), n)
            store(C + (i * ldc + j), x, n)


def multiply_transposed(
    A: Any, lda: Any, M: Any, P: Any, K: Any, C: Any, ldc: Any, N: Any, panel: Any, tall: Any, first: Any, last: Any,
    add: Any, strips: Any, sums: Any, edge: Any,
) -> None:  # fmt: skip
    """C[m, :] (+)= Σ_k A[k, m] · P[k, :] for strips first … last − 1 of `tall` rows m; A is [K, M], P all panels of K rows.

    strips: scratch of `rows_at_once` · depth. sums: [M], to which Σ_k A[k, m] is added.
    """


@overload(multiply_transposed, strict=False)
def _multiply_transposed(A, lda, M, P, K, C, ldc, N, panel, tall, first, last, add, strips, sums, edge):
    def reals(A, lda, M, P, K, C, ldc, N, panel, tall, first, last, add, strips, sums, edge):
        group = M_BLOCK // tall
        for s0 in range(first, last, group):
            s1 = min(last, s0 + group)
            for s in range(s0, s1):
                columns = min(tall, M - s * tall)
                _pack_strip(A + s * tall, lda, K, columns, tall, strips + (s - s0) * tall * K, sums + s * tall)
            for n in range(0, N, panel):
                for s in range(s0, s1):
                    rows = min(tall, M - s * tall)
                    a, b, c = strips + (s - s0) * tall * K, P + n * K, C + (s * tall * ldc + n)
                    if n + panel <= N:
                        strip(rows, a, b, K, c, ldc, add)
                    else:
                        strip(rows, a, b, K, edge, panel, 0)
                        _copy_edge(edge, c, ldc, rows, N - n, panel, add)

    def halves(A, lda, M, P, K, C, ldc, N, panel, tall, first, last, add, strips, sums, edge):
        deep, most = depth(P, K), rows_at_once(tall)
        for m0 in range(first * tall, min(M, last * tall), most):
            rows = min(most, min(M, last * tall) - m0)
            _transpose_pairs(A + m0, lda, K, rows, strips, deep, sums + m0)
            _tiles(
                strips, deep, rows, P, deep, GRAIN, C + m0 * ldc, ldc, N, panel, tall, 0, ceil_div(N, panel), add, edge
            )

    return reals if _reals(P) else halves


@njit
def _pack_strip(A, lda, K, columns, tall, S, sums):
    """S[k, :] = A[k, columns], K rows of `tall`; their sum over k added to `sums`."""
    W = lanes(A)
    for j in range(0, columns, W):
        n = min(W, columns - j)
        total = load(sums + j, n)
        for k in range(K):
            x = load(A + (k * lda + j), n)
            store(S + (k * tall + j), x, n)
            total = total + x
        store(sums + j, total, n)


@njit
def _transpose_pairs(A, lda, K, columns, S, deep, sums):
    """S[m, :] = the pairs of column m of A, rows of `deep`; sums over k added to `sums`."""
    W = lanes(A)
    for j in range(0, columns, W):
        n = min(W, columns - j)
        total = load(sums + j, n)
        for k in range(0, deep, W):
            for i in range(W):
                row = 2 * (k + i)
                low, high = (
                    load(A + (row * lda + j), n if row < K else 0),
                    load(A + ((row + 1) * lda + j), n if row + 1 < K else 0),
                )
                total = total + low + high
                store(S + ((j + i) * deep + k), pairs(low, high), W)
            transpose(S + (j * deep + k), deep, S + (j * deep + k), deep)
        store(sums + j, total, n)
