"""How much a training step adds to a process's memory at its peak: a fresh process a model, Linux only."""

import json
import subprocess
import sys
from pathlib import Path

from gatedrnn.cells.own import import_cells, imported_files
from gatedrnn.core.errors import GatedRNNError

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_growth(cell: str, shape_name: str, threads: int, backend: str) -> int | None:
    """Bytes by which resident memory grows, at the peak of two training steps, over what it was with the model built.

    Args: cell: a name in `CELLS`, or "torch.nn.LSTM" and so on; shape_name: as for `shape_named`; backend: of our own layers.
    Returns: None where the system does not tell.
    Raises: GatedRNNError: the process failed.
    """
    if not _CLEAR.exists():
        return None
    command = [sys.executable, "-m", "gatedrnn.studies.speed.memory", cell, shape_name, str(threads), backend]
    command += map(str, imported_files())
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        got = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise GatedRNNError(f"bench {cell}", "its memory could not be measured", got[0], "Try without --memory")
    return json.loads(done.stdout.splitlines()[-1])  # an imported file may print, too


def _kilobytes(field: str) -> int:
    return next(int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith(field))


def _main(cell: str, shape_name: str, threads: str, backend: str, *imported: str) -> None:
    import torch

    from gatedrnn.studies.speed.candidates import run
    from gatedrnn.studies.speed.shapes import PEERS, Shape, peers, shape_named, stack

    torch.set_num_threads(int(threads))
    for file in imported:
        import_cells(Path(file))
    shape = shape_named(shape_name)
    tiny = Shape((16, 16), 8, 2, 2)
    for given in (tiny, shape):  # the tiny one loads what is loaded once
        known = {f"torch.nn.{peer.__name__}": name for name, peer in PEERS.items()}
        layers = peers(known[cell], given) if cell in known else stack(cell, given, backend)
        x = torch.randn(given.steps, given.batch, given.sizes[0], requires_grad=True)
        _CLEAR.write_text("5")
        before = _kilobytes("VmRSS")
        for _ in range(2):
            layers.zero_grad()
            run(layers, x, given).square().mean().backward()
    print(1024 * (_kilobytes("VmHWM") - before))


if __name__ == "__main__":
    _main(*sys.argv[1:])
