"""Products of a few rows with a weight as it lies: nothing is packed, so that a call reads every weight once and keeps nothing.

A sum runs over K in one order, whatever the number of rows and the thread: a row's result does not depend on its company.
Dimensions: M rows, N columns (rows of the weight), K inner; ld… the distance between rows.
"""

from numba import njit

from gatedrnn.sequence.backends.cpu.lanewise import fma, total
from gatedrnn.sequence.backends.cpu.simd import lanes, load, splat


@njit
def multiply_direct(A, lda, M, W, K, N, shift, scale, scaled, C, ldc, begin, end):
    """C[m, n] += scale[n] · Σ_k A[m, k] W[n + shift, k] for columns begin … end − 1; the last columns are W's first rows."""
    n = begin
    while n < end:
        row = n + shift if n + shift < N else n + shift - N
        w, c = W + row * K, C + n
        wide = 8 if n + 8 <= end and row + 8 <= N else 1
        if wide == 8:
            for m in range(0, M - M % 4, 4):
                for j in range(0, 8, 2):
                    _four_by_two(A + m * lda, lda, w + j * K, K, scale + (n + j), scaled, c + (m * ldc + j), ldc)
            m = M - M % 4
            if M - m >= 2:
                for j in range(0, 8, 4):
                    _two_by_four(A + m * lda, lda, w + j * K, K, scale + (n + j), scaled, c + (m * ldc + j), ldc)
                m += 2
            if m < M:
                _one_by_eight(A + m * lda, w, K, scale + n, scaled, c + m * ldc)
        else:
            for m in range(M):
                x = _sum(A + m * lda, w, K)
                c[m * ldc] = c[m * ldc] + (x * scale[n] if scaled else x)
        n += wide


@njit(forceinline=True)
def _sum(a, w, K):
    W = lanes(a)
    x = splat(a, 0.0)
    for k in range(0, K - W + 1, W):
        x = fma(load(a + k, W), load(w + k, W), x)
    if K % W:
        x = fma(load(a + (K - K % W), K % W), load(w + (K - K % W), K % W), x)
    return total(x)


@njit(forceinline=True)
def _step8(a, w, K, n, x0, x1, x2, x3, x4, x5, x6, x7):
    v = load(a, n)
    return (
        fma(v, load(w, n), x0), fma(v, load(w + K, n), x1), fma(v, load(w + 2 * K, n), x2),
        fma(v, load(w + 3 * K, n), x3), fma(v, load(w + 4 * K, n), x4), fma(v, load(w + 5 * K, n), x5),
        fma(v, load(w + 6 * K, n), x6), fma(v, load(w + 7 * K, n), x7),
    )  # fmt: skip


@njit(forceinline=True)
def _put(c, x, scale, n, scaled):
    c[n] = c[n] + (x * scale[n] if scaled else x)


@njit
def _one_by_eight(a, w, K, scale, scaled, c):
    W = lanes(a)
    z = splat(a, 0.0)
    x0, x1, x2, x3, x4, x5, x6, x7 = z, z, z, z, z, z, z, z
    for k in range(0, K - W + 1, W):
        x0, x1, x2, x3, x4, x5, x6, x7 = _step8(a + k, w + k, K, W, x0, x1, x2, x3, x4, x5, x6, x7)
    if K % W:
        k = K - K % W
        x0, x1, x2, x3, x4, x5, x6, x7 = _step8(a + k, w + k, K, K % W, x0, x1, x2, x3, x4, x5, x6, x7)
    _put(c, total(x0), scale, 0, scaled)
    _put(c, total(x1), scale, 1, scaled)
    _put(c, total(x2), scale, 2, scaled)
    _put(c, total(x3), scale, 3, scaled)
    _put(c, total(x4), scale, 4, scaled)
    _put(c, total(x5), scale, 5, scaled)
    _put(c, total(x6), scale, 6, scaled)
    _put(c, total(x7), scale, 7, scaled)


@njit(forceinline=True)
def _step42(a, lda, w, K, n, x0, x1, x2, x3, y0, y1, y2, y3):
    u, v = load(w, n), load(w + K, n)
    p, q, r, s = load(a, n), load(a + lda, n), load(a + 2 * lda, n), load(a + 3 * lda, n)
    return (
        fma(p, u, x0), fma(q, u, x1), fma(r, u, x2), fma(s, u, x3),
        fma(p, v, y0), fma(q, v, y1), fma(r, v, y2), fma(s, v, y3),
    )  # fmt: skip


@njit
def _four_by_two(a, lda, w, K, scale, scaled, c, ldc):
    W = lanes(a)
    z = splat(a, 0.0)
    x0, x1, x2, x3, y0, y1, y2, y3 = z, z, z, z, z, z, z, z
    for k in range(0, K - W + 1, W):
        x0, x1, x2, x3, y0, y1, y2, y3 = _step42(a + k, lda, w + k, K, W, x0, x1, x2, x3, y0, y1, y2, y3)
    if K % W:
        k = K - K % W
        x0, x1, x2, x3, y0, y1, y2, y3 = _step42(a + k, lda, w + k, K, K % W, x0, x1, x2, x3, y0, y1, y2, y3)
    _put(c, total(x0), scale, 0, scaled)
    _put(c, total(y0), scale, 1, scaled)
    _put(c + ldc, total(x1), scale, 0, scaled)
    _put(c + ldc, total(y1), scale, 1, scaled)
    _put(c + 2 * ldc, total(x2), scale, 0, scaled)
    _put(c + 2 * ldc, total(y2), scale, 1, scaled)
    _put(c + 3 * ldc, total(x3), scale, 0, scaled)
    _put(c + 3 * ldc, total(y3), scale, 1, scaled)


@njit(forceinline=True)
def _step24(a, lda, w, K, n, x0, x1, x2, x3, y0, y1, y2, y3):
    u, v = load(a, n), load(a + lda, n)
    p, q, r, s = load(w, n), load(w + K, n), load(w + 2 * K, n), load(w + 3 * K, n)
    return (
        fma(u, p, x0), fma(u, q, x1), fma(u, r, x2), fma(u, s, x3),
        fma(v, p, y0), fma(v, q, y1), fma(v, r, y2), fma(v, s, y3),
    )  # fmt: skip


@njit
def _two_by_four(a, lda, w, K, scale, scaled, c, ldc):
    W = lanes(a)
    z = splat(a, 0.0)
    x0, x1, x2, x3, y0, y1, y2, y3 = z, z, z, z, z, z, z, z
    for k in range(0, K - W + 1, W):
        x0, x1, x2, x3, y0, y1, y2, y3 = _step24(a + k, lda, w + k, K, W, x0, x1, x2, x3, y0, y1, y2, y3)
    if K % W:
        k = K - K % W
        x0, x1, x2, x3, y0, y1, y2, y3 = _step24(a + k, lda, w + k, K, K % W, x0, x1, x2, x3, y0, y1, y2, y3)
    _put(c, total(x0), scale, 0, scaled)
    _put(c, total(x1), scale, 1, scaled)
    _put(c, total(x2), scale, 2, scaled)
    _put(c, total(x3), scale, 3, scaled)
    _put(c + ldc, total(y0), scale, 0, scaled)
    _put(c + ldc, total(y1), scale, 1, scaled)
    _put(c + ldc, total(y2), scale, 2, scaled)
    _put(c + ldc, total(y3), scale, 3, scaled)
