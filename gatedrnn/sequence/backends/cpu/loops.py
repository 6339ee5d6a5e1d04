"""A layer over time, forward and backward, as one function for every thread of a team; a cell brings only its rows.

Tokens are packed: step t has the rows offsets[t] … offsets[t + 1] − 1, longest sequence first, so that a step's live sequences
are the first ones of the batch. prev[n] is the token before token n in its sequence, or −1 − b where that is the initial state.
Threads share a product by panels of its right factor and the pointwise part by rows of the batch; barriers lie between.
Dimensions: T steps, B batch, N tokens, D input, H hidden; G columns of a row of gates (rows `ldg` apart).

    columns_x  from column 0: what W x (and noise, and bias) is written to
    columns_1  from column first_1: U h' is added
    columns_2  after those: U₂ l is added, l what the cell's first half leaves for a product inside the step, else 0
    cells      rows of H that a token keeps beside h, side by side in cs: further states, then l
    two_biases whether bias and bias_h are b_ih and b_hh by row, else bias is their sum by column
    shift      column n belongs to row n + shift of W, the last ones to the first rows
"""

from typing import Any

from numba import njit, types
from numba.extending import overload

from gatedrnn.sequence.backends.cpu.direct import multiply_direct
from gatedrnn.sequence.backends.cpu.drawing import draw_block
from gatedrnn.sequence.backends.cpu.product import (
    beyond,
    ceil_div,
    depth,
    multiply,
    multiply_transposed,
    pack,
    pack_transposed,
    rows_at_once,
    share,
)
from gatedrnn.sequence.backends.cpu.simd import lanes, load, splat, store
from gatedrnn.sequence.backends.cpu.sizes import LINE, REGISTERS, TOKENS
from gatedrnn.sequence.backends.cpu.tiling import barrier, fetch_to_read, fetch_to_write, keep, restore, thread, threads
from gatedrnn.sequence.backends.cpu.widening import pairs


@njit
def _row(states, first, n, prev, H):
    """The state before token n."""
    return states + prev[n] * H if prev[n] >= 0 else first + (-1 - prev[n]) * H


@njit
def _copy(source, target, n):
    W = lanes(source)
    for j in range(0, n, W):
        m = min(W, n - j)
        store(target + j, load(source + j, m), m)


@njit
def _clear(target, n):
    W = lanes(target)
    for j in range(0, n, W):
        store(target + j, splat(target, 0.0), min(W, n - j))


@njit
def _fetch_row(G, dG, columns):
    """Fetch what the next row reads and writes: both were last used too long ago to be in a cache."""
    for j in range(0, columns, LINE):
        fetch_to_read(G + j)
        fetch_to_write(dG + j)


@njit
def _add(source, target, n):
    W = lanes(source)
    for j in range(0, n, W):
        m = min(W, n - j)
        store(target + j, load(target + j, m) + load(source + j, m), m)


@njit
def _scale_rows(A, scale, rows, columns, lda):
    W = lanes(A)
    for r in range(rows):
        for j in range(0, columns, W):
            n = min(W, columns - j)
            a = A + (r * lda + j)
            store(a, load(a, n) * load(scale + j, n), n)


def forward_loop(row, second_row):
    """The forward pass of a cell whose step is `row`, then, where columns_2 > 0, `second_row`."""

    def forward(
        T, D, H, K, C, reverse, columns_x, first_1, columns_1, columns_2, columns, shift, ldg, panel, tall, direct_w,
        direct_u, noisy, blocks, seed, scaled, cells, offsets, prev, x, W, U, PW, PU, scale, bias, bias_h, two_biases, noise,
        starts, chance, extra, G, out, cs, h0, c0, hn, cn, scratch, scratch_size, left, left_size,
    ):  # fmt: skip
        q, parts, L = thread(), threads(), cells * H
        registers = scratch + q * scratch_size
        edge = registers + REGISTERS
        keep(registers)
        work = edge + tall * panel
        px, p1, p2 = ceil_div(columns_x, panel), ceil_div(columns_1, panel), ceil_div(columns_2, panel)
        PU2 = beyond(PU, p1, depth(PU, H), panel)
        own = left + q * left_size
        first, last = share(px, q, parts), share(px, q + 1, parts)
        f1, l1 = share(p1, q, parts), share(p1, q + 1, parts)
        f2, l2 = share(p2, q, parts), share(p2, q + 1, parts)
        s1, s2 = scale + first_1, scale + (first_1 + columns_1)
        if not direct_w:
            pack_transposed(W, D, D, columns_x, shift, scale, scaled, PW, panel, first, last)
        if not direct_u:
            pack_transposed(U, H, H, columns_1, 0, s1, scaled, PU, panel, f1, l1)
            pack_transposed(U + columns_1 * H, H, H, columns_2, 0, s2, scaled, PU2, panel, f2, l2)
        tokens = offsets[T]
        most = rows_at_once(tall)
        for m0 in range(0, tokens, most):
            m = min(most, tokens - m0)
            for n in range(m0 + share(m, q, parts), m0 + share(m, q + 1, parts)):
                g = G + n * ldg
                if two_biases:
                    _copy(bias + shift, g, columns_x - shift)
                    _copy(bias, g + (columns_x - shift), shift)
                    _clear(g + columns_x, columns - columns_x)
                    _add(bias_h, g + first_1, columns_1 + columns_2)
                else:
                    _copy(bias, g, columns)
                if noisy:
                    _add(noise + n * columns_x, g, columns_x)
                for k in range(blocks):
                    draw_block(n * blocks + k, g + starts[2 * k], starts[2 * k + 1] - starts[2 * k], seed, chance, 1)
            barrier()
            if direct_w:
                multiply_direct(x + m0 * D, D, m, W, D, columns_x, shift, scale, scaled, G + m0 * ldg, ldg, q, parts, 0)
            else:
                multiply(x + m0 * D, D, m, PW, D, G + m0 * ldg, ldg, columns_x, panel, tall, first, last, 1, edge, own)
        barrier()
        before = 0  # rows of the step before
        start_before = 0
        for s in range(T):
            t = T - 1 - s if reverse else s
            start, m = offsets[t], offsets[t + 1] - offsets[t]
            old = min(before, m)
            g, h, back = G + (start * ldg + first_1), out + start_before * H, s % 2
            if direct_u:  # there and back: what was used last is in cache
                multiply_direct(h, H, old, U, H, columns_1, 0, s1, scaled, g, ldg, q, parts, back)
                multiply_direct(
                    h0 + old * H, H, m - old, U, H, columns_1, 0, s1, scaled, g + old * ldg, ldg, q, parts, back
                )
            else:
                a, z = (l1, f1) if back else (f1, l1)
                multiply(h, H, old, PU, H, g, ldg, columns_1, panel, tall, a, z, 1, edge, own)
                multiply(
                    h0 + old * H, H, m - old, PU, H, g + old * ldg, ldg, columns_1, panel, tall, a, z, 1, edge, own
                )
            barrier()
            b0, b1 = share(m, q, parts), share(m, q + 1, parts)
            for n in range(start + b0, start + b1):
                h_prev, c_prev = _row(out, h0, n, prev, H), _row(cs, c0, n, prev, L)
                row(G + n * ldg, h_prev, c_prev, cs + n * L, out + n * H, extra, work, H, K, C)
            if columns_2:
                barrier()
                left_factor = cs + (start * L + (L - H))
                if direct_u:
                    U2 = U + columns_1 * H
                    multiply_direct(
                        left_factor, L, m, U2, H, columns_2, 0, s2, scaled, g + columns_1, ldg, q, parts, back
                    )
                else:
                    multiply(
                        left_factor, L, m, PU2, H, g + columns_1, ldg, columns_2, panel, tall, f2, l2, 1, edge, own
                    )
                barrier()
                for n in range(start + b0, start + b1):
                    h_prev, c_prev = _row(out, h0, n, prev, H), _row(cs, c0, n, prev, L)
                    second_row(G + n * ldg, h_prev, c_prev, cs + n * L, out + n * H, extra, work, H, K, C)
            after = 0 if reverse or t == T - 1 else offsets[t + 2] - offsets[t + 1]
            for b in range(b0, b1):
                if t == 0 if reverse else b >= after:
                    _copy(out + (start + b) * H, hn + b * H, H)
                    if cells:
                        _copy(cs + (start + b) * L, cn + b * L, L)
            before, start_before = m, start
            barrier()
        restore(registers)

    return forward


def _pack_states(states: Any, first: Any, prev: Any, K: Any, N: Any, P: Any, panel: Any, begin: Any, end: Any) -> None:
    """Panels begin … end − 1 of the [K, N] matrix of the states before K tokens."""


@overload(_pack_states, strict=False)
def _pack_states_impl(states, first, prev, K, N, P, panel, begin, end):
    def reals(states, first, prev, K, N, P, panel, begin, end):
        for k in range(K):
            pack(_row(states, first, k, prev, N), N, 1, N, 0, P + k * panel, K, panel, begin, end)

    def halves(states, first, prev, K, N, P, panel, begin, end):
        W = lanes(states)
        rows = depth(P, K)
        for k in range(rows):
            low = _row(states, first, min(2 * k, K - 1), prev, N)
            high = _row(states, first, min(2 * k + 1, K - 1), prev, N)
            for p in range(begin, end):
                for v in range(0, panel, W):
                    n = p * panel + v
                    width = max(0, min(W, N - n))
                    x, y = load(low + n, width if 2 * k < K else 0), load(high + n, width if 2 * k + 1 < K else 0)
                    store(P + ((p * rows + k) * panel + v), pairs(x, y), W)

    return reals if isinstance(P.real, types.Float) else halves


@njit
def weight_gradient(
    A, ldg, M, tokens, B, ldb, first, prev, shifted, D, C, sums, packed, panel, tall, strips, edge, q, parts
):
    """C[M, D] = Aᵀ·B over tokens, sums[M] the sums of A's columns; `shifted`: B's row is the state before the token; ldb D."""
    bands, panels, blocks = ceil_div(M, tall), ceil_div(D, panel), ceil_div(tokens, TOKENS)
    s0, s1 = share(bands, q, parts), share(bands, q + 1, parts)
    p0, p1 = share(panels, q, parts), share(panels, q + 1, parts)
    for m in range(s0 * tall, min(M, s1 * tall)):
        sums[m] = 0.0
    for block in range(blocks):
        k0, k1 = share(tokens, block, blocks), share(tokens, block + 1, blocks)
        k = k1 - k0
        barrier()
        if shifted:
            _pack_states(B, first, prev + k0, k, D, packed, panel, p0, p1)
        else:
            pack(B + k0 * ldb, ldb, k, D, 0, packed, depth(packed, k), panel, p0, p1)
        barrier()
        add = 1 if block else 0
        multiply_transposed(A + k0 * ldg, ldg, M, packed, k, C, D, D, panel, tall, s0, s1, add, strips, sums, edge)


def backward_loop(row, second_row):
    """The backward pass of a cell whose step's derivative is `row`, then, where columns_2 > 0, `second_row`."""

    def backward(
        T, D, H, K, C, reverse, columns_x, first_1, columns_1, columns_2, shift, ldg, panel, tall, cells, carries, need_dx,
        need_dw, need_du, scaled, offsets, prev, x, W, U, P, scale, extra, G, out, cs, h0, c0, grad_h, grad_h_stride, grad_g,
        grad_g_stride, dh, dc, dG, dx, dW, dU, db_x, db_h, d_extra, extra_size, shared, scratch, scratch_size, left,
        left_size,
    ):  # fmt: skip
        q, parts, L = thread(), threads(), cells * H
        registers = scratch + q * scratch_size
        edge = registers + REGISTERS
        keep(registers)
        work = edge + tall * panel
        own_extra = d_extra + q * extra_size
        columns = max(columns_x, first_1 + columns_1 + columns_2)
        ph = ceil_div(H, panel)
        deep_1, deep_2 = depth(P, columns_1), depth(P, columns_2)
        P2 = P + ph * panel * deep_1
        own = left + q * left_size
        f, e = share(ph, q, parts), share(ph, q + 1, parts)
        pack(U, H, columns_1, H, 0, P, deep_1, panel, f, e)
        if columns_2:
            pack(U + columns_1 * H, H, columns_2, H, 0, P2, deep_2, panel, f, e)
        for s in range(T):
            t = s if reverse else T - 1 - s
            start, m = offsets[t], offsets[t + 1] - offsets[t]
            b0, b1 = share(m, q, parts), share(m, q + 1, parts)
            for b in range(b0, b1):
                n = start + b
                if b + 1 < b1:
                    _fetch_row(G + (n + 1) * ldg, dG + (n + 1) * ldg, ldg)
                row(
                    G + n * ldg, _row(out, h0, n, prev, H), _row(cs, c0, n, prev, L), cs + n * L,
                    grad_h + n * grad_h_stride, grad_g + n * grad_g_stride, dh + b * H, dc + b * L, dG + n * ldg,
                    extra, own_extra, work, H, K, C,
                )  # fmt: skip
            if scaled and not columns_2:
                _scale_rows(dG + (start + b0) * ldg, scale, b1 - b0, columns, ldg)
            barrier()
            g = dG + (start * ldg + first_1)
            if columns_2:
                multiply(g + columns_1, ldg, m, P2, columns_2, dc + (L - H), L, H, panel, tall, f, e, 0, edge, own)
                barrier()
                for b in range(b0, b1):
                    n = start + b
                    second_row(
                        G + n * ldg, _row(out, h0, n, prev, H), _row(cs, c0, n, prev, L), cs + n * L,
                        grad_h + n * grad_h_stride, grad_g + n * grad_g_stride, dh + b * H, dc + b * L, dG + n * ldg,
                        extra, own_extra, work, H, K, C,
                    )  # fmt: skip
                if scaled:
                    _scale_rows(dG + (start + b0) * ldg, scale, b1 - b0, columns, ldg)
                barrier()
            a, z = (e, f) if s % 2 else (f, e)
            multiply(g, ldg, m, P, columns_1, dh, H, H, panel, tall, a, z, carries, edge, own)
            barrier()
        tokens = offsets[T]
        if need_du:
            weight_gradient(
                dG + first_1, ldg, columns_1, tokens, out, H, h0, prev, 1, H, dU, db_h, shared, panel, tall, own, edge, q, parts,
            )  # fmt: skip
        if need_dw:
            weight_gradient(
                dG, ldg, columns_x, tokens, x, D, x, prev, 0, D, dW, db_x, shared, panel, tall, own, edge, q, parts
            )
        if columns_2 and need_du:
            weight_gradient(
                dG + (first_1 + columns_1), ldg, columns_2, tokens, cs + (L - H), L, cs, prev, 0, H, dU + columns_1 * H,
                db_h + columns_1, shared, panel, tall, own, edge, q, parts,
            )  # fmt: skip
        if need_dx:
            pd = ceil_div(D, panel)
            f, e = share(pd, q, parts), share(pd, q + 1, parts)
            barrier()
            pack(W, D, columns_x, D, shift, P, depth(P, columns_x), panel, f, e)
            multiply(dG, ldg, tokens, P, columns_x, dx, D, D, panel, tall, f, e, 0, edge, own)
        restore(registers)

    return backward
