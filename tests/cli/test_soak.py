"""The command that kills trainings at random moments, and measures the memory of long ones, in small."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_killed_at_random_moments_runs_end_in_the_same_bits_and_memory_is_flat():
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--kills", "3", "--steps", "100"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "| kills | 3 |" in done.stdout and "| runs with other bits in the end | 0 |" in done.stdout
    assert "| temporary files left in the end | 0 |" in done.stdout
