"""What compiled steps do with a whole row at once: softmax, cumulative sums, and values of chunks to units and back.

Dimensions: N elements, M chunks of C units.
"""

from gatedrnn.sequence.backends.cpu.vector.functions import exp, not_number
from gatedrnn.sequence.backends.cpu.vector.lanewise import choose_nonzero, largest, maximum, total
from gatedrnn.sequence.backends.cpu.vector.simd import lanes, load, njit, splat, store


@njit
def copy(source, target, N):
    """`source` to `target`."""
    W = lanes(source)
    for j in range(0, N, W):
        n = min(W, N - j)
        store(target + j, load(source + j, n), n)


@njit
def clear(target, N):
    """Zeros."""
    W = lanes(target)
    for j in range(0, N, W):
        store(target + j, splat(target, 0.0), min(W, N - j))


@njit
def peak(x):
    """The greatest lane; NaN where one is."""
    return largest(x) + total(choose_nonzero(not_number(x), x, 0.0))


@njit
def pad(source, target, n, N):
    """n elements, then zeros up to N."""
    copy(source, target, n)
    for k in range(n, N):
        target[k] = 0.0


@njit
def softmax(z, N):
    """softmax(z), in its place."""
    W = lanes(z)
    top = splat(z, z[0])
    for j in range(0, N - W + 1, W):
        top = maximum(top, load(z + j, W))
    peak = largest(top)
    for j in range(N - N % W, N):
        peak = max(peak, z[j])
    sums = splat(z, 0.0)
    for j in range(0, N - W + 1, W):
        e = exp(load(z + j, W) - splat(z, peak))
        store(z + j, e, W)
        sums = sums + e
    whole = total(sums)
    if N % W:
        j, n = N - N % W, N % W
        store(z + j, exp(load(z + j, n) - splat(z, peak)), n)
        for k in range(j, N):
            whole += z[k]
    scale = splat(z, 1.0) / splat(z, whole)
    for j in range(0, N, W):
        n = min(W, N - j)
        store(z + j, load(z + j, n) * scale, n)


@njit
def one_hot(p, target, N):
    """1 at the first greatest element, else 0."""
    best = 0
    for k in range(1, N):
        if p[k] > p[best]:
            best = k
    for k in range(N):
        target[k] = 0.0
    target[best] = 1.0


@njit
def scan_below(x, target, N):
    """Σ x_j, j ≤ k."""
    whole = x[0]
    target[0] = whole
    for k in range(1, N):
        whole += x[k]
        target[k] = whole


@njit
def scan_below_others(x, target, N):
    """Σ x_j, j < k."""
    whole = x[0]
    target[0] = 0.0
    for k in range(1, N):
        value = x[k]
        target[k] = whole
        whole += value


@njit
def scan_above(x, target, N):
    """Σ x_j, j ≥ k."""
    whole = x[N - 1]
    target[N - 1] = whole
    for k in range(N - 2, -1, -1):
        whole += x[k]
        target[k] = whole


@njit
def scan_above_others(x, target, N):
    """Σ x_j, j > k."""
    whole = x[N - 1]
    target[N - 1] = 0.0
    for k in range(N - 2, -1, -1):
        value = x[k]
        target[k] = whole
        whole += value


@njit
def fill(values, target, M, C):
    """Each value for the C units of its chunk, and up to a vector more: there is room."""
    W = lanes(values)
    for k in range(M):
        value = splat(values, values[k])
        for j in range(0, C, W):
            store(target + (k * C + j), value, W)


@njit
def spread(values, target, M, C):
    """Each value for exactly the C units of its chunk."""
    W = lanes(values)
    for k in range(M):
        value = splat(values, values[k])
        for j in range(0, C, W):
            store(target + (k * C + j), value, min(W, C - j))


@njit
def chunk_sums(values, target, M, C):
    """The sum of each chunk's C units."""
    W = lanes(values)
    for k in range(M):
        sums = splat(values, 0.0)
        for j in range(0, C, W):
            sums = sums + load(values + (k * C + j), min(W, C - j))
        target[k] = total(sums)
