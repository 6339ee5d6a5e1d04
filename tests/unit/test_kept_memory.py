"""What a training frees is used again instead of being given back to the system."""

import json
import subprocess
import sys

import pytest

_STEPS = """
import json, os, torch
from gatedrnn.training.memory import keep_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def left_by_a_step():
    before = resident()
    blocks = [torch.ones(1 << 21) for _ in range(3)]
    del blocks
    return resident() - before
torch.ones(1)
given_back = left_by_a_step()
keep_freed_memory()
print(json.dumps([given_back, left_by_a_step()]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the GNU C library's allocator")
def test_freed_memory_stays():
    done = subprocess.run([sys.executable, "-c", _STEPS], capture_output=True, text=True, check=True)
    given_back, kept = json.loads(done.stdout)
    assert kept - given_back > 16 << 20  # of the 24 MiB that a step takes and frees
