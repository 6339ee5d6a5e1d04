"""Ctrl-C, as a person presses it: a signal to a training process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gatedrnn.training.run import load_run

TINY = ["--model.embedding_size", "16", "--model.hidden_sizes", "[16]", "--model.chunk_size", "4"]


def test_ctrl_c_leaves_a_usable_run(tmp_path: Path):
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "text" / name).write_text("the old pilot sleeps\nmary waits\n" * 200)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "gatedrnn.cli.main", "train", "--data", str(tmp_path / "text"), "--out", str(out)]
    options = [*TINY, "--training.epochs", "100000", "--training.device", "cpu"]
    process = subprocess.Popen(
        command + options,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while (
        not ((out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_text()) and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert "interrupted: best valid perplexity" in output, errors
    assert errors == ""
    assert load_run(out).vocabulary.words[:2] == ["<unk>", "<eos>"]
