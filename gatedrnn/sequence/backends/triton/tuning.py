"""How many units a program takes and how many warps it gets: measured at a size's first call on a GPU, kept on disk by Triton."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton

from gatedrnn.sequence.backends.triton.compiled import Shape

Choice = tuple[int | None, int]
"""Units of a program (None: a whole row) and warps."""

_USUAL, *_OTHERS = (256, 4), (128, 2), (512, 4), (1024, 8)
_MOST_WARPS = 16


def choices(plan: Shape) -> list[Choice]:
    """What is tried, the usual one first: it serves where nothing can be measured."""
    if plan.gpu.whole:
        across, down = tile_of(plan)
        usual = min(_MOST_WARPS, max(4, across * down // 256))
        return [(None, warps) for warps in (usual, usual // 2, 2 * usual) if warps <= _MOST_WARPS]
    whole = triton.next_power_of_2(plan.hidden)
    return [(min(_USUAL[0], whole), _USUAL[1]), *(choice for choice in _OTHERS if choice[0] <= whole)]


def tile_of(plan: Shape) -> tuple[int, int]:
    """Chunks (or logits of them) and units of a chunk that one program holds, each rounded up to a power of 2."""
    across = max(plan.logits, plan.hidden // plan.chunk)
    return triton.next_power_of_2(across), triton.next_power_of_2(plan.chunk)


@functools.cache
def tuned(kernel: Any, tried: tuple[Choice, ...], place: str, measure: Callable[..., Any] | None = None) -> Any:
    """`kernel`, which takes the fastest of `tried` for a hidden size and types of tensors on GPUs that are called `place`.

    `measure` is as Triton's `do_bench`.
    """
    configs = [triton.Config({} if block is None else {"BLOCK": block}, num_warps=warps) for block, warps in tried]
    key = [name for name in ("H", "K", "C") if name in kernel.arg_names]
    kept = isinstance(kernel, triton.JITFunction)  # not what the interpreter runs
    return triton.autotune(configs, key=key, do_bench=measure, cache_results=kept)(kernel)


def measurable(device: torch.device) -> bool:
    """Whether choices can be timed on `device`, the current one, now."""
    return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()
