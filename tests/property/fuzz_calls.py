"""Fuzz calls: `python -m tests.property.fuzz_calls --calls 10000 --seed 1`, `--minutes 60`, or `--replay 'Case(…)'` or a number.

Cases run in a child process, which is started anew when it dies or hangs; every finding is made smaller and printed.
"""

import argparse
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """The child: a case goes in as a line, what was found comes back as a line."""

    def __init__(self, limit_s: float = 120.0) -> None:
        self.limit_s = limit_s
        self.process: subprocess.Popen[str] | None = None
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by `close`

    def run(self, case: Any) -> tuple[str, str] | None:
        """None, or the kind of a finding and its details."""
        if self.process is None or self.process.poll() is not None:
            self._start()
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        self.errors.seek(0)
        self.errors.truncate()
        try:
            self.process.stdin.write(f"{case!r}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._died()
        ready, _, _ = select.select([self.process.stdout], [], [], self.limit_s)
        if not ready:
            self.close()
            return "hang", f"no answer in {self.limit_s:.0f} s"
        line = self.process.stdout.readline()
        if not line:
            return self._died()
        found = json.loads(line)
        return None if found is None else (found[0], found[1])

    def _start(self) -> None:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONFAULTHANDLER": "1"}
        environment["GOMP_SPINCOUNT"] = "0"  # threads that wait leave the core to the others
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.property.fuzz_calls", "--serve"], cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
        )  # fmt: skip

    def _died(self) -> tuple[str, str]:
        assert self.process is not None
        status = self.process.wait(30)
        self.errors.seek(0)
        said = [line.strip() for line in self.errors.read().splitlines() if line.strip()]
        frames = [line for line in said if line.startswith("File") and "gatedrnn" in line][:2]
        last = [line for line in said if "error" in line.lower() or "corrupt" in line or "free" in line][:1]
        self.process = None
        return "process died", f"status {status}; {' | '.join(last + frames)}"

    def close(self) -> None:
        """End the child."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process = None


def serve() -> None:
    """The child's side."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import warnings

    warnings.simplefilter("ignore")
    from .calls import ModelCase, read
    from .calls_layer import run_case
    from .calls_model import run_model
    from .calls_tensors import Finding, where

    for line in sys.stdin:
        case, found = read(line), None
        try:
            run_model(case) if isinstance(case, ModelCase) else run_case(case)
        except Finding as finding:
            found = [finding.kind, finding.detail]
        except BaseException as error:
            found = ["the fuzzer itself", where(error)]
            if os.environ.get("FUZZ_TRACE"):
                import traceback

                traceback.print_exc()
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def shrink(worker: Worker, case: Any, kind: str, limit_s: float = 60.0) -> Any:
    """A plainer case with a finding of the same kind."""
    from .calls import simpler

    again, end = True, time.monotonic() + limit_s
    while again:
        again = False
        for candidate in simpler(case):
            if time.monotonic() > end:
                return case
            found = worker.run(candidate)
            if found is not None and found[0] == kind:
                case, again = candidate, True
                break
    return case


def count(case: Any) -> int:
    """How many calls a case makes."""
    return sum(type(entry).__name__ != "Change" for entry in case.program)


def numbers(seed: int) -> Iterator[int]:
    """Seeds of cases from a seed of the run: the first cases of seed n are n · 10⁶, n · 10⁶ + 1, …"""
    yield from range(seed * 1_000_000, (seed + 1) * 1_000_000)


def signature(kind: str, detail: str) -> str:
    """Findings alike: the kind, and the details without numbers."""
    return kind + ": " + "".join(c for c in detail[:60] if not c.isdigit() and c not in ".-+,[] ")


def hard(case: Any) -> bool:
    """Whether a number near a threshold may honestly fall on either side: such a case must fail with other numbers too."""
    gates = dict(getattr(case, "gates", None) or ())
    relu = "relu" in str(case) or (
        case.cell == "rnn" and "other=True" in str(case)
    )  # the second layer's, where not the first's
    return bool(gates.get("straight_through")) or relu


def examine(worker: Worker, case: Any) -> tuple[str, str] | None:
    """What is found of a case, twice with other numbers where it is `hard`."""
    from dataclasses import replace

    found = worker.run(case)
    if found is not None and found[0] in ("wrong numbers", "wrong gradient") and hard(case):
        for shift in (1, 2):
            if worker.run(replace(case, seed=case.seed + shift * 31)) is None:
                return None
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=0, help="stop after so many calls")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=int, default=60, help="one case in so many goes through a compiler; 0: none")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--only", default="", help="only cases whose text has this in it")
    parser.add_argument("--replay", help="a printed case, or its number")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return 0
    from .calls import numbered, read

    worker = Worker()
    if options.replay:
        numeric = options.replay.isdigit()
        case = numbered(int(options.replay), options.slow) if numeric else read(options.replay)
        found = examine(worker, case)
        print(case, "nothing found" if found is None else f"{found[0]}: {found[1]}", sep="\n")
        worker.close()
        return found is not None
    return hunt(worker, options)


def hunt(worker: Worker, options: argparse.Namespace) -> int:
    """Cases until time or calls are over."""
    from .calls import numbered

    begin, calls, seen = time.monotonic(), 0, {}
    limit_s = options.minutes * 60 if options.minutes else float("inf")
    most = options.calls or (10_000 if limit_s == float("inf") else float("inf"))
    for number in numbers(options.seed):
        if calls >= most or time.monotonic() - begin > limit_s:
            break
        case = numbered(number, options.slow)
        if options.only not in repr(case):
            continue
        found = examine(worker, case)
        calls += count(case)
        if found is None:
            continue
        name = signature(*found)
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            continue
        small = case if options.no_shrink else shrink(worker, case, found[0])
        again = worker.run(small) or found
        print(f"finding {len(seen)}: {again[0]}: {again[1]}\n  number {number}, as\n  {small!r}", flush=True)
    minutes = (time.monotonic() - begin) / 60
    print(f"{calls} calls in {minutes:.1f} minutes, {len(seen)} kinds of findings:")
    for name, times in sorted(seen.items(), key=lambda item: -item[1]):
        print(f"  {times} × {name}")
    worker.close()
    return bool(seen)


if __name__ == "__main__":
    random.seed(0)
    sys.exit(main())
