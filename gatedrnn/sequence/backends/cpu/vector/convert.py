"""Small forms of numbers and vectors of float32, one made of the other: bytes, bfloat16, nibbles, signs."""

from typing import Any

from llvmlite import ir
from numba.core import types

from gatedrnn.sequence.backends.cpu.vector.simd import I32, Ptr, Vec, broadcast, declare, intrinsic


def _pointer(to: Any) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(sig.return_type))

    return to, lower


@intrinsic
def as_reals(tyctx: Any, p: Any, like: Any) -> Any:
    """The address p, read as `like` is."""
    to, lower = _pointer(like)
    return to(p, like), lower


@intrinsic
def as_counts(tyctx: Any, p: Any) -> Any:
    """The address p, read as int64."""
    to, lower = _pointer(Ptr(types.int64, 1))
    return to(p), lower


@intrinsic
def as_pairs(tyctx: Any, p: Any) -> Any:
    """The address p, read as pairs of bfloat16."""
    to, lower = _pointer(Ptr(types.uint32, p.lanes))
    return to(p), lower


def _loaded(builder: Any, pointer: Any, width: int, lanes: int) -> Any:
    """`lanes` whole numbers of `width` bits from p."""
    vector = ir.VectorType(ir.IntType(width), lanes)
    return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)


def _splat(value: int, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(I32, lanes), [value] * lanes)


@intrinsic
def from_int8(tyctx: Any, p: Any, odd: Any, like: Any) -> Any:
    """The even (or odd) ones of twice as many signed bytes as there are lanes, at p, as reals."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.return_type)
        codes = builder.sext(_loaded(builder, args[0], 8, 2 * vector.count), _shorts(vector.count))
        return _half(builder, codes, args[1], vector)

    return like.vec(p, types.intp, like), lower


def _shorts(lanes: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(16), 2 * lanes)


def _half(builder: Any, codes: Any, odd: Any, vector: ir.VectorType) -> Any:
    """The even or odd ones of int16, as reals."""
    pairs = builder.bitcast(codes, ir.VectorType(I32, vector.count))
    sixteen = _splat(16, vector.count)
    even = builder.ashr(builder.shl(pairs, sixteen), sixteen)
    chosen = builder.icmp_signed("!=", odd, ir.Constant(odd.type, 0))
    return builder.sitofp(builder.select(chosen, builder.ashr(pairs, sixteen), even), vector)


@intrinsic
def store_int16(tyctx: Any, p: Any, x: Any) -> Any:
    """Reals, rounded, as int16 to p."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        count = args[1].type.count
        nearest = declare(builder, f"llvm.nearbyint.v{count}f32", args[1].type, [args[1].type])
        whole = builder.fptosi(builder.call(nearest, [args[1]]), ir.VectorType(I32, count))
        short = ir.VectorType(ir.IntType(16), count)
        builder.store(builder.trunc(whole, short), builder.bitcast(args[0], short.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(p, x), lower


@intrinsic
def no_counts(tyctx: Any, like: Any) -> Any:
    """Zeros, to be counted up by `add_dot`."""
    vec = Vec(types.uint32, like.lanes)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(vec), None)

    return vec(like), lower


@intrinsic
def add_dot(tyctx: Any, counts: Any, codes: Any, pair: Any) -> Any:
    """counts + in each lane the dot product of two signed bytes at `codes` with the two int16 at `pair`, in whole numbers."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = args[0].type.count
        return _add_dots(
            builder, args[0], builder.sext(_loaded(builder, args[1], 8, 2 * lanes), _shorts(lanes)), args[2]
        )

    return counts(counts, codes, pair), lower


_DOTS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}
"""By lanes; LLVM adds the sum to the same instruction where the CPU can."""


def _add_dots(builder: Any, counts: Any, codes: Any, pair: Any) -> Any:
    lanes = counts.type.count
    one = builder.load(builder.bitcast(pair, I32.as_pointer()), align=2)
    factors = builder.bitcast(broadcast(builder, one, ir.VectorType(I32, lanes)), _shorts(lanes))
    return builder.add(counts, _dots(builder, codes, factors, lanes))


def _dots(builder: Any, a: Any, b: Any, lanes: int) -> Any:
    """Sums of products of neighbouring int16."""
    whole = ir.VectorType(I32, lanes)
    if lanes in _DOTS:
        return builder.call(declare(builder, _DOTS[lanes], whole, [a.type, b.type]), [a, b])
    halves = []
    for start in (0, 1):
        index = ir.Constant(whole, list(range(start, 2 * lanes, 2)))
        halves.append(builder.mul(*(builder.sext(builder.shuffle_vector(v, v, index), whole) for v in (a, b))))
    return builder.add(*halves)


@intrinsic
def counted(tyctx: Any, counts: Any, like: Any) -> Any:
    """Whole numbers as reals."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sitofp(args[0], context.get_value_type(sig.return_type))

    return like.vec(counts, like), lower


@intrinsic
def from_bfloat16(tyctx: Any, p: Any, odd: Any, like: Any) -> Any:
    """The even (or odd) ones of twice as many bfloat16 as there are lanes, at p, as reals."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.return_type)
        pairs = _loaded(builder, args[0], 32, vector.count)
        even = builder.shl(pairs, _splat(16, vector.count))
        chosen = builder.icmp_signed("!=", args[1], ir.Constant(args[1].type, 0))
        return builder.bitcast(
            builder.select(chosen, builder.and_(pairs, _splat(0xFFFF0000, vector.count)), even), vector
        )

    return like.vec(p, types.intp, like), lower


def _nibbles(builder: Any, p: Any, shift: Any, lanes: int) -> Any:
    """Bits shift … shift + 3, less 8, of twice as many bytes at p as there are lanes, as int16."""
    short = _shorts(lanes)
    bytes_ = builder.zext(_loaded(builder, p, 8, 2 * lanes), short)
    moved = builder.lshr(bytes_, broadcast(builder, builder.trunc(shift, short.element), short))
    low = builder.and_(moved, ir.Constant(short, [15] * short.count))
    return builder.sub(low, ir.Constant(short, [8] * short.count))


@intrinsic
def from_nibbles(tyctx: Any, p: Any, shift: Any, odd: Any, like: Any) -> Any:
    """The even (or odd) ones of the nibbles, less 8, at bits shift … shift + 3 of bytes at p, as reals."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.return_type)
        return _half(builder, _nibbles(builder, args[0], args[1], vector.count), args[2], vector)

    return like.vec(p, types.intp, types.intp, like), lower


@intrinsic
def add_dot_nibbles(tyctx: Any, counts: Any, codes: Any, shift: Any, pair: Any) -> Any:
    """`add_dot` for nibbles, less 8, at bits shift … shift + 3 of the bytes at `codes`."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        codes = _nibbles(builder, args[1], args[2], args[0].type.count)
        return _add_dots(builder, args[0], codes, args[3])

    return counts(counts, codes, types.intp, pair), lower


@intrinsic
def from_signs(tyctx: Any, p: Any, first: Any, like: Any) -> Any:
    """1 where a bit at p is set, else −1; bits first … first + lanes − 1 of two vectors' worth."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.return_type)
        lanes = vector.count
        row = ir.IntType(2 * lanes)
        bits = builder.load(builder.bitcast(args[0], row.as_pointer()), align=1)
        moved = builder.lshr(bits, builder.trunc(args[1], row) if row.width < 64 else args[1])
        chosen = builder.bitcast(builder.trunc(moved, ir.IntType(lanes)), ir.VectorType(ir.IntType(1), lanes))
        one, less = (ir.Constant(vector, [value] * lanes) for value in (1.0, -1.0))
        return builder.select(chosen, one, less)

    return like.vec(p, types.intp, like), lower


def _bfloat16(builder: Any, x: Any) -> Any:
    """The upper half of float32s, rounded to the nearest, ties to even; NaN stays NaN. As uint32."""
    count = x.type.count
    bits = builder.bitcast(x, ir.VectorType(I32, count))
    odd = builder.and_(builder.lshr(bits, _splat(16, count)), _splat(1, count))
    rounded = builder.lshr(builder.add(builder.add(bits, odd), _splat(0x7FFF, count)), _splat(16, count))
    return builder.select(builder.fcmp_unordered("uno", x, x), _splat(0x7FC0, count), rounded)


@intrinsic
def beyond_bfloat16(tyctx: Any, x: Any) -> Any:
    """What is left of float32s after their bfloat16 is taken off."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = builder.shl(_bfloat16(builder, args[0]), _splat(16, args[0].type.count))
        return builder.fsub(args[0], builder.bitcast(first, args[0].type))

    return x(x), lower


def _pair(builder: Any, low: Any, high: Any) -> Any:
    shifted = builder.shl(_bfloat16(builder, high), _splat(16, low.type.count))
    return builder.or_(_bfloat16(builder, low), shifted)


@intrinsic
def pairs(tyctx: Any, low: Any, high: Any) -> Any:
    """Pairs of bfloat16: lane n from lane n of both."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _pair(builder, *args)

    return Vec(types.uint32, low.lanes)(low, high), lower


@intrinsic
def adjacent(tyctx: Any, first: Any, second: Any) -> Any:
    """Pairs of bfloat16 of neighbours: lane n from reals 2n and 2n + 1 of both, one after the other."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        index = ir.VectorType(I32, sig.args[0].lanes)
        low, high = (
            builder.shuffle_vector(*args, ir.Constant(index, list(range(start, 2 * index.count, 2))))
            for start in (0, 1)
        )
        return _pair(builder, low, high)

    return Vec(types.uint32, first.lanes)(first, second), lower
