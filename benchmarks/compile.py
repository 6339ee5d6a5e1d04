"""How long the CPU kernels of cells take to compile: `python benchmarks/compile.py [CELL ...]`.

Each cell in a process of its own that begins with an empty cache ("alone"), and all in one process ("in turn"): loops are
compiled once for all cells, a cell's rows for each. Seconds of the first forward and backward pass, tracing included.
"""

import os
import subprocess
import sys
import tempfile

from gatedrnn.cells import CELLS

_CODE = """
import sys, time, torch
from gatedrnn import Recurrent
torch.nn.LSTM(4, 4)(torch.randn(2, 2, 4))[0].sum().backward()
for name in sys.argv[1:]:
    layer, x, began = Recurrent(name, 64, 64, backend="cpu"), torch.randn(20, 8, 64), time.monotonic()
    layer(x)[0].sum().backward()
    print(f"{time.monotonic() - began:.2f}")
"""


def main() -> None:
    """Print the table."""
    cells = sys.argv[1:] or list(CELLS)
    print(f"{'cell':10}{'alone':>10}{'in turn':>10}")
    for cell, later in zip(cells, _seconds(cells), strict=True):
        alone = later if len(cells) == 1 else _seconds([cell])[0]
        print(f"{cell:10}{alone:>8} s{later:>8} s", flush=True)


def _seconds(cells: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        own = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        own["XDG_CACHE_HOME"] = folder
        command = [sys.executable, "-c", _CODE, *cells]
        return subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout.split()


if __name__ == "__main__":
    main()
