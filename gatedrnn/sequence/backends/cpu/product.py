"""Matrix products on packed panels, for one thread of a team.

A panel is NR = `panel` columns of the right factor, K rows one after the other, padded with zeros; panel p of a matrix packed
for K rows starts at P + p·K·NR. Threads share a product by panels, or by strips of rows where the left factor is transposed.
K is taken in blocks, so that a panel's block stays in the first-level cache, and no sum runs over more than `K_BLOCK` terms.
Dimensions: M rows, N columns, K inner; ld… the distance between rows.
"""

from numba import njit

from gatedrnn.sequence.backends.cpu.simd import barrier, lanes, load, store, strip, thread, threads, tile, transpose

K_BLOCK = 256
M_BLOCK = 96  # rows of A whose block stays in the second-level cache


@njit
def share(count, index, parts):
    """Where part `index` of `parts` begins when `count` things are shared out."""
    return count * index // parts


@njit
def pack(A, ld, K, N, shift, P, K_panel, panel, first, last):
    """Panels first … last − 1 of the [K, N] matrix at A, rows ld apart, row `shift` first, into panels of K_panel rows."""
    W = lanes(A)
    for p in range(first, last):
        for k in range(K):
            to = P + (p * K_panel + k) * panel
            row = k + shift if k + shift < K else k + shift - K
            for v in range(0, panel, W):
                n = p * panel + v
                store(to + v, load(A + (row * ld + n), max(0, min(W, N - n))), W)


@njit
def pack_transposed(A, ld, K, N, shift, P, panel, first, last):
    """Panels first … last − 1 of the transpose of the [N, K] matrix at A, rows ld apart, row `shift` first."""
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


@njit
def multiply(A, lda, M, P, K, C, ldc, N, panel, tall, first, last, add, edge):
    """C[M, N] (+)= A[M, K] · P for panels first … last − 1; `tall` is the rows of a full tile, `edge` one tile of scratch."""
    k_blocks = (K + K_BLOCK - 1) // K_BLOCK
    for m0 in range(0, M, M_BLOCK):
        m = min(M_BLOCK, M - m0)
        tiles = (m + tall - 1) // tall
        for p in range(first, last):
            n = p * panel
            for block in range(k_blocks):
                k0, k1 = share(K, block, k_blocks), share(K, block + 1, k_blocks)
                more = 1 if add or block else 0
                for t in range(tiles):
                    r0, r1 = m0 + share(m, t, tiles), m0 + share(m, t + 1, tiles)
                    a, b, c = A + (r0 * lda + k0), P + (p * K + k0) * panel, C + (r0 * ldc + n)
                    if n + panel <= N:
                        tile(r1 - r0, a, lda, b, k1 - k0, c, ldc, more)
                    else:
                        tile(r1 - r0, a, lda, b, k1 - k0, edge, panel, 0)
                        _copy_edge(edge, c, ldc, r1 - r0, N - n, panel, more)


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


@njit
def multiply_transposed(A, lda, M, P, K, C, ldc, N, panel, tall, first, last, add, strips, sums, edge):
    """C[m, :] (+)= Σ_k A[k, m] · P[k, :] for strips first … last − 1 of `tall` rows m; A is [K, M], P all panels of K rows.

    strips: scratch of M_BLOCK · K reals. sums: [M], to which Σ_k A[k, m] is added.
    """
    group = M_BLOCK // tall
    for s0 in range(first, last, group):
        s1 = min(last, s0 + group)
        for s in range(s0, s1):
            _pack_strip(A + s * tall, lda, K, min(tall, M - s * tall), tall, strips + (s - s0) * tall * K, sums + s * tall)
        for n in range(0, N, panel):
            for s in range(s0, s1):
                rows = min(tall, M - s * tall)
                a, b, c = strips + (s - s0) * tall * K, P + n * K, C + (s * tall * ldc + n)
                if n + panel <= N:
                    strip(rows, a, b, K, c, ldc, add)
                else:
                    strip(rows, a, b, K, edge, panel, 0)
                    _copy_edge(edge, c, ldc, rows, N - n, panel, add)


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
