"""`gatedrnn` in processes of its own, each forked from a server that has imported everything: a start takes no seconds.

`python -m gatedrnn.cli.main` itself is what `test_cli.py` and `test_interrupt.py` start, and torchrun what `test_distributed.py`
does.
"""

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

import pytest

IMPORTED = [
    "pytest",
    "gatedrnn.cli.main",
    "gatedrnn.cli.commands.compress",
    "gatedrnn.cli.commands.train",
    "gatedrnn.tasks",
    "gatedrnn.training.distribution",
    "gatedrnn.training.loop",
    "gatedrnn.models.grammar",
    "torch.distributed",
    "torch.optim",
]


class Program:
    """A running `gatedrnn`.

    Args:
        arguments: of its command line.
        changes: of the environment.
    """

    def __init__(self, arguments: Sequence[object], changes: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._said = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        given = [str(argument) for argument in arguments], os.environ | changes, [str(path) for path in self._said]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")  # of the server, which imports PyTorch
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(IMPORTED)
            forkserver.ensure_running()
        self._process = context.Process(target=_run, args=given, daemon=True)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """Its exit code, minus the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """As of `subprocess.Popen`."""
        return self._process.exitcode

    def interrupt(self) -> None:
        """Ctrl-C."""
        assert self._process.pid is not None
        if self._process.is_alive():
            os.kill(self._process.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """Wait for its end. Returns: what it wrote to standard output, and to standard error."""
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            pytest.fail(f"gatedrnn did not end within {timeout} s")
        out, err = (path.read_text(encoding="utf-8") if path.exists() else "" for path in self._said)
        self._folder.cleanup()
        return out, err


def start(*arguments: object) -> Program:
    """Start `gatedrnn` with these arguments, on one thread."""
    return Program(arguments, {"OMP_NUM_THREADS": "1"})


def together(processes: int, *arguments: object) -> tuple[int, str, str]:
    """`gatedrnn` in so many processes, given what torchrun gives them.

    Returns: the first exit code that is not 0, or 0; standard output and standard error of all.
    """
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = str(bound.getsockname()[1])
    shared = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GROUP_RANK": "0"}
    shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "TORCHELASTIC_RUN_ID": "tests"}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    running = [Program(arguments, shared | rank) for rank in ranks]
    said = [program.communicate() for program in running]
    codes = [program.returncode for program in running]
    return next((code for code in codes if code), 0), "".join(out for out, _ in said), "".join(err for _, err in said)


def _run(arguments: list[str], environment: Mapping[str, str], said: Sequence[str]) -> None:
    """What the forked process does: what `python -m gatedrnn.cli.main` would do with these arguments."""
    for number, path in enumerate(said, 1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["gatedrnn", *arguments]

    from gatedrnn.cli.main import main

    sys.exit(main())
