"""A cell's own part of a loop, linked to it: the functions of a row that the compiler wrote, over the tokens of a step.

It is compiled by itself, for a precision and a target, so that the loops are compiled once for all cells. `compiled` says what a
function of a row is called with; there is one for each level of products.
"""

from typing import Any

from numba.core import types

from gatedrnn.sequence.backends.cpu.compile.records import Gradients, Matrix, Own, Past
from gatedrnn.sequence.backends.cpu.matmul.sizes import LINE
from gatedrnn.sequence.backends.cpu.matmul.tiling import fetch_to_read, fetch_to_write
from gatedrnn.sequence.backends.cpu.vector.simd import Ptr, declare, intrinsic, njit


@njit
def row_of(states, n):
    """The state before token n, of `states`, a `Past`."""
    prev = states.prev[n]
    return states.at + prev * states.ld if prev >= 0 else states.first + (-1 - prev) * states.ld


@njit
def _fetch_row(G, dG, columns):
    """Fetch what the next row reads and writes: both were last used too long ago to be in a cache."""
    for j in range(0, columns, LINE):
        fetch_to_read(G + j)
        fetch_to_write(dG + j)


def _forward(row: Any) -> Any:
    @njit
    def rows(gates, hidden, beside, own, begin, end):
        H, kept = hidden.ld, beside.ld
        for n in range(begin, end):
            g, c, h = gates.at + n * gates.ld, beside.at + n * kept, hidden.at + n * H
            row(g, row_of(hidden, n), row_of(beside, n), c, h, own.extra, own.scratch, H, own.K, own.C)

    return rows


def _backward(row: Any) -> Any:
    @njit
    def rows(gates, hidden, beside, gradients, own, start, begin, end, fetch):
        H, kept, ldg, into = hidden.ld, beside.ld, gates.ld, gradients
        for b in range(begin, end):
            n = start + b
            if fetch and b + 1 < end:
                _fetch_row(gates.at + (n + 1) * ldg, into.dG + (n + 1) * ldg, ldg)
            row(
                gates.at + n * ldg, row_of(hidden, n), row_of(beside, n), beside.at + n * kept,
                into.h.at + n * into.h.ld, into.g.at + n * into.g.ld, into.dh + b * H, into.dc + b * kept,
                into.dG + n * ldg, own.extra, into.d_extra, own.scratch, H, own.K, own.C,
            )  # fmt: skip

    return rows


def _in_levels(parts: list[Any]) -> Any:
    """What runs the part that belongs to a level, with the arguments that follow the level."""
    this = parts[0]
    if len(parts) == 1:

        @njit
        def last(level, *given):
            this(*given)

        return last
    rest = _in_levels(parts[1:])

    @njit
    def chosen(level, *given):
        if level == 0:
            this(*given)
        else:
            rest(level - 1, *given)

    return chosen


def function_of(rows: list[Any], direction: str) -> Any:
    """The plain Python function `forward_rows` or `backward_rows`, by the functions of a row."""
    part = _in_levels([{"forward": _forward, "backward": _backward}[direction](row) for row in rows])

    def forward(level, gates, hidden, beside, own, begin, end):
        part(level, gates, hidden, beside, own, begin, end)

    def backward(level, gates, hidden, beside, gradients, own, start, begin, end, fetch):
        part(level, gates, hidden, beside, gradients, own, start, begin, end, fetch)

    return forward if direction == "forward" else backward


def arguments_of(direction: str, real: Ptr) -> list[Any]:
    """Numba's types of its arguments."""
    i = types.intp
    matrix, past = types.NamedTuple([real, i], Matrix), types.NamedTuple([real, i, real, Ptr(types.int64, 1)], Past)
    own, into = types.NamedTuple([real, real, i, i], Own), types.NamedTuple([matrix, matrix, *4 * [real]], Gradients)
    return [i, matrix, past, past, *([own, i, i] if direction == "forward" else [into, own, i, i, i, i])]


def _linked(name: str) -> Any:
    """Lowering to a call of the function `name` of another object, as Numba calls its own."""

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = context.call_conv.get_function_type(sig.return_type, sig.args)
        function = declare(builder, name, kind.return_type, kind.args)
        context.call_conv.call_function(builder, function, sig.return_type, sig.args, args)
        return context.get_dummy_value()

    return lower


@intrinsic
def forward_rows(tyctx: Any, level: Any, gates: Any, hidden: Any, beside: Any, own: Any, begin: Any, end: Any) -> Any:
    """The level's part of a step for tokens begin … end − 1.

    Args: gates: `Matrix` [N, G]; hidden, beside: `Past`, h and what is kept beside it; own: `Own`.
    """
    return types.void(*arguments_of("forward", gates.types[0])), _linked("forward_rows")


@intrinsic
def backward_rows(
    tyctx: Any, level: Any, gates: Any, hidden: Any, beside: Any, gradients: Any, own: Any, start: Any, begin: Any, end: Any,
    fetch: Any,
) -> Any:  # fmt: skip
    """The level's part of a step's derivative for rows begin … end − 1 of the batch at a step whose tokens start at `start`.

    Args: as of `forward_rows`; gradients: `Gradients`; fetch: whether what the next row reads is fetched.
    """
    return types.void(*arguments_of("backward", gates.types[0])), _linked("backward_rows")
