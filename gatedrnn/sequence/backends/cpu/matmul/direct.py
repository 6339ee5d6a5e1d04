"""Products of a few rows with a weight as it lies: nothing is packed, so that a call reads every weight once and keeps nothing.

The weight is of the type of the rows, or of bfloat16, which is widened as it is read.

A sum runs over K in one order, whatever the number of rows and the thread: a row's result does not depend on its company.
Dimensions: M rows, N columns (rows of the weight), K inner; ld… the distance between rows.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from gatedrnn.sequence.backends.cpu.matmul.panels import ceil_div, share
from gatedrnn.sequence.backends.cpu.vector.lanewise import fused
from gatedrnn.sequence.backends.cpu.vector.simd import I32, I64, declare, intrinsic, loaded, njit, overload

_COLUMNS = 12  # at once: as many streams of memory as one row needs to read fast
_HALF = _COLUMNS // 2  # for two rows: sums that fit 16 registers; for four: 32
_FETCHING = 8  # rows from which on the next columns are fetched meanwhile; fewer would only wait for memory


@njit
def multiply_direct(A, M, weight, C, back, work):
    """C[m, n] += scale[n] · Σ_k A[m, k] W[n + shift, k], the threads sharing the columns.

    A, C: `Matrix`; weight: `Plain`; back: from its last columns to its first.
    """
    K, N, shift, scaled = weight.K, weight.N, weight.shift, weight.scaled
    groups = ceil_div(N, _COLUMNS)
    first, last = share(groups, work.q, work.parts), share(groups, work.q + 1, work.parts)
    for i in range(last - first if M else 0):
        n0 = (last - 1 - i if back else first + i) * _COLUMNS
        n1 = min(N, n0 + _COLUMNS)
        row = n0 + shift if n0 + shift < N else n0 + shift - N
        if n1 - n0 == _COLUMNS and row + _COLUMNS <= N:
            w = weight.at + row * K
            _columns(A.at, A.ld, M, w, K, weight.scale + n0, scaled, C.at + n0, C.ld, back)
        else:
            for n in range(n0, n1):
                row = n + shift if n + shift < N else n + shift - N
                w, m, scale = weight.at + row * K, M - M % 6, weight.scale + n
                for r in range(0, m, 6):
                    _six_by_one(A.at + r * A.ld, A.ld, w, K, scale, scaled, C.at + (r * C.ld + n), C.ld)
                for r in range(m, M):
                    _one_by_one(A.at + r * A.ld, A.ld, w, K, scale, scaled, C.at + (r * C.ld + n), C.ld)


@njit
def _columns(A, lda, M, w, K, scale, scaled, C, ldc, back):
    """The product for `_COLUMNS` columns; of many rows, it also fetches the columns that come next."""
    tall = _tall(A)
    blocks = M // tall
    after = w + (-_COLUMNS if back else _COLUMNS) * K
    part, rate = ceil_div(_HALF * K, max(1, blocks)), (_HALF << 16) // max(1, blocks)
    for j in range(0, _COLUMNS if M > 1 else 0, _HALF):
        for i in range(blocks):
            a, c, ahead = A + tall * i * lda, C + (tall * i * ldc + j), (after if j else w + _HALF * K) + i * part
            if M < _FETCHING:
                _high(a, lda, w + j * K, K, scale + j, scaled, c, ldc)
            else:
                _high_ahead(a, lda, w + j * K, K, scale + j, scaled, c, ldc, ahead, rate)
        if M % tall > 1:
            r = tall * blocks
            _two_by_six(A + r * lda, lda, w + j * K, K, scale + j, scaled, C + (r * ldc + j), ldc)
    if M % 2:
        _one_by_twelve(A + (M - 1) * lda, lda, w, K, scale, scaled, C + (M - 1) * ldc, ldc)


def _block(rows: int, columns: int, fetching: bool = False) -> Any:
    """The product of so many rows of A and of the weight, held in registers.

    Args: fetching: it takes two arguments more, `ahead` and `rate`: for k reals of a row, the k · rate / 2¹⁶ reals at `ahead` are
        fetched, a line a step: all at once they would keep the rows of A waiting.
    """

    def lowering(sig: Any) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, lda, w, K, scale, scaled, c, ldc, *further = args
            fe_type, of_weight = sig.args[0], sig.args[2]
            zero = ir.Constant(context.get_value_type(fe_type.vec), None)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(columns)] for _ in range(rows)]

            def row(start: Any, distance: Any, i: int) -> Any:
                return builder.gep(start, [builder.mul(distance, I64(i))])

            def step(k: Any, n: Any) -> None:
                if fetching:
                    ahead, rate = further
                    far = builder.gep(ahead, [builder.ashr(builder.mul(k, rate), I64(16))])
                    fetch = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [far.type, I32, I32, I32])
                    builder.call(fetch, [far, I32(0), I32(3), I32(1)])
                left = [loaded(context, builder, fe_type, builder.gep(row(a, lda, i), [k]), n) for i in range(rows)]
                for j in range(columns):
                    right = loaded(context, builder, of_weight, builder.gep(row(w, K, j), [k]), n)
                    for x, sums_of_row in zip(left, sums, strict=True):
                        builder.store(fused(builder, x, right, builder.load(sums_of_row[j])), sums_of_row[j])

            rest = builder.srem(K, I64(fe_type.lanes))
            whole = builder.sub(K, rest)
            with cgutils.for_range_slice(builder, I64(0), whole, I64(fe_type.lanes), I64) as (k, _):
                step(k, I64(fe_type.lanes))
            with builder.if_then(builder.icmp_signed(">", rest, I64(0))):
                step(whole, rest)
            totals = [_totals(builder, [builder.load(x) for x in sums_of_row]) for sums_of_row in sums]
            with builder.if_else(builder.icmp_signed("!=", scaled, I64(0))) as (factors, none):
                for branch, factor in ((factors, scale), (none, None)):
                    with branch:
                        for i in range(rows):
                            _add(builder, row(c, ldc, i), factor, totals[i])
            return context.get_dummy_value()

        return sig, lower

    i = types.intp

    def block(tyctx: Any, a: Any, lda: Any, w: Any, K: Any, scale: Any, scaled: Any, c: Any, ldc: Any) -> Any:
        return lowering(types.void(a, i, w, i, scale, i, c, i))

    def block_ahead(
        tyctx: Any, a: Any, lda: Any, w: Any, K: Any, scale: Any, scaled: Any, c: Any, ldc: Any, ahead: Any, rate: Any
    ) -> Any:
        return lowering(types.void(a, i, w, i, scale, i, c, i, ahead, i))

    return intrinsic(block_ahead if fetching else block)


def _totals(builder: Any, vectors: list[Any]) -> list[Any]:
    """The sum of each vector's lanes: its halves are added, then the halves of that, …; short ones share a vector."""
    count, width = vectors[0].type.count, vectors[0].type.count
    places = [[n] for n in range(len(vectors))]  # whose parts a vector holds, `width` lanes of each
    while width > 1:
        pairs = [(n, min(n + 1, len(vectors) - 1)) for n in range(0, len(vectors), 2)]
        starts = [s + part for s in range(0, count, width) for part in (0, count)]
        low = [s + n for s in starts for n in range(width // 2)]
        high = [n + width // 2 for n in low]
        halves = [[_shuffled(builder, vectors[x], vectors[y], mask) for mask in (low, high)] for x, y in pairs]
        vectors = [builder.fadd(*both) for both in halves]
        places = [[n for both in zip(places[x], places[y], strict=True) for n in both] for x, y in pairs]
        width //= 2
    orders = [[place.index(n) for n in sorted(set(place))] for place in places]
    return [_shuffled(builder, v, v, order) for v, order in zip(vectors, orders, strict=True)]


def _shuffled(builder: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
    return builder.shuffle_vector(x, y, mask)


def _add(builder: Any, c: Any, scale: Any, totals: list[Any]) -> None:
    """Add totals, times `scale` if there is one, to a row of C."""
    at = 0
    for vector in totals:
        start = 0
        while start < vector.type.count:  # in powers of two: masked stores are slow
            n = 1 << (vector.type.count - start).bit_length() - 1
            x = _shuffled(builder, vector, vector, list(range(start, start + n)))
            here, factor = (p and builder.bitcast(builder.gep(p, [I64(at)]), x.type.as_pointer()) for p in (c, scale))
            if factor:
                x = builder.fmul(x, builder.load(factor, align=4))
            builder.store(builder.fadd(builder.load(here, align=4), x), here, align=4)
            start, at = start + n, at + n


def _registers(A: Any) -> int:
    """How many a CPU with vectors of this type has: twice as many where they have 64 bytes."""
    return 32 if A.lanes * A.real.bitwidth == 512 else 16


def _tall(A: Any) -> Any:
    """Rows of A that a block takes: 4 or 2."""


def _high(a: Any, lda: Any, w: Any, K: Any, scale: Any, scaled: Any, c: Any, ldc: Any) -> Any:
    """The block of so many rows and of six columns."""


def _high_ahead(
    a: Any, lda: Any, w: Any, K: Any, scale: Any, scaled: Any, c: Any, ldc: Any, ahead: Any, rate: Any
) -> Any:
    """The same, which also fetches."""


@overload(_tall)
def _tall_of(A):
    rows = 4 if _registers(A) == 32 else 2
    return lambda A: rows


@overload(_high)
def _high_of(a, lda, w, K, scale, scaled, c, ldc):
    block = _four_by_six if _registers(a) == 32 else _two_by_six
    return lambda a, lda, w, K, scale, scaled, c, ldc: block(a, lda, w, K, scale, scaled, c, ldc)


@overload(_high_ahead)
def _high_ahead_of(a, lda, w, K, scale, scaled, c, ldc, ahead, rate):
    block = _four_ahead if _registers(a) == 32 else _two_ahead
    return lambda a, lda, w, K, scale, scaled, c, ldc, ahead, rate: block(
        a, lda, w, K, scale, scaled, c, ldc, ahead, rate
    )


_two_by_six, _one_by_twelve, _four_by_six = _block(2, _HALF), _block(1, _COLUMNS), _block(4, _HALF)
_two_ahead, _four_ahead = _block(2, _HALF, True), _block(4, _HALF, True)
_six_by_one, _one_by_one = _block(6, 1), _block(1, 1)
