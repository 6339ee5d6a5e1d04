"""What compiled kernels call, and what they are given.

The arguments of all kernels, `forward` then `backward`; [T] means one slot a step, [T+1] one more for the initial state:

    x          [T, B, R]    W x + b (noise in it), in the precision of storage
    u          [B, ·]       U h', the step's product, or that inside the step
    bias       [R]          b_hh, read where W x and U h' stand apart
    extra      [E]          all extras
    h_all      [T+1, B, H]  outputs and the initial h, in the precision of storage: what the product reads; rows P apart
    s_all      [T+1, B, ·]  states beside h, side by side, in float32 at least, or h where there are none; one slot if not KEEP
    gates      [T, B, G]    gate values, soft, then what else the derivative reads; one slot if not KEEP
    work       [B, H]       the left factor of the product inside the step; rows P apart
    lengths    [B]          steps that count, if RAGGED
    t          the step; old, new: slots of h_all and s_all before and after it
    P          the pitch of h_all, work, dh_u and d_left: H, or in a graph's buffers more; kernels do not touch the pads

    grad_h, grad_s, grad_gates  gradients of h_all, s_all (if GRAD_S) and gates (if GRAD_GATES)
    dh_u       [B, H]       Uᵀ da of the step after: what reaches h through the product; rows P apart
    d_left     [B, H]       the gradient of `work`; rows P apart
    dh         [B, H]       what reaches h past the product (as z∘h' does; rows that have ended)
    dc         [B, ·]       what reaches the states beside h
    dx, du     [T, B, R]    gradients of x and of u; one and the same where none stand apart
    d_extra    [B, E]       gradients of the extras by row
"""

import triton
import triton.language as tl


@triton.jit
def place(slot, b, B, width):
    """Where row b of a slot begins."""
    return (tl.cast(slot, tl.int64) * B + b) * width


@triton.jit
def read(pointer, mask, like):
    """Values as what `like` points to."""
    return tl.load(pointer, mask=mask, other=0.0).to(like.dtype.element_ty)


@triton.jit
def sigmoid(x):
    """σ(x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def tanh(x):
    """tanh x; in float32 a polynomial near 0, where 1 − e⁻²ˣ would cancel."""
    e = tl.exp(-2.0 * tl.abs(x))
    y = (1.0 - e) / (1.0 + e)
    y = tl.where(x < 0, -y, y)
    if x.dtype != tl.float64:
        q = x * x
        p = x + x * q * (-0.33333333 + q * (0.13333333 + q * (-0.053968254 + q * 0.021869488)))
        y = tl.where(q < 0.0625, p, y)
    return y


@triton.jit
def slope(y):
    """σ'(x) from y = σ(x)."""
    return y * (1.0 - y)


@triton.jit
def log1p(x):
    """log(1 + x)."""
    u = 1.0 + x
    d = u - 1.0
    near = tl.where(d == 0.0, x, tl.log(u) * x / tl.where(d == 0.0, 1.0, d))
    return tl.where(tl.abs(x) < 0.5, near, tl.log(u))


@triton.jit
def expm1(x):
    """eˣ − 1."""
    return tl.where(tl.abs(x) < 0.5, tanh(x * 0.5) * (tl.exp(x) + 1.0), tl.exp(x) - 1.0)


@triton.jit
def softmax(z, m):
    """softmax(z) of what m marks, else 0."""
    z = tl.where(m, z, -float("inf"))
    e = tl.exp(z - tl.max(z, 0))
    return e / tl.sum(e, 0)


@triton.jit
def one_hot(p, m, k):
    """1 at the greatest of what m marks, else 0; NaN stays."""
    best = tl.argmax(tl.where(m & (p == p), p, -1.0), 0)
    return tl.where(k == best, 1.0, p - p).to(p.dtype)


@triton.jit
def scan(x, REVERSE):
    """Σ x_j, j ≤ k; or j ≥ k."""
    return tl.cumsum(x, 0, reverse=REVERSE)


@triton.jit
def scan_others(x, REVERSE):
    """Σ x_j, j < k; or j > k."""
    k = tl.arange(0, x.shape[0])
    if REVERSE:
        beside, inside = tl.minimum(k + 1, x.shape[0] - 1), k + 1 < x.shape[0]
    else:
        beside, inside = tl.maximum(k - 1, 0), k > 0
    return tl.cumsum(tl.where(inside, tl.gather(x, beside, 0), 0.0), 0, reverse=REVERSE)
