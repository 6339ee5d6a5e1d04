"""ON-LSTM: rows i f g o, then K split points of the master input gate and K of the master forget gate.

With p = softmax of a master gate's row: f̃ = Σ_{j≤k} p_j and 1 − f̃ = Σ_{j>k} p_j, ĩ and 1 − ĩ the other way round, so that
nothing is subtracted from 1; f̂ = f̃∘(1 − ĩ + ĩ∘f), î = ĩ∘(1 − f̃ + f̃∘i). What is saved of a master gate is p, always soft.
Scratch: four rows of H + lanes (f̃, 1 − f̃, ĩ, 1 − ĩ, a value for every unit), two more in backward, then 2·K for p.
"""

from numba import njit

from gatedrnn.sequence.backends.cpu.functions import exp, sigmoid, sigmoid_slope, tanh, tanh_slope
from gatedrnn.sequence.backends.cpu.lanewise import largest, maximum, total
from gatedrnn.sequence.backends.cpu.rows.shared import value
from gatedrnn.sequence.backends.cpu.simd import lanes, load, splat, store


@njit
def _softmax(z, K):
    W = lanes(z)
    top = splat(z, z[0])
    for j in range(0, K - W + 1, W):
        top = maximum(top, load(z + j, W))
    peak = largest(top)
    for j in range(K - K % W, K):
        peak = max(peak, z[j])
    sums = splat(z, 0.0)
    for j in range(0, K - W + 1, W):
        e = exp(load(z + j, W) - splat(z, peak))
        store(z + j, e, W)
        sums = sums + e
    whole = total(sums)
    if K % W:
        j, n = K - K % W, K % W
        store(z + j, exp(load(z + j, n) - splat(z, peak)), n)
        for k in range(j, K):
            whole += z[k]
    scale = splat(z, 1.0) / splat(z, whole)
    for j in range(0, K - W + 1, W):
        store(z + j, load(z + j, W) * scale, W)
    if K % W:
        j, n = K - K % W, K % W
        store(z + j, load(z + j, n) * scale, n)


@njit
def _harden(p, K, out):
    """One-hot of the first greatest element."""
    best = 0
    for k in range(1, K):
        if p[k] > p[best]:
            best = k
    for k in range(K):
        out[k] = 0.0
    out[best] = 1.0


@njit
def _masters(g, scratch, H, K, C, hard):
    """Expand f̃, 1 − f̃, ĩ, 1 − ĩ to units: rows 0 … 3 of scratch."""
    row = H + lanes(g)
    p_i, p_f = g + 4 * H, g + (4 * H + K)
    if hard >> 4 & 1:
        _harden(p_i, K, scratch + 6 * row)
        p_i = scratch + 6 * row
    if hard >> 5 & 1:
        _harden(p_f, K, scratch + (6 * row + K))
        p_f = scratch + (6 * row + K)
    below_f, below_i = splat(g, 0.0), splat(g, 0.0)
    for k in range(H // C):
        below_f, below_i = below_f + splat(g, p_f[k]), below_i + splat(g, p_i[k])
        _fill(scratch + k * C, below_f, C)
        _fill(scratch + (3 * row + k * C), below_i, C)
    above_f, above_i = splat(g, 0.0), splat(g, 0.0)
    for k in range(K - 1, H // C - 1, -1):
        above_f, above_i = above_f + splat(g, p_f[k]), above_i + splat(g, p_i[k])
    for k in range(H // C - 1, -1, -1):
        _spread(scratch + (row + k * C), above_f, C)
        _spread(scratch + (2 * row + k * C), above_i, C)
        above_f, above_i = above_f + splat(g, p_f[k]), above_i + splat(g, p_i[k])


@njit(forceinline=True)
def _fill(p, x, C):
    """x from p on, for C units and up to a vector more: what comes later overwrites it."""
    W = lanes(p)
    for j in range(0, C, W):
        store(p + j, x, W)


@njit(forceinline=True)
def _spread(p, x, C):
    """x in exactly C units."""
    W = lanes(p)
    for j in range(0, C - W + 1, W):
        store(p + j, x, W)
    if C % W:
        store(p + (C - C % W), x, C % W)


@njit
def forward(g, h_prev, c_prev, c, h, extra, scratch, H, K, C, hard):
    """f̃, 1 − ĩ = cumax(·); c = f̂∘c' + î∘g; h = o∘tanh(c)."""
    _softmax(g + 4 * H, K)
    _softmax(g + (4 * H + K), K)
    _masters(g, scratch, H, K, C, hard)
    W = lanes(g)
    row = H + W
    for j in range(0, H - W + 1, W):
        _forward(g + j, c_prev + j, c + j, h + j, scratch + j, row, H, hard, W)
    if H % W:
        j = H - H % W
        _forward(g + j, c_prev + j, c + j, h + j, scratch + j, row, H, hard, H - j)


@njit(forceinline=True)
def _forward(a, c_prev, c, h, m, row, H, hard, n):
    i = sigmoid(load(a, n))
    f = sigmoid(load(a + H, n))
    g = tanh(load(a + 2 * H, n))
    o = sigmoid(load(a + 3 * H, n))
    store(a, i, n)
    store(a + H, f, n)
    store(a + 2 * H, g, n)
    store(a + 3 * H, o, n)
    f_master, f_rest, i_master, i_rest = load(m, n), load(m + row, n), load(m + 2 * row, n), load(m + 3 * row, n)
    f_hat = f_master * (i_rest + i_master * value(f, hard, 1))
    i_hat = i_master * (f_rest + f_master * value(i, hard, 0))
    new = f_hat * load(c_prev, n) + i_hat * g
    store(c, new, n)
    store(h, value(o, hard, 3) * tanh(new), n)


@njit
def backward(g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C, hard):
    """The derivative of `forward`: by unit, then summed over chunks and over split points."""
    _masters(g, scratch, H, K, C, hard)
    W = lanes(g)
    row = H + W
    for j in range(0, H - W + 1, W):
        _backward(
            g + j, c_prev + j, c + j, grad_h + j, grad_g + j, dh + j, dc + j, dg + j, scratch + j, row, H, hard, W
        )
    if H % W:
        j = H - H % W
        _backward(
            g + j, c_prev + j, c + j, grad_h + j, grad_g + j, dh + j, dc + j, dg + j, scratch + j, row, H, hard, H - j
        )
    _splits(g + 4 * H, grad_g + 4 * H, dg + 4 * H, scratch + 4 * row, scratch + 5 * row, H, K, C)


@njit(forceinline=True)
def _backward(a, c_prev, c, grad_h, grad_a, dh, dc, da, m, row, H, hard, n):
    i, f, g, o = load(a, n), load(a + H, n), load(a + 2 * H, n), load(a + 3 * H, n)
    f_master, f_rest, i_master, i_rest = load(m, n), load(m + row, n), load(m + 2 * row, n), load(m + 3 * row, n)
    tanh_c = tanh(load(c, n))
    d_h = load(dh, n) + load(grad_h, n)
    d_c = load(dc, n) + d_h * value(o, hard, 3) * tanh_slope(tanh_c)
    d_o = d_h * tanh_c + load(grad_a + 3 * H, n)
    f_part = i_rest + i_master * value(f, hard, 1)
    i_part = f_rest + f_master * value(i, hard, 0)
    d_f_hat, d_i_hat = d_c * load(c_prev, n), d_c * g
    overlap = f_master * i_master
    d_i = d_i_hat * overlap + load(grad_a, n)
    d_f = d_f_hat * overlap + load(grad_a + H, n)
    d_g = d_c * (i_master * i_part) + load(grad_a + 2 * H, n)
    store(da, d_i * sigmoid_slope(i), n)
    store(da + H, d_f * sigmoid_slope(f), n)
    store(da + 2 * H, d_g * tanh_slope(g), n)
    store(da + 3 * H, d_o * sigmoid_slope(o), n)
    store(dc, d_c * (f_master * f_part), n)
    store(m + 4 * row, d_i_hat * i_part - d_f_hat * f_master * (1.0 - value(f, hard, 1)), n)
    store(m + 5 * row, d_f_hat * f_part - d_i_hat * i_master * (1.0 - value(i, hard, 0)), n)


@njit
def _chunk_sum(p, C):
    W = lanes(p)
    if C < W:
        return total(load(p, C))
    sums = splat(p, 0.0)
    for j in range(0, C - W + 1, W):
        sums = sums + load(p + j, W)
    if C % W:
        sums = sums + load(p + (C - C % W), C % W)
    return total(sums)


@njit
def _splits(p, grad_p, dz, d_i_master, d_f_master, H, K, C):
    """From gradients of the master gates by unit to those of the softmaxes' logits: K of input, then K of forget."""
    chunks = H // C
    below, dot = p[0] * 0, p[0] * 0
    for k in range(K):  # ĩ_k holds every p_j with j > k
        d = below + grad_p[k]
        dz[k] = d
        dot += p[k] * d
        if k < chunks:
            below += _chunk_sum(d_i_master + k * C, C)
    _softmax_slope(p, dz, dot, K)
    p, grad_p, dz = p + K, grad_p + K, dz + K
    above, dot = p[0] * 0, p[0] * 0
    for k in range(K - 1, -1, -1):  # f̃_k holds every p_j with j ≤ k
        if k < chunks:
            above += _chunk_sum(d_f_master + k * C, C)
        d = above + grad_p[k]
        dz[k] = d
        dot += p[k] * d
    _softmax_slope(p, dz, dot, K)


@njit
def _softmax_slope(p, dz, dot, K):
    W = lanes(p)
    for j in range(0, K - W + 1, W):
        store(dz + j, load(p + j, W) * (load(dz + j, W) - splat(p, dot)), W)
    if K % W:
        j, n = K - K % W, K % W
        store(dz + j, load(p + j, n) * (load(dz + j, n) - splat(p, dot)), n)
