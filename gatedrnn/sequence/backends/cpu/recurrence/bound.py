"""The products of a layer and nothing else: what no kernel of ours can beat. For `gatedrnn bench`.

The same tiles on the same shapes, weights packed beforehand, no pointwise part, no waiting for one another between steps.
Dimensions: T steps, B batch, D input, H hidden, G columns of gates (rows `ldg` apart).
"""

from gatedrnn.sequence.backends.cpu.compile.records import Matrix, Panels, Past
from gatedrnn.sequence.backends.cpu.matmul.multiply import multiply
from gatedrnn.sequence.backends.cpu.matmul.panels import ceil_div, share
from gatedrnn.sequence.backends.cpu.matmul.tiling import begin, finish
from gatedrnn.sequence.backends.cpu.recurrence.loops import weight_gradient


def products(call, scratch):
    """The products of a layer: `which` of them, a bit each."""
    work = begin(scratch)
    T, B, D, H, G, q, parts = call.T, call.B, call.D, call.H, call.columns, work.q, work.parts
    N, step, gates = T * B, B * call.ldg, Matrix(call.G, call.ldg)
    across = ceil_div(G, work.panel)
    f, e = share(across, q, parts), share(across, q + 1, parts)
    if call.which & 1:
        multiply(Matrix(call.x, D), N, Panels(call.PW, D, G), gates, f, e, 0, work)
    for t in range(T if call.which & 2 else 0):
        a, z = (e, f) if t % 2 else (f, e)
        here = Matrix(call.G + t * step, call.ldg)
        multiply(Matrix(call.out + t * B * H, H), B, Panels(call.PU, H, G), here, a, z, 0, work)
    across = ceil_div(H, work.panel)
    f, e = share(across, q, parts), share(across, q + 1, parts)
    for t in range(T if call.which & 4 else 0):
        a, z = (e, f) if t % 2 else (f, e)
        here = Matrix(call.G + t * step, call.ldg)
        multiply(here, B, Panels(call.QU, G, H), Matrix(call.dh, H), a, z, 0, work)
    if call.which & 8:
        weight_gradient(
            gates, G, N, Past(call.out, H, call.h0, call.prev), 1, Matrix(call.dU, H), call.db, call.shared, work
        )
        weight_gradient(
            gates, G, N, Past(call.x, D, call.x, call.prev), 0, Matrix(call.dW, D), call.db, call.shared, work
        )
    if call.which & 16:
        across = ceil_div(D, work.panel)
        f, e = share(across, q, parts), share(across, q + 1, parts)
        multiply(gates, N, Panels(call.QW, G, D), Matrix(call.dx, D), f, e, 0, work)
    finish(work)
