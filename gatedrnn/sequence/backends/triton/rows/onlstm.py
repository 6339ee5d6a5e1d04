"""ON-LSTM: rows i f g o, then K split points of the master input gate and K of the master forget gate. See `shared`.

One program has a row of the batch, as a tile of chunks × units of a chunk: a master gate is a column of it. With p = softmax of a
master gate: f̃ = Σ_{j≤k} p_j and 1 − f̃ = Σ_{j>k} p_j, ĩ and 1 − ĩ the other way round, so that nothing is subtracted from 1;
f̂ = f̃∘(1 − ĩ + ĩ∘f), î = ĩ∘(1 − f̃ + f̃∘i). What is saved of a master gate is p, always soft.
"""

import triton
import triton.language as tl

from gatedrnn.sequence.backends.triton.rows.rnn import CHANGING
from gatedrnn.sequence.backends.triton.rows.shared import place, read, sigmoid, slope, tanh, value


@triton.jit
def _softmax(x, u, k, K, like):
    """p_k, and p_{k+1}, of logits x + u."""
    z = tl.where(k < K, read(x + k, k < K, like) + read(u + k, k < K, like), -float("inf"))
    z_next = tl.where(k + 1 < K, read(x + k + 1, k + 1 < K, like) + read(u + k + 1, k + 1 < K, like), -float("inf"))
    top = tl.max(z, 0)
    e = tl.exp(z - top)
    whole = tl.sum(e, 0)
    return e / whole, tl.exp(z_next - top) / whole


@triton.jit
def _split(p, p_next, k, HARD: tl.constexpr, gate):
    """Σ_{j≤k} p_j and Σ_{j>k} p_j; of the likeliest split point if hard. NaN stays."""
    if (HARD >> gate) & 1:
        best = tl.argmax(tl.where(p == p, p, 0.0), 0)
        p, p_next = (
            tl.where(k == best, 1.0, p - p).to(p.dtype),
            tl.where(k + 1 == best, 1.0, p_next - p_next).to(p.dtype),
        )
    return tl.cumsum(p, 0), tl.cumsum(p_next, 0, reverse=True)


@triton.jit(do_not_specialize=CHANGING)
def forward(
    x, u, extra, h_all, s_all, gates, work, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, KEEP: tl.constexpr, RAGGED: tl.constexpr, K: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """f̃, 1 − ĩ = cumax(·); c = f̂∘c' + î∘g; h = o∘tanh(c)."""
    b, k, unit = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, BLOCK_C)
    rows = 4 * H + 2 * K
    n, q, g_n = place(t, b, B, rows), b * rows, place(t * KEEP, b, B, rows)
    p_i, next_i = _softmax(x + n + 4 * H, u + q + 4 * H, k, K, s_all)
    p_f, next_f = _softmax(x + n + 4 * H + K, u + q + 4 * H + K, k, K, s_all)
    if KEEP:
        tl.store(gates + g_n + 4 * H + k, p_i, mask=k < K)
        tl.store(gates + g_n + 4 * H + K + k, p_f, mask=k < K)
    i_rest, i_master = _split(p_i, next_i, k, HARD, 4)
    f_master, f_rest = _split(p_f, next_f, k, HARD, 5)
    j = k[:, None] * C + unit[None, :]
    m = (j < H) & (unit[None, :] < C)
    before, after = place(old * KEEP, b, B, H) + j, place(new * KEEP, b, B, H) + j
    i = sigmoid(read(x + n + j, m, s_all) + read(u + q + j, m, s_all))
    f = sigmoid(read(x + n + H + j, m, s_all) + read(u + q + H + j, m, s_all))
    g = tanh(read(x + n + 2 * H + j, m, s_all) + read(u + q + 2 * H + j, m, s_all))
    o = sigmoid(read(x + n + 3 * H + j, m, s_all) + read(u + q + 3 * H + j, m, s_all))
    f_hat = f_master[:, None] * (i_rest[:, None] + i_master[:, None] * value(f, HARD, 1))
    i_hat = i_master[:, None] * (f_rest[:, None] + f_master[:, None] * value(i, HARD, 0))
    c_old = read(s_all + before, m, s_all)
    c = f_hat * c_old + i_hat * g
    h = value(o, HARD, 3) * tanh(c)
    if KEEP:
        tl.store(gates + g_n + j, i, mask=m)
        tl.store(gates + g_n + H + j, f, mask=m)
        tl.store(gates + g_n + 2 * H + j, g, mask=m)
        tl.store(gates + g_n + 3 * H + j, o, mask=m)
    if RAGGED:
        alive = t < tl.load(lengths + b)
        c = tl.where(alive, c, c_old)
        h = tl.where(alive, h, read(h_all + place(old, b, B, P) + j, m, s_all))
    tl.store(s_all + after, c, mask=m)
    tl.store(h_all + place(new, b, B, P) + j, h, mask=m)


@triton.jit(do_not_specialize=CHANGING)
def backward(
    extra, s_all, gates, grad_h, grad_s, grad_gates, dh_u, dh, dc, dx, du, lengths, t, old, new, B, H, P,
    HARD: tl.constexpr, RAGGED: tl.constexpr, GRAD_S: tl.constexpr, GRAD_GATES: tl.constexpr, K: tl.constexpr,
    C: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The derivative of `forward`."""
    b, k, unit = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, BLOCK_C)
    n = place(t, b, B, 4 * H + 2 * K)
    n_i, n_f = n + 4 * H + k, n + 4 * H + K + k
    p_i, next_i = read(gates + n_i, k < K, s_all), read(gates + n_i + 1, k + 1 < K, s_all)
    p_f, next_f = read(gates + n_f, k < K, s_all), read(gates + n_f + 1, k + 1 < K, s_all)
    i_rest, i_master = _split(p_i, next_i, k, HARD, 4)
    f_master, f_rest = _split(p_f, next_f, k, HARD, 5)
    i_rest, i_master, f_rest, f_master = i_rest[:, None], i_master[:, None], f_rest[:, None], f_master[:, None]
    j = k[:, None] * C + unit[None, :]
    m = (j < H) & (unit[None, :] < C)
    after, n_j, q = place(new, b, B, H) + j, n + j, b * H + j
    i, f = read(gates + n_j, m, s_all), read(gates + n_j + H, m, s_all)
    g, o = read(gates + n_j + 2 * H, m, s_all), read(gates + n_j + 3 * H, m, s_all)
    i_on, f_on = value(i, HARD, 0), value(f, HARD, 1)
    c_old, y = read(s_all + place(old, b, B, H) + j, m, s_all), tanh(read(s_all + after, m, s_all))
    d_h, d_c = read(grad_h + after, m, s_all) + read(dh_u + b * P + j, m, s_all), read(dc + q, m, s_all)
    if GRAD_S:
        d_c += read(grad_s + after, m, s_all)
    if RAGGED:
        d_h += read(dh + q, m, s_all)
    d_c_all = d_c + d_h * value(o, HARD, 3) * (1.0 - y * y)
    d_f_hat, d_i_hat = d_c_all * c_old, d_c_all * g
    f_part, i_part = i_rest + i_master * f_on, f_rest + f_master * i_on
    d_i, d_f = d_i_hat * i_master * f_master, d_f_hat * i_master * f_master
    d_g, d_o = d_c_all * i_master * i_part, d_h * y
    d_i_master = tl.sum(d_i_hat * i_part - d_f_hat * f_master * (1.0 - f_on), 1)
    d_f_master = tl.sum(d_f_hat * f_part - d_i_hat * i_master * (1.0 - i_on), 1)
    d_p_i = tl.cumsum(d_i_master, 0) - d_i_master  # ĩ_k holds every p_j with j > k
    d_p_f = tl.cumsum(d_f_master, 0, reverse=True)  # f̃_k holds every p_j with j ≤ k
    if GRAD_GATES:
        d_i += read(grad_gates + n_j, m, s_all)
        d_f += read(grad_gates + n_j + H, m, s_all)
        d_g += read(grad_gates + n_j + 2 * H, m, s_all)
        d_o += read(grad_gates + n_j + 3 * H, m, s_all)
        d_p_i += read(grad_gates + n_i, k < K, s_all)
        d_p_f += read(grad_gates + n_f, k < K, s_all)
    da_i, da_f, da_g, da_o = d_i * slope(i), d_f * slope(f), d_g * (1.0 - g * g), d_o * slope(o)
    dz_i, dz_f = p_i * (d_p_i - tl.sum(p_i * d_p_i, 0)), p_f * (d_p_f - tl.sum(p_f * d_p_f, 0))
    d_c_old = d_c_all * f_master * f_part
    if RAGGED:
        alive = t < tl.load(lengths + b)
        da_i, da_f = tl.where(alive, da_i, 0.0), tl.where(alive, da_f, 0.0)
        da_g, da_o = tl.where(alive, da_g, 0.0), tl.where(alive, da_o, 0.0)
        dz_i, dz_f = tl.where(alive, dz_i, 0.0), tl.where(alive, dz_f, 0.0)
        d_c_old = tl.where(alive, d_c_old, d_c)
        tl.store(dh + q, tl.where(alive, 0.0, d_h), mask=m)
    tl.store(dc + q, d_c_old, mask=m)
    tl.store(dx + n_j, da_i, mask=m)
    tl.store(dx + n_j + H, da_f, mask=m)
    tl.store(dx + n_j + 2 * H, da_g, mask=m)
    tl.store(dx + n_j + 3 * H, da_o, mask=m)
    tl.store(dx + n_i, dz_i, mask=k < K)
    tl.store(dx + n_f, dz_f, mask=k < K)
