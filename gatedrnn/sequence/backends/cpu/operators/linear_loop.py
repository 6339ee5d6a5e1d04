"""A product with a weight in small forms, by a team. Dimensions: N rows, K inner, V columns."""

from gatedrnn.sequence.backends.cpu.compile.records import Matrix, Panels
from gatedrnn.sequence.backends.cpu.matmul.panels import ceil_div, share
from gatedrnn.sequence.backends.cpu.matmul.precision.quantised import multiply_pieces
from gatedrnn.sequence.backends.cpu.matmul.tiling import begin, finish
from gatedrnn.sequence.backends.cpu.vector.convert import as_counts
from gatedrnn.sequence.backends.cpu.vector.simd import lanes, load, store


def linear(call, scratch):
    """out[N, columns] = x[N, K] · pieces + bias."""
    work = begin(scratch)
    W, columns, panel = lanes(call.x), call.columns, work.panel
    across = ceil_div(columns, panel)
    first, last = share(across, work.q, work.parts), share(across, work.q + 1, work.parts)
    table = as_counts(call.pieces)
    at = table + table[1]
    start, end = at[first] * panel, min(columns, at[last] * panel)
    for n in range(call.N):
        for j in range(start, end, W):
            m = min(W, end - j)
            store(call.out + (n * call.ldg + j), load(call.bias + j, m), m)
    x, out = Matrix(call.x, call.K), Matrix(call.out, call.ldg)
    multiply_pieces(x, call.N, Panels(call.pieces, call.K, columns), out, first, last, 1, work)
    finish(work)
