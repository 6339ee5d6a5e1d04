"""The `triton` backend: whole-sequence loops of products and Triton kernels on a GPU, for every cell.

Dimensions: T time, B batch, D input, H hidden, R rows.
"""

import functools
import importlib.metadata
import importlib.util
import math
import os
import shutil

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.cells import Params
from gatedrnn.core.torch_internals import constant_in_graphs
from gatedrnn.sequence import projected
from gatedrnn.sequence.modes import storage_type, transformed
from gatedrnn.sequence.perturb import fold, real_of
from gatedrnn.sequence.plan import Plan, plan_for, summed, trace
from gatedrnn.sequence.request import Backend, Request, Result, blank

OLDEST = (3, 4)
"""Triton's first version with all that the kernels use."""

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_LARGEST_TILE = 1 << 16
"""Bytes: a program's sums go through shared memory, of which consumer GPUs have 99 KB a program."""


class Triton(Backend):
    """One operator a layer and direction; a CUDA graph from the second call of a shape on.

    On a CPU it runs in Triton's interpreter if TRITON_INTERPRET=1 is set: to test, slowly.
    """

    def supports(self, request: Request) -> str | None:
        """None, or why not: a device, type, version or shape it cannot take, or no kernel for the cell."""
        x = request.x_TBD
        reason = _unavailable(x.device) or request.mixture()
        if reason is not None:
            return reason
        if request.params.weight_hr is not None:
            return projected.reason(self, request)
        storage = storage_type(x)
        if storage not in _TYPES:
            return f"tensors are {storage}"
        if transformed():
            return "a function transform or forward-mode differentiation is active"
        plan = plan_for(request.cell.step, request.spec)
        return plan if isinstance(plan, str) else _too_wide(plan.kernel, real_of(storage).itemsize) or request.misfit()

    def run(self, request: Request) -> Result:
        """Project the input, run the operator, and cut its results out."""
        if request.params.weight_hr is not None:
            return projected.run(self, request)
        spec, reverse, lengths = request.spec, request.reverse, request.lengths_B
        plan, params = plan_for(request.cell.step, spec), fold(request.params, spec, request.scale_R)
        assert isinstance(plan, Plan)
        x_TBR, bias = _projected(request, spec.rows - plan.u_column, params)
        real = real_of(x_TBR.dtype)
        extras = [params.extras[each.name] for each in spec.extras]
        extra = torch.cat(extras).to(real) if extras else None
        states, keep = request.state, torch.is_grad_enabled() or bool(request.return_gates)
        beside = torch.cat([state.to(real) for state in states[1:] or states], -1)
        h_all, s_all, gates = torch.ops.gatedrnn.recurrence_triton(
            x_TBR, params.weight_hh.to(x_TBR.dtype), None if bias is None else bias.to(real), extra,
            states[0].to(x_TBR.dtype), beside, lengths, plan.kernel, reverse, keep,
        )  # fmt: skip
        last, steps = (0 if reverse else -1), slice(0, -1) if reverse else slice(1, None)
        output = h_all[steps].to(states[0].dtype)
        finals = s_all[last].split(spec.hidden_size, -1)
        if len(states) > 1:  # else it is h that stands there, in full precision
            finals = h_all[last], *finals
        # copies: views would share what the backward pass reads, and hold all of h_all while a state is carried on
        finals = tuple(after.to(before.dtype, copy=True) for after, before in zip(finals, states, strict=True))
        found = None
        if request.return_gates:
            alone = x_TBR.dtype == params.weight_hh.dtype  # no autocast: all in one type
            alike = x_TBR.dtype if alone else gates.dtype
            found = trace(spec, spec.starts, gates.flatten(0, 1), request.wants, lambda gate: gate.to(alike))
            found = {name: gate.unflatten(0, gates.shape[:2]) for name, gate in found.items()}
        if lengths is not None:
            dead = torch.arange(output.shape[0], device=output.device)[:, None] >= lengths
            output, found = blank(output, dead), found and {name: blank(gate, dead) for name, gate in found.items()}
        return Result(output, finals, found)


def _projected(request: Request, apart: int, params: Params) -> tuple[Tensor, Tensor | None]:
    """W x + b with its noise [T, B, R], and what is added to U h' [R] where that stands apart, from row `apart` on."""
    bias, b_hh, R = params.bias_ih, params.bias_hh, request.spec.rows
    if b_hh is not None:
        within = b_hh if apart == R else F.pad(b_hh[:apart], (0, R - apart))
        bias = within if bias is None else summed(bias, within)
    elif apart < R:
        b_hh = params.weight_hh.new_zeros(R)
    x_TBR = F.linear(request.live(request.x_TBD), params.weight_ih, bias)
    noise = request.drawn_noise(torch.ops.gatedrnn.logistic_noise_triton)
    return x_TBR if noise is None else x_TBR + noise.to(x_TBR.dtype), None if apart == R else b_hh


@constant_in_graphs
def _too_wide(kernel: str, size: int) -> str | None:
    """None, or that a program cannot hold the row, a number of `size` bytes, or that the cell has no kernel for a GPU."""
    from gatedrnn.sequence.backends.triton.compiled import missing, shape_of
    from gatedrnn.sequence.backends.triton.tuning import tile_of

    if (reason := missing(kernel)) is not None:
        return reason
    plan = shape_of(kernel)
    if plan.gpu.whole and size * math.prod(tile_of(plan)) > _LARGEST_TILE:
        return f"a row of {plan.hidden} units is more than one program's tile of {_LARGEST_TILE // size}"
    return None


def _unavailable(device: torch.device) -> str | None:
    if device.type == "cpu" and not _interpreting():
        return "tensors are on cpu (TRITON_INTERPRET=1 would interpret the kernels there)"
    return _missing(device.type, device.index or 0) if device.type in ("cuda", "cpu") else f"tensors are on {device}"


@constant_in_graphs
def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


@constant_in_graphs
def _missing(kind: str, index: int) -> str | None:
    return _installed() or (_too_old(index) or _no_compiler() if kind == "cuda" else None)


@functools.cache
def _installed() -> str | None:
    """None once the operators are registered, or why they cannot be."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    version = importlib.metadata.version("triton")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return f"triton is {version}, older than {'.'.join(map(str, OLDEST))}"
    try:
        from gatedrnn.sequence.backends.triton import drawing, operators  # noqa: F401 - imports Triton
    except (ImportError, OSError) as error:  # a library that does not load here
        return f"{type(error).__name__}: {error}"
    return None


@functools.cache
def _no_compiler() -> str | None:
    """None where Triton finds a compiler, or brings one along."""
    found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or os.name == "nt"
    return None if found else "there is no C compiler (gcc or clang), which Triton launches kernels with"


@functools.cache
def _too_old(index: int) -> str | None:
    if torch.version.cuda is None:  # ROCm counts otherwise
        return None
    capability = torch.cuda.get_device_capability(index)
    if capability >= (7, 0):
        return None
    return f"the GPU has compute capability {capability[0]}.{capability[1]}, below 7.0"
