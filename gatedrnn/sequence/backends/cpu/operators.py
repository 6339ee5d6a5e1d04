"""The recurrence as two PyTorch operators, forward and backward, on packed tokens; compilers and exporters see them whole.

Dimensions: N tokens, D input, B batch, H hidden, R rows of W, G columns of gates (as the kernel orders them), L = G rounded up.
"""

from typing import Any

import torch
from torch import Tensor

from gatedrnn.sequence.backends.cpu import memory, packs
from gatedrnn.sequence.backends.cpu.arguments import Loop, Values, draw_values, even, leading, loop, threads_for
from gatedrnn.sequence.backends.cpu.lightness import start_light
from gatedrnn.sequence.backends.cpu.pieces import pack_layer, rank_of
from gatedrnn.sequence.backends.cpu.sizes import TOKENS, kind_of, round_up
from gatedrnn.sequence.backends.cpu.target import best
from gatedrnn.sequence.compressed import blocks_of, compressed
from gatedrnn.sequence.derivatives import no_second_derivative
from gatedrnn.sequence.plan import Plan


def layer_loop(
    direction: str, x_ND: Tensor, weight_ih: Tensor, weight_hh: Tensor, scale_G: Tensor | None, extra: Tensor | None,
    h0_BH: Tensor, c0_BH: Tensor | None, offsets: Tensor | None, previous: Tensor | None, steps: int, plan: Plan,
    reverse: bool, products: str,
) -> tuple[Loop, Values]:  # fmt: skip
    """The loop, and the arguments that forward and backward share."""
    if offsets is None or previous is None:
        offsets, previous = even(steps, h0_BH.shape[0], reverse)
    N, D = x_ND.shape
    small = compressed(weight_ih, weight_hh)
    kind = "small" if small else _kind(products, x_ND.dtype)
    values: Values = {
        "T": steps,
        "reverse": reverse,
        "offsets": offsets.contiguous(),
        "prev": previous.contiguous(),
        "x": x_ND.contiguous(),
        "W": None if small else weight_ih.contiguous(),
        "U": None if small else weight_hh.contiguous(),
        "scale": None if scale_G is None else scale_G.contiguous(),
        "scaled": scale_G is not None,
        "extra": None if extra is None else extra.contiguous(),
        "h0": h0_BH.contiguous(),
        "c0": None if c0_BH is None else c0_BH.contiguous(),
    }
    rank = rank_of(blocks_of(weight_ih), blocks_of(weight_hh)) if small else 0
    return loop(direction, plan, D, threads_for(plan, N, D), best(), kind, rank), values


def _kind(products: str, dtype: torch.dtype) -> str:
    """Of what was asked for; `split` is for float32 on matrix registers."""
    if products == "float" or (products == "split" and (dtype != torch.float32 or best().half != "amx")):
        return kind_of(dtype)
    return products


def packed_small(
    run: Loop, plan: Plan, weight_ih: Tensor, weight_hh: Tensor, scale_G: Tensor | None
) -> tuple[Tensor, ...]:
    """Tables of W and U in small forms, made now or before."""
    form = (*run.form, None if scale_G is None else scale_G.numpy().tobytes())
    found = packs.find((weight_ih, weight_hh), form)
    if found is None:
        blocks = blocks_of(weight_ih), blocks_of(weight_hh)
        found = pack_layer(plan, *blocks, weight_ih.shape[1], scale_G, run.panel)
        packs.keep((weight_ih, weight_hh), form, found)
    return found


def _room(own: bool, sizes: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Memory for packed W and U: to be kept, or borrowed."""
    w, u = sizes
    if own:
        return memory.aligned(w, dtype), memory.aligned(u, dtype)
    borrowed = memory.borrow("packed", w + u, dtype)
    return borrowed[:w], borrowed[w:]


def forward(
    x_ND: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_G: Tensor,
    scale_G: Tensor | None,
    extra: Tensor | None,
    h0_BH: Tensor,
    c0_BH: Tensor | None,
    noise_NR: Tensor | None,
    seed: Tensor | None,
    blocks: list[int],
    chance: list[float],
    offsets: Tensor | None,
    previous: Tensor | None,
    steps: int,
    plan: str,
    reverse: bool,
    keep: bool,
    reuse: bool,
    products: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A cell over packed tokens.

    Args:
        x_ND, weight_ih, weight_hh: input [N, D], W [R, D], U [R, H].
        bias_G: all biases, in the kernel's columns.
        scale_G: what multiplies W x + U h' + b; already in bias_G.
        extra: peephole weights [3H], scaled.
        h0_BH, c0_BH: initial states, longest sequence first.
        noise_NR: ε / τ, in the kernel's columns.
        seed, blocks, chance: of noise to be drawn here: int64 [1]; first and last + 1 columns; probability and 1 / τ.
        offsets, previous: int64 [T + 1] and [N], see `loops`; None where every sequence has all T steps.
        steps: T.
        plan: `Plan.text()`.
        keep: whether gates and cell states are wanted.
        reuse: whether the packed weights may be kept for the next call (tables of small forms are kept in any case).
        products: "float", as x is; "bf16", where sums and everything else are float32; "split", nearly float32 (`split`), where
            the CPU has matrix registers, else "float".

    Returns: h [N, H], gate values [N, L], c [N, H], final h and c [B, H]; what is not wanted, or not had, is empty.
    """
    p, N, B, dtype = Plan.of(plan), x_ND.shape[0], h0_BH.shape[0], x_ND.dtype
    run, values = layer_loop(
        "forward", x_ND, weight_ih, weight_hh, scale_G, extra, h0_BH, c0_BH, offsets, previous, steps, p, reverse, products,
    )  # fmt: skip
    H, L, cells_N, cells_B = p.hidden, leading(p), N if p.cells else 0, B if p.cells else 0
    gates, cells = memory.empty(N, L, dtype=dtype), memory.empty(cells_N, H, dtype=dtype)
    if keep:
        gates[:, p.columns :].zero_()
    output, h_n, c_n = (memory.empty(n, H, dtype=dtype) for n in (N, B, cells_B))
    weights = weight_ih, weight_hh
    found = packs.find(weights, run.form) if reuse else None
    if compressed(*weights):
        found = packed_small(run, p, *weights, scale_G)
    packed_w, packed_u = found or _room(reuse, run.forward_room, run.packed)
    values |= {
        "packed": found is not None,
        "noise": None if noise_NR is None else noise_NR.contiguous(),
        "noisy": noise_NR is not None,
        **draw_values(seed, blocks, chance, dtype),
        "PW": packed_w,
        "PU": packed_u,
        "bias": bias_G.contiguous(),
        "G": gates,
        "out": output,
        "cs": cells,
        "hn": h_n,
        "cn": c_n,
    }
    run(values)
    if reuse and found is None:
        packs.keep(weights, run.form, (packed_w, packed_u))
    return (output, gates, cells, h_n, c_n) if keep else (output, h_n.new_empty(0), h_n.new_empty(0), h_n, c_n)


recurrence = torch.library.custom_op("gatedrnn::recurrence", mutates_args=())(forward)


@recurrence.register_fake
def _recurrence_fake(
    x_ND, weight_ih, weight_hh, bias_G, scale_G, extra, h0_BH, c0_BH, noise_NR, seed, blocks,
    chance, offsets, previous, steps, plan, reverse, keep, reuse, products,
):  # fmt: skip
    p = Plan.of(plan)
    N, B, H, ldg = x_ND.shape[0], h0_BH.shape[0], p.hidden, leading(p)
    gates = x_ND.new_empty(N, ldg) if keep else x_ND.new_empty(0)
    cells = x_ND.new_empty(N if p.cells else 0, H) if keep else x_ND.new_empty(0)
    return x_ND.new_empty(N, H), gates, cells, x_ND.new_empty(B, H), x_ND.new_empty(B if p.cells else 0, H)


@torch.library.custom_op("gatedrnn::recurrence_backward", mutates_args=())
def recurrence_backward(
    grad_output: Tensor | None,
    grad_gates: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    x_ND: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    scale_G: Tensor | None,
    extra: Tensor | None,
    h0_BH: Tensor,
    c0_BH: Tensor | None,
    gates: Tensor,
    cells: Tensor,
    output: Tensor,
    offsets: Tensor | None,
    previous: Tensor | None,
    steps: int,
    plan: str,
    reverse: bool,
    need_x: bool,
    need_noise: bool,
    products: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `recurrence` for x, W, U, bias, extra, h0, c0 and noise; empty where there is none to give."""
    p, D, B, dtype = Plan.of(plan), x_ND.shape[1], h0_BH.shape[0], x_ND.dtype
    run, values = layer_loop(
        "backward", x_ND, weight_ih, weight_hh, scale_G, extra, h0_BH, c0_BH, offsets, previous, steps, p, reverse, products,
    )  # fmt: skip
    H, L = p.hidden, leading(p)
    zeros = torch.zeros(max(L, H), dtype=dtype)
    made = _gradients(p, x_ND, weight_ih, weight_hh, extra, run.threads, need_x)
    made["dh"], made["dc"] = (
        torch.zeros(B, H, dtype=dtype) if grad is None else grad.clone(memory_format=torch.contiguous_format)
        for grad in (grad_h_n, grad_c_n)
    )
    values |= made | {
        "need_dx": need_x,
        "P": memory.borrow("packed", run.backward_room, run.packed),
        "G": gates,
        "out": output,
        "cs": cells,
        "grad_h": zeros if grad_output is None else grad_output.contiguous(),
        "grad_h_stride": 0 if grad_output is None else H,
        "grad_g": zeros if grad_gates is None else grad_gates.contiguous(),
        "grad_g_stride": 0 if grad_gates is None else L,
        "extra_size": made["d_extra"].shape[1],
        "shared": memory.borrow("shared", TOKENS * round_up(max(D, H), run.panel), run.packed),
    }
    run(values)
    dW, db_x = made["dW"].roll(p.shift, 0) if p.shift else made["dW"], made["db_x"]
    d_bias = torch.cat((db_x, made["db_h"][p.columns_x - p.first_1 :])) if p.columns > p.columns_x else db_x
    d_noise = made["dG"][:, : p.columns_x].clone() if need_noise else db_x.new_empty(0)
    if scale_G is not None:  # the kernel's gradients are of what is scaled
        d_bias = d_bias / scale_G
        d_noise = d_noise / scale_G[: p.columns_x] if need_noise else d_noise
    dc = db_x.new_empty(0) if c0_BH is None else made["dc"]
    return made["dx"], dW, made["dU"], d_bias, made["d_extra"].sum(0), made["dh"], dc, d_noise


def _gradients(
    p: Plan, x_ND: Tensor, weight_ih: Tensor, weight_hh: Tensor, extra: Tensor | None, threads: int, need_x: bool
) -> dict[str, Tensor]:
    """Memory for the gradients that the loop writes, by its names for them; `extra`'s a row a thread."""
    (N, D), dtype, empty = x_ND.shape, x_ND.dtype, memory.empty
    dW, dU = (empty(*weight.shape, dtype=dtype) for weight in (weight_ih, weight_hh))
    if N == 0:  # an empty batch changes nothing
        dW.zero_()
        dU.zero_()
    return {
        "dG": memory.borrow("gradient", N * leading(p), dtype).view(N, leading(p)),
        "dx": empty(N if need_x else 0, D, dtype=dtype),
        "dW": dW,
        "dU": dU,
        "db_x": torch.empty(p.columns_x, dtype=dtype),
        "db_h": torch.empty(p.columns_1 + p.columns_2, dtype=dtype),
        "d_extra": torch.zeros(threads, 0 if extra is None else len(extra), dtype=dtype),
    }


@recurrence_backward.register_fake
def _recurrence_backward_fake(
    grad_output, grad_gates, grad_h_n, grad_c_n, x_ND, weight_ih, weight_hh, scale_G, extra, h0_BH, c0_BH, gates, cells,
    output,
    offsets, previous, steps, plan, reverse, need_x, need_noise, products,
):  # fmt: skip
    p, new = Plan.of(plan), x_ND.new_empty
    N, B, H = x_ND.shape[0], h0_BH.shape[0], p.hidden
    dx = new(N if need_x else 0, x_ND.shape[1])
    d_extra = new(0 if extra is None else extra.shape[0])
    d_noise = new(N, p.columns_x) if need_noise else new(0)
    dc = new(0) if c0_BH is None else new(B, H)
    return dx, new(weight_ih.shape), new(weight_hh.shape), new(p.columns), d_extra, new(B, H), dc, d_noise


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, W, U, _, scale, extra, h0, c0, noise, _, _, _, offsets, previous, steps, plan, reverse, _, _, products = inputs
    h, gates, cells, _, _ = output
    ctx.save_for_backward(x, W, U, scale, extra, h0, c0, gates, cells, h, offsets, previous)
    ctx.set_materialize_grads(False)
    ctx.steps, ctx.plan, ctx.reverse, ctx.noisy, ctx.products = steps, plan, reverse, noise is not None, products


def _backward(ctx: Any, d_h: Any, d_gates: Any, d_cells: Any, d_h_n: Any, d_c_n: Any) -> tuple[Any, ...]:
    x, W, U, scale, extra, h0, c0, gates, cells, h, offsets, previous = ctx.saved_tensors
    need_noise = ctx.noisy and ctx.needs_input_grad[8]
    dx, dW, dU, d_bias, d_extra, dh, dc, d_noise = recurrence_backward(
        d_h, d_gates, d_h_n, d_c_n, x, W, U, scale, extra, h0, c0, gates, cells, h, offsets, previous, ctx.steps, ctx.plan,
        ctx.reverse, ctx.needs_input_grad[0], need_noise, ctx.products,
    )  # fmt: skip
    return (
        dx if ctx.needs_input_grad[0] else None, dW, dU, d_bias, None, None if extra is None else d_extra, dh,
        None if c0 is None else dc, d_noise if need_noise else None, *[None] * 11,
    )  # fmt: skip


recurrence.register_autograd(_backward, setup_context=_setup)
recurrence_backward.register_autograd(no_second_derivative("cpu"))
start_light(recurrence, recurrence_backward)
