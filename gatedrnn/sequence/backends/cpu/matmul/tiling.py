"""What a product needs beside vectors: tiles of sums, blocks, cache lines, matrix registers, and the team of threads."""

from typing import Any

from llvmlite import ir
from numba.core import types

from gatedrnn.sequence.backends.cpu.compile.records import Work
from gatedrnn.sequence.backends.cpu.matmul.sizes import REGISTERS
from gatedrnn.sequence.backends.cpu.vector.simd import I32, I64, declare, intrinsic, njit


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
def tile(
    tyctx: Any, rows: Any, a: Any, stride: Any, p: Any, k: Any, c: Any, c_stride: Any, add: Any, after: Any, step: Any
) -> Any:
    """See vector/tiles.py: C[rows, NR] (+)= A[rows, K] · P[K, NR]."""
    i = types.intp
    return types.void(i, a, i, p, i, c, i, i, p, i), _external("tile")


@intrinsic
def strip(tyctx: Any, rows: Any, s: Any, p: Any, k: Any, c: Any, c_stride: Any, add: Any, after: Any, step: Any) -> Any:
    """See vector/tiles.py: the same with A as a strip."""
    i = types.intp
    return types.void(i, s, p, i, c, i, i, p, i), _external("strip")


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


@njit
def begin(scratch):
    """What this thread has of `scratch` (a record `Scratch`), the layout of its matrix registers kept."""
    q = thread() + 0  # as wide as any other whole number
    registers = scratch.scratch + q * scratch.scratch_size
    keep(registers)
    edge = registers + REGISTERS
    left = scratch.left + q * scratch.left_size
    return Work(scratch.panel, scratch.tall, edge, left, edge + scratch.tall * scratch.panel, q, threads() + 0)


@njit
def finish(work):
    """Bring back the layout of matrix registers that `begin` kept."""
    restore(work.edge + -REGISTERS)
