"""A server in a thread of the test's process."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gatedrnn import Run
from gatedrnn.serve.engine import Engine
from gatedrnn.serve.limits import Limits
from gatedrnn.serve.server import LOOPBACK, address, bind, server_of


@contextmanager
def serving(runs: Mapping[str, Run], limits: Limits | None = None) -> Iterator[tuple[str, Engine]]:
    """Serve runs on a free port of this machine: the address, and the engine."""
    with bind(LOOPBACK, 0) as bound:
        server, engine = server_of(runs, limits or Limits(), bound)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield address(bound), engine
        finally:
            server.should_exit = True
            thread.join()
