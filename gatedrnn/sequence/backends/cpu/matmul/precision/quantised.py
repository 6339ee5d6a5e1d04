"""Products with weights in small forms, for one thread of a team: a block is widened into cache, then multiplied as float32.

A weight is a table of pieces (`pieces` makes it and describes it): some rows of one panel, in one form. So one product may mix
forms, a panel whose columns are of two forms has two pieces, and low rank is a first product whose result is the left factor of
the second. What comes out is what the dense matrix gives, but for signs of zero, and for NaN where an infinite input meets the
zeros of a panel of two gates; a single row of A meets bytes and nibbles in whole numbers, as int16 with one scale, because
widening would take longer than reading.
Dimensions: M rows, N columns, K inner; ld… the distance between rows.
"""

from typing import Any, NamedTuple

from gatedrnn.sequence.backends.cpu.compile.records import Matrix, Panels
from gatedrnn.sequence.backends.cpu.matmul.panels import ceil_div, copy_edge, share, tiles
from gatedrnn.sequence.backends.cpu.matmul.pieces import BFLOAT16, BINARY, FACTOR, FLOAT32, INT4, INT8, PIECE
from gatedrnn.sequence.backends.cpu.matmul.sizes import K_BLOCK, M_BLOCK
from gatedrnn.sequence.backends.cpu.matmul.tiling import (
    barrier,
    configure,
    fetch_to_read,
    thread,
    threads,
    tile,
)
from gatedrnn.sequence.backends.cpu.vector.convert import (
    add_dot,
    add_dot_nibbles,
    as_counts,
    as_reals,
    counted,
    from_bfloat16,
    from_int8,
    from_nibbles,
    from_signs,
    no_counts,
    store_int16,
)
from gatedrnn.sequence.backends.cpu.vector.lanewise import fma, largest, maximum, total
from gatedrnn.sequence.backends.cpu.vector.simd import lanes, load, njit, splat, store

_AHEAD = 4096  # bytes fetched before their use


class Room(NamedTuple):
    """Of a thread: for a widened block, and for a row of A in int16."""

    block: Any
    whole: Any


@njit
def multiply_pieces(A, M, right, C, first, last, add, work):
    """`multiply` of multiply.py for a table of pieces at `right.at`, called by every thread of a team alike."""
    P, panel = right.at, work.panel
    table = as_counts(P)
    at, starts, pieces, factors = table + table[1], table + table[2], table + table[3], table + table[4]
    ldt, across, own = table[5], table[7], table[8]
    room = Room(as_reals(work.left, A.at), work.left + 4 * K_BLOCK * panel)
    T = Matrix(
        as_reals(work.left + ((1 - thread()) * own - 4 * M_BLOCK * ldt), A.at), ldt
    )  # the first thread's, for all
    f, e = at[first], at[last]
    for m in range(0, M, M_BLOCK):
        rows, unit = min(M_BLOCK, M - m), 0.0
        a = Matrix(A.at + m * A.ld, A.ld)
        if ldt:
            barrier()
            _first_products(a, rows, P, factors, across, T, work)
            barrier()
        for i in range(abs(e - f)):
            p = f + i if f < e else f - 1 - i
            more = add
            for k in range(starts[p], starts[p + 1]):
                piece, c = pieces + PIECE * k, Matrix(C.at + (m * C.ld + p * panel), C.ld)
                if piece[3] >= 0:
                    t = Matrix(T.at + (factors + FACTOR * piece[3])[2], ldt)
                    _one(t, rows, P, piece, c, right.N - p * panel, more, room, unit, work)
                else:
                    if rows == 1 and piece[0] in (INT8, INT4) and unit == 0.0:
                        unit = _in_whole_numbers(a.at, piece[4], room.whole)
                    _one(a, rows, P, piece, c, right.N - p * panel, more, room, unit, work)
                more = 1


@njit
def _first_products(A, M, P, factors, across, T, work):
    """T = A · Rᵀ for every low-rank factor R; this thread's share of their `across` panels."""
    q, parts = thread(), threads()
    first, last = share(across, q, parts), share(across, q + 1, parts)
    before, n = 0, 0
    while before < across:
        factor = factors + FACTOR * n
        panels = ceil_div(factor[1], work.panel)
        f, e = max(first - before, 0), min(last - before, panels)
        if f < e:
            right = Panels(as_reals(P + factor[0], A.at), factor[3], factor[1])
            tiles(A, M, right, 1, Matrix(T.at + factor[2], T.ld), f, e, 0, work)
        before += panels
        n += 1


@njit
def _one(A, M, P, piece, C, N, add, room, unit, work):
    """C[M, min(N, NR)] (+)= A · one piece, in blocks of its rows."""
    panel, edge = work.panel, work.edge
    kind, data, scale, K = piece[0], P + piece[1], as_reals(P + piece[2], A.at), piece[4]
    whole_panel = panel <= N
    if M == 1 and kind != FLOAT32 and whole_panel:
        _one_row(kind, A.at, data, K, scale, C.at, add, panel, room.whole, unit)
        return
    blocks, tiles = ceil_div(K, K_BLOCK), ceil_div(M, work.tall)
    for b in range(blocks):
        k0, k1 = share(K, b, blocks), share(K, b + 1, blocks)
        wide = room.block
        if kind == FLOAT32:
            wide = as_reals(data, A.at) + k0 * panel
        else:
            _widen(kind, data, k0, k1, scale, room.block, panel)
        more = 1 if add or b else 0
        for t in range(tiles):
            r0, r1 = share(M, t, tiles), share(M, t + 1, tiles)
            configure(r1 - r0)
            a, c = A.at + (r0 * A.ld + k0), C.at + r0 * C.ld
            if whole_panel:
                tile(r1 - r0, a, A.ld, wide, k1 - k0, c, C.ld, more, wide, 0)
            else:
                tile(r1 - r0, a, A.ld, wide, k1 - k0, edge, panel, 0, wide, 0)
                copy_edge(edge, c, C.ld, r1 - r0, N, panel, more)


@njit
def _one_row(kind, A, data, K, scale, C, add, panel, whole, unit):
    """C[NR] (+)= A[K] · one piece: for a single row, numbers are used as they are widened.

    whole: A in int16, `unit` apart: bytes and nibbles are multiplied in whole numbers.
    """
    W = lanes(C)
    if kind in (INT8, INT4):
        x0, x1 = _whole_sums(data, K, panel, whole, C) if kind == INT8 else _nibble_sums(data, K, panel, whole, C)
        x0, x1 = x0 * unit, x1 * unit
    elif kind == BFLOAT16:
        x0, x1 = _bfloat16_sums(A, data, K, panel, C)
    else:
        x0, x1 = splat(C, 0.0), splat(C, 0.0)
        for k in range(K):
            a, bits = splat(C, A[k]), data + k * (panel // 8)
            x0, x1 = fma(a, from_signs(bits, 0, C), x0), fma(a, from_signs(bits, W, C), x1)
    x0, x1 = x0 * load(scale, W), x1 * load(scale + W, W)
    if add:
        x0, x1 = x0 + load(C, W), x1 + load(C + W, W)
    store(C, x0, W)
    store(C + W, x1, W)


@njit
def _bfloat16_sums(A, data, K, panel, C):
    W, row = lanes(C), 4 * panel
    x0, x1 = splat(C, 0.0), splat(C, 0.0)
    y0, y1, z0, z1, u0, u1 = x0, x1, x0, x1, x0, x1
    for k in range(0, K - 3, 4):
        a, b, c, d, p = splat(C, A[k]), splat(C, A[k + 1]), splat(C, A[k + 2]), splat(C, A[k + 3]), data + k // 2 * row
        for n in range(0, 2 * row, 64):
            fetch_to_read(p + (_AHEAD + n))
        q, r, s = p + 4 * W, p + row, p + (row + 4 * W)
        x0, x1 = fma(a, from_bfloat16(p, 0, C), x0), fma(a, from_bfloat16(q, 0, C), x1)
        y0, y1 = fma(b, from_bfloat16(p, 1, C), y0), fma(b, from_bfloat16(q, 1, C), y1)
        z0, z1 = fma(c, from_bfloat16(r, 0, C), z0), fma(c, from_bfloat16(s, 0, C), z1)
        u0, u1 = fma(d, from_bfloat16(r, 1, C), u0), fma(d, from_bfloat16(s, 1, C), u1)
    for k in range(K - K % 4, K):
        a, p = splat(C, A[k]), data + k // 2 * row
        x0, x1 = fma(a, from_bfloat16(p, k % 2, C), x0), fma(a, from_bfloat16(p + 4 * W, k % 2, C), x1)
    return (x0 + y0) + (z0 + u0), (x1 + y1) + (z1 + u1)


@njit
def _whole_sums(data, K, panel, whole, C):
    """Sums of bytes times int16, exact within K_BLOCK rows: 256 · 127 · 32767 < 2³¹."""
    row, half = 2 * panel, panel
    s0, s1 = splat(C, 0.0), splat(C, 0.0)
    for start in range(0, K, K_BLOCK):
        end = min(K, start + K_BLOCK)
        x0, x1 = no_counts(C), no_counts(C)
        y0, y1, z0, z1, u0, u1 = x0, x1, x0, x1, x0, x1
        pairs = (end - start + 1) // 2
        for k in range(start // 2, start // 2 + pairs - 3, 4):
            p, a = data + k * row, whole + 4 * k
            for n in range(0, 4 * row, 64):
                fetch_to_read(p + (_AHEAD + n))
            x0, x1 = add_dot(x0, p, a), add_dot(x1, p + half, a)
            y0, y1 = add_dot(y0, p + row, a + 4), add_dot(y1, p + (row + half), a + 4)
            z0, z1 = add_dot(z0, p + 2 * row, a + 8), add_dot(z1, p + (2 * row + half), a + 8)
            u0, u1 = add_dot(u0, p + 3 * row, a + 12), add_dot(u1, p + (3 * row + half), a + 12)
        for k in range(start // 2 + pairs - pairs % 4, start // 2 + pairs):
            p, a = data + k * row, whole + 4 * k
            x0, x1 = add_dot(x0, p, a), add_dot(x1, p + half, a)
        s0 = s0 + ((counted(x0, C) + counted(y0, C)) + (counted(z0, C) + counted(u0, C)))
        s1 = s1 + ((counted(x1, C) + counted(y1, C)) + (counted(z1, C) + counted(u1, C)))
    return s0, s1


@njit
def _nibble_sums(data, K, panel, whole, C):
    """The same for nibbles: a panel's first vector in the lower ones, its second in the upper ones."""
    s0, s1 = splat(C, 0.0), splat(C, 0.0)
    for start in range(0, K, K_BLOCK):
        x0, x1 = no_counts(C), no_counts(C)
        y0, y1 = x0, x1
        pairs = (min(K, start + K_BLOCK) - start + 1) // 2
        for k in range(start // 2, start // 2 + pairs - 1, 2):
            p, a = data + k * panel, whole + 4 * k
            fetch_to_read(p + _AHEAD)
            x0, x1 = add_dot_nibbles(x0, p, 0, a), add_dot_nibbles(x1, p, 4, a)
            y0, y1 = add_dot_nibbles(y0, p + panel, 0, a + 4), add_dot_nibbles(y1, p + panel, 4, a + 4)
        if pairs % 2:
            k = start // 2 + pairs - 1
            p, a = data + k * panel, whole + 4 * k
            x0, x1 = add_dot_nibbles(x0, p, 0, a), add_dot_nibbles(x1, p, 4, a)
        s0, s1 = s0 + (counted(x0, C) + counted(y0, C)), s1 + (counted(x1, C) + counted(y1, C))
    return s0, s1


@njit
def _in_whole_numbers(A, K, whole):
    """A[K] as int16 at `whole`, in pairs, and what one of them is worth: NaN where A is not finite."""
    W = lanes(A)
    top, odd = splat(A, 0.0), splat(A, 0.0)
    for k in range(0, K, W):
        x = load(A + k, min(W, K - k))
        top, odd = maximum(top, maximum(x, -x)), odd + (x - x)
    most = largest(top)
    by = splat(A, 32767.0 / most if most > 0.0 else 0.0)
    for k in range(0, K + 1, W):
        store_int16(whole + 2 * k, load(A + k, max(0, min(W, K - k))) * by)
    return most / 32767.0 + total(odd)


@njit
def _widen(kind, data, k0, k1, scale, block, panel):
    """Rows k0 … k1 − 1 of a piece as float32."""
    W = lanes(block)
    s0, s1 = load(scale, W), load(scale + W, W)  # a panel is two vectors
    if kind == INT8:  # two rows lie side by side, of bfloat16 and nibbles too
        for k in range(k0, k1):
            to, codes, odd = block + (k - k0) * panel, data + (k // 2) * (2 * panel), k % 2
            store(to, from_int8(codes, odd, block) * s0, W)
            store(to + W, from_int8(codes + panel, odd, block) * s1, W)
    elif kind == BFLOAT16:
        for k in range(k0, k1):
            to, halves, odd = block + (k - k0) * panel, data + (k // 2) * (4 * panel), k % 2
            store(to, from_bfloat16(halves, odd, block) * s0, W)
            store(to + W, from_bfloat16(halves + 4 * W, odd, block) * s1, W)
    elif kind == INT4:
        for k in range(k0, k1):
            to, codes, odd = block + (k - k0) * panel, data + (k // 2) * panel, k % 2
            store(to, from_nibbles(codes, 0, odd, block) * s0, W)
            store(to + W, from_nibbles(codes, 4, odd, block) * s1, W)
    elif kind == BINARY:
        for k in range(k0, k1):
            to, bits = block + (k - k0) * panel, data + k * (panel // 8)
            store(to, from_signs(bits, 0, block) * s0, W)
            store(to + W, from_signs(bits, W, block) * s1, W)
