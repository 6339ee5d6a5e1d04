"""The recurrence as two PyTorch operators, forward and backward, on packed tokens; compilers and exporters see them whole.

Dimensions: N tokens, D input, B batch, H hidden, R rows of W, G columns of gates (as the kernel orders them), L = G rounded up.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gatedrnn.core.errors import BackendError
from gatedrnn.sequence.backends.cpu import memory, packs, team
from gatedrnn.sequence.backends.cpu.kernels import kernel
from gatedrnn.sequence.backends.cpu.plan import Plan
from gatedrnn.sequence.backends.cpu.target import Target, best

_ALIGN = 16  # reals: rows of gates begin on a cache line
_ALONE = 1 << 18  # multiply-adds that one thread does before another is awake
_M_BLOCK, _TOKENS, _GRAIN, _REGISTERS = 96, 256, 16, 16  # as in product.py and loops.py, which import Numba


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def _threads(plan: Plan, tokens: int, width: int) -> int:
    """Threads for a layer: one where waking the others takes longer than the products."""
    products = tokens * (plan.columns_x * width + (plan.columns_1 + plan.columns_2) * plan.hidden)
    return 1 if products < _ALONE else team.size()


@functools.lru_cache(maxsize=64)
def _even(steps: int, batch: int, reverse: bool) -> tuple[Tensor, Tensor]:
    """Offsets [T + 1] and previous tokens [T·B] of sequences that all have T steps."""
    n, last = torch.arange(steps * batch), (steps - 1) * batch
    previous = torch.where(n >= last, last - 1 - n, n + batch) if reverse else torch.where(n < batch, -1 - n, n - batch)
    return torch.arange(steps + 1) * batch, previous


def _tokens(
    offsets: Tensor | None, previous: Tensor | None, steps: int, batch: int, reverse: bool
) -> tuple[Tensor, Tensor]:
    if offsets is None or previous is None:
        return _even(steps, batch, reverse)
    return offsets.contiguous(), previous.contiguous()


def _depth(rows: int, products: torch.dtype) -> int:
    """Rows of a panel: `depth` of product.py."""
    return _round_up(-(-rows // 2), _GRAIN) if products == torch.bfloat16 else rows


def _common(p: Plan, width: int, reverse: bool, threads: int, target: Target, products: torch.dtype) -> dict[str, Any]:
    """Arguments of both loops: sizes, and each thread's scratch: a tile and a cell's row of work; a block of a left factor."""
    panel = target.panel // (2 if products == torch.float64 else 1)
    tall = 32 if products == torch.bfloat16 and target.half == "amx" else target.rows
    inner = max(width, p.hidden, p.columns) if products == torch.bfloat16 else 0
    scratch = _round_up(_REGISTERS + tall * panel + 6 * (p.hidden + target.lanes) + 2 * p.split_points, _ALIGN)
    left = _M_BLOCK * max(_depth(inner, products), _TOKENS)
    dtype = torch.float64 if products == torch.float64 else torch.float32
    return {
        **p.integers(),
        "D": width,
        "reverse": reverse,
        "ldg": _round_up(p.columns, _ALIGN),
        "panel": panel,
        "tall": tall,
        "scratch": memory.borrow("scratch", threads * scratch, dtype),
        "scratch_size": scratch,
        "left": memory.borrow("left", threads * left, _element(products)),
        "left_size": left,
    }


def _element(products: torch.dtype) -> torch.dtype:
    """What packed panels hold: reals, or pairs of bfloat16."""
    return torch.int32 if products == torch.bfloat16 else products


def _room(own: bool, w: int, u: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Memory for packed W and U: to be kept, or borrowed."""
    if own:
        return memory.aligned(w, dtype), memory.aligned(u, dtype)
    borrowed = memory.borrow("packed", w + u, dtype)
    return borrowed[:w], borrowed[w:]


def _draw_values(seed: Tensor | None, blocks: list[int], chance: list[float], dtype: torch.dtype) -> dict[str, Any]:
    """The loop's arguments for noise to be drawn; none if `seed` is None."""
    if seed is None:
        return {"blocks": 0, "seed": 0, "starts": None, "chance": None}
    p, scale = chance
    starts = torch.tensor(blocks, dtype=torch.int64)
    return {
        "blocks": len(blocks) // 2,
        "seed": int(seed),
        "starts": starts,
        "chance": torch.tensor([p, 1.0 / p, scale], dtype=dtype),
    }


@torch.library.custom_op("gatedrnn::recurrence", mutates_args=())
def recurrence(
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
    half: bool,
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
        reuse: whether the packed weights may be kept for the next call.
        half: whether products are in bfloat16 (sums and everything else in float32).

    Returns: h [N, H], gate values [N, L], c [N, H], final h and c [B, H]; what is not wanted, or not had, is empty.
    """
    p, target, dtype = Plan.of(plan), best(), x_ND.dtype
    products = torch.bfloat16 if half else dtype
    offsets, previous = _tokens(offsets, previous, steps, len(h0_BH), reverse)
    N, D, H = len(x_ND), x_ND.shape[1], p.hidden
    threads = _threads(p, N, D)
    values = _common(p, D, reverse, threads, target, products)
    ldg, panel = values["ldg"], values["panel"]
    x_ND, weight_ih, weight_hh = x_ND.contiguous(), weight_ih.contiguous(), weight_hh.contiguous()
    gates = memory.empty(N, ldg, dtype=dtype)
    gates[:, p.columns :].zero_()
    cells = memory.empty(N if p.cells else 0, H, dtype=dtype)
    output, h_n = torch.empty(N, H, dtype=dtype), torch.empty_like(h0_BH, memory_format=torch.contiguous_format)
    c_n = torch.empty(len(h0_BH) if p.cells else 0, H, dtype=dtype)
    widths = _round_up(p.columns_x, panel), _round_up(p.columns_1, panel) + _round_up(p.columns_2, panel)
    found = packs.find(weight_ih, weight_hh, (products, target)) if reuse else None
    room = (widths[0] * _depth(D, products), widths[1] * _depth(H, products), _element(products))
    packed_w, packed_u = found or _room(reuse, *room)
    values |= {
        "T": steps,
        "packed": found is not None,
        "noise": noise_NR if noise_NR is None else noise_NR.contiguous(),
        "noisy": noise_NR is not None,
        **_draw_values(seed, blocks, chance, dtype),
        "cells": p.cells,
        "offsets": offsets,
        "prev": previous,
        "x": x_ND,
        "W": weight_ih,
        "U": weight_hh,
        "PW": packed_w,
        "PU": packed_u,
        "bias": bias_G.contiguous(),
        "scale": scale_G,
        "scaled": scale_G is not None,
        "extra": None if extra is None else extra.contiguous(),
        "G": gates,
        "out": output,
        "cs": cells,
        "h0": h0_BH.contiguous(),
        "c0": None if c0_BH is None else c0_BH.contiguous(),
        "hn": h_n,
        "cn": c_n,
    }
    kernel(p.kernel, "forward", target, products)(threads, values)
    if reuse and found is None:
        packs.keep(weight_ih, weight_hh, (products, target), packed_w, packed_u)
    if not keep:
        gates, cells = gates.new_empty(0), cells.new_empty(0)
    return output, gates, cells, h_n, c_n


@recurrence.register_fake
def _recurrence_fake(
    x_ND, weight_ih, weight_hh, bias_G, scale_G, extra, h0_BH, c0_BH, noise_NR, seed, blocks,
    chance, offsets, previous, steps, plan, reverse, keep, reuse, half,
):  # fmt: skip
    p = Plan.of(plan)
    N, B, H, ldg = x_ND.shape[0], h0_BH.shape[0], p.hidden, _round_up(p.columns, _ALIGN)
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
    half: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `recurrence` for x, W, U, bias, extra, h0, c0 and noise; empty where there is none to give."""
    p, target, dtype = Plan.of(plan), best(), x_ND.dtype
    products = torch.bfloat16 if half else dtype
    offsets, previous = _tokens(offsets, previous, steps, len(h0_BH), reverse)
    N, D, B, H = len(x_ND), x_ND.shape[1], len(h0_BH), p.hidden
    threads = _threads(p, N, D)
    values = _common(p, D, reverse, threads, target, products)
    ldg, panel = values["ldg"], values["panel"]
    x_ND, weight_ih, weight_hh = x_ND.contiguous(), weight_ih.contiguous(), weight_hh.contiguous()
    zeros = torch.zeros(max(ldg, H), dtype=dtype)
    dh = torch.zeros(B, H, dtype=dtype) if grad_h_n is None else grad_h_n.clone(memory_format=torch.contiguous_format)
    dc = torch.zeros(B, H, dtype=dtype) if grad_c_n is None else grad_c_n.clone(memory_format=torch.contiguous_format)
    d_gates = memory.borrow("gradient", N * ldg, dtype).view(N, ldg)
    dx = memory.empty(N if need_x else 0, D, dtype=dtype)
    dW, dU = (memory.empty(*weight.shape, dtype=dtype) for weight in (weight_ih, weight_hh))
    if N == 0:  # an empty batch changes nothing
        dW.zero_()
        dU.zero_()
    db_x, db_h = torch.empty(p.columns_x, dtype=dtype), torch.empty(p.columns_1 + p.columns_2, dtype=dtype)
    d_extra = torch.zeros(threads, 0 if extra is None else len(extra), dtype=dtype)
    element, widest = _element(products), _round_up(max(D, H), panel)
    deep = [_depth(n, products) for n in (p.columns_x, p.columns_1, p.columns_2)]
    room = max(deep[0] * _round_up(D, panel), (deep[1] + deep[2]) * _round_up(H, panel))
    values |= {
        "T": steps,
        "scale": scale_G,
        "scaled": scale_G is not None,
        "carries": p.carries,
        "need_dx": need_x,
        "offsets": offsets,
        "prev": previous,
        "x": x_ND,
        "W": weight_ih,
        "U": weight_hh,
        "P": memory.borrow("packed", room, element),
        "extra": None if extra is None else extra.contiguous(),
        "G": gates,
        "out": output,
        "cs": cells,
        "h0": h0_BH.contiguous(),
        "c0": None if c0_BH is None else c0_BH.contiguous(),
        "grad_h": zeros if grad_output is None else grad_output.contiguous(),
        "grad_h_stride": 0 if grad_output is None else H,
        "grad_g": zeros if grad_gates is None else grad_gates.contiguous(),
        "grad_g_stride": 0 if grad_gates is None else ldg,
        "dh": dh,
        "dc": dc,
        "dG": d_gates,
        "dx": dx,
        "dW": dW,
        "dU": dU,
        "db_x": db_x,
        "db_h": db_h,
        "d_extra": d_extra,
        "extra_size": d_extra.shape[1],
        "shared": memory.borrow("shared", _TOKENS * widest, element),
    }
    kernel(p.kernel, "backward", target, products)(threads, values)
    if p.shift:
        dW = dW.roll(p.shift, 0)
    d_bias = torch.cat((db_x, db_h[p.columns_x - p.first_1 :])) if p.columns > p.columns_x else db_x
    d_noise = d_gates[:, : p.columns_x].clone() if need_noise else d_gates.new_empty(0)
    if scale_G is not None:  # the kernel's gradients are of what is scaled
        d_bias = d_bias / scale_G
        d_noise = d_noise / scale_G[: p.columns_x] if need_noise else d_noise
    if c0_BH is None:
        dc = dc.new_empty(0)
    return dx, dW, dU, d_bias, d_extra.sum(0), dh, dc, d_noise


@recurrence_backward.register_fake
def _recurrence_backward_fake(
    grad_output, grad_gates, grad_h_n, grad_c_n, x_ND, weight_ih, weight_hh, scale_G, extra, h0_BH, c0_BH, gates, cells,
    output,
    offsets, previous, steps, plan, reverse, need_x, need_noise, half,
):  # fmt: skip
    p, new = Plan.of(plan), x_ND.new_empty
    N, B, H = x_ND.shape[0], h0_BH.shape[0], p.hidden
    dx = new(N if need_x else 0, x_ND.shape[1])
    d_extra = new(0 if extra is None else extra.shape[0])
    d_noise = new(N, p.columns_x) if need_noise else new(0)
    dc = new(0) if c0_BH is None else new(B, H)
    return dx, new(weight_ih.shape), new(weight_hh.shape), new(p.columns), d_extra, new(B, H), dc, d_noise


@torch.library.custom_op("gatedrnn::logistic_noise", mutates_args=())
def logistic_noise(
    seed: Tensor, rows: int, columns: int, blocks: list[int], chance: float, scale: float, like: Tensor
) -> Tensor:
    """[rows, columns] as `like`: scale · logistic with probability `chance` between blocks[0] and blocks[1] and so on, else 0."""
    out = like.new_empty(rows, columns)
    edges = [0, *blocks, columns]
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        out[:, a:b].zero_()
    values = {"N": rows, "R": columns, "out": out, **_draw_values(seed, blocks, [chance, scale], out.dtype)}
    kernel("noise", "draw", best(), out.dtype)(1 if out.numel() < _ALONE else team.size(), values)
    return out


@logistic_noise.register_fake
def _logistic_noise_fake(seed, rows, columns, blocks, chance, scale, like):
    return like.new_empty(rows, columns)


@torch.library.custom_op("gatedrnn::cross_entropy_", mutates_args=("logits_NV",))
def cross_entropy_(
    logits_NV: Tensor, bias_V: Tensor, targets_N: Tensor, weights_N: Tensor, differentiate: bool
) -> tuple[Tensor, Tensor]:
    """−log softmax(logits + bias)[target] [N]. If `differentiate`, logits become weight · (softmax − one-hot), its sum [V].

    Args: logits_NV: contiguous; targets_N: int64 in 0 … V − 1.
    """
    N, V = logits_NV.shape
    dtype, threads = logits_NV.dtype, 1 if logits_NV.numel() < _ALONE else team.size()
    losses, sums = torch.empty(N, dtype=dtype), torch.zeros(threads, V, dtype=dtype)
    values = {"N": N, "V": V, "differentiate": differentiate, "logits": logits_NV, "bias": bias_V.contiguous()}
    values |= {"targets": targets_N.contiguous(), "weights": weights_N.contiguous(), "losses": losses, "sums": sums}
    kernel("cross_entropy", "cross_entropy", best(), dtype)(threads, values)
    return losses, sums.sum(0)


@cross_entropy_.register_fake
def _cross_entropy_fake(logits_NV, bias_V, targets_N, weights_N, differentiate):
    return logits_NV.new_empty(logits_NV.shape[0]), torch.empty_like(bias_V)


def bound(steps: int, batch: int, width: int, hidden: int, columns: int, parts: int, half: bool) -> Callable[[], None]:
    """A function that runs `parts` of the products of a layer and nothing else, see `bound`; for measurements."""
    plan = Plan("products", hidden, columns, columns, 0, columns)
    products, target, tokens = torch.bfloat16 if half else torch.float32, best(), steps * batch
    threads = _threads(plan, tokens, width)
    values = _common(plan, width, False, threads, target, products)
    panel, element = values["panel"], _element(products)

    def panels(rows: int, across: int) -> Tensor:
        return memory.aligned(_depth(rows, products) * _round_up(across, panel), element).zero_()

    values |= {
        **{"T": steps, "B": batch, "parts": parts, "x": torch.randn(tokens, width)},
        **{"PW": panels(width, columns), "PU": panels(hidden, columns)},
        **{"QW": panels(columns, width), "QU": panels(columns, hidden)},
        **{
            "G": torch.zeros(tokens, values["ldg"]),
            "out": torch.randn(tokens, hidden),
            "h0": torch.zeros(batch, hidden),
        },
        **{"dh": torch.zeros(batch, hidden), "dx": torch.zeros(tokens, width), "db": torch.zeros(columns)},
        **{"dW": torch.zeros(columns, width), "dU": torch.zeros(columns, hidden), "prev": torch.zeros(tokens).long()},
        "shared": memory.aligned(_TOKENS * _round_up(max(width, hidden), panel), element),
    }
    entry = kernel("products", "products", target, products)
    return lambda: entry(threads, values)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, W, U, _, scale, extra, h0, c0, noise, _, _, _, offsets, previous, steps, plan, reverse, _, _, half = inputs
    h, gates, cells, _, _ = output
    ctx.save_for_backward(x, W, U, scale, extra, h0, c0, gates, cells, h, offsets, previous)
    ctx.set_materialize_grads(False)
    ctx.steps, ctx.plan, ctx.reverse, ctx.noisy, ctx.half = steps, plan, reverse, noise is not None, half


def _backward(ctx: Any, d_h: Any, d_gates: Any, d_cells: Any, d_h_n: Any, d_c_n: Any) -> tuple[Any, ...]:
    x, W, U, scale, extra, h0, c0, gates, cells, h, offsets, previous = ctx.saved_tensors
    need_noise = ctx.noisy and ctx.needs_input_grad[8]
    dx, dW, dU, d_bias, d_extra, dh, dc, d_noise = recurrence_backward(
        d_h, d_gates, d_h_n, d_c_n, x, W, U, scale, extra, h0, c0, gates, cells, h, offsets, previous, ctx.steps, ctx.plan,
        ctx.reverse, ctx.needs_input_grad[0], need_noise, ctx.half,
    )  # fmt: skip
    return (
        dx if ctx.needs_input_grad[0] else None, dW, dU, d_bias, None, None if extra is None else d_extra, dh,
        None if c0 is None else dc, d_noise if need_noise else None, *[None] * 11,
    )  # fmt: skip


def _no_second_derivative(ctx: Any, *gradients: Any) -> Any:
    raise BackendError(
        "backend='cpu'",
        "has first derivatives only",
        "a backward pass through a backward pass",
        "Use backend='reference' for higher derivatives",
    )


recurrence.register_autograd(_backward, setup_context=_setup)
recurrence_backward.register_autograd(_no_second_derivative)


def _start_light(operator: Any) -> None:
    """Keep the first call from importing the compiler, a second: torch shields operators from it even where it is not in use."""
    for shielded in getattr(operator, "_backend_fns", {}).values():
        function = getattr(shielded, "__wrapped__", None)
        if function is None:  # another torch: the first call is slower
            continue

        def call(*args: Any, function: Any = function, **kwargs: Any) -> Any:
            dynamo = sys.modules.get("torch._dynamo")
            if dynamo is None:
                return function(*args, **kwargs)
            function.__dynamo_disable = dynamo.disable(function, wrapping=False)
            return function.__dynamo_disable(*args, **kwargs)

        function.__dynamo_disable = call


for _operator in (recurrence, recurrence_backward, logistic_noise, cross_entropy_):
    _start_light(_operator)
