"""`gatedrnn app`: runs side by side in a page of Gradio, until Ctrl-C."""

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import option, place
from gatedrnn.core.errors import ArgumentError
from gatedrnn.training.run import load_runs


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which runs, and where."""

    runs: tuple[str, ...] = place("RUN", "folders of trained runs; the page shows two side by side")
    port: int = option(7860, "port on this machine")


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A record when it listens. Raises: ArgumentError: gradio is missing, or the port is taken."""
    from gatedrnn.app.page import build, start

    if not 1 <= options.port < 1 << 16:
        raise ArgumentError("--port", "must lie in 1…65535", options.port, "Leave it out to use 7860")
    page = build(dict(zip(options.runs, load_runs(options.runs), strict=True)))
    url = start(page, options.port)
    try:
        yield {"url": url, "runs": list(options.runs)}
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    finally:
        page.close(verbose=False)


def show(found: Iterator[dict[str, Any]], options: Options) -> None:
    """Where to open it."""
    for begun in found:
        print(f"open {begun['url']}; Ctrl-C ends it", flush=True)
