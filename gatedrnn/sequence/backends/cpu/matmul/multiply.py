"""Matrix products on packed panels, for one thread of a team.

P decides the precision: panels of reals, or of pairs of bfloat16 (rows 2k and 2k + 1 of the matrix side by side, so that depth
is half as much), for which the left factor is converted as it is used; sums are float32 then too. Or of two such parts, which
make nearly float32 (`split`). Or P is a table of pieces in small forms, packed beforehand (`quantised`).
Dimensions: M rows, N columns, K inner; ld… the distance between rows.
"""

from typing import Any

from gatedrnn.sequence.backends.cpu.compile.records import Matrix, Panels
from gatedrnn.sequence.backends.cpu.matmul.panels import (
    ceil_div,
    copy_edge,
    depth,
    of_halves,
    of_parts,
    of_pieces,
    of_reals,
    packed_in,
    rows_at_once,
    share,
    tiles,
)
from gatedrnn.sequence.backends.cpu.matmul.precision.quantised import multiply_pieces
from gatedrnn.sequence.backends.cpu.matmul.precision.split import pack_split, split_rows
from gatedrnn.sequence.backends.cpu.matmul.sizes import GRAIN, M_BLOCK, SUMMED
from gatedrnn.sequence.backends.cpu.matmul.tiling import strip, transpose
from gatedrnn.sequence.backends.cpu.vector.convert import adjacent, pairs
from gatedrnn.sequence.backends.cpu.vector.simd import lanes, load, njit, overload, splat, store


def pack_transposed(
    A: Any, ld: Any, K: Any, N: Any, shift: Any, scale: Any, scaled: Any, P: Any, panel: Any, first: Any, last: Any
) -> None:
    """Panels first … last − 1 of the transpose of the [N, K] matrix at A, rows ld apart, row `shift` first.

    Column n is multiplied by scale[n] if `scaled`. Weights that lie in bfloat16 are never packed: nothing is done.
    """


@overload(pack_transposed)
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

    if of_pieces(P) or of_halves(A):
        return lambda A, ld, K, N, shift, scale, scaled, P, panel, first, last: None
    if of_parts(P):

        def split(A, ld, K, N, shift, scale, scaled, P, panel, first, last):
            pack_split(A, ld, K, N, shift, scale, scaled, P, depth(P, K), panel, first, last)

        return split
    return reals if of_reals(P) else halves


def multiply(A: Any, M: Any, right: Any, C: Any, first: Any, last: Any, add: Any, work: Any) -> None:
    """C[M, N] (+)= A[M, K] · `right` for its panels first … last − 1; downwards, first − 1 … last, where first > last.

    A, C: `Matrix`; right: `Panels`; work: `Work`, whose `left` has room for `rows_at_once` · depth of A.
    """


@overload(multiply)
def _multiply(A, M, right, C, first, last, add, work):
    def reals(A, M, right, C, first, last, add, work):
        for m in range(0, M, M_BLOCK):
            rows = min(M_BLOCK, M - m)
            tiles(Matrix(A.at + m * A.ld, A.ld), rows, right, 1, Matrix(C.at + m * C.ld, C.ld), first, last, add, work)

    def halves(A, M, right, C, first, last, add, work):
        W, left = lanes(A.at), work.left
        deep, most = depth(right.at, right.K), rows_at_once(work.tall)
        pairs_of = Panels(right.at, deep, right.N)
        for m in range(0, M, most):
            rows = min(most, M - m)
            for r in range(rows if first != last else 0):
                a, to = A.at + (m + r) * A.ld, left + r * deep
                for k in range(0, deep, W):
                    rest = max(0, right.K - 2 * k)
                    x = load(a + 2 * k, min(W, rest))
                    y = load(a + (2 * k + W), max(0, min(W, rest - W)))
                    store(to + k, adjacent(x, y), W)
            c = Matrix(C.at + m * C.ld, C.ld)
            tiles(Matrix(left, deep), rows, pairs_of, GRAIN, c, first, last, add, work)

    if of_pieces(packed_in(right)):

        def small(A, M, right, C, first, last, add, work):
            multiply_pieces(A, M, right, C, first, last, add, work)

        return small
    if of_parts(packed_in(right)):

        def split(A, M, right, C, first, last, add, work):
            deep, most = depth(right.at, right.K), rows_at_once(work.tall)
            for m in range(0, M if first != last else 0, most):
                rows = min(most, M - m)
                split_rows(A.at + m * A.ld, A.ld, rows, right.K, work.left, deep)
                both, c = Panels(right.at, deep, right.N), Matrix(C.at + m * C.ld, C.ld)
                tiles(Matrix(work.left, deep), rows, both, 2 * GRAIN, c, first, last, add, work)

        return split
    return reals if of_reals(packed_in(right)) else halves


def multiply_transposed(
    A: Any, M: Any, right: Any, C: Any, first: Any, last: Any, add: Any, sums: Any, work: Any
) -> None:
    """C[m, :] (+)= Σ_k A[k, m] · right[k, :] for strips first … last − 1 of `tall` rows m; A is [K, M].

    sums: [M], to which Σ_k A[k, m] is added. work: its `left` has room for `rows_at_once` · depth.
    """


@overload(multiply_transposed)
def _multiply_transposed(A, M, right, C, first, last, add, sums, work):
    def reals(A, M, right, C, first, last, add, sums, work):
        K, N, panel, tall, strips = right.K, right.N, work.panel, work.tall, work.left
        group = M_BLOCK // tall
        for s0 in range(first, last, group):
            s1 = min(last, s0 + group)
            for s in range(s0, s1):
                columns = min(tall, M - s * tall)
                _pack_strip(A.at + s * tall, A.ld, K, columns, tall, strips + (s - s0) * tall * K, sums + s * tall)
            step = max(1, panel // (s1 - s0)) if s1 - s0 > 1 else 0
            for n in range(0, N, panel):
                for s in range(s0, s1):
                    rows = min(tall, M - s * tall)
                    a, b, c = strips + (s - s0) * tall * K, right.at + n * K, C.at + (s * tall * C.ld + n)
                    soon = b + (K * panel + share(K * panel, s - s0, s1 - s0))
                    if n + panel <= N:
                        strip(rows, a, b, K, c, C.ld, add, soon, step)
                    else:
                        strip(rows, a, b, K, work.edge, panel, 0, soon, step)
                        copy_edge(work.edge, c, C.ld, rows, N - n, panel, add)

    def halves(A, M, right, C, first, last, add, sums, work):
        deep, most, tall = depth(right.at, right.K), rows_at_once(work.tall), work.tall
        for m0 in range(first * tall, min(M, last * tall), most):
            rows = min(most, min(M, last * tall) - m0)
            _transpose_pairs(A.at + m0, A.ld, right.K, rows, work.left, deep, sums + m0)
            pairs_of, c = Panels(right.at, deep, right.N), Matrix(C.at + m0 * C.ld, C.ld)
            tiles(Matrix(work.left, deep), rows, pairs_of, GRAIN, c, 0, ceil_div(right.N, work.panel), add, work)

    return reals if of_reals(packed_in(right)) else halves


@njit
def _pack_strip(A, lda, K, columns, tall, S, sums):
    """S[k, :] = A[k, columns], K rows of `tall`; their sum over k added to `sums`."""
    W = lanes(A)
    for j in range(0, columns, W):
        n = min(W, columns - j)
        total = splat(sums, 0.0)
        over = K - 1 if columns <= W else 0  # rows whose store may reach the next one, which is written after: no mask
        for k0 in range(0, over, SUMMED):
            part = splat(sums, 0.0)
            for k in range(k0, min(over, k0 + SUMMED)):
                x = load(A + (k * lda + j), n)
                store(S + k * tall, x, W)
                part = part + x
            total = total + part
        for k0 in range(over, K, SUMMED):
            part = splat(sums, 0.0)
            for k in range(k0, min(K, k0 + SUMMED)):
                x = load(A + (k * lda + j), n)
                store(S + (k * tall + j), x, n)
                part = part + x
            total = total + part
        store(sums + j, load(sums + j, n) + total, n)


@njit
def _transpose_pairs(A, lda, K, columns, S, deep, sums):
    """S[m, :] = the pairs of column m of A, rows of `deep`; sums over k added to `sums`."""
    W = lanes(A)
    for j in range(0, columns, W):
        n = min(W, columns - j)
        total = splat(sums, 0.0)
        for k in range(0, deep, W):
            part = splat(sums, 0.0)
            for i in range(W):
                row = 2 * (k + i)
                low, high = (
                    load(A + (row * lda + j), n if row < K else 0),
                    load(A + ((row + 1) * lda + j), n if row + 1 < K else 0),
                )
                part = part + (low + high)
                store(S + ((j + i) * deep + k), pairs(low, high), W)
            total = total + part
            transpose(S + (j * deep + k), deep, S + (j * deep + k), deep)
        store(sums + j, load(sums + j, n) + total, n)
