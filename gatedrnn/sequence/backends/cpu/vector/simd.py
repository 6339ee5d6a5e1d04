"""Two Numba types that kernels are written in: `Ptr`, an address of reals, and `Vec`, as many reals as a register holds.

Both carry the real type and the number of lanes, so that a kernel is one plain function for every precision and vector width:
`store(p + j, load(q + j, n) * 2, n)`. Nothing is bounds-checked; `n` lanes, 1 … lanes, are read or written, never more.
"""

import functools
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numba
from llvmlite import ir
from numba import extending
from numba.core import cgutils, config, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.typing import templates
from numba.core.typing.templates import AbstractTemplate, signature
from numba.extending import models, register_model

intrinsic: Any = extending.intrinsic  # what it makes is called with other arguments than Python sees
lower_builtin: Any = extending.lower_builtin
infer_global: Any = templates.infer_global
I32, I64 = ir.IntType(32), ir.IntType(64)
_CONTRACT = ("contract",)
_FOUND_NOWHERE = (
    "DumpParforDiagnostics",
    "FindLiterallyCalls",
    "InlineClosureLikes",
    "InlineInlinables",
    "InlineOverloads",
    "IRLegalization",
    "LiteralPropagationSubPipelinePass",
    "LiteralUnroll",
    "MakeFunctionToJitFunction",
    "NopythonRewrites",
    "RewriteDynamicRaises",
    "WithLifting",
)


class Pipeline(CompilerBase):
    """Numba's passes without those for what kernels do not have: closures, arrays, exceptions, `with`. The code is the same."""

    def define_pipelines(self) -> list[Any]:
        """The passes, in order."""
        manager: Any = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [each for each in manager.passes if each[0].__name__ not in _FOUND_NOWHERE]
        return [manager]


_PART: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": Pipeline}
overload: Any = functools.partial(extending.overload, strict=False, jit_options=_PART)


@contextmanager
def compiling() -> Iterator[None]:
    """Numba compiles, also where NUMBA_DISABLE_JIT is set, for a person's own functions. For a thread that holds Numba's lock."""
    settings: Any = config
    disabled, settings.DISABLE_JIT = settings.DISABLE_JIT, 0
    try:
        yield
    finally:
        settings.DISABLE_JIT = disabled


def njit(function: Any = None, **options: Any) -> Any:
    """A function that only compiled ones call. Args: options: of `numba.njit`."""
    if function is None:
        return functools.partial(njit, **options)
    with compiling():
        return numba.njit(**_PART, **options)(function)


class Ptr(types.Type):
    """The address of reals, read `lanes` at a time; of bfloat16, each in a uint16, read as float32; of pairs of them, each in a
    uint32; int64; or bytes (`convert`)."""

    def __init__(self, real: types.Number, lanes: int) -> None:
        self.real, self.lanes = real, lanes
        super().__init__(name=f"Ptr({real} x {lanes})")

    @property
    def vec(self) -> "Vec":
        """What is loaded from it."""
        return Vec(types.float32 if self.real == types.uint16 else self.real, self.lanes)


class Vec(types.Type):
    """`lanes` reals, or pairs of bfloat16."""

    def __init__(self, real: types.Float, lanes: int) -> None:
        self.real, self.lanes = real, lanes
        super().__init__(name=f"Vec({real} x {lanes})")


def _real(fe_type: Any) -> ir.Type:
    if isinstance(fe_type.real, types.Integer):
        return ir.IntType(getattr(fe_type.real, "bitwidth"))  # noqa: B009 - numba gives it no type
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


def suffix(vector: ir.VectorType) -> str:
    """What LLVM's names of functions of such vectors end in."""
    if isinstance(vector.element, ir.IntType):
        return f"v{vector.count}i{vector.element.width}"
    return f"v{vector.count}f{64 if isinstance(vector.element, ir.DoubleType) else 32}"


def broadcast(builder: Any, scalar: Any, vector: ir.VectorType) -> Any:
    """A vector with the scalar in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    mask = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), mask)


# Arithmetic: Vec with Vec, or with a number.


class _Ours(AbstractTemplate):
    """What an operator means for our types. Named as the CPU's alone, it is asked before Numba's own, many and slow to fail."""

    metadata: ClassVar = {"target": "cpu"}


class _Arithmetic(_Ours):
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


def operand(context: Any, builder: Any, value: Any, fe_type: Any, vec: Vec) -> Any:
    """A vector as it is, a number in every lane."""
    if isinstance(fe_type, Vec):
        return value
    return broadcast(builder, context.cast(builder, value, fe_type, vec.real), context.get_value_type(vec))


def _lower(name: str) -> Any:
    def lowering(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, b = (operand(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True))
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
class _GetItem(_Ours):
    def generic(self, args: Any, kws: Any) -> Any:
        return signature(args[0].real, args[0], types.intp) if isinstance(args[0], Ptr) else None


@infer_global(operator.setitem)
class _SetItem(_Ours):
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


def first_lanes(builder: Any, count: Any, lanes: int) -> Any:
    """A mask of the first `count` lanes."""
    index = ir.VectorType(I32, lanes)
    n = broadcast(builder, builder.trunc(count, I32), index)
    return builder.icmp_signed("<", ir.Constant(index, list(range(lanes))), n)


def loaded(context: Any, builder: Any, fe_type: Any, p: Any, n: Any) -> Any:
    """What `load` returns, where another function is lowered."""
    narrow = fe_type.real == types.uint16
    vector = ir.VectorType(_real(fe_type), fe_type.lanes)
    out, align = cgutils.alloca_once(builder, vector), 2 if narrow else 4
    with builder.if_else(builder.icmp_signed("==", n, I64(fe_type.lanes))) as (whole, part):
        with whole:
            builder.store(builder.load(builder.bitcast(p, vector.as_pointer()), align=align), out)
        with part:
            mask = first_lanes(builder, n, fe_type.lanes)
            masked = declare(builder, f"llvm.masked.load.{suffix(vector)}.p0", vector, [p.type, I32, mask.type, vector])
            builder.store(builder.call(masked, [p, I32(align), mask, ir.Constant(vector, None)]), out)
    if not narrow:
        return builder.load(out)
    wide = ir.VectorType(I32, vector.count)
    bits = builder.shl(builder.zext(builder.load(out), wide), ir.Constant(wide, [16] * vector.count))
    return builder.bitcast(bits, context.get_value_type(fe_type.vec))


@intrinsic
def load(tyctx: Any, p: Any, n: Any) -> Any:
    """The first `n` reals at `p`, then zeros."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return loaded(context, builder, sig.args[0], *args)

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
                mask = first_lanes(builder, args[2], lanes)
                masked = declare(
                    builder,
                    f"llvm.masked.store.{suffix(vector)}.p0",
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
        return broadcast(builder, context.cast(builder, args[1], sig.args[1], sig.return_type.real), vector)

    return p.vec(p, x), lower


@intrinsic
def lanes(tyctx: Any, p: Any) -> Any:
    """How many reals a vector at `p` has: a constant."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return I64(sig.args[0].lanes)

    return types.intp(p), lower
