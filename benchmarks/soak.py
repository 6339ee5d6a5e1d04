"""What a long training must hold: `python benchmarks/soak.py [--kills 100] [--steps 10000] [--seed 1]`.

Kills: a training is killed by SIGKILL at random moments, of its start and of its writing too, and gone on with to its end; then
another one. After every kill the run loads if it has a model; in the end weights, metrics and checkpoint have the bits of one
that was never stopped, and no temporary file is left.
Steps: one training of so many steps; its resident memory, once warm, changes by 1 % at most. Linux only.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read as torch is imported

import torch

from gatedrnn.data import Corpus, DataConfig, find_splits, write_corpus
from gatedrnn.gates import Gates
from gatedrnn.models import LanguageModelConfig
from gatedrnn.tasks import LanguageModelling
from gatedrnn.training import checkpoint
from gatedrnn.training.config import RunConfig, TrainingConfig
from gatedrnn.training.loop import train
from gatedrnn.training.run import checkpoints, load_run, read_metrics

ADAM = TrainingConfig(
    epochs=4, batch_size=4, sequence_length=10, learning_rate=0.02, device="cpu", checkpoint_minutes=1e-9
)
AWD = replace(
    ADAM, optimizer="sgd", learning_rate=2.0, random_lengths=True, schedule="constant", average_epoch=1, finetune_epochs=2
)  # fmt: skip
MODEL = LanguageModelConfig(
    cell="onlstm", embedding_size=16, hidden_sizes=(24, 16), options={"chunk_size": 4}, weight_dropout=0.2
)
NOISY = replace(MODEL, cell="g2lstm", options={}, gates=Gates(temperature=0.9, noise_probability=0.5))
CASES = {"onlstm, adam": RunConfig(DataConfig(), MODEL, ADAM), "g2lstm, awd": RunConfig(DataConfig(), NOISY, AWD)}
TIMES = ("seconds", "tokens_per_second")
FLAT = 0.01  # of the resident memory


class Silent:
    """A display that shows nothing."""

    def start_epoch(self, epoch: int, steps: int) -> None: ...

    def step(self, done: int, loss_nats: float, per_second: float) -> None: ...

    def end_epoch(self, record: dict[str, object]) -> None: ...


class Memory(Silent):
    """A display that reads the resident memory every so many steps, and ends the training at the last one."""

    def __init__(self, steps: int) -> None:
        self.steps, self.every, self.done, self.bytes = steps, max(1, steps // 50), 0, list[int]()

    def step(self, done: int, loss_nats: float, per_second: float) -> None:
        self.done += 1
        if self.done % self.every == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.bytes.append(pages * os.sysconf("SC_PAGE_SIZE"))
        if self.done == self.steps:
            os.kill(os.getpid(), signal.SIGINT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="0 for none")
    parser.add_argument("--steps", type=int, default=10_000, help="0 for none")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_corpus(folder / "text", 1, train=120, valid=30, test=30)
        killed = _kills(folder, options.kills, random.Random(options.seed)) if options.kills else True
        flat = _steps(folder, options.steps) if options.steps else True
    return 0 if killed and flat else 1


def _kills(folder: Path, wanted: int, draw: random.Random) -> bool:
    """Kill trainings until so many kills are counted; print what was found, and return whether all was well."""
    found: Counter[str] = Counter()
    lasts = {name: _timed(folder, name) for name in CASES}
    while found["kills"] < wanted:
        name = list(CASES)[found["runs"] % len(CASES)]
        out = folder / f"run-{found['runs']}"
        found["runs"] += 1
        while True:
            pid = _start(folder, name, out)
            if found["kills"] < wanted:
                time.sleep(draw.uniform(0, 0.35 * lasts[name]))
                os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            if not os.WIFSIGNALED(status):
                found["trainings that failed"] += status != 0
                break
            found["kills"] += 1
            found["killed before the first checkpoint"] += not checkpoints(out)
            found["killed while writing a file"] += bool(_temporaries(out))
            found["runs that did not load after a kill"] += not _loads(out)
        found["runs with other bits in the end"] += not _same(folder / name, out)
        found["temporary files left in the end"] += len(_temporaries(out))
    bad = ("trainings that failed", "runs that did not load after a kill", "runs with other bits in the end")
    for what in ("kills", "runs", "killed before the first checkpoint", "killed while writing a file", *bad):
        print(f"| {what} | {found[what]} |")
    print(f"| temporary files left in the end | {found['temporary files left in the end']} |", flush=True)
    return not any(found[what] for what in (*bad, "temporary files left in the end"))


def _timed(folder: Path, name: str) -> float:
    """Train a case without a kill; seconds."""
    began = time.monotonic()
    if os.waitpid(_start(folder, name, folder / name), 0)[1]:
        raise SystemExit(f"{name}: the training failed")
    return time.monotonic() - began


def _start(folder: Path, name: str, out: Path) -> int:
    """A training in a child, which has everything imported; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        train(CASES[name], _task(folder), out, Silent(), resume=True)
        code = 0
    finally:
        os._exit(code)


def _task(folder: Path) -> LanguageModelling:
    return LanguageModelling(Corpus(find_splits(folder / "text"), min_count=1))


def _loads(out: Path) -> bool:
    """Whether a run loads, if it has a model."""
    if (out / "model.safetensors").exists():
        try:
            load_run(out)
        except Exception as error:
            print(error, file=sys.stderr)
            return False
    return True


def _temporaries(out: Path) -> list[Path]:
    return [path for path in out.rglob(".*") if path.name != ".lock"]


def _same(one: Path, two: Path) -> bool:
    """Whether two runs ended in the same bits: weights, metrics but for times, checkpoint."""
    logs = [[{k: v for k, v in line.items() if k not in TIMES} for line in read_metrics(run)] for run in (one, two)]
    weights = [(run / "model.safetensors").read_bytes() for run in (one, two)]
    (tensors, _), (others, _) = (checkpoint.load(run) or ({}, {}) for run in (one, two))
    equal = tensors.keys() == others.keys() and all(torch.equal(tensors[name], others[name]) for name in tensors)
    return equal and logs[0] == logs[1] and weights[0] == weights[1]


def _steps(folder: Path, steps: int) -> bool:
    """Train so many steps; print the memory, and return whether it is flat."""
    config = CASES["onlstm, adam"]
    training = replace(config.training, epochs=steps, checkpoint_minutes=0.05)
    memory = Memory(steps)
    train(replace(config, training=training), _task(folder), folder / "long", memory)
    warm = memory.bytes[len(memory.bytes) // 5 :]
    change = (max(warm) - min(warm)) / warm[0]
    first, last = warm[0] / 2**20, warm[-1] / 2**20
    print(f"| steps | epochs | MiB after a fifth | MiB at the end | largest change |\n|--:|--:|--:|--:|--:|\n| {memory.done:,}"
          f" | {len(read_metrics(folder / 'long'))} | {first:.1f} | {last:.1f} | {100 * change:.2f} % |")  # fmt: skip
    return change <= FLAT


if __name__ == "__main__":
    sys.exit(main())
