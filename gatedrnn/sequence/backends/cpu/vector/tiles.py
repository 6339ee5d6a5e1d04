"""The innermost product, as LLVM IR: a tile of C held in registers, C[mr, NR] (+)= A[mr, K] · P[K, NR].

P is one packed panel: K rows of NR consecutive elements, 64-byte aligned. A is read at (row stride, 1), or from a strip: K rows
of MR consecutive reals (the transposed product's form). Exactly mr × K elements of A, K × NR of P and mr × NR of C are touched.
Meanwhile P is fetched some rows ahead; or, with `target.looks_ahead` and a `step`, the lines of C, and for every row of P `step`
elements at `next`: what the next tiles read.
An element is a real, or (`bf16`) a pair of bfloat16 whose two products are summed in float32: by matrix registers (AMX), by
AVX-512's dot product of pairs, or widened; `split`, on matrix registers alone, reads 16 first parts, then 16 second parts, and
sums three of their four products. On x86 the loops are assembly: LLVM would hoist an unrolled loop's loads, and spill.
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from gatedrnn.sequence.backends.cpu.runtime.target import Target
from gatedrnn.sequence.backends.cpu.vector.simd import declare, suffix

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_ANY, _VOID = ir.PointerType(), ir.VoidType()
_AHEAD = 192  # rows of P fetched before use, divided by the tile's: few rows wait for memory, many for arithmetic
_UNROLL = 4


@dataclass(frozen=True)
class _Shape:
    """Of one tile: `rows` rows; `strided`: A's rows lie apart, else it is a strip; `kind`: f32, f64 or bf16."""

    rows: int
    target: Target
    kind: str
    strided: bool

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 8 if self.kind == "f64" else 4

    @property
    def vector(self) -> Any:
        """A vector of sums."""
        real = ir.DoubleType() if self.kind == "f64" else ir.FloatType()
        return ir.VectorType(real, 4 * self.target.lanes // self.size)

    @property
    def panel(self) -> int:
        """NR."""
        return self.vector.count * self.target.vectors

    @property
    def ahead(self) -> int:
        """Rows of P that are fetched before their use."""
        return min(96, max(16, _AHEAD // self.rows))


def tile_module(target: Target, kind: str) -> str:
    """IR of `tile(mr, A, row stride, P, K, C, row stride, add, next, step)`, of `strip` (no stride of A), and of the rest."""
    module = ir.Module("tiles")
    if kind == "split" or (kind == "bf16" and target.half == "amx"):
        _matrix_tiles(module, target, kind == "split")
        return str(module)
    _configure(module, None)
    _registers(module, "", "")
    for name in ("tile", "strip") if kind != "bf16" else ("tile",):
        tiles = [_tile(module, name, rows, target, kind) for rows in range(1, target.rows + 1)]
        _switch(module, name, tiles)
    return str(module)


def _configure(module: Any, fill: Any) -> None:
    """`configure(mr)`: with `fill`, which gives the rows of the eight matrix registers, else empty."""
    function = ir.Function(module, ir.FunctionType(_VOID, [_I64]), "configure")
    b = ir.IRBuilder(function.append_basic_block())
    if fill:
        layout = b.alloca(ir.ArrayType(_I8, 64))
        b.store(ir.Constant(ir.ArrayType(_I8, 64), None), layout)

        def put(byte: int, value: Any) -> None:
            b.store(value, b.gep(layout, [_I64(0), _I64(byte)]))

        put(0, _I8(1))  # palette
        for register, rows in enumerate(fill(b, function.args[0])):
            put(16 + 2 * register, _I8(64))  # bytes of a row
            put(48 + register, b.trunc(rows, _I8))
        load = ir.FunctionType(_VOID, [_I64])
        b.call(ir.InlineAsm(load, "ldtilecfg ($0)", "r,~{memory}", side_effect=True), [b.ptrtoint(layout, _I64)])
    b.ret_void()


def _registers(module: Any, keep: str, restore: str) -> None:
    """`keep(buffer)` and `restore(buffer)`: the layout of matrix registers that other libraries may count on, 64 bytes."""
    for name, text in (("keep", keep), ("restore", restore)):
        function = ir.Function(module, ir.FunctionType(_VOID, [_ANY]), name)
        b = ir.IRBuilder(function.append_basic_block())
        if text:
            kind = ir.FunctionType(_VOID, [_I64])
            address = b.ptrtoint(function.args[0], _I64)
            b.call(ir.InlineAsm(kind, text, "r,~{memory}", side_effect=True), [address])
        b.ret_void()


def _matrix_tiles(module: Any, target: Target, split: bool) -> None:
    """AMX: rows 0 … 15 of A and C in one register, the others in a second, 16 columns a register: two or four sums."""

    def rows(b: Any, count: Any) -> list[Any]:
        sixteen = _I64(16)
        low = b.select(b.icmp_signed("<", count, sixteen), count, sixteen)
        high = b.sub(count, low)
        high = b.select(b.icmp_signed(">", high, _I64(0)), high, _I64(1))
        return [low, low, high, high, low, high, sixteen, sixteen]

    _configure(module, rows)
    _registers(module, "sttilecfg ($0)", "ldtilecfg ($0)")
    arguments = [_I64, _ANY, _I64, _ANY, _I64, _ANY, _I64, _I64, _ANY, _I64]
    function = ir.Function(module, ir.FunctionType(_VOID, arguments), "tile")
    count, A, lda, P, K, C, ldc, add, _, _ = function.args
    b = ir.IRBuilder(function.append_basic_block())
    with b.if_else(b.icmp_signed(">", count, _I64(16))) as (two, one):
        for branch, halves in ((two, 2), (one, 1)):
            with branch:
                second = b.mul(_I64(64), lda)  # 16 rows of 4 bytes on
                given = [b.ptrtoint(A, _I64), b.add(b.ptrtoint(A, _I64), second), b.mul(lda, _I64(4))]
                given += [b.ptrtoint(P, _I64), b.lshr(K, _I64(5 if split else 4)), b.ptrtoint(C, _I64)]
                given += [b.add(b.ptrtoint(C, _I64), b.mul(_I64(64), ldc)), b.mul(ldc, _I64(4)), add]
                _matrix_loop(b, halves, given, 4 * target.panel, split)
    b.ret_void()


def _matrix_loop(b: Any, halves: int, given: list[Any], row_bytes: int, split: bool) -> None:
    """Sums in tmm0 … tmm3, A in tmm4 and tmm5, P in tmm6 and tmm7; 16 pairs a turn, or 16 of both parts."""
    moved = ["$0", "$1", "$2", "$3"]  # A, A of the second rows, P, turns
    A, A2, P, turns = moved
    row, a_stride, C, C2, c_stride, add = (f"${n}" for n in range(8, 14))
    sums = [(0, C, 0), (1, C, 64)] + ([(2, C2, 0), (3, C2, 64)] if halves == 2 else [])
    text = [f"testq {add}, {add}", "jz 1f"]
    text += [f"tileloadd {byte}({base},{c_stride},1), %tmm{n}" for n, base, byte in sums]
    text += ["jmp 2f", "1:", *(f"tilezero %tmm{n}" for n, _, _ in sums), "2:"]
    right, rows = 16 * row_bytes, [(A, 4, 0)] + ([(A2, 5, 2)] if halves == 2 else [])

    def load_right(byte: int) -> list[str]:
        return [f"tileloadd {byte + 64 * n}({P},{row},1), %tmm{6 + n}" for n in range(2)]

    def products(byte: int | None) -> list[str]:
        lines = []
        for base, register, total in rows:
            if byte is not None:
                lines.append(f"tileloadd {byte}({base},{a_stride},1), %tmm{register}")
            lines += [f"tdpbf16ps %tmm{6 + n}, %tmm{register}, %tmm{total + n}" for n in range(2)]
        return lines

    if split:  # first · second, first · first, second · first
        text += load_right(right) + products(0) + load_right(0) + products(None) + products(64)
    else:
        text += load_right(0) + products(0)
    parts = 2 if split else 1
    text += [f"prefetcht0 {2 * parts * right + byte}({P})" for byte in range(0, parts * right, 64)]
    text += [f"addq $${64 * parts}, {base}" for base in (A, A2)]
    text += [f"addq $${parts * right}, {P}", f"decq {turns}", "jnz 2b"]
    text += [f"tilestored %tmm{n}, {byte}({base},{c_stride},1)" for n, base, byte in sums]
    constraints = ["=&r"] * 4 + ["0", "1", "2", "3"] + ["r"] * 6 + ["~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"]
    first, second, a_bytes, panel, count, c, c2, c_bytes, more = given
    inputs = [first, second, panel, count, _I64(row_bytes), a_bytes, c, c2, c_bytes, more]
    result = ir.LiteralStructType([_I64] * 4)
    kind = ir.FunctionType(result, [_I64] * len(inputs))
    b.call(ir.InlineAsm(kind, "\n".join(text), ",".join(constraints), side_effect=True), inputs)


def _switch(module: Any, name: str, tiles: list[Any]) -> None:
    """`name(mr, …)`, which calls the tile for mr rows."""
    function = ir.Function(module, ir.FunctionType(_VOID, [_I64, *tiles[0].function_type.args]), name)
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


def _tile(module: Any, name: str, rows: int, target: Target, kind: str) -> Any:
    """The tile for exactly `rows` rows."""
    shape = _Shape(rows, target, kind, name == "tile")
    V, vectors = shape.vector, target.vectors
    # A, [row stride,] P, K, C, row stride of C, add, next, step
    arguments = [_ANY, *([_I64] if shape.strided else []), _ANY, _I64, _ANY, _I64, _I64, _ANY, _I64]
    function = ir.Function(module, ir.FunctionType(_VOID, arguments), f"{name}_{rows}")
    function.linkage = "internal"
    A, *lda, P, K, C, ldc, add, following, step = function.args
    b = ir.IRBuilder(function.append_basic_block())
    if target.assembly and (kind != "bf16" or target.half == "dot"):
        if target.looks_ahead:
            _fetch_sums(b, shape, C, ldc)
        totals = _sums_x86(b, shape, A, lda, P, K, following, step)
    else:
        totals = _sums(b, shape, A, lda, P, K)
    with b.if_else(b.icmp_signed("!=", add, _I64(0))) as (more, first):
        for branch, accumulate in ((more, True), (first, False)):
            with branch:
                for n, value in enumerate(totals):
                    offset = b.add(b.mul(ldc, _I64(n // vectors)), _I64(n % vectors * V.count))
                    place = b.gep(C, [offset], source_etype=V.element)
                    b.store(b.fadd(b.load(place, typ=V, align=4), value) if accumulate else value, place, align=4)
    b.ret_void()
    return function


def _fetch_sums(b: Any, shape: _Shape, C: Any, ldc: Any) -> None:
    """Fetch the lines of C, which are read or written when all is summed."""
    fetch = declare(b, "llvm.prefetch.p0", _VOID, [_ANY, _I32, _I32, _I32])
    last = shape.panel - 1
    for row in range(shape.rows):
        for column in (*range(0, last, 64 // shape.size), last):
            place = b.gep(C, [b.add(b.mul(ldc, _I64(row)), _I64(column))], source_etype=shape.vector.element)
            b.call(fetch, [place, _I32(0), _I32(3), _I32(1)])


def _sums(b: Any, shape: _Shape, A: Any, lda: list[Any], P: Any, K: Any) -> list[Any]:
    """The tile's sums, by row and vector, as plain IR."""
    V, rows, vectors = shape.vector, shape.rows, shape.target.vectors
    paired = shape.kind == "bf16"
    element = _I32 if paired else V.element
    loaded = ir.VectorType(element, V.count)
    fma = declare(b, f"llvm.fmuladd.{suffix(V)}", V, [V, V, V])

    def at(pointer: Any, offset: Any) -> Any:
        return b.gep(pointer, [offset], source_etype=element)

    def parts(x: Any) -> list[Any]:
        """The reals of a vector of elements."""
        if not paired:
            return [x]
        low = b.shl(x, ir.Constant(loaded, [16] * V.count))
        high = b.and_(x, ir.Constant(loaded, [0xFFFF0000] * V.count))
        return [b.bitcast(low, V), b.bitcast(high, V)]

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
    p = [parts(b.load(at(here, _I64(v * V.count)), typ=loaded, align=V.count * shape.size)) for v in range(vectors)]
    mask, undefined = ir.Constant(ir.VectorType(_I32, V.count), [0] * V.count), ir.Constant(loaded, ir.Undefined)
    new = []
    for i in range(rows):
        place = at(starts[i], k) if shape.strided else at(A, b.add(b.mul(k, _I64(shape.target.rows)), _I64(i)))
        a = parts(b.shuffle_vector(b.insert_element(undefined, b.load(place, typ=element), _I32(0)), undefined, mask))
        for v in range(vectors):
            value = sums[i * vectors + v]
            for left, right in zip(a, p[v], strict=True):
                value = b.call(fma, [left, right, value])
            new.append(value)
    for value, after in zip(sums, new, strict=True):
        value.add_incoming(after, body)
    after = b.add(k, _I64(1))
    k.add_incoming(after, body)
    b.cbranch(b.icmp_signed("<", after, K), body, done)
    b.position_at_end(done)
    return new


def _sums_x86(b: Any, shape: _Shape, A: Any, lda: list[Any], P: Any, K: Any, following: Any, step: Any) -> list[Any]:
    """The same in assembly. Three rows share a base register (base, base + stride, base + 2·stride): fewer to advance."""
    V = shape.vector
    count = shape.rows * shape.target.vectors
    bases = -(-shape.rows // 3) if shape.strided else 1
    # operands: sums, vectors of P, one of A, then base registers, P, K, what is fetched (all changed), then stride and step
    names = iter(f"${n}" for n in range(count + shape.target.vectors + bases + 7))
    sums = [next(names) for _ in range(count)]
    p = [next(names) for _ in range(shape.target.vectors)]
    spread = next(names)
    base = [next(names) for _ in range(bases)]
    panel, left, ahead, turns = next(names), next(names), next(names), next(names)
    inputs = bases + 3
    further = count + shape.target.vectors + 1 + bases + 4 + inputs
    stride, onward = f"${further}", f"${further + bool(lda)}"
    kind = "d" if shape.kind == "f64" else "s"
    spreading = "vpbroadcastd" if shape.kind == "bf16" else f"vbroadcasts{kind}"
    product = "vdpbf16ps" if shape.kind == "bf16" else f"vfmadd231p{kind}"
    strip = shape.size * shape.target.rows
    forth = shape.size if shape.strided else strip

    def turn(u: int) -> list[str]:
        row_bytes = shape.panel * shape.size
        lines = [f"vmovap{kind} {u * row_bytes + v * V.count * shape.size}({panel}), {p[v]}" for v in range(len(p))]
        lines += [f"prefetcht0 {byte}({ahead})" for byte in range(0, row_bytes, 64)] + [f"addq {onward}, {ahead}"]
        for i in range(shape.rows):
            if shape.strided:
                inner = ("", f",{stride}", f",{stride},2")[i % 3]
                place = f"{u * forth}({base[i // 3]}{inner})"
            else:
                place = f"{u * forth + i * shape.size}({base[0]})"
            lines.append(f"{spreading} {place}, {spread}")
            lines += [f"{product} {spread}, {p[v]}, {sums[i * len(p) + v]}" for v in range(len(p))]
        return lines

    def forward(turns: int) -> list[str]:
        row_bytes = shape.panel * shape.size
        return [*(f"addq $${turns * forth}, {r}" for r in base), f"addq $${turns * row_bytes}, {panel}"]

    zero = [f"vxorp{kind} {s}, {s}, {s}" for s in sums]
    text = [*zero, f"movq {left}, {turns}", f"shrq $$2, {turns}", "jz 2f", "1:"]
    text += [line for u in range(_UNROLL) for line in turn(u)] + forward(_UNROLL)
    text += [f"decq {turns}", "jnz 1b", "2:", f"andq $$3, {left}", "jz 4f", "3:", *turn(0), *forward(1)]
    text += [f"decq {left}", "jnz 3b", "4:"]
    moved = [f"={letter}" for letter in ["&r"] * (bases + 4)]
    first_tied = count + len(p) + 1
    tied = [str(first_tied + n) for n in range(inputs)]
    constraints = ["=&v"] * (count + len(p) + 1) + moved + tied + (["r", "r"] if shape.strided else ["r"])
    constraints += ["~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"]
    starts = [b.gep(A, [b.mul(lda[0], _I64(3 * n))], source_etype=V.element) for n in range(bases)] if lda else [A]
    row_bytes = _I64(shape.panel * shape.size)
    fetched, fetched_bytes = b.add(b.ptrtoint(P, _I64), b.mul(row_bytes, _I64(shape.ahead))), row_bytes
    if shape.target.looks_ahead:
        far = b.icmp_signed("!=", step, _I64(0))
        fetched = b.select(far, b.ptrtoint(following, _I64), fetched)
        fetched_bytes = b.select(far, b.mul(step, _I64(shape.size)), row_bytes)
    given = [*(b.ptrtoint(s, _I64) for s in starts), b.ptrtoint(P, _I64), K, fetched]
    if shape.strided:
        given.append(b.mul(lda[0], _I64(shape.size)))
    given.append(fetched_bytes)
    result = ir.LiteralStructType([V] * (count + len(p) + 1) + [_I64] * (bases + 4))
    assembly = ir.InlineAsm(
        ir.FunctionType(result, [g.type for g in given]), "\n".join(text), ",".join(constraints), side_effect=True
    )
    value = b.call(assembly, given)
    return [b.extract_value(value, n) for n in range(count)]
