"""A layer over time, forward and backward, as one function for every thread of a team; a cell brings only its `rows`.

Tokens are packed: step t has the rows offsets[t] … offsets[t + 1] − 1, longest sequence first, so that a step's live sequences
are the first ones of the batch. prev[n] is the token before token n in its sequence, or −1 − b where that is the initial state.
Threads share a product by panels of its right factor and the pointwise part by rows of the batch; barriers lie between.
All that a loop is called with, and its shapes: `records`.
Dimensions: T steps, B batch, N tokens, D input, H hidden; G columns of a row of gates (rows `ldg` apart).
"""

from typing import Any

from numba import types

from gatedrnn.sequence.backends.cpu.compile.records import Gradients, Matrix, Own, Panels, Past, Plain, Product, Work
from gatedrnn.sequence.backends.cpu.matmul.direct import multiply_direct
from gatedrnn.sequence.backends.cpu.matmul.multiply import multiply, multiply_transposed, pack_transposed
from gatedrnn.sequence.backends.cpu.matmul.panels import beyond, ceil_div, depth, pack, rows_at_once, share
from gatedrnn.sequence.backends.cpu.matmul.sizes import FOLDED, STRETCH, TOKENS
from gatedrnn.sequence.backends.cpu.matmul.tiling import barrier, begin, finish
from gatedrnn.sequence.backends.cpu.operators.drawing import draw_block
from gatedrnn.sequence.backends.cpu.recurrence.rows import backward_rows, forward_rows, row_of
from gatedrnn.sequence.backends.cpu.vector.convert import pairs
from gatedrnn.sequence.backends.cpu.vector.rowwise import clear, copy
from gatedrnn.sequence.backends.cpu.vector.simd import lanes, load, njit, overload, store


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


@njit
def _product(size, k):
    """Product k of those with U."""
    at = size.products + 6 * k
    return Product(at[0], at[1], at[2], at[3], at[4], at[5])


@njit
def _pack_forward(size, weights, work):
    """Panels of W and U, this thread's share, where they are not read as they lie."""
    q, parts, D, H, scale = work.q, work.parts, size.D, size.H, weights.scale
    px, P = ceil_div(size.columns_x, work.panel), weights.PU
    if not weights.direct_w:
        f, e = share(px, q, parts), share(px, q + 1, parts)
        pack_transposed(weights.W, D, D, size.columns_x, size.shift, scale, size.scaled, weights.PW, work.panel, f, e)
    for k in range(0 if weights.direct_u else size.count):
        p = _product(size, k)
        across = ceil_div(p.rows, work.panel)
        f, e, U = share(across, q, parts), share(across, q + 1, parts), weights.U + p.row * H
        pack_transposed(U, H, H, p.rows, 0, scale + p.column, size.scaled, P, work.panel, f, e)
        P = beyond(P, across, depth(P, H), work.panel)


@njit
def _added_before(size, weights, given, g, n):
    """Biases, and noise, in the gates of token n."""
    if weights.two_biases:
        apart = size.columns_x - size.shift
        copy(weights.bias + size.shift, g, apart)
        copy(weights.bias, g + apart, size.shift)
        clear(g + size.columns_x, size.columns - size.columns_x)
        _add(weights.bias_h, g + size.u_column, size.columns_x)
    else:
        copy(weights.bias, g, size.columns)
    if given.noisy:
        _add(given.noise + n * size.columns_x, g, size.columns_x)
    starts = given.starts
    for k in range(given.blocks):
        row, width = g + starts[2 * k], starts[2 * k + 1] - starts[2 * k]
        draw_block(n * given.blocks + k, row, width, given.seed, given.chance, 1)


@njit
def _inputs(size, tokens, weights, given, made, work):
    """W x + b and noise of all tokens."""
    q, parts, D, N = work.q, work.parts, size.D, tokens.offsets[size.T]
    most = max(rows_at_once(work.tall), STRETCH // size.ldg)
    across = ceil_div(size.columns_x, work.panel)
    first, last = share(across, q, parts), share(across, q + 1, parts)
    for m0 in range(0, N, most):
        m = min(most, N - m0)
        for n in range(m0 + share(m, q, parts), m0 + share(m, q + 1, parts)):
            _added_before(size, weights, given, made.G + n * size.ldg, n)
        barrier()
        x, g = Matrix(given.x + m0 * D, D), Matrix(made.G + m0 * size.ldg, size.ldg)
        if weights.direct_w:
            plain = Plain(weights.W, D, size.columns_x, size.shift, weights.scale, size.scaled)
            multiply_direct(x, m, plain, g, 0, work)
        else:
            multiply(x, m, Panels(weights.PW, D, size.columns_x), g, first, last, 1, work)
    barrier()


@njit
def _recurrent(left, m, p, size, weights, P, g, back, work):
    """Add product p, `Product`, of m rows at `left`, to m gates' rows at g; P: its panels; back: from the last ones."""
    H, G = size.H, Matrix(g + p.column, size.ldg)
    if weights.direct_u:  # there and back: what was used last is in cache
        plain = Plain(weights.U + p.row * H, H, p.rows, 0, weights.scale + p.column, size.scaled)
        multiply_direct(left, m, plain, G, back, work)
    else:
        across = ceil_div(p.rows, work.panel)
        f, e = share(across, work.q, work.parts), share(across, work.q + 1, work.parts)
        a, z = (e, f) if back else (f, e)
        multiply(left, m, Panels(P, H, p.rows), G, a, z, 1, work)


@njit
def _left(p, size, given, made, start, m, start_before, old):
    """Left factor of product p for m rows from token `start` on: of the first ones, how many, and of the rest, which begin."""
    H, kept, beside = size.H, size.cells * size.H, (p.left - 1) * size.H
    if p.level:
        left = Matrix(made.cs + (start * kept + beside), kept)
        return left, m, left
    if p.left:
        before = Matrix(made.cs + (start_before * kept + beside), kept)
        return before, old, Matrix(given.c0 + (old * kept + beside), kept)
    return Matrix(made.out + start_before * H, H), old, Matrix(given.h0 + old * H, H)


@njit
def _rest(rows, r):
    """Rows of a `Matrix`, from row r on."""
    return Matrix(rows.at + r * rows.ld, rows.ld)


@njit
def _team(size, work):
    """What a step's products are shared by: alone, where a thread keeps to its own rows."""
    q, parts = (0, 1) if size.by_rows else (work.q, work.parts)
    return Work(work.panel, work.tall, work.edge, work.left, work.row, q, parts)


@njit
def _meet(size):
    """Wait for the team, unless what other threads write is not read before the end."""
    if not size.by_rows:
        barrier()


def forward(size, tokens, scratch, weights, given, made):
    """The forward pass."""
    work = begin(scratch)
    T, H, kept, offsets = size.T, size.H, size.cells * size.H, tokens.offsets
    gates, own = Matrix(made.G, size.ldg), Own(weights.extra, work.row, size.K, size.C)
    hidden, beside = Past(made.out, H, given.h0, tokens.prev), Past(made.cs, kept, given.c0, tokens.prev)
    _pack_forward(size, weights, work)
    _inputs(size, tokens, weights, given, made, work)
    before, start_before = 0, 0  # rows of the step before
    team = _team(size, work)
    for s in range(T):
        t = T - 1 - s if size.reverse else s
        start, m = offsets[t], offsets[t + 1] - offsets[t]
        b0, b1 = share(m, work.q, work.parts), share(m, work.q + 1, work.parts)
        r0, r1 = (b0, b1) if size.by_rows else (0, m)  # rows whose products this thread has a share of
        g, k, P = made.G + start * size.ldg, 0, weights.PU
        for level in range(size.levels):
            while k < size.count and _product(size, k).level == level:
                p = _product(size, k)
                left, old, new = _left(p, size, given, made, start, m, start_before, min(before, m))
                r = max(old, r0)  # the first row that begins here
                here = max(0, min(old, r1) - r0)
                _recurrent(_rest(left, r0), here, p, size, weights, P, g + r0 * size.ldg, s % 2, team)
                _recurrent(_rest(new, r - old), r1 - r, p, size, weights, P, g + r * size.ldg, s % 2, team)
                _meet(size)  # the next product may add to the same columns, which threads share otherwise
                P = beyond(P, ceil_div(p.rows, work.panel), depth(P, H), work.panel)
                k += 1
            forward_rows(level, gates, hidden, beside, own, start + b0, start + b1)
            if k < size.count:
                _meet(size)
        after = 0 if size.reverse or t == T - 1 else offsets[t + 2] - offsets[t + 1]
        for b in range(b0, b1):
            if t == 0 if size.reverse else b >= after:
                copy(made.out + (start + b) * H, made.hn + b * H, H)
                if kept:
                    copy(made.cs + (start + b) * kept, made.cn + b * kept, kept)
        before, start_before = m, start
        _meet(size)
    finish(work)


def _pack_states(right: Any, K: Any, N: Any, P: Any, panel: Any, begin: Any, end: Any) -> None:
    """Panels begin … end − 1 of the [K, N] matrix of the states before K tokens, `right` a `Past`."""


@overload(_pack_states)
def _pack_states_impl(right, K, N, P, panel, begin, end):
    def reals(right, K, N, P, panel, begin, end):
        for k in range(K):
            pack(row_of(right, k), N, 1, N, 0, P + k * panel, K, panel, begin, end)

    def halves(right, K, N, P, panel, begin, end):
        W = lanes(right.at)
        rows = depth(P, K)
        for k in range(rows):
            low, high = row_of(right, min(2 * k, K - 1)), row_of(right, min(2 * k + 1, K - 1))
            for p in range(begin, end):
                for v in range(0, panel, W):
                    n = p * panel + v
                    width = max(0, min(W, N - n))
                    x, y = load(low + n, width if 2 * k < K else 0), load(high + n, width if 2 * k + 1 < K else 0)
                    store(P + ((p * rows + k) * panel + v), pairs(x, y), W)

    return reals if isinstance(P.real, types.Float) else halves


@njit
def weight_gradient(A, M, tokens, right, shifted, C, sums, packed, work):
    """C[M, D] = Aᵀ·B over tokens, sums[M] the sums of A's columns.

    A, C: `Matrix`, D is C's ld; right: B as `Past`, whose row is the state before the token where `shifted`; packed: room.
    """
    D, panel, tall = C.ld, work.panel, work.tall
    bands, panels, blocks = ceil_div(M, tall), ceil_div(D, panel), ceil_div(tokens, TOKENS)
    s0, s1 = share(bands, work.q, work.parts), share(bands, work.q + 1, work.parts)
    p0, p1 = share(panels, work.q, work.parts), share(panels, work.q + 1, work.parts)
    for m in range(s0 * tall, min(M, s1 * tall)):
        sums[m] = 0.0
    for block in range(blocks):
        k0, k1 = share(tokens, block, blocks), share(tokens, block + 1, blocks)
        k = k1 - k0
        barrier()
        if shifted:
            here = Past(right.at, right.ld, right.first, right.prev + k0)
            _pack_states(here, k, D, packed, panel, p0, p1)
        else:
            pack(right.at + k0 * right.ld, right.ld, k, D, 0, packed, depth(packed, k), panel, p0, p1)
        barrier()
        add, left = 1 if block else 0, Matrix(A.at + k0 * A.ld, A.ld)
        multiply_transposed(left, M, Panels(packed, k, D), C, s0, s1, add, sums, work)


@njit
def _pack_backward(size, kept, work):
    """Panels of U as it lies, which is the transposed of its products: this thread's share."""
    H, P, panel = size.H, kept.P, work.panel
    across = ceil_div(H, panel)
    f, e = share(across, work.q, work.parts), share(across, work.q + 1, work.parts)
    for k in range(size.count):
        p = _product(size, k)
        pack(kept.U + p.row * H, H, p.rows, H, 0, P, depth(P, p.rows), panel, f, e)
        P = beyond(P, across, depth(P, p.rows), panel)


@njit
def _through(p, P, size, made, start, r0, r1, back, work):
    """Put, or add, to the gradient of product p's left factor gates' rows r0 … r1 − 1 of a step · panels P of its rows of U."""
    H, beside = size.H, size.cells * size.H
    across = ceil_div(H, work.panel)
    f, e = share(across, work.q, work.parts), share(across, work.q + 1, work.parts)
    a, z = (e, f) if back else (f, e)
    left = Matrix(made.dc + (r0 * beside + (p.left - 1) * H), beside) if p.left else Matrix(made.dh + r0 * H, H)
    g = made.dG + ((start + r0) * size.ldg + p.column)
    multiply(Matrix(g, size.ldg), r1 - r0, Panels(P, p.rows, H), left, a, z, p.add, work)


@njit
def _scaled(level, size, kept, g, m):
    """Gradients of m gates' rows at g that are there from `level` on, times the scales of their columns."""
    for k in range(size.ranged if size.scaled else 0):
        at = size.ranges + 3 * k
        if at[0] == level:
            _scale_rows(g + at[1], kept.scale + at[1], m, at[2], size.ldg)


@njit
def _gradients(size, tokens, kept, made, work):
    """Gradients of U, W and x."""
    N, D, H, beside, ldg, prev = tokens.offsets[size.T], size.D, size.H, size.cells * size.H, size.ldg, tokens.prev
    for k in range(size.count if made.need_du else 0):
        p = _product(size, k)
        at = (p.left - 1) * H
        left = Past(kept.cs + at, beside, kept.c0 + at, prev) if p.left else Past(kept.out, H, kept.h0, prev)
        own, dU, shifted = Matrix(made.dG + p.column, ldg), Matrix(made.dU + p.row * H, H), p.level == 0
        weight_gradient(own, p.rows, N, left, shifted, dU, made.db_h + p.row, made.shared, work)
    if made.need_dw:
        x = Past(kept.x, D, kept.x, prev)
        weight_gradient(Matrix(made.dG, ldg), size.columns_x, N, x, 0, Matrix(made.dW, D), made.db_x, made.shared, work)
    if made.need_dx:
        across, P = ceil_div(D, work.panel), kept.P
        f, e = share(across, work.q, work.parts), share(across, work.q + 1, work.parts)
        barrier()
        pack(kept.W, D, size.columns_x, D, size.shift, P, depth(P, size.columns_x), work.panel, f, e)
        multiply(Matrix(made.dG, ldg), N, Panels(P, size.columns_x, D), Matrix(made.dx, D), f, e, 0, work)


def backward(size, tokens, scratch, kept, given, made):
    """The backward pass."""
    work = begin(scratch)
    T, H, offsets, cells = size.T, size.H, tokens.offsets, size.cells * size.H
    across = ceil_div(H, work.panel)
    gates, own = Matrix(kept.G, size.ldg), Own(kept.extra, work.row, size.K, size.C)
    hidden, beside = Past(kept.out, H, kept.h0, tokens.prev), Past(kept.cs, cells, kept.c0, tokens.prev)
    of_h, of_g = Matrix(given.grad_h, given.grad_h_stride), Matrix(given.grad_g, given.grad_g_stride)
    sums, width, since = made.d_extra + work.q * 2 * made.extra_size, made.extra_size, 0
    into = Gradients(of_h, of_g, made.dh, made.dc, made.dG, sums)
    _pack_backward(size, kept, work)
    team = _team(size, work)
    barrier()
    for s in range(T):
        t = s if size.reverse else T - 1 - s
        start, m = offsets[t], offsets[t + 1] - offsets[t]
        b0, b1 = share(m, work.q, work.parts), share(m, work.q + 1, work.parts)
        r0, r1 = (b0, b1) if size.by_rows else (0, m)
        for done in range(size.levels):
            level = size.levels - 1 - done
            for b in range(b0, b1, FOLDED):
                most = min(b1, b + FOLDED)
                backward_rows(level, gates, hidden, beside, into, own, start, b, most, done == 0)
                since += most - b
                if since >= FOLDED:  # a sum over all tokens one by one would lose digits
                    _add(sums, sums + width, width)
                    clear(sums, width)
                    since = 0
            _scaled(level, size, kept, made.dG + (start + b0) * size.ldg, b1 - b0)
            _meet(size)
            P = kept.P
            for k in range(size.count):
                p = _product(size, k)
                if p.level == level:
                    _through(p, P, size, made, start, r0, r1, s % 2, team)
                P = beyond(P, across, depth(P, p.rows), work.panel)
            _meet(size)
    _gradients(size, tokens, kept, made, work)
    finish(work)
