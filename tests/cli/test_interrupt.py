"""Ctrl-C, as a person presses it: a signal to a training process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from programs import Program, start

from gatedrnn.training.run import load_run

TINY = ["--model.embedding_size", "16", "--model.hidden_sizes", "[16]", "--model.options.chunk_size", "4"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "text" / name).write_text("the old pilot sleeps\nmary waits\n" * 200)
    return tmp_path / "text"


def when_an_epoch_stands_in(path: Path, process: subprocess.Popen[str] | Program) -> None:
    """Wait for it, or for the process's end."""
    deadline = time.monotonic() + 120
    while not (path.exists() and path.read_text()) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)


def command(*arguments: object, until: Path | None = None) -> tuple[int | None, str, str]:
    """Run `gatedrnn`; with `until`, Ctrl-C as soon as an epoch stands in that file. Exit status, output, errors."""
    program = start(*arguments)
    if until:
        when_an_epoch_stands_in(until, program)
        program.interrupt()
    output, errors = program.communicate()
    return program.returncode, output, errors


def test_ctrl_c_leaves_a_usable_run(tmp_path: Path, text: Path):
    out = tmp_path / "run"
    options = [*TINY, "--training.epochs", "100000", "--training.device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gatedrnn.cli.main", "train", "--data", str(text), "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    when_an_epoch_stands_in(out / "metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert "interrupted: best valid perplexity" in output, errors
    assert errors == ""
    assert load_run(out).vocabulary.words[:2] == ["<unk>", "<eos>"]


def test_training_on_after_compression_goes_on_where_it_was_interrupted(tmp_path: Path, text: Path):
    run, out, whole = tmp_path / "run", tmp_path / "out", tmp_path / "whole"
    options = [*TINY, "--training.epochs", "1", "--training.device", "cpu"]
    status, _, errors = command("train", "--data", text, "--out", run, *options)
    assert status == 0, errors
    again = ["compress", run, "--method", "svd", "--rank", "4", "--retrain", "10", "--out"]
    status, output, errors = command(*again, out, until=out / "metrics.jsonl")
    assert status == 130 and "interrupted: run the same command with --resume to continue" in output + errors
    epochs = len((out / "metrics.jsonl").read_text().splitlines())
    assert 1 <= epochs < 10 and not (out / "compression.json").exists()
    status, _, errors = command(*again, out, "--resume")
    assert status == 0, errors
    assert command(*again, whole)[0] == 0
    assert [json.loads(line)["epoch"] for line in (out / "metrics.jsonl").read_text().splitlines()] == [*range(1, 11)]
    found, expected = (load_run(folder).model.expand().state_dict() for folder in (out, whole))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


PRESSED = """
import atexit, os, signal, sys

def press(*_):
    os.kill(os.getpid(), signal.SIGINT)

class Importing:
    def find_spec(self, name, *_):
        if name == "torch":
            press()

when, sys.argv = sys.argv[1], ["gatedrnn", "--version"]
signal.signal(signal.SIGINT, signal.SIG_IGN if when == "ignored" else signal.default_int_handler)  # whatever was inherited
if when != "at its end":
    sys.meta_path.insert(0, Importing())
if when != "importing":
    atexit.register(press)

from gatedrnn_command import main

sys.exit(main())
"""


@pytest.mark.parametrize(("when", "told"), [("importing", ""), ("at its end", "gatedrnn "), ("ignored", "gatedrnn ")])
def test_ctrl_c_before_and_after_a_command_prints_nothing(when, told):
    found = subprocess.run([sys.executable, "-c", PRESSED, when], capture_output=True, text=True, timeout=240)
    assert found.returncode == (0 if when == "ignored" else -signal.SIGINT), found
    assert found.stdout.startswith(told) and bool(found.stdout) == bool(told) and found.stderr == ""
