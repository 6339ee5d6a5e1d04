"""LSTM, and with diagonal peepholes: rows i f g o. See `shared` for the arguments."""

import triton
import triton.language as tl

from gatedrnn.sequence.backends.triton.rows.rnn import CHANGING
from gatedrnn.sequence.backends.triton.rows.shared import place, read, sigmoid, slope, tanh, value


@triton.jit(do_not_specialize=CHANGING)
def forward(
    x, u, extra, h_all, s_all, gates, work, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, KEEP: tl.constexpr, RAGGED: tl.constexpr, BLOCK: tl.constexpr, PEEPHOLE: tl.constexpr,
):  # fmt: skip
    """c = f∘c' + i∘g; h = o∘tanh(c); with peepholes i, f = σ(· + P c') and o = σ(· + P c)."""
    b, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = j < H
    before, after = place(old * KEEP, b, B, H) + j, place(new * KEEP, b, B, H) + j
    n, q, g_n = place(t, b, B, 4 * H) + j, b * 4 * H + j, place(t * KEEP, b, B, 4 * H) + j
    a_i = read(x + n, m, s_all) + read(u + q, m, s_all)
    a_f = read(x + n + H, m, s_all) + read(u + q + H, m, s_all)
    a_g = read(x + n + 2 * H, m, s_all) + read(u + q + 2 * H, m, s_all)
    a_o = read(x + n + 3 * H, m, s_all) + read(u + q + 3 * H, m, s_all)
    c_old = read(s_all + before, m, s_all)
    if PEEPHOLE:
        a_i += c_old * read(extra + j, m, s_all)
        a_f += c_old * read(extra + H + j, m, s_all)
    i, f, g = sigmoid(a_i), sigmoid(a_f), tanh(a_g)
    c = value(f, HARD, 1) * c_old + value(i, HARD, 0) * g
    if PEEPHOLE:
        a_o += c * read(extra + 2 * H + j, m, s_all)
    o = sigmoid(a_o)
    h = value(o, HARD, 3) * tanh(c)
    if KEEP:
        tl.store(gates + g_n, i, mask=m)
        tl.store(gates + g_n + H, f, mask=m)
        tl.store(gates + g_n + 2 * H, g, mask=m)
        tl.store(gates + g_n + 3 * H, o, mask=m)
    if RAGGED:
        alive = t < tl.load(lengths + b)
        c = tl.where(alive, c, c_old)
        h = tl.where(alive, h, read(h_all + place(old, b, B, P) + j, m, s_all))
    tl.store(s_all + after, c, mask=m)
    tl.store(h_all + place(new, b, B, P) + j, h, mask=m)


@triton.jit(do_not_specialize=CHANGING)
def backward(
    extra, s_all, gates, grad_h, grad_s, grad_gates, dh_u, dh, dc, dx, du, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, RAGGED: tl.constexpr, GRAD_S: tl.constexpr, GRAD_GATES: tl.constexpr, BLOCK: tl.constexpr,
    PEEPHOLE: tl.constexpr,
):  # fmt: skip
    """The derivative of `forward`."""
    b, j = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = j < H
    after, n, q = place(new, b, B, H) + j, place(t, b, B, 4 * H) + j, b * H + j
    i, f = read(gates + n, m, s_all), read(gates + n + H, m, s_all)
    g, o = read(gates + n + 2 * H, m, s_all), read(gates + n + 3 * H, m, s_all)
    c_old, y = read(s_all + place(old, b, B, H) + j, m, s_all), tanh(read(s_all + after, m, s_all))
    d_h, d_c = read(grad_h + after, m, s_all) + read(dh_u + b * P + j, m, s_all), read(dc + q, m, s_all)
    if GRAD_S:
        d_c += read(grad_s + after, m, s_all)
    if RAGGED:
        d_h += read(dh + q, m, s_all)
    d_o = d_h * y
    if GRAD_GATES:
        d_o += read(grad_gates + n + 3 * H, m, s_all)
    da_o = d_o * slope(o)
    d_c_all = d_c + d_h * value(o, HARD, 3) * (1.0 - y * y)
    if PEEPHOLE:
        d_c_all += da_o * read(extra + 2 * H + j, m, s_all)
    d_i, d_f, d_g = d_c_all * g, d_c_all * c_old, d_c_all * value(i, HARD, 0)
    if GRAD_GATES:
        d_i += read(grad_gates + n, m, s_all)
        d_f += read(grad_gates + n + H, m, s_all)
        d_g += read(grad_gates + n + 2 * H, m, s_all)
    da_i, da_f, da_g = d_i * slope(i), d_f * slope(f), d_g * (1.0 - g * g)
    d_c_old = d_c_all * value(f, HARD, 1)
    if PEEPHOLE:
        d_c_old += da_i * read(extra + j, m, s_all) + da_f * read(extra + H + j, m, s_all)
    if RAGGED:
        alive = t < tl.load(lengths + b)
        da_i, da_f = tl.where(alive, da_i, 0.0), tl.where(alive, da_f, 0.0)
        da_g, da_o = tl.where(alive, da_g, 0.0), tl.where(alive, da_o, 0.0)
        d_c_old = tl.where(alive, d_c_old, d_c)
        tl.store(dh + q, tl.where(alive, 0.0, d_h), mask=m)
    tl.store(dc + q, d_c_old, mask=m)
    tl.store(dx + n, da_i, mask=m)
    tl.store(dx + n + H, da_f, mask=m)
    tl.store(dx + n + 2 * H, da_g, mask=m)
    tl.store(dx + n + 3 * H, da_o, mask=m)
