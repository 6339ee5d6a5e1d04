"""Around every request: its size, its time, how many at once, and errors in OpenAI's shape, one line each."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gatedrnn.core.errors import CheckpointError, GatedRNNError
from gatedrnn.serve.engine import ShutdownError
from gatedrnn.serve.limits import Limits
from gatedrnn.serve.schema import CompletionBody, ParseBody, SurprisalBody, first_error, short

_READ_ON = 16  # times the largest body
_LOG = logging.getLogger("gatedrnn.serve")
_FIELDS = {"/v1/completions": CompletionBody, "/parse": ParseBody, "/surprisal": SurprisalBody}


class RefusedError(Exception):
    """A request that is not answered.

    Args:
        status: HTTP's.
        message: one line.
        param: the field that it is about.
        code: OpenAI's word for it.
        retry: whether the same request may work later.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry: bool = False
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry = status, message, param, code, retry

    def content(self) -> dict[str, Any]:
        """OpenAI's form of an error."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        line = " ".join(self.message.split())
        return {"error": {"message": line, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """What is sent."""
        headers = {"x-should-retry": "true", "retry-after": "1"} if self.retry else {"x-should-retry": "false"}
        return JSONResponse(self.content(), self.status, headers)


def refusal(error: Exception) -> RefusedError:
    """The refusal that an error comes to."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, ShutdownError):
        return RefusedError(503, str(error), code="shutting_down", retry=True)
    if isinstance(error, GatedRNNError):
        return RefusedError(500 if isinstance(error, CheckpointError) else 400, str(error))
    return RefusedError(500, f"server: internal error; got {type(error).__name__}. See the log of the server")


def answer_errors(app: FastAPI) -> None:
    """Let every error of an endpoint be one line in OpenAI's form."""

    def told(request: Request, error: Exception) -> JSONResponse:
        return refusal(error).response()

    def invalid(request: Request, error: Any) -> JSONResponse:
        kind = _FIELDS.get(request.url.path)
        message, field = first_error(error.errors(), list(kind.model_fields) if kind else [])
        return RefusedError(400, message, param=field).response()

    def other(request: Request, error: Any) -> JSONResponse:
        path = short(request.url.path)
        got = (
            "bytes that are not UTF-8"
            if isinstance(error.__cause__, UnicodeDecodeError)
            else "too deep or too large a value"
        )
        words = {400: f"body: must be JSON that can be read; got {got}. Send a JSON object"}
        words |= {404: f"{path}: no such address", 405: f"{request.method} {path}: this method is not supported"}
        return RefusedError(error.status_code, words.get(error.status_code, str(error.detail))).response()

    app.add_exception_handler(RefusedError, told)
    app.add_exception_handler(GatedRNNError, told)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, other)


@final
class Guard:
    """Reads a request's body within limits before the application sees any of it.

    Args: hosts: names that a request may call the server by, None for any; a web page that makes its name point to this machine
        is refused so.
    """

    def __init__(self, app: ASGIApp, limits: Limits, hosts: Iterable[str] | None = None) -> None:
        self._app, self._limits = app, limits
        self._hosts = None if hosts is None else frozenset(hosts)
        self.open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self.open += 1
        try:
            try:
                body = await self._body(scope, receive)
            except RefusedError as refused:
                response = refused.response()
                response.headers["connection"] = "close"  # the rest of the body is not read
                await response(scope, receive, send)
                return
            except asyncio.CancelledError:  # the server has ended, and does not wait for the rest of the body
                await refusal(ShutdownError()).response()(scope, receive, send)
                raise
            if body is not None:
                await self._handle(scope, body, receive, send)
        finally:
            self.open -= 1

    async def _handle(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        given, began = [body], False

        async def replay() -> Message:
            return {"type": "http.request", "body": given.pop()} if given else await receive()

        async def watched(message: Message) -> None:
            nonlocal began
            began = True
            async with asyncio.timeout(self._limits.seconds):  # a client that does not read
                await send(message)

        try:
            await self._app(scope, replay, watched)
        except TimeoutError:
            pass
        except Exception as error:
            _LOG.exception("a request failed")
            if not began:
                await refusal(error).response()(scope, receive, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None if the client left. Raises: RefusedError: too large, too slow, too many at once, or for another host."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "").lower()
        if self._hosts is not None and _without_port(host) not in self._hosts:
            raise RefusedError(403, f"host: must be one of {', '.join(sorted(self._hosts))}; got {ascii(host)[:80]}")
        if scope["method"] == "POST" and self.open > self._limits.requests:
            raise RefusedError(503, f"server: {self._limits.requests} requests are open. Ask again later", retry=True)
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await self._read(headers, receive)
        except TimeoutError:
            message = f"body: must arrive within {self._limits.seconds:g} seconds"
            raise RefusedError(408, message, code="timeout") from None

    async def _read(self, headers: dict[bytes, str], receive: Receive) -> bytes | None:
        """The body. One that is too large is read on, and dropped, for a while: else the client never sees the refusal."""
        most, length, found, total = self._limits.body_bytes, headers.get(b"content-length", "0"), bytearray(), 0
        told = f"body: must be at most {most:,} bytes. Send fewer or shorter texts"
        large = RefusedError(413, told, code="body_too_large")
        if length.isdigit() and int(length[:20]) > _READ_ON * most:
            raise large
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            total += len(part)
            if total <= most:
                found += part
            elif total > _READ_ON * most or not message.get("more_body"):
                raise large
            if not message.get("more_body"):
                return bytes(found)


def _without_port(host: str) -> str:
    """`[::1]:80` → `[::1]`."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
