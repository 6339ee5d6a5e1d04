"""GRU, rows r z n, in both forms; s_all holds h in full precision. See `shared` for the arguments.

Reset after the product: gates hold r z n and U h' + b of the candidate. Reset before it: the step has two halves, with U (r∘h')
between them.
"""

import triton
import triton.language as tl

from gatedrnn.sequence.backends.triton.rows.rnn import CHANGING
from gatedrnn.sequence.backends.triton.rows.shared import place, read, sigmoid, slope, tanh, value


@triton.jit(do_not_specialize=CHANGING)
def after_forward(
    x, u, extra, h_all, s_all, gates, work, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, KEEP: tl.constexpr, RAGGED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """n = tanh(W x + b + r∘(U h' + b)); h = (1 − z)∘n + z∘h'."""
    b, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = j < H
    n, q, g_n = place(t, b, B, 3 * H) + j, b * 3 * H + j, place(t * KEEP, b, B, 4 * H) + j
    r = sigmoid(read(x + n, m, s_all) + read(u + q, m, s_all))
    z = sigmoid(read(x + n + H, m, s_all) + read(u + q + H, m, s_all))
    a_u = read(u + q + 2 * H, m, s_all) + read(extra + j, m, s_all)
    y = tanh(read(x + n + 2 * H, m, s_all) + value(r, HARD, 0) * a_u)
    h_old, keep = read(s_all + place(old * KEEP, b, B, H) + j, m, s_all), value(z, HARD, 1)
    h = (1.0 - keep) * y + keep * h_old
    if KEEP:
        tl.store(gates + g_n, r, mask=m)
        tl.store(gates + g_n + H, z, mask=m)
        tl.store(gates + g_n + 2 * H, y, mask=m)
        tl.store(gates + g_n + 3 * H, a_u, mask=m)
    if RAGGED:
        h = tl.where(t < tl.load(lengths + b), h, h_old)
    tl.store(s_all + place(new * KEEP, b, B, H) + j, h, mask=m)
    tl.store(h_all + place(new, b, B, P) + j, h, mask=m)


@triton.jit(do_not_specialize=CHANGING)
def after_backward(
    extra, s_all, gates, grad_h, grad_s, grad_gates, dh_u, dh, dc, dx, du, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, RAGGED: tl.constexpr, GRAD_S: tl.constexpr, GRAD_GATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The derivative of `after_forward`."""
    b, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = j < H
    n, g_n, q = place(t, b, B, 3 * H) + j, place(t, b, B, 4 * H) + j, b * H + j
    r, z = read(gates + g_n, m, s_all), read(gates + g_n + H, m, s_all)
    y, a_u = read(gates + g_n + 2 * H, m, s_all), read(gates + g_n + 3 * H, m, s_all)
    h_old, keep = read(s_all + place(old, b, B, H) + j, m, s_all), value(z, HARD, 1)
    d_h = read(grad_h + place(new, b, B, H) + j, m, s_all) + read(dh_u + b * P + j, m, s_all) + read(dh + q, m, s_all)
    if GRAD_S:
        d_h += read(grad_s + place(new, b, B, H) + j, m, s_all)
    d_y = d_h * (1.0 - keep)
    if GRAD_GATES:
        d_y += read(grad_gates + g_n + 2 * H, m, s_all)
    da_y = d_y * (1.0 - y * y)
    d_r, d_z = da_y * a_u, d_h * (h_old - y)
    if GRAD_GATES:
        d_r += read(grad_gates + g_n, m, s_all)
        d_z += read(grad_gates + g_n + H, m, s_all)
    da_r, da_z, past = d_r * slope(r), d_z * slope(z), d_h * keep
    if RAGGED:
        alive = t < tl.load(lengths + b)
        da_r, da_z, da_y = tl.where(alive, da_r, 0.0), tl.where(alive, da_z, 0.0), tl.where(alive, da_y, 0.0)
        past = tl.where(alive, past, d_h)
    tl.store(dh + q, past, mask=m)
    tl.store(dx + n, da_r, mask=m)
    tl.store(dx + n + H, da_z, mask=m)
    tl.store(dx + n + 2 * H, da_y, mask=m)
    tl.store(du + n, da_r, mask=m)
    tl.store(du + n + H, da_z, mask=m)
    tl.store(du + n + 2 * H, da_y * value(r, HARD, 0), mask=m)


@triton.jit(do_not_specialize=CHANGING)
def before_forward(
    x, u, extra, h_all, s_all, gates, work, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, KEEP: tl.constexpr, RAGGED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """r, z = σ(W x + U h' + b); work = r∘h'."""
    b, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = j < H
    n, q, g_n = place(t, b, B, 3 * H) + j, b * 2 * H + j, place(t * KEEP, b, B, 3 * H) + j
    r = sigmoid(read(x + n, m, s_all) + read(u + q, m, s_all))
    z = sigmoid(read(x + n + H, m, s_all) + read(u + q + H, m, s_all))
    tl.store(gates + g_n, r, mask=m)
    tl.store(gates + g_n + H, z, mask=m)
    h_old = read(s_all + place(old * KEEP, b, B, H) + j, m, s_all)
    tl.store(work + b * P + j, value(r, HARD, 0) * h_old, mask=m)


@triton.jit(do_not_specialize=CHANGING)
def before_forward_second(
    x, u, extra, h_all, s_all, gates, work, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, KEEP: tl.constexpr, RAGGED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """n = tanh(W x + U (r∘h') + b), the product in u [B, H]; h = (1 − z)∘h' + z∘n."""
    b, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = j < H
    n, g_n = place(t, b, B, 3 * H) + j, place(t * KEEP, b, B, 3 * H) + j
    y = tanh(read(x + n + 2 * H, m, s_all) + read(u + b * H + j, m, s_all))
    tl.store(gates + g_n + 2 * H, y, mask=m)
    h_old = read(s_all + place(old * KEEP, b, B, H) + j, m, s_all)
    z = value(read(gates + g_n + H, m, s_all), HARD, 1)
    h = (1.0 - z) * h_old + z * y
    if RAGGED:
        h = tl.where(t < tl.load(lengths + b), h, h_old)
    tl.store(s_all + place(new * KEEP, b, B, H) + j, h, mask=m)
    tl.store(h_all + place(new, b, B, P) + j, h, mask=m)


@triton.jit(do_not_specialize=CHANGING)
def before_backward(
    extra, s_all, gates, grad_h, grad_s, grad_gates, dh_u, dh, dc, dx, du, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, RAGGED: tl.constexpr, GRAD_S: tl.constexpr, GRAD_GATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The derivative of `before_forward_second`."""
    b, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = j < H
    n, q = place(t, b, B, 3 * H) + j, b * H + j
    z, y = read(gates + n + H, m, s_all), read(gates + n + 2 * H, m, s_all)
    h_old, share = read(s_all + place(old, b, B, H) + j, m, s_all), value(z, HARD, 1)
    d_h = read(grad_h + place(new, b, B, H) + j, m, s_all) + read(dh_u + b * P + j, m, s_all) + read(dh + q, m, s_all)
    if GRAD_S:
        d_h += read(grad_s + place(new, b, B, H) + j, m, s_all)
    d_z, d_y, past = d_h * (y - h_old), d_h * share, d_h * (1.0 - share)
    if GRAD_GATES:
        d_z += read(grad_gates + n + H, m, s_all)
        d_y += read(grad_gates + n + 2 * H, m, s_all)
    da_z, da_y = d_z * slope(z), d_y * (1.0 - y * y)
    if RAGGED:
        alive = t < tl.load(lengths + b)
        da_z, da_y, past = tl.where(alive, da_z, 0.0), tl.where(alive, da_y, 0.0), tl.where(alive, past, d_h)
    tl.store(dh + q, past, mask=m)
    tl.store(dx + n + H, da_z, mask=m)
    tl.store(dx + n + 2 * H, da_y, mask=m)


@triton.jit(do_not_specialize=CHANGING)
def before_backward_second(
    extra, s_all, gates, grad_h, grad_s, grad_gates, dh_u, dh, dc, dx, du, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, RAGGED: tl.constexpr, GRAD_S: tl.constexpr, GRAD_GATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The derivative of `before_forward`; dh_u holds Uᵀ da of the candidate, the gradient of r∘h'."""
    b, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = j < H
    n, q = place(t, b, B, 3 * H) + j, b * H + j
    r, d_rh = read(gates + n, m, s_all), read(dh_u + b * P + j, m, s_all)
    d_r = d_rh * read(s_all + place(old, b, B, H) + j, m, s_all)
    if GRAD_GATES:
        d_r += read(grad_gates + n, m, s_all)
    da_r = d_r * slope(r)
    if RAGGED:
        alive = t < tl.load(lengths + b)
        da_r, d_rh = tl.where(alive, da_r, 0.0), tl.where(alive, d_rh, 0.0)
    tl.store(dx + n, da_r, mask=m)
    tl.store(dh + q, read(dh + q, m, s_all) + d_rh * value(r, HARD, 0), mask=m)
