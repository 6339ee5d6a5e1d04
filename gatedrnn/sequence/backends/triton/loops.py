"""A layer over time on a GPU: a step is a product (torch.mm) and a pointwise kernel; weight gradients are one product at the end.

Every array is laid out as `functions` says. Rows that have ended stay in the batch, and their state stands still: nothing here
depends on a length's value, so that a loop can be captured once and replayed. In a graph's buffers rows of h and U end in zeros,
which products sum over too (`graphs.Layout`).
Dimensions: T steps, B batch, H hidden, R rows of x, G columns of gates.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton
from torch.nn import functional as F

from gatedrnn.compiler.triton import ARRAYS
from gatedrnn.sequence.backends.triton.compiled import Shape, rows_of
from gatedrnn.sequence.backends.triton.tuning import choices, measurable, tile_of, tuned

Buffers = dict[str, Any]
"""Tensors by name, None for those that there are not."""

_FORWARD, _BACKWARD = ARRAYS["forward"], ARRAYS["backward"]

Launch = dict[str, int]
"""Units of a program, where the cell leaves them open, and warps."""

_CHOSEN: dict[Hashable, dict[Any, Launch]] = {}
"""How each kernel is launched, by all that decides on it; once it was measured."""


def slots(t: int, reverse: bool) -> tuple[int, int]:
    """Slots of the state before and after step t."""
    return (t + 1, t) if reverse else (t, t + 1)


def forward_loop(plan: Shape, steps: int, reverse: bool, keep: bool, b: Buffers) -> None:
    """Fill h_all, s_all and gates.

    Args: b: x, weight_hh, bias, extra, lengths, h0, s0, h_all, s_all, gates, and scratch: u [B, own rows], and for a product
        inside the step u_second [B, other rows] and work [B, H].
    """
    rows = rows_of(plan.kernel)
    constants = {"KEEP": int(keep), "RAGGED": b["lengths"] is not None}
    x, first, given = b["x"], plan.own, [b[name] for name in _FORWARD]
    pitch = b["h_all"].stride(-2)  # the operator's own tensor: another's stride may be any where the batch is 1
    run = _Launcher(plan, x.shape[1], pitch, constants, x.device, x.dtype)
    run.rehearse((rows.forward, rows.forward_second), given, 0, *slots(0, reverse))
    h_all, work, weight = (_whole(b[name], pitch) for name in ("h_all", "work", "weight_hh"))
    U, U_second, u = weight[:first].t(), weight[first:].t(), b["u"]
    start = steps if reverse else 0
    b["h_all"][start].copy_(b["h0"])
    b["s_all"][start if keep else 0].copy_(b["s0"])
    for t in range(steps - 1, -1, -1) if reverse else range(steps):
        old, new = slots(t, reverse)
        torch.mm(h_all[old], U, out=u)
        run(rows.forward, given, t, old, new)
        if rows.forward_second is not None:
            torch.mm(work, U_second, out=b["u_second"])
            second = {**b, "u": b["u_second"]}
            run(rows.forward_second, [second[name] for name in _FORWARD], t, old, new)


def backward_loop(plan: Shape, steps: int, reverse: bool, b: Buffers) -> None:
    """Fill dx (and du, where it is not dx), dU, d_extra, and in dh_u, dh and dc what reaches the initial state.

    Args: b: weight_hh, extra, lengths, h_all, s_all, gates, grad_h, grad_s, grad_gates, dx, du, dU, dh_u, d_left, dh, dc,
        d_extra.
    """
    rows, first = rows_of(plan.kernel), plan.own
    names = {"RAGGED": "lengths", "GRAD_S": "grad_s", "GRAD_GATES": "grad_gates"}
    dx, given, pitch = b["dx"], [b[name] for name in _BACKWARD], b["dh_u"].stride(-2)
    flags = {flag: b[name] is not None for flag, name in names.items()}
    run = _Launcher(plan, dx.shape[1], pitch, flags, dx.device, dx.dtype)
    run.rehearse((rows.backward, rows.backward_second), given, 0, *slots(0, reverse))
    weight, dh_u, d_left = (_whole(b[name], pitch) for name in ("weight_hh", "dh_u", "d_left"))
    U, U_second = weight[:first], weight[first:]
    for name in ("dh_u", "dh", "dc", "d_extra"):
        b[name].zero_()
    for t in range(steps) if reverse else range(steps - 1, -1, -1):
        old, new = slots(t, reverse)
        run(rows.backward, given, t, old, new)
        if rows.backward_second is not None:
            torch.mm(b["du"][t, :, first:], U_second, out=d_left)
            run(rows.backward_second, given, t, old, new)
        torch.mm(b["du"][t, :, :first], U, out=dh_u)
    _weight_gradient(plan, steps, reverse, pitch, b)


def _whole(tensor: Any, pitch: int) -> Any:
    """`tensor`, a graph's view [..., :H] of padded rows, with its pads; itself where there are none."""
    if tensor is None or tensor.shape[-1] == pitch:
        return tensor
    return tensor.as_strided((*tensor.shape[:-1], pitch), tensor.stride())


def _weight_gradient(plan: Shape, steps: int, reverse: bool, pitch: int, b: Buffers) -> None:
    first, H = plan.own, plan.hidden
    h_all, dU = _whole(b["h_all"], pitch), _whole(b["dU"], pitch)
    before = h_all[1 : steps + 1] if reverse else h_all[:steps]
    du = b["du"].flatten(0, 1)
    torch.mm(du[:, :first].t(), before.flatten(0, 1), out=dU[:first])
    if (column := plan.gpu.left) >= 0:
        left = b["gates"][..., column : column + H].to(du.dtype)
        left = left if pitch == H else F.pad(left, (0, pitch - H))
        torch.mm(du[:, first:].t(), left.flatten(0, 1), out=dU[first:])


class _Launcher:
    """Runs a cell's kernels for one step after another.

    Args: pitch: P. flags: constants of the pass. device: where the tensors are. key: what else decides on their types.
    """

    def __init__(
        self, plan: Shape, batch: int, pitch: int, flags: dict[str, Any], device: torch.device, key: Hashable = None
    ) -> None:
        self._given = batch, plan.hidden, pitch
        self._constants = dict(flags)
        if plan.gpu.whole:
            across, down = tile_of(plan)
            self._constants |= {"K": plan.logits, "C": plan.chunk, "BLOCK": across, "BLOCK_C": down}
        self._blocks = not plan.gpu.whole
        self._choices, self._device = tuple(choices(plan)), device
        self._key = (plan, key, device, *flags.items())
        self._chosen = _CHOSEN.get(self._key, {})

    def __call__(self, kernel: Any, arguments: list[Any], t: int, old: int, new: int) -> None:
        block, warps = self._choices[0]
        usual = {"num_warps": warps} if block is None else {"BLOCK": block, "num_warps": warps}
        self._launch(kernel, arguments, t, old, new, self._chosen.get(kernel, usual))

    def _launch(self, kernel: Any, arguments: list[Any], t: int, old: int, new: int, launch: Launch) -> None:
        batch, H, _ = self._given

        def grid(constants: dict[str, Any]) -> tuple[int, ...]:
            return (batch, triton.cdiv(H, constants["BLOCK"])) if self._blocks else (batch,)

        kernel[grid](*arguments, t, old, new, *self._given, **self._constants, **launch)

    def rehearse(self, kernels: Sequence[Any], arguments: list[Any], t: int, old: int, new: int) -> None:
        """Measure how kernels are best launched, if that is not known, on buffers that are about to be filled.

        Within the loop nothing is measured: a kernel that runs twice on a state's one slot reads what it wrote.
        """
        if self._chosen or not measurable(self._device):
            return
        place = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else ""
        chosen: dict[Any, Launch] = {}
        try:
            for kernel in kernels:
                if kernel is not None:
                    tuner = tuned(kernel, self._choices, place)
                    self._launch(tuner, arguments, t, old, new, {})
                    best = tuner.best_config
                    chosen[kernel] = {**best.kwargs, "num_warps": best.num_warps}
        except torch.OutOfMemoryError:  # no room to measure in: the usual launches serve, and a later call tries again
            return
        self._chosen = _CHOSEN[self._key] = chosen
