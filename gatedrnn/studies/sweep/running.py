"""Trainings as processes of their own, some at a time, until all have ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOOK_S = 0.2


@dataclass(frozen=True)
class Job:
    """Args: name; arguments: of `gatedrnn`; log: what it prints goes there."""

    name: str
    arguments: list[str]
    log: Path


def run_jobs(jobs: list[Job], processes: int, ended: Callable[[Job, int], Job | None]) -> None:
    """Run `jobs` in order, `processes` at a time, each on its share of the cores.

    An interrupt, a termination signal or the end of the terminal is passed on to those that run, which write their checkpoints,
    before it is raised here.

    Args: ended: called with each job that ends and its exit code, which is negative after a signal; gives a job to run next, or
        None.
    """
    threads = max(1, cores() // processes)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    waiting, running = list(jobs), dict[str, tuple[Job, Any]]()
    with _terminated_as_interrupted():
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    job = waiting.pop(0)
                    running[job.name] = job, _start(job, environment)
                time.sleep(_LOOK_S)
                for name in [name for name, (_, process) in running.items() if process.poll() is not None]:
                    job, process = running.pop(name)
                    again = ended(job, process.returncode)
                    waiting[:0] = [] if again is None else [again]
        finally:
            for _, process in running.values():
                process.send_signal(signal.SIGTERM)  # a job of a script may have been told to ignore SIGINT
            for _, process in running.values():
                process.wait()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(job: Job, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """The job's process, in a session of its own: Ctrl-C reaches it through `run_jobs` alone, once."""
    command = [sys.executable, "-m", "gatedrnn.cli.main", *job.arguments]
    with job.log.open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


@contextmanager
def _terminated_as_interrupted() -> Any:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # which nohup ignores
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
