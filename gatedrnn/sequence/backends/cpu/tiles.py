"""The innermost product, as LLVM IR: a tile of C held in registers, C[mr, NR] (+)= A[mr, K] · P[K, NR].

P is one packed panel: K rows of NR consecutive reals, 64-byte aligned. A is read at (row stride, 1), or from a strip: K rows of
MR consecutive reals (the transposed product's form). Exactly mr × K reals of A, K × NR of P and mr × NR of C are touched.
Two loads of P and one broadcast of A feed 2 fused multiply-adds an element; a tile fills the register file.
"""

from typing import Any

from llvmlite import ir

from gatedrnn.sequence.backends.cpu.target import Target

_I1, _I8, _I32, _I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_ANY, _VOID = ir.PointerType(), ir.VoidType()
_AHEAD = 16  # rows of P fetched before use


def tile_module(target: Target, double: bool) -> str:
    """IR of `tile(mr, A, row stride, P, K, C, row stride, add)` and `strip(mr, S, P, K, C, row stride, add)`."""
    module = ir.Module("tiles")
    for name, first in (("tile", True), ("strip", False)):
        tiles = [_tile(module, name, rows, target, double) for rows in range(1, target.rows + 1)]
        _switch(module, name, tiles)
    return str(module)


def _switch(module: Any, name: str, tiles: list[Any]) -> None:
    arguments = tiles[0].function_type.args
    function = ir.Function(module, ir.FunctionType(_VOID, [_I64, *arguments]), name)
    builder = ir.IRBuilder(function.append_basic_block())
    other = function.append_basic_block()
    choice = builder.switch(function.args[0], other)
    for rows, tile in enumerate(tiles, 1):
        block = function.append_basic_block()
        choice.add_case(_I64(rows), block)
        builder.position_at_end(block)
        builder.call(tile, function.args[1:], tail=True)
        builder.ret_void()
    builder.position_at_end(other)
    builder.ret_void()


def _tile(module: Any, name: str, rows: int, target: Target, double: bool) -> Any:
    real = ir.DoubleType() if double else ir.FloatType()
    width = target.lanes // 2 if double else target.lanes
    V, vectors = ir.VectorType(real, width), target.vectors
    panel = width * vectors
    strided = name == "tile"
    # A, [row stride,] P, K, C, row stride of C, add
    arguments = [_ANY, *([_I64] if strided else []), _ANY, _I64, _ANY, _I64, _I64]
    function = ir.Function(module, ir.FunctionType(_VOID, arguments), f"{name}_{rows}")
    function.linkage = "internal"
    A, *lda, P, K, C, ldc, add = function.args
    suffix = f"v{width}f{64 if double else 32}"
    fma = module.globals.get(f"llvm.fmuladd.{suffix}") or ir.Function(
        module, ir.FunctionType(V, [V, V, V]), f"llvm.fmuladd.{suffix}"
    )
    prefetch = module.globals.get("llvm.prefetch.p0") or ir.Function(
        module, ir.FunctionType(_VOID, [_ANY, _I32, _I32, _I32]), "llvm.prefetch.p0"
    )
    entry, body, done = (function.append_basic_block(label) for label in ("entry", "body", "done"))
    b = ir.IRBuilder(entry)

    def at(pointer: Any, offset: Any) -> Any:
        return b.gep(pointer, [offset], source_etype=real)

    starts = [at(A, b.mul(lda[0], _I64(i))) for i in range(rows)] if strided else []
    b.branch(body)
    b.position_at_end(body)
    k = b.phi(_I64)
    k.add_incoming(_I64(0), entry)
    sums = [[b.phi(V) for _ in range(vectors)] for _ in range(rows)]
    zero = ir.Constant(V, [0.0] * width)
    for row in sums:
        for value in row:
            value.add_incoming(zero, entry)
    here = at(P, b.mul(k, _I64(panel)))
    p = []
    for v in range(vectors):
        place = at(here, _I64(v * width))
        p.append(b.load(place, typ=V, align=min(64, width * (8 if double else 4))))
        if (v * width * (8 if double else 4)) % 64 == 0:
            b.call(prefetch, [at(place, _I64(_AHEAD * panel)), _I32(0), _I32(3), _I32(1)])
    mask = ir.Constant(ir.VectorType(_I32, width), [0] * width)
    undefined = ir.Constant(V, ir.Undefined)
    for i in range(rows):
        place = at(starts[i], k) if strided else at(A, b.add(b.mul(k, _I64(target.rows)), _I64(i)))
        a = b.load(place, typ=real)
        spread = b.shuffle_vector(b.insert_element(undefined, a, _I32(0)), undefined, mask)
        for v in range(vectors):
            sums[i][v].add_incoming(b.call(fma, [spread, p[v], sums[i][v]]), body)
    after = b.add(k, _I64(1))
    k.add_incoming(after, body)
    b.cbranch(b.icmp_signed("<", after, K), body, done)
    b.position_at_end(done)
    # the value of each sum after the loop is its last incoming one
    totals = [[value.incomings[1][0] for value in row] for row in sums]
    with b.if_else(b.icmp_signed("!=", add, _I64(0))) as (more, first):
        for branch, accumulate in ((more, True), (first, False)):
            with branch:
                for i in range(rows):
                    for v in range(vectors):
                        place = at(C, b.add(b.mul(ldc, _I64(i)), _I64(v * width)))
                        value = totals[i][v]
                        if accumulate:
                            value = b.fadd(b.load(place, typ=V, align=4), value)
                        b.store(value, place, align=4)
    b.ret_void()
    return function
