"""What a second process costs: `python benchmarks/scaling.py [--data DIR] [--minutes 0.5] [--config FILE]`.

`gatedrnn train` on one thread with the configuration's batch, then two processes of one thread each (gloo) with twice the batch,
so that every process computes what the one did. The difference is the exchange of gradients, and what two processes take from
each other (memory, caches). Then an estimate, not a measurement: a ring's exchange of 4 bytes a parameter for up to 64 processes,
not hidden behind any computation.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

from gatedrnn.training.config import read_run_config

PROCESSES = (2, 8, 16, 32, 64)
LINKS = {
    "within a machine, 50 GB/s": 50e9,
    "between machines, 100 Gbit/s": 12.5e9,
    "between machines, 10 Gbit/s": 1.25e9,
}
COMPUTE_MS = (10, 30, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with train.txt and valid.txt [the built-in grammar]")
    parser.add_argument("--minutes", type=float, default=0.5, help="of training, each")
    parser.add_argument("--config", default="configs/ptb-small.yaml")
    parser.add_argument("--parameters", type=int, help="of the model of the estimate [the one that was trained]")
    options = parser.parse_args()
    training = read_run_config(Path(options.config)).training
    print("| processes | batch | tokens/s | ms a step |\n|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as scratch:
        for processes in (1, 2):
            run, batch = Path(scratch) / str(processes), processes * training.batch_size
            speed = _train(options, run, processes, batch)
            step_ms = 1e3 * batch * training.sequence_length / speed
            print(f"| {processes} | {batch} | {speed:,.0f} | {step_ms:.0f} |")
        size_bytes = 4 * (options.parameters or _parameters(run / "model.safetensors"))
    print(f"\nEstimate: {size_bytes / 1e6:.0f} MB of gradients, share of the time that computes, without overlap\n")
    print(f"| link | a step computes | {' | '.join(map(str, PROCESSES))} |\n|---|--:|{'--:|' * len(PROCESSES)}")
    for link, bandwidth in LINKS.items():
        for compute in COMPUTE_MS:
            exchange = [2e3 * (n - 1) / n * size_bytes / bandwidth for n in PROCESSES]
            shares = " | ".join(f"{100 * compute / (compute + cost):.0f} %" for cost in exchange)
            print(f"| {link} | {compute} ms | {shares} |")


def _train(options: argparse.Namespace, run: Path, processes: int, batch: int) -> float:
    """Tokens a second of the first epoch, or of the part that fits into the minutes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *launcher, "-m", "gatedrnn.cli.main", "train"]
    command += ["--config", options.config, "--out", str(run)]
    command += [f"--training.minutes={options.minutes}", f"--training.batch_size={batch}", "--training.device=cpu"]
    command += ["--data", options.data] if options.data else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["tokens_per_second"]


def _parameters(path: Path) -> int:
    with safe_open(path, "pt") as weights:
        return sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118 - no mapping


if __name__ == "__main__":
    main()
