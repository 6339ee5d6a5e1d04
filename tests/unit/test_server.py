"""The server: a full queue, answers that are too long, layers and addresses that do not exist, streams, its end, its name."""

import asyncio
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatedrnn.data import DataConfig, Vocabulary
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.serve import Limits
from gatedrnn.serve.rows import Event, Pieces
from gatedrnn.serve.text import Piece

httpx = pytest.importorskip("httpx", reason="no httpx")
pytest.importorskip("uvicorn", reason="no uvicorn")
pytest.importorskip("fastapi", reason="no FastAPI")

from serving import serving  # noqa: E402

from gatedrnn.serve import server  # noqa: E402
from gatedrnn.serve.completions import Completion  # noqa: E402 - where there are the libraries
from gatedrnn.serve.schema import CompletionBody  # noqa: E402

WORDS = ["<unk>", "<eos>", *(f"w{k}" for k in range(30))]


@pytest.fixture(scope="module")
def run():
    """What the server needs of a run: an untrained ON-LSTM of two layers."""
    torch.manual_seed(1)
    config = LanguageModelConfig(
        len(WORDS), cell="onlstm", embedding_size=8, hidden_sizes=(8, 8), options={"chunk_size": 4}
    )
    whole = SimpleNamespace(model=config, data=DataConfig())
    return SimpleNamespace(model=LanguageModel(config).eval(), vocabulary=Vocabulary(WORDS), config=whole)


@pytest.fixture(scope="module")
def url(run):
    with serving({"run": run}) as (url, _):
        yield url


def post(client, url, path="/v1/completions", **body):
    return client.post(url + path, json=body)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_come_together_do_not_pass_the_limit_together(run, stream):
    body = {"max_tokens": 10**6, "ignore_eos": True, "n": 4, "stream": stream}
    limits = Limits(waiting=4, rows=4, choices=4, new_tokens=10**6, seconds=4)  # in which all have come
    client = httpx.Client(timeout=30, trust_env=False, limits=httpx.Limits(max_connections=None))
    with client, serving({"run": run}, limits) as (url, engine), ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: post(client, url, **body), range(40)))
        assert Counter(answer.status_code for answer in answers) == {429: 38, 200 if stream else 503: 2}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "queue_full" and refused.headers["retry-after"] == "1"
        assert post(client, url, max_tokens=1).status_code == 200
        assert engine.asked == 0


def test_a_prompt_is_put_together_once_for_all_its_completions(run, monkeypatch):
    calls, add = [], Pieces.add
    monkeypatch.setattr(Pieces, "add", lambda *given: calls.append(1) or add(*given))
    how: dict[str, Any] = {
        "prompt": "w1 w2 w3 " * 20,
        "n": 8,
        "max_tokens": 1,
        "echo": True,
        "logprobs": 3,
        "temperature": 0,
    }
    with httpx.Client(trust_env=False) as client, serving({"run": run}) as (url, _):
        choices = post(client, url, **how).json()["choices"]
        (one,) = post(client, url, **{**how, "n": 1}).json()["choices"]
    assert [choice | {"index": 0} for choice in choices] == [one] * 8
    assert len(calls) <= 2 * 60 + 9


def test_an_answer_does_not_repeat_the_scores_of_a_long_prompt_without_a_limit(run):
    how: dict[str, Any] = {"prompt": "w1 " * 1000, "max_tokens": 1, "n": 9, "echo": True}
    with httpx.Client(trust_env=False) as client, serving({"run": run}) as (url, _):
        refused = post(client, url, **how, logprobs=0)
        message = refused.json()["error"]["message"]
        assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
        assert "at most 8192 tokens in one request, counted n times with echo and logprobs; got 9000" in message
        assert post(client, url, **how).status_code == 200
        assert post(client, url, **{**how, "n": 8}, logprobs=0).status_code == 200


@pytest.mark.parametrize("path", ["/parse", "/surprisal"])
@pytest.mark.parametrize(
    "layer", [0, -1, "0", 10**4000, "9" * 5000, "", "second", True, 1.0], ids=lambda layer: ascii(layer)[:8]
)
def test_a_layer_that_there_is_not_is_refused_in_a_short_line(url, path, layer):
    with httpx.Client(trust_env=False) as client:
        answer = post(client, url, path, text="w1 w2", layer=layer)
        assert answer.status_code == 400, answer.text
        assert "layer: must be a" in answer.json()["error"]["message"] and len(answer.text) < 300
        assert post(client, url, path, text="w1 w2", layer="2").status_code == 200


def test_an_address_that_there_is_not_is_answered_by_a_short_line(run):
    with httpx.Client(trust_env=False) as client, serving({"run": run}) as (url, _):
        found = client.get(f"{url}/%1b[2J" + "a" * 9000)
        assert found.status_code == 404 and len(found.text) < 200
        message = found.json()["error"]["message"]
        assert message.startswith("/\\x1b[2Jaaa") and message.endswith("…: no such address")


def test_a_stream_with_much_to_send_gives_way_after_each_step(run):
    """Else asyncio warns for each part that is written after its client has left, and other requests wait."""
    turns, body = 0, CompletionBody(stream=True, n=8)

    def complete(name, prompts):
        for _ in range(50):
            prompts[0].ticket.send([Event(k, [Piece("a")]) for k in range(8)])
        prompts[0].ticket.send([Event(k, [], "length", 50) for k in range(8)])

    async def count():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def main():
        engine: Any = SimpleNamespace(runs={"run": run}, limits=Limits(), complete=complete, completions=0, asked=0)
        counting = asyncio.create_task(count())
        parts = [part async for part in Completion("run", body, engine).stream()]
        counting.cancel()
        return parts

    parts = asyncio.run(main())
    assert turns >= 51 and len(parts) == 52 and parts[-1] == "data: [DONE]\n\n"
    assert all(part.count("data: ") == 8 and part.endswith("\n\n") for part in parts[:-1])


def test_a_body_that_is_still_coming_when_the_server_ends_is_answered(run, monkeypatch):
    monkeypatch.setattr(server, "_GRACE", 0.2)
    with serving({"run": run}) as (url, _):
        client = socket.create_connection(("127.0.0.1", httpx.URL(url).port), timeout=10)
        client.sendall(b"POST /parse HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        time.sleep(0.2)
    with client:
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 503 ") and b"the server is shutting down" in answer and b"retry-after" in answer


def test_a_server_answers_to_the_name_that_it_was_given():
    """`serve --host my-laptop` answered 403 to requests for my-laptop."""
    with server.bind(server.LOOPBACK, 0) as bound:
        made, engine = server.server_of({}, Limits(), bound, "My-Laptop")
        engine.stop()
    assert {"my-laptop", "localhost", "127.0.0.1"} <= made.config.app._hosts
