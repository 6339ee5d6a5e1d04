"""Every published configuration trains through the real command line; every benchmark runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gatedrnn.cli.main import main

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_config_trains(config: Path, tmp_path: Path, capsys):
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "valid.txt"):  # 20 × 35 tokens are one window: two steps
        (tmp_path / "text" / name).write_text("the old pilot sleeps\n" * 280)
    text, out = str(tmp_path / "text"), str(tmp_path / "run")
    options = ["--training.epochs", "1", "--training.device", "cpu"]
    assert main(["train", "--config", str(config), "--data", text, "--out", out, *options]) == 0
    assert "best valid perplexity" in capsys.readouterr().out


def test_recurrence_benchmark_runs(tmp_path: Path):
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "recurrence.py"),
        "--runs",
        "1",
        "--json",
        str(tmp_path / "b.json"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "| onlstm | reference |" in done.stdout and (tmp_path / "b.json").exists()
