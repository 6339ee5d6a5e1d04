"""What a training frees is used again instead of being given back to the system."""

import subprocess
import sys

import pytest

_STEPS = """
import resource, sys, torch
from gatedrnn.training.memory import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def step():
    blocks = [torch.ones(1 << 21) for _ in range(3)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the GNU C library's allocator")
def test_steps_take_no_fresh_memory():
    faults = [
        int(subprocess.run([sys.executable, "-c", _STEPS, how], capture_output=True, text=True, check=True).stdout)
        for how in ("keep", "give back")
    ]
    assert 5 * faults[0] < faults[1]  # 24 MiB a step are 6,144 pages
