"""The recurrence as two PyTorch operators, forward and backward; compilers and exporters see them whole.

Sequences of different lengths are packed in here, the longest first; gates and cell states stay in that order.
Dimensions: T steps, B batch, N tokens, D input, H hidden, R rows of W, G columns of gates (as the kernel orders them), L = G
rounded up.
"""

import functools
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.torch_internals import Floats, Ints, start_light
from gatedrnn.sequence.backends.cpu.matmul.pieces import rank_of, tables
from gatedrnn.sequence.backends.cpu.matmul.sizes import HALF_STEPS, TOKENS, direct, kind_of, round_up
from gatedrnn.sequence.backends.cpu.operators.checks import drawable, real, together, trusted
from gatedrnn.sequence.backends.cpu.operators.pointwise import draw_values
from gatedrnn.sequence.backends.cpu.recurrence.arguments import (
    Loop,
    Values,
    by_rows,
    layout,
    leading,
    loop,
    threads_for,
)
from gatedrnn.sequence.backends.cpu.runtime import memory, team
from gatedrnn.sequence.backends.cpu.runtime.target import Target, best
from gatedrnn.sequence.derivatives import no_second_derivative
from gatedrnn.sequence.plan import Plan
from gatedrnn.weights.compressed import blocks_of, compressed

READ = 1 << 19
"""Numbers of U that no longer fit the second-level cache: a step of one sequence takes as long as reading them."""


def _kind(products: str, dtype: torch.dtype, target: Target, read: bool = False) -> str:
    """Of what was asked for, if it is any faster here: `split` on matrix registers, `bf16` where there are products for it.

    Args: read: whether reading U takes most of the time, which rounding it halves.
    """
    if products == "float":
        return kind_of(dtype)
    if products not in ("split", "bf16"):
        raise ArgumentError("recurrence.products", "must be float, split or bf16", repr(products), "Use float")
    dots = target.quick or (read and target.half == "dot")
    useful = target.half == "amx" and dtype == torch.float32 if products == "split" else dots
    return products if useful else kind_of(dtype)


def forward(
    x_TBD: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_G: Tensor, scale_G: Tensor | None, extra: Tensor | None,
    h0_BH: Tensor, c0_BH: Tensor | None, noise_TBR: Tensor | None, seed: Tensor | None,
    blocks: Ints | None, chance: Floats | None, lengths_B: Tensor | None, plan: str, reverse: bool, products: str,
    keep: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """A cell over a batch of sequences.

    Args:
        x_TBD, weight_ih, weight_hh: input [T, B, D], W [R, D], U and the cell's own matrices below it [R', H]; both weights may
            be bfloat16, for few tokens of float32.
        bias_G: all biases, in the kernel's columns.
        scale_G: what multiplies W x + U h' + b; already in bias_G.
        extra: all extras that are vectors side by side, scaled.
        h0_BH, c0_BH: initial h [B, H] and what else is kept [B, S·H], S further states and left factors inside the step.
        noise_TBR: ε / τ, in the kernel's columns.
        seed, blocks, chance: of noise to be drawn here: int64 [1]; first and last + 1 columns; probability and 1 / τ. All None
            for no such noise: an AOTInductor package takes an empty list for None.
        lengths_B: int64 in 1 … T, any order; None where every sequence has all T steps.
        plan: `Plan.text()`.
        products: "float", as x is; "bf16", where sums and everything else are float32; "split", nearly float32 (`split`), where
            the CPU has matrix registers, else "float". Few tokens are multiplied as they are (`direct`).
        keep: whether gates and cell states are wanted; else something without meaning stands for them.

    Returns: h [T, B, H], 0 beyond a length; gate values [T · B, L] and what else is kept [T · B, S·H] of the tokens as they
        lie packed, then zeros; final h [B, H] and the rest [B, S·H].
    Raises: ArgumentError: a length is out of range.
    """
    T, B, D = x_TBD.shape
    tokens, target = layout(lengths_B, T, B, reverse), best()
    N, (kind, rank) = tokens.count, kind_for(weight_ih, weight_hh, products, x_TBD, target)
    run = forward_loop(plan, T, B, N, D, x_TBD.dtype, reverse, keep, kind, rank, team.size(), target)
    p, dtype, H = run.plan, x_TBD.dtype, run.plan.hidden
    values = weights(run, weight_ih, weight_hh, scale_G)
    h_n, c_n = x_TBD.new_empty((B, H)), x_TBD.new_empty((B, p.cells * H))
    gates = cells = c_n
    if keep:
        values["G"], values["cs"] = gates, cells = _kept(run, N, T * B, dtype)
    if scale_G is not None:
        values["scale"], values["scaled"] = scale_G.contiguous(), 1
    if noise_TBR is not None:
        values["noise"], values["noisy"] = tokens.packed(noise_TBR), 1
    if seed is not None:
        values |= draw_values(seed, blocks or [], chance or [], dtype)
    if extra is not None:
        values["extra"] = extra.contiguous()
    if c0_BH is not None:
        values["c0"] = tokens.sorted(c0_BH)
    values["h0"], values["bias"] = tokens.sorted(h0_BH), bias_G.contiguous()
    values["offsets"], values["prev"] = tokens.offsets, tokens.previous
    values["hn"], values["cn"] = h_n, c_n
    with tokens.rooms(dtype, D, H) as (room_x, room_h):
        output = memory.empty(N, H, dtype=dtype) if room_h is None else room_h
        values["x"], values["out"] = tokens.packed(x_TBD, room_x), output
        run(values)
        return tokens.padded(output, T, B), gates, cells, tokens.unsorted(h_n), tokens.unsorted(c_n)


def _kept(run: Loop, tokens: int, places: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Memory for the gates' values and what else is kept; 0 where the loop does not write."""
    p = run.plan
    gates, cells = memory.empty(places, run.apart, dtype=dtype), memory.empty(places, p.cells * p.hidden, dtype=dtype)
    gates[:, max(p.columns, p.kept and p.kept + p.columns_x) :].zero_()
    gates[tokens:].zero_()
    cells[tokens:].zero_()
    return gates, cells


def kind_for(weight_ih: Tensor, weight_hh: Tensor, products: str, x_TBD: Tensor, target: Target) -> tuple[str, int]:
    """The kind of products with these weights, and of compressed ones the rank that their loop needs room for, else 0."""
    steps, batch, _ = x_TBD.shape
    if compressed(weight_ih, weight_hh):
        return "small", rank_of(blocks_of(weight_ih), blocks_of(weight_hh))
    if weight_hh.dtype == torch.bfloat16:
        return "widened", 0
    read = batch == 1 and steps >= HALF_STEPS and weight_hh.numel() >= READ
    return _kind(products, x_TBD.dtype, target, read), 0


def weights(run: Loop, weight_ih: Tensor, weight_hh: Tensor, scale_G: Tensor | None) -> Values:
    """W and U as arguments of a forward loop: as they lie, or the tables of compressed ones."""
    if compressed(weight_ih, weight_hh):
        return dict(zip(("PW", "PU"), tables(run.plan, weight_ih, weight_hh, scale_G, run.panel), strict=True))
    return {"W": weight_ih.contiguous(), "U": weight_hh.contiguous()}


@functools.lru_cache(maxsize=256)
def forward_loop(
    plan: str, T: int, B: int, N: int, D: int, dtype: torch.dtype, reverse: bool, keep: bool, kind: str, rank: int,
    team_size: int, target: Target,
) -> Loop:  # fmt: skip
    """The loop for so many tokens: whether it reads W and U as they lie or packs them, and the room that it needs."""
    p = Plan.of(plan)
    run = loop("forward", p, D, threads_for(p, N, D, team_size), target, kind, rank)
    fixed = {"small": (False, False), "widened": (True, True)}
    direct_w, direct_u = fixed.get(kind) or direct(T, B, N, half=kind == "bf16")
    rooms = {} if keep else {"G": N * run.apart * dtype.itemsize, "cs": N * p.cells * p.hidden * dtype.itemsize}
    if kind != "small":
        packed_w, packed_u = run.forward_room
        rooms |= {} if direct_w else {"PW": packed_w * run.packed.itemsize}
        rooms |= {} if direct_u else {"PU": packed_u * run.packed.itemsize}
    own = kind not in fixed and not direct_u and by_rows(run, T, B, N)
    return run.given({"T": T, "reverse": reverse, "by_rows": own, "direct_w": direct_w, "direct_u": direct_u}, rooms)


def _trusted(
    owner: str, p: Plan, sizes: tuple[int, int, int], dtype: torch.dtype, **given: Tensor | None
) -> dict[str, Any]:
    """These tensors, contiguous, by name. Raises: ArgumentError: one is not what the kernels take it for."""
    (T, B, D), H, columns, L = sizes, p.hidden, p.columns, leading(p)
    shapes: dict[str, tuple[int, ...]] = {
        **{"input": (T, B, D), "weight_ih": (p.columns_x, D), "weight_hh": (p.rows, H)},
        **{"bias": (columns,), "scale": (columns,), "extra": (p.extras,), "noise": (T, B, p.columns_x)},
        **{"h_0": (B, H), "c_0": (B, p.cells * H), "grad_h_n": (B, H), "grad_c_n": (B, p.cells * H)},
        **{"output": (T, B, H), "grad_output": (T, B, H), "gates": (T * B, L), "grad_gates": (T * B, L)},
        "cells": (T * B, p.cells * H),
    }
    where = f", for an input of shape {[T, B, D]}"
    return {
        name: None if tensor is None else trusted(f"{owner}.{name}{where}", tensor, dtype, shapes[name])
        for name, tensor in given.items()
    }


def _checked(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`forward`, of tensors that no backend has looked at: a graph that was traced or exported brings its own."""
    x, W, U, bias, scale, extra, h0, c0, noise, *rest = arguments
    seed, blocks, chance, plan = rest[0], rest[1] or [], rest[2] or [], rest[4]
    (T, B, D), p = x.shape, Plan.of(plan)
    dtype = real("recurrence.input", x)
    x = trusted("recurrence.input", x, dtype, (T, B, D))
    given = _trusted(
        "recurrence", p, (T, B, D), dtype, weight_ih=W, weight_hh=U, bias=bias, scale=scale, extra=extra, h_0=h0, c_0=c0,
        noise=noise,
    )  # fmt: skip
    if seed is not None:
        trusted("recurrence.seed", seed, torch.int64, (1,))
        pairs = sorted(blocks[k : k + 2] for k in range(0, len(blocks), 2))  # in the order of the gates, not of columns
        drawable("recurrence", [edge for pair in pairs for edge in pair], chance, p.columns_x)
    return forward(x, *given.values(), *rest)


_SIGNATURE = inspect.signature(forward)  # the operator always keeps gates and cell states
_checked.__signature__ = _SIGNATURE.replace(parameters=list(_SIGNATURE.parameters.values())[:-1])  # type: ignore[attr-defined]
recurrence = torch.library.custom_op("gatedrnn::recurrence", mutates_args=())(_checked)


@recurrence.register_fake
def _recurrence_fake(
    x_TBD, weight_ih, weight_hh, bias_G, scale_G, extra, h0_BH, c0_BH, noise_TBR, seed, blocks, chance, lengths_B, plan, reverse,
    products,
):  # fmt: skip
    given = (x_TBD, weight_ih, weight_hh, bias_G, scale_G, extra, h0_BH, c0_BH, noise_TBR, seed, lengths_B)
    together("recurrence", *(tensor for tensor in given if tensor is not None))
    (T, B, _), p = x_TBD.shape, Plan.of(plan)
    H, new = p.hidden, x_TBD.new_empty
    gates, cells = new(T * B, leading(p)), new(T * B, p.cells * H)
    return new(T, B, H), gates, cells, new(B, H), new(B, p.cells * H)


@torch.library.custom_op("gatedrnn::recurrence_backward", mutates_args=())
def recurrence_backward(
    grad_output: Tensor | None, grad_gates: Tensor | None, grad_h_n: Tensor | None, grad_c_n: Tensor | None, x_TBD:
    Tensor, weight_ih: Tensor, weight_hh: Tensor, scale_G: Tensor | None, extra: Tensor | None, h0_BH: Tensor, c0_BH:
    Tensor | None, gates: Tensor, cells: Tensor, output_TBH: Tensor, lengths_B: Tensor | None, plan: str, reverse: bool,
    need_x: bool, need_w: bool, need_u: bool, need_bias: bool, need_noise: bool, products: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of `recurrence` for x, W, U, bias, extra, h0, c0 and noise; empty where there is none to give.

    Args:
        need_x, need_w, need_u, need_bias, need_noise: whether those are wanted.
    """
    (T, B, D), dtype, p = x_TBD.shape, real("recurrence_backward.input", x_TBD), Plan.of(plan)
    if not p.cells:
        grad_c_n = None  # of nothing
    t = _trusted(
        "recurrence_backward", p, (T, B, D), dtype, input=x_TBD, weight_ih=weight_ih, weight_hh=weight_hh, scale=scale_G,
        extra=extra, h_0=h0_BH, c_0=c0_BH, gates=gates, cells=cells, output=output_TBH, grad_output=grad_output,
        grad_gates=grad_gates, grad_h_n=grad_h_n, grad_c_n=grad_c_n,
    )  # fmt: skip
    tokens, target = layout(lengths_B, T, B, reverse), best()
    N, H = tokens.count, p.hidden
    run = loop("backward", p, D, threads_for(p, N, D, team.size()), target, _kind(products, dtype, target))
    made = _gradients(p, N, D, need_w, need_u, dtype)
    made["d_extra"] = memory.empty(run.threads, 2, 0 if extra is None else len(extra), dtype=dtype).zero_()
    made["dh"], made["dc"] = (
        memory.empty(B, width, dtype=dtype).zero_() if grad is None else tokens.sorted(grad).clone()
        for grad, width in ((t["grad_h_n"], H), (t["grad_c_n"], p.cells * H))
    )
    summed = need_bias and not (need_w and (need_u or not p.u_column))  # else a product sums its columns beside
    rooms = {"P": run.backward_room, "shared": TOKENS * round_up(max(D, H), run.panel)}
    rooms = {name: size * run.packed.itemsize for name, size in rooms.items()}
    if need_noise or summed:
        made["dG"] = memory.empty(N, run.apart, dtype=dtype)
    else:
        rooms["dG"] = N * run.apart * dtype.itemsize
    values: Values = {
        **{"T": T, "reverse": reverse, "by_rows": by_rows(run, T, B, N)},
        **{"offsets": tokens.offsets, "prev": tokens.previous},
        **{"W": t["weight_ih"], "U": t["weight_hh"], "scale": t["scale"], "scaled": scale_G is not None},
        **{
            "extra": t["extra"],
            "h0": tokens.sorted(t["h_0"]),
            "c0": None if c0_BH is None else tokens.sorted(t["c_0"]),
        },
        **{"need_dx": need_x, "need_dw": need_w, "need_du": need_u, "extra_size": made["d_extra"].shape[2]},
        **{"G": t["gates"], "cs": t["cells"], "grad_g": t["grad_gates"]},
        "grad_h_stride": 0 if grad_output is None else H,
        "grad_g_stride": 0 if grad_gates is None else run.apart,
    }
    if grad_output is None or grad_gates is None:
        zeros = memory.empty(max(run.apart, H), dtype=dtype).zero_()
        values |= {"grad_h": zeros} if grad_output is None else {}
        values |= {"grad_g": zeros} if grad_gates is None else {}
    widths = (D, H, 0 if grad_output is None else H, D if need_x else 0)
    with tokens.rooms(dtype, *widths) as (room_x, room_h, room_g, room_dx):
        values["x"], values["out"] = tokens.packed(t["input"], room_x), tokens.packed(t["output"], room_h)
        if grad_output is not None:
            values["grad_h"] = tokens.packed(t["grad_output"], room_g)
        made["dx"] = memory.empty(N, widths[3], dtype=dtype) if room_dx is None else room_dx
        run.given({}, rooms)(values | made)
        dx = tokens.padded(made["dx"], T, B) if need_x else memory.empty(0, D, dtype=dtype)
    db, d_noise = _beside_products(p, made, scale_G, summed, need_noise)
    dW = made["dW"].roll(p.shift, 0) if p.shift else made["dW"]
    d_noise = tokens.padded(d_noise, T, B).contiguous() if need_noise else d_noise
    dc = db.new_empty(0) if c0_BH is None else tokens.unsorted(made["dc"])
    return dx, dW, made["dU"], db, made["d_extra"].sum((0, 1)), tokens.unsorted(made["dh"]), dc, d_noise


def _beside_products(
    p: Plan, made: dict[str, Tensor], scale_G: Tensor | None, summed: bool, noisy: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of the biases [G], and of the noise [N, G_x], empty if it is not wanted."""
    db = made["db_x"]
    if summed:
        db = made["dG"][:, : p.columns].sum(0)
    elif p.columns > p.columns_x:
        db = torch.cat((db, made["db_h"][p.columns_x - p.u_column : p.columns_x]))
        db = F.pad(db, (0, p.columns - len(db)))  # of columns without a bias
    d_noise = made["dG"][:, : p.columns_x] if noisy else db.new_empty(0)
    if scale_G is None:
        return db, d_noise
    return db / scale_G, d_noise / scale_G[: p.columns_x] if noisy else d_noise  # those were of what is scaled


def _gradients(p: Plan, N: int, D: int, w: bool, u: bool, dtype: torch.dtype) -> dict[str, Tensor]:
    """Memory for the gradients of weights that the loop writes, by its names for them."""
    made = {
        "dW": memory.empty(p.columns_x if w else 0, D, dtype=dtype),
        "dU": memory.empty(p.rows if u else 0, p.hidden, dtype=dtype),
        "db_x": memory.empty(p.columns_x, dtype=dtype),
        "db_h": memory.empty(p.rows, dtype=dtype),
    }
    for name, wanted in (("dW", w), ("db_x", w), ("dU", u), ("db_h", u)):
        if N == 0 or not wanted:  # an empty batch changes nothing
            made[name].zero_()
    return made


@recurrence_backward.register_fake
def _recurrence_backward_fake(
    grad_output, grad_gates, grad_h_n, grad_c_n, x_TBD, weight_ih, weight_hh, scale_G, extra, h0_BH, c0_BH, gates, cells,
    output_TBH, lengths_B, plan, reverse, need_x, need_w, need_u, need_bias, need_noise, products,
):  # fmt: skip
    given = (
        grad_output, grad_gates, x_TBD, weight_ih, weight_hh, scale_G, extra, h0_BH, c0_BH, gates, cells, output_TBH, lengths_B,
    )  # fmt: skip
    together("recurrence_backward", *(tensor for tensor in given if tensor is not None))
    (T, B, D), p, new = x_TBD.shape, Plan.of(plan), x_TBD.new_empty
    H = p.hidden
    dx = new(T, B, D) if need_x else new(0, D)
    dW, dU = new(p.columns_x if need_w else 0, D), new(p.rows if need_u else 0, H)
    d_extra = new(0 if extra is None else extra.shape[0])
    d_noise = new(T, B, p.columns_x) if need_noise else new(0)
    dc = new(0) if c0_BH is None else new(B, p.cells * H)
    return dx, dW, dU, new(p.columns), d_extra, new(B, H), dc, d_noise


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, W, U, _, scale, extra, h0, c0, noise, _, _, _, lengths, plan, reverse, products = inputs
    h, gates, cells, _, _ = output
    ctx.save_for_backward(x, W, U, scale, extra, h0, c0, gates, cells, h, lengths)
    ctx.set_materialize_grads(False)
    ctx.plan, ctx.reverse, ctx.noisy, ctx.products = plan, reverse, noise is not None, products


def _backward(ctx: Any, d_h: Any, d_gates: Any, d_cells: Any, d_h_n: Any, d_c_n: Any) -> tuple[Any, ...]:
    x, W, U, scale, extra, h0, c0, gates, cells, h, lengths = ctx.saved_tensors
    need = ctx.needs_input_grad
    need_noise = ctx.noisy and need[8]
    dx, dW, dU, d_bias, d_extra, dh, dc, d_noise = recurrence_backward(
        d_h, d_gates, d_h_n, d_c_n, x, W, U, scale, extra, h0, c0, gates, cells, h, lengths, ctx.plan, ctx.reverse,
        *need[:4], need_noise, ctx.products,
    )  # fmt: skip
    return (
        dx if need[0] else None, dW if need[1] else None, dU if need[2] else None, d_bias if need[3] else None, None,
        None if extra is None else d_extra, dh, None if c0 is None else dc, d_noise if need_noise else None, *[None] * 7,
    )  # fmt: skip


recurrence.register_autograd(_backward, setup_context=_setup)
recurrence_backward.register_autograd(no_second_derivative("cpu"))
start_light(recurrence, recurrence_backward)
