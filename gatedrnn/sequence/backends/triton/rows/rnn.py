"""Vanilla RNN: h = φ(a). See `shared` for the arguments."""

import triton
import triton.language as tl

from gatedrnn.sequence.backends.triton.rows.shared import place, read, sigmoid, slope, tanh

CHANGING = ["t", "old", "new"]


@triton.jit(do_not_specialize=CHANGING)
def forward(
    x, u, extra, h_all, s_all, gates, work, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, KEEP: tl.constexpr, RAGGED: tl.constexpr, BLOCK: tl.constexpr, PHI: tl.constexpr,
):  # fmt: skip
    """h = φ(W x + U h' + b)."""
    b, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = j < H
    s_old, s_new, slot = old * KEEP, new * KEEP, t * KEEP
    a = read(x + place(t, b, B, H) + j, m, s_all) + read(u + b * H + j, m, s_all)
    if PHI == "tanh":
        h = tanh(a)
    elif PHI == "relu":
        h = tl.where(a <= 0.0, 0.0, a)  # NaN stays, which tl.maximum drops
    else:
        h = sigmoid(a)
    tl.store(gates + place(slot, b, B, H) + j, h, mask=m)
    if RAGGED:
        h = tl.where(t < tl.load(lengths + b), h, read(s_all + place(s_old, b, B, H) + j, m, s_all))
    tl.store(s_all + place(s_new, b, B, H) + j, h, mask=m)
    tl.store(h_all + place(new, b, B, P) + j, h, mask=m)


@triton.jit(do_not_specialize=CHANGING)
def backward(
    extra, s_all, gates, grad_h, grad_s, grad_gates, dh_u, dh, dc, dx, du, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, RAGGED: tl.constexpr, GRAD_S: tl.constexpr, GRAD_GATES: tl.constexpr, BLOCK: tl.constexpr,
    PHI: tl.constexpr,
):  # fmt: skip
    """The derivative of `forward`."""
    b, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = j < H
    n, q = place(t, b, B, H) + j, b * H + j
    d_h = read(grad_h + place(new, b, B, H) + j, m, s_all) + read(dh_u + b * P + j, m, s_all)
    if GRAD_S:
        d_h += read(grad_s + place(new, b, B, H) + j, m, s_all)
    if RAGGED:
        d_h += read(dh + q, m, s_all)
        alive = t < tl.load(lengths + b)
        tl.store(dh + q, tl.where(alive, 0.0, d_h), mask=m)
        d_h = tl.where(alive, d_h, 0.0)
    if GRAD_GATES:
        d_h += read(grad_gates + n, m, s_all)
    y = read(gates + n, m, s_all)
    if PHI == "tanh":
        d_a = d_h * (1.0 - y * y)
    elif PHI == "relu":
        d_a = tl.where(y <= 0.0, 0.0, d_h)
    else:
        d_a = d_h * slope(y)
    tl.store(dx + n, d_a, mask=m)
