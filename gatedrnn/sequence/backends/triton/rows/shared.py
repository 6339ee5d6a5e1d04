"""What every cell's rows need.

The arguments of all kernels, `forward` then `backward`; [T] means one slot a step, [T+1] one more for the initial state:

    x          [T, B, R]    W x + b (noise in it), in the precision of storage
    u          [B, ·]       U h', the step's product
    extra      peephole weights [3H], or the recurrent bias of a GRU's candidate [H]
    h_all      [T+1, B, H]  outputs and the initial h, in the precision of storage: what the product reads; rows P apart
    s_all      [T+1, B, H]  the state that the step reads, in float32 at least: c, or h where there is no c; one slot if not KEEP
    gates      [T, B, G]    gate values, soft; one slot if not KEEP
    work       [B, H]       what passes from the first half of a step to the second (a GRU that resets before the product);
                            rows P apart
    lengths    [B]          steps that count, if RAGGED
    t          the step; old, new: slots of h_all and s_all before and after it
    P          the pitch of h_all, work and dh_u: H, or in a graph's buffers more; kernels neither read nor write the pads

    grad_h, grad_s, grad_gates  gradients of h_all, s_all (if GRAD_S) and gates (if GRAD_GATES)
    dh_u       [B, H]       Uᵀ da of the step after: what reaches h through the product; rows P apart
    dh         [B, H]       what reaches h past the product (a GRU's z∘h', rows that have ended)
    dc         [B, H]       what reaches c
    dx, du     [T, B, ·]    gradients of x and of u; one and the same but for a GRU that resets after the product
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
def value(y, HARD: tl.constexpr, k):
    """Gate k as the equation reads it: binary if bit k of HARD is set; NaN stays."""
    if (HARD >> k) & 1:
        y = tl.where(y > 0.5, 1.0, tl.where(y <= 0.5, 0.0, y)).to(y.dtype)
    return y


@triton.jit
def slope(y):
    """σ'(x) from y = σ(x)."""
    return y * (1.0 - y)
