"""Two processes on one machine, by gloo, and once by torchrun: the losses of one process, and exact resume."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from letters import write_letters
from programs import together
from terminal import call

from gatedrnn.training.run import read_metrics

SMALL = ["--model.embedding_size", "16", "--model.hidden_sizes", "[16]", "--model.options.chunk_size", "4"]
PLAIN = [f"--model.{name}_dropout={0}" for name in ("input", "hidden", "output")]


@pytest.fixture
def text(tmp_path):
    """The last stretch is short: a process has less to predict."""
    return write_letters(tmp_path / "text", "abcdefgh", 210, 30)


def train(text, out, processes, *options, torchrun=False):
    """Exit code, standard output and standard error of a training in so many processes."""
    given = ["train", "--data", str(text), "--out", str(out), *SMALL, *("--training.batch_size", "6"), *options]
    given += ["--training.device", "cpu"]
    if not torchrun:
        return together(processes, *given) if processes > 1 else call(*given)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *launcher, "-m", "gatedrnn.cli.main", *given]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("unit", ["stream", "sentence"])
def test_two_processes_have_the_losses_of_one(text, tmp_path, unit):
    records = []
    for processes in (1, 2):
        folder, torchrun = tmp_path / str(processes), processes > 1 and unit == "stream"
        options = [*PLAIN, "--training.epochs", "2", "--training.unit", unit]
        options += ["--training.activation_penalty", "20", "--training.temporal_penalty", "5"]
        code, out, err = train(text, folder, processes, *options, torchrun=torchrun)
        assert code == 0, err[-3000:]
        assert out.count("all epochs done") == 1
        records.append(read_metrics(folder))
    for one, two in zip(*records, strict=True):
        for key in ("train_loss_nats", "valid_loss_nats"):
            assert two[key] == pytest.approx(one[key], abs=2e-5)


def test_two_processes_resume_exactly(text, tmp_path):
    assert train(text, tmp_path / "whole", 2, "--training.epochs", "2")[0] == 0
    assert train(text, tmp_path / "cut", 2, "--training.epochs", "1")[0] == 0
    code, _, err = train(text, tmp_path / "cut", 2, "--training.epochs", "2", "--resume")
    assert code == 0, err[-3000:]
    name = Path("model.safetensors")
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    code, _, err = train(text, tmp_path / "cut", 1, "--training.epochs", "3", "--resume")
    assert code == 1 and "as many processes as before" in err


def test_a_batch_that_cannot_be_shared_is_refused(text, tmp_path):
    code, _, err = train(text, tmp_path / "run", 2, "--training.batch_size", "5")
    assert code == 1
    assert "training.batch_size: must be a multiple of the 2 processes; got 5" in err
