"""How a training ends early: by Ctrl-C or a termination signal."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Stoppable(Protocol):
    """What ends once `stop` says why."""

    stop: str | None


@contextmanager
def signals(loop: Stoppable) -> Iterator[None]:
    """The first Ctrl-C or termination signal ends training after the current step; a second one at once."""

    def end(number: int, frame: object) -> None:
        if loop.stop is not None:
            raise KeyboardInterrupt
        loop.stop = "interrupted"

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        loop.stop = "interrupted"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
