"""`gatedrnn serve`: runs over HTTP, until Ctrl-C."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import option, place, settings
from gatedrnn.cli.text import run_names
from gatedrnn.serve import Limits
from gatedrnn.training.run import load_runs


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which runs, where, and within which limits."""

    runs: tuple[str, ...] = place("RUN", "folders of trained runs, each served under its folder's name")
    host: str = option(
        "127.0.0.1", "address to listen on; with an address that is not local, other machines can connect"
    )
    port: int = option(8000, "port to listen on; 0 takes a free one")
    limits: Limits | None = settings(Limits, {each.name: each.name for each in fields(Limits)})


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A record when it listens, and one at the end. Raises: ArgumentError: a library is missing, or the port is taken."""
    from gatedrnn.serve.server import address, bind, loopback, serve

    runs = dict(zip(run_names(options.runs), load_runs(options.runs), strict=True))
    with bind(options.host, options.port) as bound:
        if not loopback(bound.getsockname()[0]):
            told = "every machine that reaches this address can use the server; it asks for no password"
            print(f"gatedrnn: warning: --host {options.host}: {told}", file=sys.stderr)
        yield {"url": address(bound), "models": list(runs)}
        sys.stdout.flush()
        engine = serve(runs, options.limits or Limits(), bound, options.host)
    yield {"completions": engine.completions, "new_tokens": engine.tokens}


def show(found: Iterator[dict[str, Any]], options: Options) -> None:
    """Where it listens, and at the end how much it was asked for."""
    begun = next(found)
    print(f"serving {', '.join(begun['models'])} at {begun['url']}/v1; Ctrl-C ends it", flush=True)
    for ended in found:
        print(f"ended: {ended['completions']:,} completions, {ended['new_tokens']:,} tokens")
