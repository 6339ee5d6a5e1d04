"""What a training frees is used again instead of being given back to the system."""

import subprocess
import sys

import pytest

_STEPS = """
import os, sys, torch
from gatedrnn.training.memory import keep_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
if sys.argv[1] == "keep":
    keep_freed_memory()
def step():
    blocks = [torch.ones(1 << 21) for _ in range(3)]
before = resident()
step()
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the GNU C library's allocator")
def test_freed_memory_stays():
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", _STEPS, how], capture_output=True, text=True, check=True).stdout)
        for how in ("keep", "give back")
    )
    assert kept - given_back > 16 << 20  # of the 24 MiB that a step takes and frees
