"""The thread that computes: completions of all runs side by side, and other work between their steps."""

import logging
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, final

from gatedrnn.core.errors import GatedRNNError
from gatedrnn.serve.batch import Batch
from gatedrnn.serve.cache import StateCache
from gatedrnn.serve.limits import Limits
from gatedrnn.serve.rows import Event, Prompt, Ticket
from gatedrnn.training.run import Run

_SLICE = 0.05
"""Seconds that a job takes from the others at a time, or as many as one of its results needs."""
_SHORT = 0.5
"""Seconds that a job may have taken and still count as a short one."""
_END = object()
_LOG = logging.getLogger("gatedrnn.serve")


class ShutdownError(GatedRNNError):
    """The engine was stopped before an answer was complete."""

    def __init__(self) -> None:
        super().__init__("serve", "the server is shutting down", None, "Ask again later")


@final
class Engine:
    """Computes what requests ask of runs, in one thread.

    Args: runs: by name.
    Attributes: asked: completions that are asked for and not answered; completions: answered ones. The event loop counts them.
    """

    def __init__(self, runs: Mapping[str, Run], limits: Limits) -> None:
        self.runs, self.limits = dict(runs), limits
        self.cache = StateCache(limits.cache_mib << 20)
        self._batches = {name: Batch(name, run, self.cache, limits) for name, run in self.runs.items()}
        self._inbox: queue.SimpleQueue[tuple[str, list[Prompt]] | _Job | None] = queue.SimpleQueue()
        self._jobs: deque[_Job] = deque()
        self.asked = self.completions = 0
        self._ending, self._lock = False, threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="gatedrnn-serve", daemon=True)

    def start(self) -> None:
        """Begin to compute."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what is not complete by `ShutdownError`, and wait for the thread; may be called more than once."""
        self.end()
        if self._thread.ident is not None:
            self._thread.join()

    def end(self) -> None:
        """As `stop`, without waiting."""
        with self._lock:
            self._ending = True
            self._inbox.put(None)

    @property
    def alive(self) -> bool:
        """Whether it computes."""
        return self._thread.is_alive() and not self._ending

    @property
    def tokens(self) -> int:
        """Tokens generated since it began."""
        return sum(batch.tokens for batch in self._batches.values())

    def complete(self, name: str, prompts: list[Prompt]) -> None:
        """Let the prompts of a request wait for their turn on a run. Raises: ShutdownError: it was stopped."""
        self._put((name, prompts))

    def submit(self, work: Callable[[], Iterable[Any]]) -> "Future[list[Any]]":
        """Let all that `work` gives be found, a while at a time between steps, until it is cancelled. Raises: as `complete`."""
        job = _Job(work)
        self._put(job)
        return job.future

    def _put(self, given: "tuple[str, list[Prompt]] | _Job") -> None:
        with self._lock:  # what is put in before the end is answered
            if not self.alive:
                raise ShutdownError
            self._inbox.put(given)

    def _loop(self) -> None:
        try:
            while not self._ending:
                self._receive()
                for job in self._turns():
                    if job.advance():
                        self._jobs.remove(job)
                for batch in self._batches.values():
                    if batch.busy:
                        self._advance(batch)
        finally:  # of what is no `Exception`, too
            self.end()
            self._close()

    def _close(self) -> None:
        """Answer all that is left by `ShutdownError`."""
        for batch in self._batches.values():
            for ticket in batch.drop():
                ticket.send(ShutdownError())
        while not self._inbox.empty():
            self._take(self._inbox.get())
        for job in self._jobs:
            job.future.set_exception(ShutdownError()) if job.future.set_running_or_notify_cancel() else None

    def _turns(self) -> "list[_Job]":
        """The oldest job, and the oldest short one: that need not wait for long ones, which end one after the other."""
        short = next((job for job in self._jobs if job.spent < _SHORT), None)
        return [*dict.fromkeys(job for job in (*list(self._jobs)[:1], short) if job)]

    def _receive(self) -> None:
        """Take in what has come; where there is nothing to do, wait for it."""
        if not self._jobs and not any(batch.busy for batch in self._batches.values()):
            self._take(self._inbox.get())
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def _take(self, given: "tuple[str, list[Prompt]] | _Job | None") -> None:
        if isinstance(given, _Job):
            self._jobs.append(given)
        elif given is not None and self._ending:
            given[1][0].ticket.send(ShutdownError())
        elif given is not None:
            for prompt in given[1]:
                self._batches[given[0]].add(prompt)

    def _advance(self, batch: Batch) -> None:
        """A step of a run; an error that is nobody's fault ends all its requests, and the next ones begin afresh."""
        found: defaultdict[Ticket, list[Event]] = defaultdict(list)
        try:
            for ticket, event in batch.advance():
                if isinstance(event, Exception):
                    ticket.send(event)
                else:
                    found[ticket].append(event)
        except Exception as error:
            _LOG.exception("a step failed")
            for ticket in batch.drop():
                ticket.send(error)
        for ticket, events in found.items():
            if not ticket.gone:
                ticket.tell(events)


@final
class _Job:
    """Results to be found one after the other, by turns with what others want."""

    def __init__(self, work: Callable[[], Iterable[Any]]) -> None:
        self._work, self._found = work, []
        self._left: Iterator[Any] | None = None
        self.spent = 0.0  # seconds so far
        self.future: Future[list[Any]] = Future()

    def advance(self) -> bool:
        """Go on for a while. Returns: whether it is over: all is found, something went wrong, or nobody waits any more."""
        begin = time.monotonic()
        try:
            if self._left is None:
                self._left = iter(self._work())
            while not self.future.cancelled():
                one = next(self._left, _END)
                if one is _END:
                    self._answer(lambda: self.future.set_result(self._found))
                    return True
                self._found.append(one)
                if time.monotonic() > begin + _SLICE:
                    return False
        except Exception as failed:
            error = failed  # its name ends with this block
            self._answer(lambda: self.future.set_exception(error))
        finally:
            self.spent += time.monotonic() - begin
        return True

    def _answer(self, tell: Callable[[], None]) -> None:
        if self.future.set_running_or_notify_cancel():  # no longer to be cancelled
            tell()
