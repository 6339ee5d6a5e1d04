"""A training step of a large language model: `python benchmarks/step.py [--config configs/ptb-onlstm.yaml] [--threads 2]`.

Forward, backward, clipping and Adam on random tokens (70 steps, 20 sequences, 10,000 words), in float32 and in bfloat16 by turns.
CPU time of all threads would hide how they share work, so it prints the fastest step by the clock, and with --cpu the fastest by
the CPU time of one thread, for a machine that other programs use too.
"""

import argparse
import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from gatedrnn.models import LanguageModel
from gatedrnn.training.config import read_run_config


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/ptb-onlstm.yaml")
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu", action="store_true", help="CPU time of one thread instead of the clock")
    options = parser.parse_args()
    torch.set_num_threads(1 if options.cpu else options.threads)
    clock = time.thread_time if options.cpu else time.perf_counter
    torch.manual_seed(1)
    config = read_run_config(Path(options.config))
    model = LanguageModel(replace(config.model, vocabulary_size=options.words)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    tokens_TB, targets_TB = torch.randint(0, options.words, (2, options.steps, options.batch))
    best = {"float32": float("inf"), "bfloat16": float("inf")}
    for _ in range(options.rounds + 1):  # the first one compiles
        for name in best:
            low = torch.autocast("cpu", torch.bfloat16) if name == "bfloat16" else contextlib.nullcontext()
            began = clock()
            optimizer.zero_grad()
            with low:
                found = model(tokens_TB, targets=targets_TB)
            found.loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            best[name] = min(best[name], clock() - began)
    tokens = options.steps * options.batch
    print("| precision | ms a step | tokens/s |\n|---|--:|--:|")
    for name, seconds in best.items():
        print(f"| {name} | {1e3 * seconds:.0f} | {tokens / seconds:,.0f} |")


if __name__ == "__main__":
    main()
