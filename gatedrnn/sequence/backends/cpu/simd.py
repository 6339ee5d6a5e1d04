"""Two Numba types that kernels are written in: `Ptr`, an address of reals, and `Vec`, as many reals as a register holds.

Both carry the real type and the number of lanes, so that a kernel is one plain function for every precision and vector width:
`store(p + j, load(q + j, n) * 2, n)`. Nothing is bounds-checked; `n` lanes, 1 … lanes, are read or written, never more.
"""

import operator
from typing import Any

from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numba.core.typing import templates
from numba.core.typing.templates import AbstractTemplate, signature
from numba.extending import models, register_model

intrinsic: Any = extending.intrinsic  # what it makes is called with other arguments than Python sees
lower_builtin: Any = extending.lower_builtin
infer_global: Any = templates.infer_global
I32, I64 = ir.IntType(32), ir.IntType(64)
_CONTRACT = ("contract",)


class Ptr(types.Type):
    """The address of reals, read `lanes` at a time; of pairs of bfloat16, each in a uint32; int64; or bytes (`widening`)."""

    def __init__(self, real: types.Number, lanes: int) -> None:
        self.real, self.lanes = real, lanes
        super().__init__(name=f"Ptr({real} x {lanes})")

    @property
    def vec(self) -> "Vec":
        """What is loaded from it."""
        return Vec(self.real, self.lanes)


class Vec(types.Type):
    """`lanes` reals, or pairs of bfloat16."""

    def __init__(self, real: types.Float, lanes: int) -> None:
        self.real, self.lanes = real, lanes
        super().__init__(name=f"Vec({real} x {lanes})")


def _real(fe_type: Any) -> ir.Type:
    if isinstance(fe_type.real, types.Integer):
        return {types.int64: I64, types.uint32: I32, types.uint8: ir.IntType(8)}[fe_type.real]
    return ir.DoubleType() if fe_type.real == types.float64 else ir.FloatType()


@register_model(Ptr)
class _PtrModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Ptr) -> None:
        super().__init__(manager, fe_type, _real(fe_type).as_pointer())


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Vec) -> None:
        super().__init__(manager, fe_type, ir.VectorType(_real(fe_type), fe_type.lanes))


def declare(builder: Any, name: str, result: ir.Type, arguments: list[ir.Type]) -> ir.Function:
    """The LLVM function `name`, declared once a module."""
    module = builder.module
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)


def _suffix(vector: ir.VectorType) -> str:
    if isinstance(vector.element, ir.IntType):
        return f"v{vector.count}i{vector.element.width}"
    return f"v{vector.count}f{64 if isinstance(vector.element, ir.DoubleType) else 32}"


def _splat(builder: Any, scalar: Any, vector: ir.VectorType) -> Any:
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    mask = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), mask)


# Arithmetic: Vec with Vec, or with a number.


class _Arithmetic(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], Vec):
            return signature(args[0], *args)
        if len(args) == 2 and any(isinstance(a, Vec) for a in args):
            vec = args[0] if isinstance(args[0], Vec) else args[1]
            if all(isinstance(a, types.Number) or a == vec for a in args):
                return signature(vec, *args)
        if len(args) == 2 and isinstance(args[0], Ptr) and isinstance(args[1], types.Integer):
            return signature(args[0], args[0], types.intp)
        return None


for _operator in (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg):
    infer_global(_operator)(type("_Arithmetic", (_Arithmetic,), {}))


def _operand(context: Any, builder: Any, value: Any, fe_type: Any, vec: Vec) -> Any:
    if isinstance(fe_type, Vec):
        return value
    return _splat(builder, context.cast(builder, value, fe_type, vec.real), context.get_value_type(vec))


def _lower(name: str) -> Any:
    def lowering(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, b = (_operand(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True))
        return getattr(builder, name)(a, b, flags=_CONTRACT)

    return lowering


for _operator, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    for _types in ((Vec, Vec), (Vec, types.Number), (types.Number, Vec)):
        lower_builtin(_operator, *_types)(_lower(_name))


@lower_builtin(operator.neg, Vec)
def _negate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fneg(args[0])


@lower_builtin(operator.add, Ptr, types.Integer)
def _advance(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.gep(args[0], [args[1]])


# Memory.


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        return signature(args[0].real, args[0], types.intp) if isinstance(args[0], Ptr) else None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Ptr):
            return signature(types.void, args[0], types.intp, args[0].real)
        return None


@lower_builtin(operator.getitem, Ptr, types.Integer)
def _get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.load(builder.gep(args[0], [args[1]]))


@lower_builtin(operator.setitem, Ptr, types.Integer, types.Float)
def _set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    builder.store(args[2], builder.gep(args[0], [args[1]]))
    return context.get_dummy_value()


def _first(builder: Any, count: Any, lanes: int) -> Any:
    """A mask of the first `count` lanes."""
    index = ir.VectorType(I32, lanes)
    n = _splat(builder, builder.trunc(count, I32), index)
    return builder.icmp_signed("<", ir.Constant(index, list(range(lanes))), n)


@intrinsic
def load(tyctx: Any, p: Any, n: Any) -> Any:
    """The first `n` reals at `p`, then zeros."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        fe_type = sig.args[0]
        vector = context.get_value_type(fe_type.vec)
        out = cgutils.alloca_once(builder, vector)
        with builder.if_else(builder.icmp_signed("==", args[1], I64(fe_type.lanes))) as (whole, part):
            with whole:
                builder.store(builder.load(builder.bitcast(args[0], vector.as_pointer()), align=4), out)
            with part:
                mask = _first(builder, args[1], fe_type.lanes)
                masked = declare(
                    builder, f"llvm.masked.load.{_suffix(vector)}.p0", vector, [args[0].type, I32, mask.type, vector]
                )
                zero = ir.Constant(vector, None)
                builder.store(builder.call(masked, [args[0], I32(4), mask, zero]), out)
        return builder.load(out)

    return p.vec(p, types.intp), lower


@intrinsic
def store(tyctx: Any, p: Any, x: Any, n: Any) -> Any:
    """The first `n` lanes of `x` to `p`."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes, vector = sig.args[0].lanes, args[1].type
        with builder.if_else(builder.icmp_signed("==", args[2], I64(lanes))) as (whole, part):
            with whole:
                builder.store(args[1], builder.bitcast(args[0], args[1].type.as_pointer()), align=4)
            with part:
                mask = _first(builder, args[2], lanes)
                masked = declare(
                    builder,
                    f"llvm.masked.store.{_suffix(vector)}.p0",
                    ir.VoidType(),
                    [vector, args[0].type, I32, mask.type],
                )
                builder.call(masked, [args[1], args[0], I32(4), mask])
        return context.get_dummy_value()

    return types.void(p, p.vec, types.intp), lower


@intrinsic
def splat(tyctx: Any, p: Any, x: Any) -> Any:
    """`x` in every lane of the vectors that `p` points to."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.return_type)
        return _splat(builder, context.cast(builder, args[1], sig.args[1], sig.return_type.real), vector)

    return p.vec(p, x), lower


@intrinsic
def lanes(tyctx: Any, p: Any) -> Any:
    """How many reals a vector at `p` has: a constant."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return I64(sig.args[0].lanes)

    return types.intp(p), lower


# Functions of lanes.


def _call(builder: Any, name: str, vector: ir.VectorType, args: list[Any]) -> Any:
    function = declare(builder, f"llvm.{name}.{_suffix(vector)}", vector, [vector] * len(args))
    return builder.call(function, args)


def _elementwise(name: str, arity: int, doc: str) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        operands = [_operand(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True)]
        return _call(builder, name, operands[0].type, operands)

    if arity == 1:

        def unary(tyctx: Any, x: Any) -> Any:
            return x(x), lower

        unary.__doc__ = doc
        return intrinsic(unary)

    def binary(tyctx: Any, x: Any, y: Any) -> Any:
        return x(x, y), lower

    binary.__doc__ = doc
    return intrinsic(binary)


floor = _elementwise("floor", 1, "⌊x⌋.")
exp64 = _elementwise("exp", 1, "eˣ by the C library.")
log64 = _elementwise("log", 1, "log x by the C library.")
tanh64 = _elementwise("tanh", 1, "tanh x by the C library.")


def _bound(comparison: str, doc: str) -> Any:
    def bound(tyctx: Any, x: Any, y: Any) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, b = (_operand(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True))
            return builder.select(builder.fcmp_ordered(comparison, a, b), b, a)

        return x(x, y), lower

    bound.__doc__ = doc
    return intrinsic(bound)


minimum = _bound(">", "min(x, y); a NaN x stays.")
maximum = _bound("<", "max(x, y); a NaN x stays.")


@intrinsic
def fma(tyctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once where the CPU can."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        operands = [_operand(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True)]
        return _call(builder, "fmuladd", operands[0].type, operands)

    return a(a, b, c), lower


@intrinsic
def power_of_two(tyctx: Any, n: Any) -> Any:
    """2ⁿ for whole `n` within the exponents of normal numbers."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        double = sig.return_type.real == types.float64
        bits, bias, shift = (I64, 1023, 52) if double else (I32, 127, 23)
        whole = ir.VectorType(bits, sig.return_type.lanes)
        exponent = builder.fptosi(args[0], whole)
        biased = builder.add(exponent, ir.Constant(whole, [bias] * whole.count))
        return builder.bitcast(builder.shl(biased, ir.Constant(whole, [shift] * whole.count)), args[0].type)

    return n(n), lower


@intrinsic
def choose_positive(tyctx: Any, x: Any, a: Any, b: Any) -> Any:
    """`a` where x > 0, else `b` (NaN gives `b`)."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, *rest = (_operand(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True))
        zero = ir.Constant(x.type, [0.0] * x.type.count)
        return builder.select(builder.fcmp_ordered(">", x, zero), *rest)

    return x(x, a, b), lower


def _floating(vector: ir.VectorType) -> tuple[ir.VectorType, int, int]:
    """Whole numbers as wide as the reals of `vector`, bits of its significand, and its exponent's bias."""
    double = isinstance(vector.element, ir.DoubleType)
    shift, bias = (52, 1022) if double else (23, 126)
    return ir.VectorType(I64 if double else I32, vector.count), shift, bias


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
            return [_splat(builder, builder.trunc(builder.lshr(value, I64(n)), I32), narrow) for n in (0, 32)]

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
            full = f"llvm.vector.reduce.{name}.{_suffix(vector)}"
            types_ = [vector] if start is None else [vector.element, vector]
            function = declare(builder, full, vector.element, types_)
            return builder.call(function, [*given, args[0]], fastmath=("reassoc",))

        return x.real(x), lower

    reduce.__doc__ = doc
    return intrinsic(reduce)


total = _reduction("fadd", 0.0, "The sum of all lanes.")
largest = _reduction("fmax", None, "The greatest lane.")


def _bfloat16(builder: Any, x: Any) -> Any:
    """The upper half of float32s, rounded to the nearest, ties to even; NaN stays NaN. As uint32."""
    whole = ir.VectorType(I32, x.type.count)

    def constant(n: int) -> Any:
        return ir.Constant(whole, [n] * whole.count)

    bits = builder.bitcast(x, whole)
    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    rounded = builder.lshr(builder.add(builder.add(bits, odd), constant(0x7FFF)), constant(16))
    return builder.select(builder.fcmp_unordered("uno", x, x), constant(0x7FC0), rounded)


def _pair(builder: Any, low: Any, high: Any) -> Any:
    whole = ir.VectorType(I32, low.type.count)
    shifted = builder.shl(_bfloat16(builder, high), ir.Constant(whole, [16] * whole.count))
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


def _fetch(write: int, doc: str) -> Any:
    def fetch(tyctx: Any, p: Any) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            function = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [args[0].type, I32, I32, I32])
            builder.call(function, [args[0], I32(write), I32(3), I32(1)])
            return context.get_dummy_value()

        return types.void(p), lower

    fetch.__doc__ = doc
    return intrinsic(fetch)


fetch_to_read = _fetch(0, "Bring the cache line of p near.")
fetch_to_write = _fetch(1, "Bring the cache line of p near, to be written.")


@intrinsic
def configure(tyctx: Any, rows: Any) -> Any:
    """Prepare for tiles of `rows` rows (matrix registers have a shape; others need nothing)."""
    return types.void(types.intp), _external("configure")


@intrinsic
def keep(tyctx: Any, p: Any) -> Any:
    """Keep the layout of matrix registers in 64 bytes at p, if there are any."""
    return types.void(p), _external("keep")


@intrinsic
def restore(tyctx: Any, p: Any) -> Any:
    """Bring back what `keep` kept."""
    return types.void(p), _external("restore")


# Blocks of reals, the tiles of a product, and the team of threads.


@intrinsic
def transpose(tyctx: Any, source: Any, stride: Any, target: Any, target_stride: Any) -> Any:
    """Write the lanes × lanes block at `source`, rows `stride` apart, transposed to `target`."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        width = sig.args[0].lanes
        vector = context.get_value_type(sig.args[0].vec)
        at = [builder.gep(args[0], [builder.mul(args[1], I64(i))]) for i in range(width)]
        rows = [builder.load(builder.bitcast(p, vector.as_pointer()), align=4) for p in at]
        step = 1
        while step < width:
            low = [j if not j & step else width + j - step for j in range(width)]
            high = [j + step if not j & step else width + j for j in range(width)]
            for i in range(width):
                if not i & step:
                    a, b = rows[i], rows[i + step]
                    rows[i], rows[i + step] = (
                        builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, width), m)) for m in (low, high)
                    )
            step *= 2
        for i, row in enumerate(rows):
            p = builder.gep(args[2], [builder.mul(args[3], I64(i))])
            builder.store(row, builder.bitcast(p, vector.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(source, types.intp, source, types.intp), lower


def _external(name: str) -> Any:
    """Lowering to a call of the linked function `name`."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        result = context.get_value_type(sig.return_type) if sig.return_type != types.void else ir.VoidType()
        value = builder.call(declare(builder, name, result, [a.type for a in args]), args)
        return context.get_dummy_value() if sig.return_type == types.void else value

    return lower


@intrinsic
def tile(tyctx: Any, rows: Any, a: Any, stride: Any, p: Any, k: Any, c: Any, c_stride: Any, add: Any) -> Any:
    """See `tiles`: C[rows, NR] (+)= A[rows, K] · P[K, NR]."""
    i = types.intp
    return types.void(i, a, i, p, i, c, i, i), _external("tile")


@intrinsic
def strip(tyctx: Any, rows: Any, s: Any, p: Any, k: Any, c: Any, c_stride: Any, add: Any) -> Any:
    """See `tiles`: the same with A as a strip."""
    i = types.intp
    return types.void(i, s, p, i, c, i, i), _external("strip")


@intrinsic
def barrier(tyctx: Any) -> Any:
    """Wait for every thread of the team; what they wrote is then seen."""
    return types.void(), _external("gatedrnn_barrier")


@intrinsic
def thread(tyctx: Any) -> Any:
    """This thread's number, from 0."""
    return types.int32(), _external("gatedrnn_thread")


@intrinsic
def threads(tyctx: Any) -> Any:
    """How many threads the team has."""
    return types.int32(), _external("gatedrnn_threads")
