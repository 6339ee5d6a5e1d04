"""/v1/completions: from a request to prompts for the engine, and from its events to OpenAI's answer."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, final

from gatedrnn.data import EOS, Vocabulary
from gatedrnn.data.prompt import prompt_ids, prompt_tokens
from gatedrnn.serve.engine import Engine, ShutdownError
from gatedrnn.serve.http import RefusedError, refusal
from gatedrnn.serve.limits import Limits
from gatedrnn.serve.rows import Event, Prompt, Ticket, Wanted
from gatedrnn.serve.schema import CompletionBody
from gatedrnn.serve.text import Piece
from gatedrnn.training.run import Run

Read = tuple[list[str], list[int], int]
"""Tokens and ids of a prompt, `<eos>` first, and how many of the last ones the request wrote."""


def read_prompts(body: CompletionBody, run: Run, limits: Limits) -> list[Read]:
    """The prompts of a request. Raises: RefusedError: an id out of range, or too many tokens, choices or new tokens."""
    given: Any = body.prompt
    prompts: list[Any] = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    for name, rule, value, most in (
        ("n", "n × prompts must be", len(prompts) * body.n, limits.choices),
        ("max_tokens", "must be", body.max_tokens, limits.new_tokens),
    ):
        if value > most:
            raise RefusedError(400, f"{name}: {rule} at most {most}; got {str(value)[:20]}. Ask for fewer", param=name)
    if body.best_of not in (None, body.n):
        raise RefusedError(400, f"best_of: must equal n; got {str(body.best_of)[:20]}. Leave it out", param="best_of")
    found: list[Read] = []
    total, times = 0, body.n if body.echo and body.logprobs is not None else 1
    for prompt in prompts:
        found.append(_read(prompt, run))
        total += found[-1][2] * times
        if total > limits.prompt_tokens:
            many = ", counted n times with echo and logprobs" if times > 1 else ""
            rule = f"must be at most {limits.prompt_tokens} tokens in one request{many}; got {total} or more"
            message = f"prompt: {rule}. Send a shorter prompt"
            raise RefusedError(400, message, param="prompt", code="context_length_exceeded")
    return found


def _read(prompt: str | list[int], run: Run) -> Read:
    vocabulary = run.vocabulary
    if isinstance(prompt, str):
        tokens = prompt_tokens(vocabulary, prompt)
        ids, shown = prompt_ids(vocabulary, tokens, run.config.data.mapping), len(tokens)
    else:
        wrong = next((token for token in prompt if not 0 <= token < len(vocabulary)), None)
        if wrong is not None:
            rule = f"ids must lie in 0…{len(vocabulary) - 1}; got {str(wrong)[:20]}"
            raise RefusedError(400, f"prompt: {rule}. Encode with the run's vocabulary", param="prompt")
        tokens, ids, shown = vocabulary.decode(prompt), prompt, len(prompt)
    if ids[:1] != [vocabulary.ids[EOS]] or isinstance(prompt, str):
        tokens, ids = [EOS, *tokens], [vocabulary.ids[EOS], *ids]
    return tokens, ids, shown


def wanted(body: CompletionBody, vocabulary: Vocabulary) -> Wanted:
    """What the engine is told. Raises: RefusedError: a bias for what is no token."""
    bias = {}
    for name, value in body.logit_bias.items():
        if not (name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(vocabulary)):
            rule = f"keys must be ids in 0…{len(vocabulary) - 1}; got {ascii(name)[:40]}"
            raise RefusedError(400, f"logit_bias: {rule}. Look them up in vocabulary.json", param="logit_bias")
        bias[int(name)] = value
    chosen = (body.temperature, body.top_p, body.seed, bias)
    return Wanted(*chosen, body.n, body.max_tokens, body.logprobs, body.echo, body.stops, body.ignore_eos)


@dataclass
class Choice:
    """A completion as far as it has been put together; offsets of later pieces go on from it."""

    pieces: list[Piece] = field(default_factory=list)
    finish: str | None = None
    letters: int = 0

    def add(self, event: Event) -> None:
        """Take in what has become known."""
        self.pieces += event.pieces
        self.finish = event.finish

    def part(self, index: int, scored: bool) -> dict[str, Any]:
        """What came since the last part, as OpenAI writes a choice."""
        text, logprobs = "".join(piece.text for piece in self.pieces), None
        if scored:
            logprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
            for piece in self.pieces:
                if piece.scored is not None:
                    for name, value in zip(logprobs, (*piece.scored, self.letters), strict=True):
                        logprobs[name].append(value)
                self.letters += len(piece.text)
        self.pieces = []
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": self.finish}


@final
class Completion:
    """One request on its way.

    Args: name: of the run. Raises: as `read_prompts` and `wanted`.
    """

    def __init__(self, name: str, body: CompletionBody, engine: Engine) -> None:
        self._name, self._body, self._engine = name, body, engine
        run = engine.runs[name]
        self._read, self._wanted = read_prompts(body, run, engine.limits), wanted(body, run.vocabulary)
        self._id, self._created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        self.choices = [Choice() for _ in range(len(self._read) * body.n)]
        self.new_tokens = 0

    async def run(self) -> AsyncGenerator[list[Event], None]:
        """Events as they come; whoever ends the iteration early stops the generation. Raises: RefusedError."""
        loop, found = asyncio.get_running_loop(), asyncio.Queue[list[Event] | Exception]()
        left, deadline = len(self.choices), loop.time() + self._engine.limits.seconds

        def send(events: list[Event] | Exception) -> None:
            loop.call_soon_threadsafe(found.put_nowait, events)

        ticket, count = Ticket(send, quiet=not self._body.stream), self._body.n
        prompts = [Prompt(ticket, self._wanted, *read[:2], k * count, read[2]) for k, read in enumerate(self._read)]
        self._engine.complete(self._name, prompts)
        try:
            while left:
                async with asyncio.timeout_at(deadline):
                    events = await found.get()
                if isinstance(events, Exception):
                    raise refusal(events)
                ended = sum(event.finish is not None for event in events)
                left -= ended
                self._engine.completions += ended
                self.new_tokens += sum(event.new_tokens for event in events)
                yield events
        except TimeoutError:
            raise late(self._engine.limits.seconds) from None
        finally:
            ticket.gone = True

    async def whole(self) -> dict[str, Any]:
        """The answer at once. Raises: RefusedError."""
        async with aclosing(self.run()) as parts:
            async for events in parts:
                for event in events:
                    self.choices[event.index].add(event)
        scored = self._body.logprobs is not None
        return self._object([choice.part(index, scored) for index, choice in enumerate(self.choices)]) | self._usage()

    async def stream(self) -> AsyncGenerator[str, None]:
        """The answer as server-sent events; an error in the midst of it is the last one."""
        usage = self._body.stream_options is not None and self._body.stream_options.include_usage
        try:
            async with aclosing(self.run()) as parts:
                async for events in parts:
                    more = {"usage": None} if usage else {}
                    if text := "".join(_sent(self._object([part]) | more) for part in self._parts(events)):
                        yield text
                    await asyncio.sleep(0)  # the event loop sees others, and whether this client has left
        except (RefusedError, ShutdownError) as error:
            yield _sent(refusal(error).content())
            return
        if usage:
            yield _sent(self._object([]) | self._usage())
        yield "data: [DONE]\n\n"

    def _parts(self, events: list[Event]) -> list[dict[str, Any]]:
        """A part for each completion that has something new."""
        for event in events:
            self.choices[event.index].add(event)
        scored, indices = self._body.logprobs is not None, dict.fromkeys(event.index for event in events)
        choices = ((index, self.choices[index]) for index in indices)
        return [choice.part(index, scored) for index, choice in choices if choice.pieces or choice.finish]

    def _object(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        told = {"id": self._id, "object": "text_completion", "created": self._created, "model": self._name}
        return told | {"choices": choices}

    def _usage(self) -> dict[str, Any]:
        prompt, new = sum(shown for _, _, shown in self._read), self.new_tokens
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}}


def late(seconds: float) -> RefusedError:
    """The refusal of what takes too long."""
    return RefusedError(503, f"server: no answer within {seconds:g} seconds. Ask for a shorter answer", code="timeout")


def _sent(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n"
