"""A socket, and the application served on it until Ctrl-C."""

import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress

from gatedrnn.core.errors import ArgumentError

try:
    import fastapi  # noqa: F401 - looked for here, so that one sentence says what is missing
    import uvicorn
except ImportError as missing:
    raise ArgumentError(
        "gatedrnn.serve", "needs FastAPI and uvicorn", str(missing), "Install them: pip install 'gatedrnn[serve]'"
    ) from missing

from gatedrnn.serve.app import create_app
from gatedrnn.serve.engine import Engine
from gatedrnn.serve.http import Guard
from gatedrnn.serve.limits import Limits
from gatedrnn.training.run import Run

LOOPBACK = "127.0.0.1"
_OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
_GRACE = 5  # seconds that answers which are being sent have, once the server ends
_IDLE = 30  # seconds that a connection without a request stays open
_BACKLOG = 1024


class _Server(uvicorn.Server):
    """Ends the engine before it waits for open requests, so that they are answered."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the engine, then the server."""
        self._engine.end()
        await super().shutdown(sockets)


def loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises: ArgumentError: the port is taken or out of range, or there is no such host."""
    if not 0 <= port < 1 << 16:
        advice = "Give a number such as 8000, or 0 for a free one"
        raise ArgumentError("serve.port", "must lie in 0…65535", port, advice)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        rule, got = "must be a free port at an address of this machine", getattr(error, "strerror", None) or error
        raise ArgumentError("serve.port", rule, f"{host}:{port}, {got}", "Choose another one") from error


def address(bound: socket.socket) -> str:
    """`http://127.0.0.1:8000` of a socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(runs: Mapping[str, Run], limits: Limits, bound: socket.socket, name: str = LOOPBACK) -> Engine:
    """Serve runs on a socket until Ctrl-C; the engine, which has counted what it was asked for.

    Args: name: of this machine, as requests call it beside its own names.
    """
    server, engine = server_of(runs, limits, bound, name)
    with suppress(KeyboardInterrupt):  # which the library raises again once it has ended
        server.run(sockets=[bound])
    engine.stop()
    return engine


def server_of(
    runs: Mapping[str, Run], limits: Limits, bound: socket.socket, name: str = LOOPBACK
) -> tuple[uvicorn.Server, Engine]:
    """The server on a socket, which its `run` starts, and the engine behind it."""
    engine, host = Engine(runs, limits), bound.getsockname()[0]
    app = Guard(create_app(engine), limits, {*_OWN_NAMES, host, name.lower()} if loopback(host) else None)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_GRACE,
    )
    return _Server(config, engine), engine
