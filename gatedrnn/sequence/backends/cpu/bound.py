"""The products of a layer and nothing else: what no kernel of ours can beat. For `gatedrnn bench`.

The same tiles on the same shapes, weights packed beforehand, no pointwise part, no waiting for one another between steps.
Dimensions: T steps, B batch, D input, H hidden, G columns of gates (rows `ldg` apart).
"""

from gatedrnn.sequence.backends.cpu.loops import weight_gradient
from gatedrnn.sequence.backends.cpu.product import ceil_div, multiply, share
from gatedrnn.sequence.backends.cpu.sizes import REGISTERS
from gatedrnn.sequence.backends.cpu.tiling import keep, restore, thread, threads


def products(
    T, B, D, H, columns, ldg, panel, tall, parts, prev, x, PW, PU, QW, QU, G, out, h0, dh, dx, dW, dU, db, shared, scratch,
    scratch_size, left, left_size,
):  # fmt: skip
    """`parts`, a bit each: W x of all steps; U h' of each step; its transpose; gradients of the weights; gradient of x."""
    q, team = thread(), threads()
    registers = scratch + q * scratch_size
    edge, own, N = registers + REGISTERS, left + q * left_size, T * B
    keep(registers)
    across = ceil_div(columns, panel)
    f, e = share(across, q, team), share(across, q + 1, team)
    if parts & 1:
        multiply(x, D, N, PW, D, G, ldg, columns, panel, tall, f, e, 0, edge, own)
    for t in range(T if parts & 2 else 0):
        a, z = (e, f) if t % 2 else (f, e)
        multiply(out + t * B * H, H, B, PU, H, G + t * B * ldg, ldg, columns, panel, tall, a, z, 0, edge, own)
    across = ceil_div(H, panel)
    f, e = share(across, q, team), share(across, q + 1, team)
    for t in range(T if parts & 4 else 0):
        a, z = (e, f) if t % 2 else (f, e)
        multiply(G + t * B * ldg, ldg, B, QU, columns, dh, H, H, panel, tall, a, z, 0, edge, own)
    if parts & 8:
        weight_gradient(G, ldg, columns, N, out, H, h0, prev, 0, H, dU, db, shared, panel, tall, own, edge, q, team)
        weight_gradient(G, ldg, columns, N, x, D, x, prev, 0, D, dW, db, shared, panel, tall, own, edge, q, team)
    if parts & 16:
        across = ceil_div(D, panel)
        f, e = share(across, q, team), share(across, q + 1, team)
        multiply(G, ldg, N, QW, columns, dx, D, D, panel, tall, f, e, 0, edge, own)
    restore(registers)
