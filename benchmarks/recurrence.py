"""Speed of the layers: `python benchmarks/recurrence.py [--shape S1 …] [--cell onlstm …]`, the options of `gatedrnn bench`.

Interleaved runs in one process, float32 and bfloat16 on the CPU; medians, and ratios within the run. No speed is printed before
the cell's outputs and gradients agree with the reference.
"""

import platform
import subprocess
import sys
from pathlib import Path

from gatedrnn.cli.main import main

if __name__ == "__main__":
    root = Path(__file__).parents[1]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True).stdout
    print(f"commit {commit.strip() or 'unknown'}, {platform.processor() or platform.machine()}", file=sys.stderr)
    sys.exit(main(["bench", *sys.argv[1:]]))
