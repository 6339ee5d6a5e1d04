"""One step of a layer in onnxruntime beside ours: `python benchmarks/onnx_step.py [--cell onlstm …] [--runs 300]`, as Markdown.

One thread, float32 and int8, a batch of one. Graphs are checked beside the layer as they are exported. Runs alternate, so that
what else the machine does falls on all of them; the table has the first decile of each, in milliseconds.
"""

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from gatedrnn import Recurrent
from gatedrnn.export import onnx

SHAPES = ((400, 400), (400, 1150))


def cpu_name() -> str:
    """As `lscpu` says it; elsewhere the architecture."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def step_of(path: Path, feeds: dict[str, Any]) -> Callable[[], Any]:
    """A step by a graph, in one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def steps(cell: str, D: int, H: int, folder: Path) -> dict[str, Callable[[], Any]]:
    """Ours and the graphs' step of one layer, by column."""
    options: dict[str, Any] = {"chunk_size": 10} if cell == "onlstm" else {}
    layer = Recurrent(cell, D, H, **options).eval()
    names = layer.spec.states
    x, states = torch.randn(1, 1, D), [torch.zeros(1, 1, H) for _ in names]
    feeds = {"input": x[0].numpy()} | {f"{name}_0": state.numpy() for name, state in zip(names, states, strict=True)}
    hx = tuple(states) if len(states) > 1 else states[0]
    found: dict[str, Callable[[], Any]] = {"ours": lambda: layer(x, hx)}
    for name, int8 in (("onnxruntime", False), ("int8", True)):
        made = onnx(layer, folder / f"{cell}-{H}-{name}", int8=int8, only=["step"])
        found[name] = step_of(made["step"], feeds)
    return found


def deciles(calls: dict[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """Milliseconds of each call, in turns: what one run in ten is faster than."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(runs + 20):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn >= 20:  # warm
                taken[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.quantiles(each, n=10)[0] for name, each in taken.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", action="append", help="cell to measure; may be repeated [lstm, gru, onlstm]")
    parser.add_argument("--runs", type=int, default=300, help="runs of each [300]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{cpu_name()}, 1 thread, torch {torch.__version__}, onnxruntime {onnxruntime.__version__}\n")
    print("| cell | input → units | ours, ms | onnxruntime, ms | onnxruntime int8, ms |\n|---|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for cell in options.cell or ["lstm", "gru", "onlstm"]:
            for D, H in SHAPES:
                found = deciles(steps(cell, D, H, Path(folder)), options.runs)
                print(
                    f"| {cell} | {D} → {H} | " + " | ".join(f"{value:.2f}" for value in found.values()) + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
