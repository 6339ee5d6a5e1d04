"""The application: what each address answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from gatedrnn.core.checks import nearest
from gatedrnn.serve.completions import Completion, late
from gatedrnn.serve.engine import Engine
from gatedrnn.serve.http import RefusedError, answer_errors
from gatedrnn.serve.readings import parsing, reading
from gatedrnn.serve.schema import CompletionBody, ParseBody, SurprisalBody


class _Stream(StreamingResponse):
    """A stream whose source is closed however it ends: also when the client leaves, or does not read.

    Args: room: entered before the first byte is sent, so that it can still refuse; left at the end.
    """

    def __init__(self, content: AsyncIterator[str], room: AbstractContextManager[None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            with self._room:
                await super().__call__(scope, receive, send)


def create_app(engine: Engine) -> FastAPI:
    """The application around an engine, which it starts and stops; wrap it in a `Guard` before it is served."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop)

    # no pages of documentation, which load scripts from elsewhere
    app = FastAPI(title="gatedrnn", docs_url=None, redoc_url=None, lifespan=life)
    answer_errors(app)
    _add_models(app, engine)
    _add_completions(app, engine)
    _add_readings(app, engine)
    return app


def _add_models(app: FastAPI, engine: Engine) -> None:
    created = int(time.time())

    def told(name: str) -> dict[str, Any]:
        run = engine.runs[name]
        facts = {"level": run.vocabulary.level, "vocabulary_size": len(run.vocabulary), "cell": run.config.model.cell}
        return {"id": name, "object": "model", "created": created, "owned_by": "gatedrnn"} | facts

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The runs."""
        return {"object": "list", "data": [told(name) for name in engine.runs]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One run."""
        return told(_chosen(engine, name))

    @app.get("/healthz")
    async def health() -> JSONResponse:
        """Whether requests are answered."""
        told = {"status": "ok" if engine.alive else "ended", "models": list(engine.runs)}
        return JSONResponse(told, 200 if engine.alive else 503)


def _add_completions(app: FastAPI, engine: Engine) -> None:
    @app.post("/v1/completions", response_model=None)
    async def completions(body: CompletionBody, request: Request) -> Any:
        """Text that goes on from prompts."""
        name = _chosen(engine, body.model)
        completion = await asyncio.to_thread(Completion, name, body, engine)
        room = _room(engine, len(completion.choices))
        if body.stream:
            return _Stream(completion.stream(), room)
        with room:
            answer = await _within(engine.limits.seconds, request, completion.whole())
        return JSONResponse(answer)


@contextmanager
def _room(engine: Engine, completions: int) -> Iterator[None]:
    """Count completions as asked for, in the same step of the event loop that compares them with the limit.

    Raises: RefusedError: there would be too many.
    """
    most = engine.limits.waiting + engine.limits.rows
    if engine.asked + completions > most:
        rule = f"{engine.asked} completions are requested already, and the limit is {most} (--rows plus --waiting)"
        raise RefusedError(429, f"server: {rule}. Ask again later", code="queue_full", retry=True)
    engine.asked += completions
    try:
        yield
    finally:
        engine.asked -= completions


def _add_readings(app: FastAPI, engine: Engine) -> None:
    limits = engine.limits

    async def read(request: Request, name: str, work: Callable[[], Any]) -> dict[str, Any]:
        future = asyncio.wrap_future(engine.submit(work))
        return {"model": name, "sentences": await _within(limits.seconds, request, future)}

    @app.post("/parse")
    async def parse(body: ParseBody, request: Request) -> dict[str, Any]:
        """Trees of sentences."""
        name = _chosen(engine, body.model)
        return await read(request, name, await asyncio.to_thread(parsing, engine.runs[name], body, limits))

    @app.post("/surprisal")
    async def surprisal(body: SurprisalBody, request: Request) -> dict[str, Any]:
        """Surprisal of the words of sentences."""
        name = _chosen(engine, body.model)
        return await read(request, name, await asyncio.to_thread(reading, engine.runs[name], body, limits))


def _chosen(engine: Engine, name: str | None) -> str:
    """The run of this name. Raises: RefusedError: none has it, or none is named and there are several."""
    if name is None and len(engine.runs) == 1:
        return next(iter(engine.runs))
    if name is None:
        raise RefusedError(400, f"model: must be given, as one of {', '.join(engine.runs)}. Add it", param="model")
    if name not in engine.runs:
        message = f"model: must be one of the served models; got {ascii(name)[:80]}. {nearest(name[:80], engine.runs)}"
        raise RefusedError(404, message, param="model", code="model_not_found")
    return name


async def _within(seconds: float, request: Request, work: Awaitable[Any]) -> Any:
    """What `work` gives, which is cancelled when its time is over or the client leaves. Raises: RefusedError: either of them."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RefusedError(499, "client: left before the answer", code="cancelled") if gone.done() else late(seconds)
    finally:
        gone.cancel()
        task.cancel()


async def _left(request: Request) -> None:
    """Wait until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
