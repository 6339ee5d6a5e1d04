"""Functions of every lane of a vector, reductions over its lanes, and uniform random lanes."""

from typing import Any

from llvmlite import ir
from numba.core import types

from gatedrnn.sequence.backends.cpu.vector.simd import (
    I32,
    I64,
    Vec,
    broadcast,
    declare,
    first_lanes,
    intrinsic,
    operand,
    suffix,
)


def _call(builder: Any, name: str, vector: ir.VectorType, args: list[Any]) -> Any:
    function = declare(builder, f"llvm.{name}.{suffix(vector)}", vector, [vector] * len(args))
    return builder.call(function, args)


def _unary(name: str, doc: str) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _call(builder, name, args[0].type, args)

    def unary(tyctx: Any, x: Any) -> Any:
        return x(x), lower

    unary.__doc__ = doc
    return intrinsic(unary)


floor = _unary("floor", "⌊x⌋.")
sqrt = _unary("sqrt", "√x.")
absolute = _unary("fabs", "|x|.")
exp64 = _unary("exp", "eˣ by the C library.")
log64 = _unary("log", "log x by the C library.")
tanh64 = _unary("tanh", "tanh x by the C library.")


def _bound(comparison: str, doc: str) -> Any:
    def bound(tyctx: Any, x: Any, y: Any) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, b = (operand(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True))
            return builder.select(builder.fcmp_ordered(comparison, a, b), b, a)

        return (x if isinstance(x, Vec) else y)(x, y), lower

    bound.__doc__ = doc
    return intrinsic(bound)


minimum = _bound(">", "min(x, y); a NaN x stays.")
maximum = _bound("<", "max(x, y); a NaN x stays.")


def _comparison(operator: str, doc: str) -> Any:
    def compare(tyctx: Any, x: Any, y: Any) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, b = (operand(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True))
            one, zero = (ir.Constant(a.type, [number] * a.type.count) for number in (1.0, 0.0))
            return builder.select(builder.fcmp_ordered(operator, a, b), one, zero)

        vec = x if isinstance(x, Vec) else y
        return vec(x, y), lower

    compare.__doc__ = doc
    return intrinsic(compare)


greater = _comparison(">", "1 where x > y, else 0.")
at_least = _comparison(">=", "1 where x ≥ y, else 0.")
equal = _comparison("==", "1 where x = y, else 0; NaN equals nothing.")


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """What `fma` returns, where another function is lowered."""
    return _call(builder, "fmuladd", c.type, [a, b, c])


@intrinsic
def fma(tyctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once where the CPU can."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        operands = [operand(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True)]
        return fused(builder, *operands)

    return a(a, b, c), lower


def _floating(vector: ir.VectorType) -> tuple[ir.VectorType, int, int]:
    """Whole numbers as wide as the reals of `vector`, bits of its significand, and its exponent's bias less 1."""
    double = isinstance(vector.element, ir.DoubleType)
    shift, bias = (52, 1022) if double else (23, 126)
    return ir.VectorType(I64 if double else I32, vector.count), shift, bias


@intrinsic
def power_of_two(tyctx: Any, n: Any) -> Any:
    """2ⁿ for whole `n` within the exponents of normal numbers."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole, shift, bias = _floating(args[0].type)
        biased = builder.add(builder.fptosi(args[0], whole), ir.Constant(whole, [bias + 1] * whole.count))
        return builder.bitcast(builder.shl(biased, ir.Constant(whole, [shift] * whole.count)), args[0].type)

    return n(n), lower


def _choice(compare: str, operator: str, doc: str) -> Any:
    def choose(tyctx: Any, x: Any, a: Any, b: Any) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            x, *rest = (operand(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True))
            zero = ir.Constant(x.type, [0.0] * x.type.count)
            return builder.select(getattr(builder, compare)(operator, x, zero), *rest)

        return x(x, a, b), lower

    choose.__doc__ = doc
    return intrinsic(choose)


choose_positive = _choice("fcmp_ordered", ">", "`a` where x > 0, else `b` (NaN gives `b`).")
choose_nonzero = _choice("fcmp_unordered", "!=", "`a` where x is not 0 (NaN is not), else `b`.")


@intrinsic
def first(tyctx: Any, x: Any, n: Any, other: Any) -> Any:
    """The first `n` lanes of x, `other` in the rest."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        rest = operand(context, builder, args[2], sig.args[2], sig.return_type)
        return builder.select(first_lanes(builder, args[1], args[0].type.count), args[0], rest)

    return x(x, types.intp, other), lower


@intrinsic
def exponent(tyctx: Any, x: Any) -> Any:
    """e of x = m·2ᵉ with ½ ≤ m < 1, for normal x > 0."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole, shift, bias = _floating(args[0].type)
        bits = builder.lshr(builder.bitcast(args[0], whole), ir.Constant(whole, [shift] * whole.count))
        return builder.sitofp(builder.sub(bits, ir.Constant(whole, [bias] * whole.count)), args[0].type)

    return x(x), lower


@intrinsic
def significand(tyctx: Any, x: Any) -> Any:
    """m of x = m·2ᵉ with ½ ≤ m < 1, for normal x > 0."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole, shift, bias = _floating(args[0].type)
        low = ir.Constant(whole, [(1 << shift) - 1] * whole.count)
        half = ir.Constant(whole, [bias << shift] * whole.count)
        return builder.bitcast(builder.or_(builder.and_(builder.bitcast(args[0], whole), low), half), args[0].type)

    return x(x), lower


@intrinsic
def philox(tyctx: Any, p: Any, key: Any, row: Any, first: Any) -> Any:
    """Four vectors of uniform reals in (0, 1): Philox-4x32-7 (Salmon et al. 2011) of counters (first + lane, row)."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.args[0].vec)
        narrow, wide = ir.VectorType(I32, vector.count), ir.VectorType(I64, vector.count)

        def halves(value: Any) -> list[Any]:
            return [broadcast(builder, builder.trunc(builder.lshr(value, I64(n)), I32), narrow) for n in (0, 32)]

        def times(a: Any, factor: int) -> tuple[Any, Any]:
            product = builder.mul(builder.zext(a, wide), ir.Constant(wide, [factor] * wide.count))
            high = builder.lshr(product, ir.Constant(wide, [32] * wide.count))
            return builder.trunc(high, narrow), builder.trunc(product, narrow)

        k0, k1 = halves(args[1])
        c2, c3 = halves(args[2])
        lane = ir.Constant(narrow, list(range(narrow.count)))
        c0, c1 = builder.add(halves(args[3])[0], lane), ir.Constant(narrow, [0] * narrow.count)
        for _ in range(7):
            high0, low0 = times(c0, 0xD2511F53)
            high1, low1 = times(c2, 0xCD9E8D57)
            c0, c1 = builder.xor(builder.xor(high1, c1), k0), low1
            c2, c3 = builder.xor(builder.xor(high0, c3), k1), low0
            k0 = builder.add(k0, ir.Constant(narrow, [0x9E3779B9] * narrow.count))
            k1 = builder.add(k1, ir.Constant(narrow, [0xBB67AE85] * narrow.count))
        half, scale = ir.Constant(vector, [0.5] * vector.count), ir.Constant(vector, [2.0**-23] * vector.count)
        found = []
        for word in (c0, c1, c2, c3):
            bits = builder.lshr(word, ir.Constant(narrow, [9] * narrow.count))  # 23: x + ½ is exact in float32
            found.append(builder.fmul(builder.fadd(builder.sitofp(bits, vector), half), scale))
        return context.make_tuple(builder, sig.return_type, found)

    return types.UniTuple(p.vec, 4)(p, types.intp, types.intp, types.intp), lower


def _reduction(name: str, start: float | None, doc: str) -> Any:
    def reduce(tyctx: Any, x: Any) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            vector = args[0].type
            given = [] if start is None else [ir.Constant(vector.element, start)]
            full = f"llvm.vector.reduce.{name}.{suffix(vector)}"
            types_ = [vector] if start is None else [vector.element, vector]
            function = declare(builder, full, vector.element, types_)
            return builder.call(function, [*given, args[0]], fastmath=("reassoc",))

        return x.real(x), lower

    reduce.__doc__ = doc
    return intrinsic(reduce)


total = _reduction("fadd", 0.0, "The sum of all lanes.")
largest = _reduction("fmax", None, "The greatest lane.")
