"""Interleaved timing in one process, after a parity check: no check, no speed.

Dimensions: T steps, B batch.
"""

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from gatedrnn.cells import CELLS
from gatedrnn.core.checks import one_of, positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.sequence import BACKENDS
from gatedrnn.sequence.backends.cpu.availability import unavailable
from gatedrnn.studies.speed.candidates import candidates
from gatedrnn.studies.speed.memory import peak_growth
from gatedrnn.studies.speed.shapes import gflop, shape_named, traffic


def measure(
    shape_name: str,
    cells: list[str],
    runs: int = 9,
    backends: tuple[str, ...] = ("cpu", "reference"),
    mm: bool = False,
    parts: bool = False,
    memory: bool = False,
    device: str = "cpu",
) -> dict[str, Any]:
    """Time cells × backends, their torch.nn peers and bounds at one shape.

    Args:
        shape_name: a key of `SHAPES`, or one layer as "H1150-B20-T70", "H1150-B20-T70-inference".
        cells: names in `CELLS`; "lstm" from torch.nn is always there, to compare with.
        runs: timed runs of each, in turn, after one that warms up.
        backends: "cpu", "triton" and "torch" (with and without bfloat16), "reference", "compiled" (the reference by
            torch.compile, at most 70 steps).
        mm: also time the products by torch.mm.
        parts: also time each part of the products by itself, in float32.
        memory: also measure the peak memory of training in float32, in a process of its own each (CPU).
        device: "cpu" or "cuda".

    Returns: shape, about (threads, machine, versions), tokens a run, and rows: name and backend of who ran, the median of the
        seconds of a step (None: out of memory), its arithmetic (GFLOP).
    Raises: ArgumentError: unknown shape or cell, or memory on a GPU or in inference. GatedRNNError: a result is wrong, so that
        its speed means nothing.
    """
    shape = shape_named(shape_name)
    positive_int("bench.runs", runs)
    for cell in cells:
        CELLS[cell]  # an unknown one raises, with the nearest
    one_of("bench.device", device, ["cpu", "cuda"])
    check_memory(shape_name, memory, device)
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("bench.device", "must be available", "cuda, but torch finds no GPU", "Leave --device out")
    if device == "cuda":  # cuDNN rounds float32 to TF32 unless told not to, products do not
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32
    for backend in backends:
        one_of("bench.backend", backend, [*BACKENDS, "compiled"])
    rows = _timed(dict(candidates(shape, cells, backends, mm, parts, device)), shape.calls, runs, device)
    bandwidth = _bandwidth() if device == "cuda" else 0.0
    for cell in cells if bandwidth else ():
        for label, size in (("float32", 4), ("bf16", 2)):
            seconds_moved = traffic(cell, shape, size) / bandwidth
            rows.append(_row(f"{cell}: bytes moved only", label, seconds_moved, gflop(cell, shape)))
    about = {
        "threads": torch.get_num_threads(),
        "machine": platform.machine() if device == "cpu" else torch.cuda.get_device_name(),
        "target": _target() if device == "cpu" else f"{bandwidth / 1e9:.0f} GB/s copied",
        "torch": torch.__version__,
        "runs": runs,
    }
    for row in rows if memory else ():
        if row["backend"] in ("torch", "cpu"):
            row["peak_bytes"] = peak_growth(row["name"], shape_name, torch.get_num_threads(), row["backend"])
    return {"shape": shape_name, **asdict(shape), "about": about, "tokens": shape.tokens, "rows": rows}


def check_memory(shape_name: str, memory: bool, device: str) -> None:
    """Raises ArgumentError: no such shape; or its memory is wanted, and it is of inference or on a GPU."""
    shape = shape_named(shape_name)
    if memory and device == "cuda":
        raise ArgumentError("bench.memory", "works only with device cpu", "device=cuda", "Leave --memory out")
    if memory and not shape.training:
        raise ArgumentError("bench.memory", "works only with shapes of training", shape_name, "Leave --memory out")


def _timed(found: dict[tuple[str, str], Any], calls: int, runs: int, device: str) -> list[dict[str, Any]]:
    """Every candidate in turn, again and again; the median of each."""
    warm = 1 if device == "cpu" else 3  # on a GPU the second call of a shape is captured
    seconds: dict[tuple[str, str], list[float] | None] = {key: [] for key in found}
    for run in range(runs + warm):
        for key, (step, _) in found.items():
            times = seconds[key]
            if times is None:
                continue
            try:
                took = _clock(step, calls, device)
            except torch.OutOfMemoryError:
                seconds[key] = None
                continue
            if run >= warm:
                times.append(took)
    medians = {key: None if times is None else statistics.median(times) for key, times in seconds.items()}
    return [_row(*key, medians[key], amount) for key, (_, amount) in found.items()]


def _row(name: str, backend: str, seconds: float | None, amount: float) -> dict[str, Any]:
    return {"name": name, "backend": backend, "seconds": seconds, "gflop": amount}


def _clock(step: Callable[[], object], calls: int, device: str) -> float:
    """Seconds of one call."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            step()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / calls
    began = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - began) / calls


def _bandwidth() -> float:
    """Bytes a second, read and written, of copying a gigabyte on the GPU."""
    source, target = (torch.empty(1 << 28, device="cuda") for _ in range(2))
    seconds = [_clock(lambda: target.copy_(source), 5, "cuda") for _ in range(3)]
    return 2 * source.numel() * 4 / min(seconds)


def _target() -> str:
    if unavailable(torch.empty(0)) is not None:
        return "none"
    from gatedrnn.sequence.backends.cpu.runtime.target import best

    return best().name
