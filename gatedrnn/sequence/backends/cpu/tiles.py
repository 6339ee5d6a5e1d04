"""The innermost product, as LLVM IR: a tile of C held in registers, C[mr, NR] (+)= A[mr, K] · P[K, NR].

P is one packed panel: K rows of NR consecutive reals, 64-byte aligned. A is read at (row stride, 1), or from a strip: K rows of
MR consecutive reals (the transposed product's form). Exactly mr × K reals of A, K × NR of P and mr × NR of C are touched.
Two loads of P and one broadcast of A feed 2 fused multiply-adds an element; a tile fills the register file.
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from gatedrnn.sequence.backends.cpu.target import Target

_I1, _I8, _I32, _I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_ANY, _VOID = ir.PointerType(), ir.VoidType()
_AHEAD = 16  # rows of P fetched before use
_UNROLL = 4


@dataclass(frozen=True)
class _Shape:
    """Of one tile: `rows` rows; `strided`: A's rows lie apart, else it is a strip."""

    rows: int
    target: Target
    double: bool
    strided: bool

    @property
    def size(self) -> int:
        """Bytes of a real."""
        return 8 if self.double else 4

    @property
    def width(self) -> int:
        """Reals in a vector."""
        return self.target.lanes // (2 if self.double else 1)

    @property
    def panel(self) -> int:
        """NR."""
        return self.width * self.target.vectors


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
    b = ir.IRBuilder(function.append_basic_block())

    def at(pointer: Any, offset: Any) -> Any:
        return b.gep(pointer, [offset], source_etype=real)

    shape = _Shape(rows, target, double, strided)
    totals = (_sums_x86 if target.assembly else _sums)(b, shape, V, A, lda, P, K)
    with b.if_else(b.icmp_signed("!=", add, _I64(0))) as (more, first):
        for branch, accumulate in ((more, True), (first, False)):
            with branch:
                for i in range(rows):
                    for v in range(vectors):
                        place = at(C, b.add(b.mul(ldc, _I64(i)), _I64(v * width)))
                        value = totals[i * vectors + v]
                        if accumulate:
                            value = b.fadd(b.load(place, typ=V, align=4), value)
                        b.store(value, place, align=4)
    b.ret_void()
    return function


def _sums(b: Any, shape: _Shape, V: Any, A: Any, lda: list[Any], P: Any, K: Any) -> list[Any]:
    """The tile's sums, by row and vector, as plain IR."""
    rows, vectors, real = shape.rows, shape.target.vectors, V.element
    suffix = f"v{V.count}f{8 * shape.size}"
    fma = b.module.globals.get(f"llvm.fmuladd.{suffix}") or ir.Function(
        b.module, ir.FunctionType(V, [V, V, V]), f"llvm.fmuladd.{suffix}"
    )

    def at(pointer: Any, offset: Any) -> Any:
        return b.gep(pointer, [offset], source_etype=real)

    entry, body, done = b.block, b.append_basic_block("body"), b.append_basic_block("done")
    starts = [at(A, b.mul(lda[0], _I64(i))) for i in range(rows)] if shape.strided else []
    b.branch(body)
    b.position_at_end(body)
    k = b.phi(_I64)
    k.add_incoming(_I64(0), entry)
    sums = [b.phi(V) for _ in range(rows * vectors)]
    for value in sums:
        value.add_incoming(ir.Constant(V, [0.0] * V.count), entry)
    here = at(P, b.mul(k, _I64(shape.panel)))
    p = [b.load(at(here, _I64(v * V.count)), typ=V, align=V.count * shape.size) for v in range(vectors)]
    mask, undefined = ir.Constant(ir.VectorType(_I32, V.count), [0] * V.count), ir.Constant(V, ir.Undefined)
    new = []
    for i in range(rows):
        place = at(starts[i], k) if shape.strided else at(A, b.add(b.mul(k, _I64(shape.target.rows)), _I64(i)))
        a = b.shuffle_vector(b.insert_element(undefined, b.load(place, typ=real), _I32(0)), undefined, mask)
        new += [b.call(fma, [a, p[v], sums[i * vectors + v]]) for v in range(vectors)]
    for value, after in zip(sums, new, strict=True):
        value.add_incoming(after, body)
    after = b.add(k, _I64(1))
    k.add_incoming(after, body)
    b.cbranch(b.icmp_signed("<", after, K), body, done)
    b.position_at_end(done)
    return new


def _sums_x86(b: Any, shape: _Shape, V: Any, A: Any, lda: list[Any], P: Any, K: Any) -> list[Any]:
    """The same with the loop in assembly: LLVM would hoist the loads of an unrolled loop and spill sums.

    Three rows share a base register (base, base + stride, base + 2·stride), so that few instructions are not products.
    """
    count = shape.rows * shape.target.vectors
    bases = -(-shape.rows // 3) if shape.strided else 1
    # operands: sums, vectors of P, one of A, then base registers, P, K (all changed), then the stride
    names = iter(f"${n}" for n in range(count + shape.target.vectors + bases + 6))
    sums = [next(names) for _ in range(count)]
    p = [next(names) for _ in range(shape.target.vectors)]
    spread = next(names)
    base = [next(names) for _ in range(bases)]
    panel, left, turns = next(names), next(names), next(names)
    inputs = bases + 2
    stride = f"${count + shape.target.vectors + 1 + bases + 3 + inputs}"
    kind = "d" if shape.double else "s"
    strip = shape.size * shape.target.rows
    step = shape.size if shape.strided else strip

    def turn(u: int) -> list[str]:
        row_bytes = shape.panel * shape.size
        lines = [f"vmovap{kind} {u * row_bytes + v * V.count * shape.size}({panel}), {p[v]}" for v in range(len(p))]
        ahead = range(0, row_bytes, 64)
        lines += [f"prefetcht0 {(u + _AHEAD) * row_bytes + byte}({panel})" for byte in ahead]
        for i in range(shape.rows):
            if shape.strided:
                inner = ("", f",{stride}", f",{stride},2")[i % 3]
                place = f"{u * step}({base[i // 3]}{inner})"
            else:
                place = f"{u * step + i * shape.size}({base[0]})"
            lines.append(f"vbroadcasts{kind} {place}, {spread}")
            lines += [f"vfmadd231p{kind} {spread}, {p[v]}, {sums[i * len(p) + v]}" for v in range(len(p))]
        return lines

    def forward(turns: int) -> list[str]:
        row_bytes = shape.panel * shape.size
        return [*(f"addq $${turns * step}, {r}" for r in base), f"addq $${turns * row_bytes}, {panel}"]

    zero = [f"vxorp{kind} {s}, {s}, {s}" for s in sums]
    text = [*zero, f"movq {left}, {turns}", f"shrq $$2, {turns}", "jz 2f", "1:"]
    text += [line for u in range(_UNROLL) for line in turn(u)] + forward(_UNROLL)
    text += [f"decq {turns}", "jnz 1b", "2:", f"andq $$3, {left}", "jz 4f", "3:", *turn(0), *forward(1)]
    text += [f"decq {left}", "jnz 3b", "4:"]
    moved = [f"={letter}" for letter in ["&r"] * (bases + 3)]
    first_tied = count + len(p) + 1
    tied = [str(first_tied + n) for n in range(inputs)]
    constraints = ["=&v"] * (count + len(p) + 1) + moved + tied + (["r"] if shape.strided else [])
    constraints += ["~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"]
    starts = [b.gep(A, [b.mul(lda[0], _I64(3 * n))], source_etype=V.element) for n in range(bases)] if lda else [A]
    given = [*(b.ptrtoint(s, _I64) for s in starts), b.ptrtoint(P, _I64), K]
    if shape.strided:
        given.append(b.mul(lda[0], _I64(shape.size)))
    result = ir.LiteralStructType([V] * (count + len(p) + 1) + [_I64] * (bases + 3))
    assembly = ir.InlineAsm(
        ir.FunctionType(result, [g.type for g in given]), "\n".join(text), ",".join(constraints), side_effect=True
    )
    value = b.call(assembly, given)
    return [b.extract_value(value, n) for n in range(count)]


