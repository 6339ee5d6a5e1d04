"""Training speed of every cell beside its torch.nn peer: `python benchmarks/recurrence.py [--shape S3] [--json FILE]`.

Interleaved runs in one process, forward and backward, float32 on the CPU; medians, and the ratio within the run. No speed is
printed before the cell's outputs and gradients agree with the peer (cells with one) or with float64 (the others).
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from gatedrnn import CELLS, Recurrent

SHAPES = {
    "S1": {"sizes": (400, 1150, 1150, 400), "chunk_size": 10, "steps": 70, "batch": 20},
    "S2": {"sizes": (400, 1150, 1150, 400), "chunk_size": 10, "steps": 70, "batch": 80},
    "S3": {"sizes": (256, 256, 256), "chunk_size": 8, "steps": 35, "batch": 32},
}
PEERS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def stack(cell: str, shape: dict[str, Any]) -> nn.ModuleList:
    options = {"chunk_size": shape["chunk_size"]} if "chunk_size" in CELLS[cell].options else {}
    sizes = shape["sizes"]
    return nn.ModuleList(Recurrent(cell, a, b, **options) for a, b in pairwise(sizes))


def peer_stack(cell: str, shape: dict[str, Any]) -> nn.ModuleList:
    sizes = shape["sizes"]
    return nn.ModuleList(PEERS[cell](a, b) for a, b in pairwise(sizes))


def train_step(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)[0]
    x.square().mean().backward()
    return x.detach()


def check(cell: str, shape: dict[str, Any]) -> None:
    """Outputs and gradients on a short input; exits if they are wrong."""
    small = {**shape, "sizes": (16, 24, 16), "chunk_size": 8}
    ours = stack(cell, small).eval()
    x = torch.randn(5, 3, 16)
    truth = peer_stack(cell, small) if cell in PEERS else stack(cell, small).eval().double()
    truth.load_state_dict(ours.state_dict())
    expected = train_step(truth, x.to(next(truth.parameters()).dtype))
    pairs = [(train_step(ours, x), expected)]
    for a, b in zip(ours.parameters(), truth.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        pairs.append((a.grad, b.grad))
    worst = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
    if not worst < 1e-5:
        sys.exit(f"benchmarks/recurrence.py: {cell} is wrong by {worst:.2g}; no speed is printed")


def measure(shape: dict[str, Any], runs: int) -> dict[str, float]:
    """Median seconds of a training step of every cell and peer, interleaved."""
    models = {cell: stack(cell, shape) for cell in CELLS} | {f"torch {cell}": peer_stack(cell, shape) for cell in PEERS}
    x = torch.randn(shape["steps"], shape["batch"], shape["sizes"][0])
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for run in range(runs + 1):
        for name, layers in models.items():
            began = time.perf_counter()
            train_step(layers, x)
            if run:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="S3")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    for cell in CELLS:
        check(cell, shape)
    medians = measure(shape, options.runs)
    tokens = shape["steps"] * shape["batch"]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = (
        f"{options.shape} {shape['sizes']}, T={shape['steps']}, B={shape['batch']}, {torch.get_num_threads()} threads"
    )
    print(
        f"{about}; torch {torch.__version__}, {platform.machine()}, commit {commit or 'unknown'}, {options.runs} runs\n"
    )
    print("| layers | backend | ms a step | tokens/s | against torch.nn.LSTM |\n|---|---|--:|--:|--:|")
    for name, value in medians.items():
        backend = "torch" if name.startswith("torch") else "reference"
        ratio = medians["torch lstm"] / value
        print(f"| {name} | {backend} | {1e3 * value:.1f} | {tokens / value:,.0f} | {ratio:.2f} × |")
    if options.json:
        with open(options.json, "w") as stream:  # noqa: PTH123 - a plain path from the command line
            json.dump({"about": about, "commit": commit, "median_seconds": medians}, stream, indent=2)


if __name__ == "__main__":
    main()
