"""Vanilla RNN: one row block. `rows(φ, φ')` gives the pair of functions for a nonlinearity."""

from numba import njit

from gatedrnn.sequence.backends.cpu.functions import sigmoid, sigmoid_slope, tanh, tanh_slope
from gatedrnn.sequence.backends.cpu.lanewise import choose_positive
from gatedrnn.sequence.backends.cpu.simd import lanes, load, store


def rows(phi, slope):
    """(forward, backward) of h = φ(·), where slope(φ(x)) = φ'(x)."""

    @njit
    def forward(g, h_prev, c_prev, c, h, extra, scratch, H, K, C, hard):
        W = lanes(g)
        for j in range(0, H - W + 1, W):
            y = phi(load(g + j, W))
            store(g + j, y, W)
            store(h + j, y, W)
        if H % W:
            j, n = H - H % W, H % W
            y = phi(load(g + j, n))
            store(g + j, y, n)
            store(h + j, y, n)

    @njit
    def backward(g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C, hard):
        W = lanes(g)
        for j in range(0, H - W + 1, W):
            d = load(dh + j, W) + load(grad_h + j, W) + load(grad_g + j, W)
            store(dg + j, d * slope(load(g + j, W)), W)
        if H % W:
            j, n = H - H % W, H % W
            d = load(dh + j, n) + load(grad_h + j, n) + load(grad_g + j, n)
            store(dg + j, d * slope(load(g + j, n)), n)

    return forward, backward


@njit
def _relu(x):
    return choose_positive(x, x, x * 0.0)


@njit
def _relu_slope(y):
    return choose_positive(y, 1.0, 0.0)


TANH, RELU, SIGMOID = rows(tanh, tanh_slope), rows(_relu, _relu_slope), rows(sigmoid, sigmoid_slope)
