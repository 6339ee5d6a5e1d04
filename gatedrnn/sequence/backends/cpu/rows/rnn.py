"""Vanilla RNN: one row block. `rows(φ, …)` gives the pair of functions for a nonlinearity."""

from numba import njit

from gatedrnn.sequence.backends.cpu.functions import sigmoid, sigmoid_slope, tanh, tanh_slope
from gatedrnn.sequence.backends.cpu.lanewise import choose_nonzero, maximum
from gatedrnn.sequence.backends.cpu.simd import lanes, load, store


def rows(phi, back):
    """(forward, backward) of h = φ(·), where back(d, φ(x)) = d · φ'(x)."""

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
            store(dg + j, back(d, load(g + j, W)), W)
        if H % W:
            j, n = H - H % W, H % W
            d = load(dh + j, n) + load(grad_h + j, n) + load(grad_g + j, n)
            store(dg + j, back(d, load(g + j, n)), n)

    return forward, backward


@njit
def _tanh_back(d, y):
    return d * tanh_slope(y)


@njit
def _sigmoid_back(d, y):
    return d * sigmoid_slope(y)


@njit
def _relu(x):
    return maximum(x, 0.0)


@njit
def _relu_back(d, y):
    return choose_nonzero(y, d, 0.0)


TANH, RELU, SIGMOID = rows(tanh, _tanh_back), rows(_relu, _relu_back), rows(sigmoid, _sigmoid_back)
