"""Peephole LSTM, diagonal: rows i f g o; extra: P, rows i f o."""

from numba import njit

from gatedrnn.sequence.backends.cpu.functions import sigmoid, sigmoid_slope, tanh, tanh_slope
from gatedrnn.sequence.backends.cpu.rows.shared import value
from gatedrnn.sequence.backends.cpu.simd import lanes, load, store


@njit
def forward(g, h_prev, c_prev, c, h, extra, scratch, H, K, C, hard):
    """i, f = σ(· + P∘c'); g = tanh(·); c = f∘c' + i∘g; o = σ(· + P∘c); h = o∘tanh(c)."""
    W = lanes(g)
    for j in range(0, H - W + 1, W):
        _forward(g + j, c_prev + j, c + j, h + j, extra + j, H, hard, W)
    if H % W:
        j = H - H % W
        _forward(g + j, c_prev + j, c + j, h + j, extra + j, H, hard, H - j)


@njit(forceinline=True)
def _forward(a, c_prev, c, h, P, H, hard, n):
    old = load(c_prev, n)
    i = sigmoid(load(a, n) + load(P, n) * old)
    f = sigmoid(load(a + H, n) + load(P + H, n) * old)
    g = tanh(load(a + 2 * H, n))
    new = value(f, hard, 1) * old + value(i, hard, 0) * g
    o = sigmoid(load(a + 3 * H, n) + load(P + 2 * H, n) * new)
    store(a, i, n)
    store(a + H, f, n)
    store(a + 2 * H, g, n)
    store(a + 3 * H, o, n)
    store(c, new, n)
    store(h, value(o, hard, 3) * tanh(new), n)


@njit
def backward(g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C, hard):
    """The derivative of `forward`; that of P is added to d_extra."""
    W = lanes(g)
    for j in range(0, H - W + 1, W):
        _backward(
            g + j, c_prev + j, c + j, grad_h + j, grad_g + j, dh + j, dc + j, dg + j, extra + j, d_extra + j, H, hard, W
        )
    if H % W:
        j = H - H % W
        _backward(
            g + j,
            c_prev + j,
            c + j,
            grad_h + j,
            grad_g + j,
            dh + j,
            dc + j,
            dg + j,
            extra + j,
            d_extra + j,
            H,
            hard,
            H - j,
        )


@njit(forceinline=True)
def _backward(a, c_prev, c, grad_h, grad_a, dh, dc, da, P, dP, H, hard, n):
    i, f, g, o = load(a, n), load(a + H, n), load(a + 2 * H, n), load(a + 3 * H, n)
    old, new = load(c_prev, n), load(c, n)
    tanh_c = tanh(new)
    d_h = load(dh, n) + load(grad_h, n)
    d_o = (d_h * tanh_c + load(grad_a + 3 * H, n)) * sigmoid_slope(o)
    d_c = load(dc, n) + d_h * value(o, hard, 3) * tanh_slope(tanh_c) + d_o * load(P + 2 * H, n)
    d_i = (d_c * g + load(grad_a, n)) * sigmoid_slope(i)
    d_f = (d_c * old + load(grad_a + H, n)) * sigmoid_slope(f)
    d_g = d_c * value(i, hard, 0) + load(grad_a + 2 * H, n)
    store(da, d_i, n)
    store(da + H, d_f, n)
    store(da + 2 * H, d_g * tanh_slope(g), n)
    store(da + 3 * H, d_o, n)
    store(dc, d_c * value(f, hard, 1) + d_i * load(P, n) + d_f * load(P + H, n), n)
    store(dP, load(dP, n) + d_i * old, n)
    store(dP + H, load(dP + H, n) + d_f * old, n)
    store(dP + 2 * H, load(dP + 2 * H, n) + d_o * new, n)
