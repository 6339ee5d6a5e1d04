"""The `triton` backend: whole-sequence loops of products and Triton kernels on a GPU, for every cell.

Dimensions: T time, B batch, D input, H hidden, R rows.
"""

import functools
import importlib.metadata
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.sequence.modes import storage_type, transformed
from gatedrnn.sequence.perturb import fold
from gatedrnn.sequence.plan import Plan, plan_for, trace
from gatedrnn.sequence.request import Request, Result

OLDEST = (3, 2)
"""Triton's first version with all that the kernels use."""

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_LARGEST_TILE = 1 << 14


class Triton:
    """One operator a layer and direction; a CUDA graph from the second call of a shape on.

    On a CPU it runs in Triton's interpreter if TRITON_INTERPRET=1 is set: to test, slowly.
    """

    def supports(self, request: Request) -> str | None:
        """None, or why not: a device, type, version or shape it cannot take, or no kernel for the cell."""
        x = request.x_TBD
        reason = _unavailable(x.device) or request.mixture()
        if reason is not None:
            return reason
        storage = storage_type(x)
        if storage not in _TYPES:
            return f"tensors are {storage}"
        if not torch.compiler.is_compiling() and transformed():
            return "a function transform or forward-mode differentiation is at work"
        plan = _plan(request)
        if isinstance(plan, str):
            return plan
        if plan.slots or plan.kernel.startswith("step-"):
            return "the cell is compiled for the CPU only, so far"
        if (1 << (plan.split_points - 1).bit_length()) * (1 << (plan.chunk - 1).bit_length()) > _LARGEST_TILE:
            return f"a row of {plan.hidden} units is more than one program's tile of {_LARGEST_TILE}"
        return request.misfit()

    def run(self, request: Request) -> Result:
        """Project the input, run the operator, and cut its results out."""
        plan, spec, reverse, lengths = _plan(request), request.spec, request.reverse, request.lengths_B
        assert isinstance(plan, Plan)
        params = fold(request.params, spec, request.scale_R)
        x_TBR, extra = _projected(request, plan, params)
        real = torch.float64 if x_TBR.dtype == torch.float64 else torch.float32
        states, keep = request.state, torch.is_grad_enabled() or bool(request.return_gates)
        h_all, s_all, gates = torch.ops.gatedrnn.recurrence_triton(
            x_TBR, params.weight_hh.to(x_TBR.dtype), None if extra is None else extra.to(real),
            states[0].to(x_TBR.dtype), states[-1].to(real), lengths, plan.text(), reverse, keep,
        )  # fmt: skip
        last, steps = (0 if reverse else -1), slice(0, -1) if reverse else slice(1, None)
        output = h_all[steps].to(states[0].dtype)
        finals = (h_all[last], s_all[last])[-len(states) :]  # where there is no c, s_all is h in full precision
        finals = tuple(after.to(before.dtype) for after, before in zip(finals, states, strict=True))
        found = trace(plan, spec, gates, request.wants) if request.return_gates else None
        if found and x_TBR.dtype == params.weight_hh.dtype:  # no autocast: all in one type
            found = {name: gate.to(x_TBR.dtype) for name, gate in found.items()}
        if lengths is not None:
            dead = (torch.arange(len(output), device=output.device)[:, None] >= lengths)[..., None]
            output = output.masked_fill(dead, 0)
            found = found and {name: gate.masked_fill(dead, 0) for name, gate in found.items()}
        return Result(output, finals, found)


def _plan(request: Request) -> Plan | str:
    """The plan with rows in the cell's own order, which products of our own do not ask to change."""
    plan = plan_for(request.cell.step, request.spec)
    if isinstance(plan, str) or not plan.shift:
        return plan
    return Plan(plan.kernel, plan.hidden, plan.columns, plan.columns_x, 0, plan.columns_1, hard=plan.hard, cells=False)


def _projected(request: Request, plan: Plan, params: Any) -> tuple[Tensor, Tensor | None]:
    """W x + b with its noise [T, B, R], and the kernels' extra parameter."""
    bias, extra = params.bias_ih, next(iter(params.extras.values()), None)
    if bias is not None and plan.kernel == "gru_after":
        H = plan.hidden
        extra = params.bias_hh[2 * H :]
        bias = bias + F.pad(params.bias_hh[: 2 * H], (0, H))
    elif bias is not None:
        bias = bias + params.bias_hh
    elif plan.kernel == "gru_after":
        extra = params.weight_hh.new_zeros(plan.hidden)
    x_TBR = F.linear(request.x_TBD, params.weight_ih, bias)
    noise = request.drawn_noise()
    return x_TBR if noise is None else x_TBR + noise.to(x_TBR.dtype), extra


def _unavailable(device: torch.device) -> str | None:
    if device.type == "cpu" and not _interpreting():
        return "tensors are on cpu (TRITON_INTERPRET=1 would interpret the kernels there)"
    return _missing(device.type, device.index or 0) if device.type in ("cuda", "cpu") else f"tensors are on {device}"


def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _missing(kind: str, index: int) -> str | None:
    return _installed() or (_too_old(index) if kind == "cuda" else None)


@functools.cache
def _installed() -> str | None:
    """None once the operators are registered, or why they cannot be."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    version = importlib.metadata.version("triton")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return f"triton is {version}, older than {'.'.join(map(str, OLDEST))}"
    try:
        from gatedrnn.sequence.backends.triton import operators  # noqa: F401 - imports Triton
    except (ImportError, OSError) as error:  # a library that does not load here
        return f"{type(error).__name__}: {error}"
    return None


@functools.cache
def _too_old(index: int) -> str | None:
    if torch.version.cuda is None:  # ROCm counts otherwise
        return None
    capability = torch.cuda.get_device_capability(index)
    return (
        None if capability >= (7, 0) else f"the GPU has compute capability {capability[0]}.{capability[1]}, below 7.0"
    )


for _function in (_interpreting, _missing):  # torch.compiler.assume_constant_result, without importing the compiler
    _function._dynamo_marked_constant = True  # type: ignore[attr-defined]
