"""Two processes on one machine, by torchrun and gloo: the losses of one process, and exact resume."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from gatedrnn.training.run import read_metrics

SMALL = ["--model.embedding_size", "16", "--model.hidden_sizes", "[16]", "--model.options.chunk_size", "4"]
PLAIN = [f"--model.{name}_dropout={0}" for name in ("input", "hidden", "output")]


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    generator = random.Random(0)
    lines = [" ".join(generator.choices("abcdefgh", k=generator.randint(1, 9))) for _ in range(210)]
    (folder / "train.txt").write_text("\n".join(lines))  # the last stretch is short: a process has less to predict
    (folder / "valid.txt").write_text("\n".join(lines[:30]))
    return folder


def train(text, out, processes, *options):
    torchrun = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    )
    command = [sys.executable, *torchrun, "-m", "gatedrnn.cli.main", "train", "--data", str(text), "--out", str(out)]
    settings = [*SMALL, "--training.batch_size", "6", "--training.device", "cpu", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *settings], capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.parametrize("unit", ["stream", "sentence"])
def test_two_processes_have_the_losses_of_one(text, tmp_path, unit):
    records = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        done = train(text, out, processes, *PLAIN, "--training.epochs", "2", "--training.unit", unit)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("all epochs done") == 1
        records.append(read_metrics(out))
    for one, two in zip(*records, strict=True):
        for key in ("train_loss_nats", "valid_loss_nats"):
            assert two[key] == pytest.approx(one[key], abs=2e-5)


def test_two_processes_resume_exactly(text, tmp_path):
    assert train(text, tmp_path / "whole", 2, "--training.epochs", "2").returncode == 0
    assert train(text, tmp_path / "cut", 2, "--training.epochs", "1").returncode == 0
    done = train(text, tmp_path / "cut", 2, "--training.epochs", "2", "--resume")
    assert done.returncode == 0, done.stderr[-3000:]
    name = Path("model.safetensors")
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    alone = train(text, tmp_path / "cut", 1, "--training.epochs", "3", "--resume")
    assert alone.returncode == 1 and "as many processes as before" in alone.stderr


def test_a_batch_that_cannot_be_shared_is_refused(text, tmp_path):
    done = train(text, tmp_path / "run", 2, "--training.batch_size", "5")
    assert done.returncode == 1
    assert "training.batch_size: must be a multiple of the 2 processes; got 5" in done.stderr
