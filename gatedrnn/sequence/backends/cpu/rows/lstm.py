"""LSTM: rows i f g o."""

from numba import njit

from gatedrnn.sequence.backends.cpu.functions import sigmoid, sigmoid_slope, tanh, tanh_slope
from gatedrnn.sequence.backends.cpu.rows.shared import value
from gatedrnn.sequence.backends.cpu.simd import lanes, load, store


@njit
def forward(g, h_prev, c_prev, c, h, extra, scratch, H, K, C, hard):
    """i, f, o = σ(·); g = tanh(·); c = f∘c' + i∘g; h = o∘tanh(c)."""
    W = lanes(g)
    for j in range(0, H - W + 1, W):
        _forward(g + j, c_prev + j, c + j, h + j, H, hard, W)
    if H % W:
        j = H - H % W
        _forward(g + j, c_prev + j, c + j, h + j, H, hard, H - j)


@njit(forceinline=True)
def _forward(a, c_prev, c, h, H, hard, n):
    i = sigmoid(load(a, n))
    f = sigmoid(load(a + H, n))
    g = tanh(load(a + 2 * H, n))
    o = sigmoid(load(a + 3 * H, n))
    store(a, i, n)
    store(a + H, f, n)
    store(a + 2 * H, g, n)
    store(a + 3 * H, o, n)
    new = value(f, hard, 1) * load(c_prev, n) + value(i, hard, 0) * g
    store(c, new, n)
    store(h, value(o, hard, 3) * tanh(new), n)


@njit
def backward(g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C, hard):
    """The derivative of `forward`."""
    W = lanes(g)
    for j in range(0, H - W + 1, W):
        _backward(g + j, c_prev + j, c + j, grad_h + j, grad_g + j, dh + j, dc + j, dg + j, H, hard, W)
    if H % W:
        j = H - H % W
        _backward(g + j, c_prev + j, c + j, grad_h + j, grad_g + j, dh + j, dc + j, dg + j, H, hard, H - j)


@njit(forceinline=True)
def _backward(a, c_prev, c, grad_h, grad_a, dh, dc, da, H, hard, n):
    i, f, g, o = load(a, n), load(a + H, n), load(a + 2 * H, n), load(a + 3 * H, n)
    tanh_c = tanh(load(c, n))
    d_h = load(dh, n) + load(grad_h, n)
    d_c = load(dc, n) + d_h * value(o, hard, 3) * tanh_slope(tanh_c)
    d_o = d_h * tanh_c + load(grad_a + 3 * H, n)
    d_i = d_c * g + load(grad_a, n)
    d_f = d_c * load(c_prev, n) + load(grad_a + H, n)
    d_g = d_c * value(i, hard, 0) + load(grad_a + 2 * H, n)
    store(da, d_i * sigmoid_slope(i), n)
    store(da + H, d_f * sigmoid_slope(f), n)
    store(da + 2 * H, d_g * tanh_slope(g), n)
    store(da + 3 * H, d_o * sigmoid_slope(o), n)
    store(dc, d_c * value(f, hard, 1), n)
