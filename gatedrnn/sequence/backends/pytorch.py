"""The `torch` backend: PyTorch's own kernels for the cells it has: cuDNN (NVIDIA), MIOpen (AMD), oneDNN (CPU).

Dimensions: T time, B batch, D input, H hidden.
"""

import torch
from torch import Tensor

from gatedrnn.cells.native import native
from gatedrnn.core.torch_internals import being_traced
from gatedrnn.sequence.modes import rounds_recurrences, storage_type, transformed
from gatedrnn.sequence.perturb import fold
from gatedrnn.sequence.request import Backend, Request, Result
from gatedrnn.weights.compressed import as_dense


class PyTorch(Backend):
    """What the layers of `torch.nn` run, given one layer and direction, with the temperature in its weights."""

    def supports(self, request: Request) -> str | None:
        """None, or why not: another device, or PyTorch has no such cell, or not with what is asked."""
        x = request.x_TBD
        if x.device.type not in ("cpu", "cuda"):  # not tested there
            return f"tensors are on {x.device}"
        cell = native(request.cell.step, request.spec)
        if cell is None:
            return "PyTorch has no such cell"
        if request.params.weight_hr is not None and cell != "lstm":
            return "PyTorch has projections of LSTMs only"
        for value, name in ((request.noise, "noise"), (request.lengths_B, "lengths"), (request.return_gates, "gates")):
            if value is not None and value is not False:
                return f"PyTorch's kernels do not take or return {name}"
        if (request.params.bias_ih is None) != (request.params.bias_hh is None):
            return "PyTorch's kernels take both biases or none"
        if torch.compiler.is_compiling() or being_traced():
            return "a graph made by torch.compile or torch.jit.trace cannot hold this kernel"
        if transformed():
            return "a function transform or forward-mode differentiation is active"
        if not x.shape[1]:
            return "the batch is empty"
        if x.is_cuda and storage_type(x) == torch.float32 and rounds_recurrences():
            return "cuDNN would round float32 to TF32, which torch.set_float32_matmul_precision('high') allows"
        return request.mixture() or request.misfit()

    def run(self, request: Request) -> Result:
        """Run the kernel on the steps as they are, or turned round."""
        storage, kind = storage_type(request.x_TBD), request.x_TBD.device.type
        x_TBD, states = request.x_TBD.to(storage), [state.to(storage)[None].contiguous() for state in request.state]
        weights = _in_one_piece(fold(request.params, request.spec, request.scale_R).tensors(), storage)
        with torch.autocast(kind, enabled=False):
            output_TBH, *finals = getattr(torch, native(request.cell.step, request.spec) or "")(
                x_TBD.flip(0) if request.reverse else x_TBD, states if len(states) > 1 else states[0], weights,
                request.params.bias_ih is not None, 1, 0.0, torch.is_grad_enabled(), False, False,
            )  # fmt: skip
        if request.reverse:
            output_TBH = output_TBH.flip(0)
        finals = tuple(after[0].to(before.dtype) for after, before in zip(finals, request.state, strict=True))
        return Result(output_TBH.to(request.state[0].dtype), finals, None)


def _in_one_piece(weights: list[Tensor], storage: torch.dtype) -> list[Tensor]:
    """The weights one after another in one memory, as cuDNN wants them (it would copy and warn)."""
    dense = [as_dense(weight).to(storage) for weight in weights]
    parts = torch.cat([weight.flatten() for weight in dense]).split([weight.numel() for weight in dense])
    return [part.view(weight.shape) for part, weight in zip(parts, dense, strict=True)]
