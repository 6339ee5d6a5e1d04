"""GRU. After the product: columns n r z, then U_n h' + b_n by itself. Before it: columns r z n, and two products a step."""

from numba import njit

from gatedrnn.sequence.backends.cpu.functions import sigmoid, sigmoid_slope, tanh, tanh_slope
from gatedrnn.sequence.backends.cpu.rows.shared import value
from gatedrnn.sequence.backends.cpu.simd import lanes, load, store


@njit
def after_forward(g, h_prev, c_prev, c, h, extra, scratch, H, K, C, hard):
    """r, z = σ(·); n = tanh(· + r∘(U h' + b)); h = (1 − z)∘n + z∘h'."""
    W = lanes(g)
    for j in range(0, H - W + 1, W):
        _after_forward(g + j, h_prev + j, h + j, H, hard, W)
    if H % W:
        j = H - H % W
        _after_forward(g + j, h_prev + j, h + j, H, hard, H - j)


@njit(forceinline=True)
def _after_forward(a, h_prev, h, H, hard, n):
    r = sigmoid(load(a + H, n))
    z = sigmoid(load(a + 2 * H, n))
    new = tanh(load(a, n) + value(r, hard, 0) * load(a + 3 * H, n))
    store(a, new, n)
    store(a + H, r, n)
    store(a + 2 * H, z, n)
    keep = value(z, hard, 1)
    store(h, (1.0 - keep) * new + keep * load(h_prev, n), n)


@njit
def after_backward(g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C, hard):
    """The derivative of `after_forward`."""
    W = lanes(g)
    for j in range(0, H - W + 1, W):
        _after_backward(g + j, h_prev + j, grad_h + j, grad_g + j, dh + j, dg + j, H, hard, W)
    if H % W:
        j = H - H % W
        _after_backward(g + j, h_prev + j, grad_h + j, grad_g + j, dh + j, dg + j, H, hard, H - j)


@njit(forceinline=True)
def _after_backward(a, h_prev, grad_h, grad_a, dh, da, H, hard, n):
    new, r, z, product = load(a, n), load(a + H, n), load(a + 2 * H, n), load(a + 3 * H, n)
    keep = value(z, hard, 1)
    d_h = load(dh, n) + load(grad_h, n)
    d_new = (d_h * (1.0 - keep) + load(grad_a, n)) * tanh_slope(new)
    d_r = d_new * product + load(grad_a + H, n)
    d_z = d_h * (load(h_prev, n) - new) + load(grad_a + 2 * H, n)
    store(da, d_new, n)
    store(da + H, d_r * sigmoid_slope(r), n)
    store(da + 2 * H, d_z * sigmoid_slope(z), n)
    store(da + 3 * H, d_new * value(r, hard, 0), n)
    store(dh, d_h * keep, n)


@njit
def before_forward(g, h_prev, c_prev, c, h, extra, scratch, H, K, C, hard):
    """r, z = σ(·); c holds r∘h', the left factor of the second product."""
    W = lanes(g)
    for j in range(0, H - W + 1, W):
        _before_forward(g + j, h_prev + j, c + j, H, hard, W)
    if H % W:
        j = H - H % W
        _before_forward(g + j, h_prev + j, c + j, H, hard, H - j)


@njit(forceinline=True)
def _before_forward(a, h_prev, c, H, hard, n):
    r = sigmoid(load(a, n))
    store(a, r, n)
    store(a + H, sigmoid(load(a + H, n)), n)
    store(c, value(r, hard, 0) * load(h_prev, n), n)


@njit
def before_forward_second(g, h_prev, c_prev, c, h, extra, scratch, H, K, C, hard):
    """n = tanh(· + U (r∘h')); h = (1 − z)∘h' + z∘n."""
    W = lanes(g)
    for j in range(0, H - W + 1, W):
        _before_forward_second(g + j, h_prev + j, h + j, H, hard, W)
    if H % W:
        j = H - H % W
        _before_forward_second(g + j, h_prev + j, h + j, H, hard, H - j)


@njit(forceinline=True)
def _before_forward_second(a, h_prev, h, H, hard, n):
    new = tanh(load(a + 2 * H, n))
    store(a + 2 * H, new, n)
    take = value(load(a + H, n), hard, 1)
    store(h, (1.0 - take) * load(h_prev, n) + take * new, n)


@njit
def before_backward(g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C, hard):
    """The derivative of `before_forward_second`."""
    W = lanes(g)
    for j in range(0, H - W + 1, W):
        _before_backward(g + j, h_prev + j, grad_h + j, grad_g + j, dh + j, dg + j, H, hard, W)
    if H % W:
        j = H - H % W
        _before_backward(g + j, h_prev + j, grad_h + j, grad_g + j, dh + j, dg + j, H, hard, H - j)


@njit(forceinline=True)
def _before_backward(a, h_prev, grad_h, grad_a, dh, da, H, hard, n):
    z, new = load(a + H, n), load(a + 2 * H, n)
    take = value(z, hard, 1)
    d_h = load(dh, n) + load(grad_h, n)
    d_new = d_h * take + load(grad_a + 2 * H, n)
    d_z = d_h * (new - load(h_prev, n)) + load(grad_a + H, n)
    store(da + H, d_z * sigmoid_slope(z), n)
    store(da + 2 * H, d_new * tanh_slope(new), n)
    store(dh, d_h * (1.0 - take), n)


@njit
def before_backward_second(g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C, hard):
    """The derivative of `before_forward`; dc holds that of r∘h'."""
    W = lanes(g)
    for j in range(0, H - W + 1, W):
        _before_backward_second(g + j, h_prev + j, grad_g + j, dh + j, dc + j, dg + j, hard, W)
    if H % W:
        j = H - H % W
        _before_backward_second(g + j, h_prev + j, grad_g + j, dh + j, dc + j, dg + j, hard, H - j)


@njit(forceinline=True)
def _before_backward_second(a, h_prev, grad_a, dh, dc, da, hard, n):
    r, d_reset = load(a, n), load(dc, n)
    d_r = d_reset * load(h_prev, n) + load(grad_a, n)
    store(da, d_r * sigmoid_slope(r), n)
    store(dh, load(dh, n) + d_reset * value(r, hard, 0), n)
