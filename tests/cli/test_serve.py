"""Runs over HTTP: OpenAI's client, the same numbers whatever is computed beside them, limits, bad requests, the end."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import torch
from scripts import ROOT, run_script
from serving import serving
from terminal import by_steps, call, fails, records, works

from gatedrnn.data.prompt import prompt_ids, prompt_tokens
from gatedrnn.serve import Limits, server
from gatedrnn.serve.batch import Batch
from gatedrnn.serve.cache import Snapshot, StateCache
from gatedrnn.serve.engine import Engine, ShutdownError
from gatedrnn.training.run import load_run

PROMPTS = ["the cat", "a dog that the cats chase", "mary", "", "the pilot\nthe", "every unheardof"]
LEVELS = ("run", "char", "subword", "int8", "lstm")


@pytest.fixture(scope="module")
def runs(levels):
    works("compress", levels / "run", "--method", "int8", "--out", levels / "served-int8")
    return {name: load_run(levels / ("served-int8" if name == "int8" else name)) for name in LEVELS}


@pytest.fixture(scope="module")
def served(runs):
    """The address, the engine, and OpenAI's client."""
    with serving(runs) as (url, engine):
        yield url, engine, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@contextlib.contextmanager
def limited(runs, **limits):
    with serving({"lstm": runs["lstm"]}, Limits(**limits)) as (url, engine):
        yield url, engine


def greedy(run, prompt, most):
    """Ids, tokens of the prompt, and log P of each of both, one step of the model at a time: until `<eos>` or so many."""
    tokens = prompt_tokens(run.vocabulary, prompt)
    ids = prompt_ids(run.vocabulary, tokens)
    states, before = None, [1, *ids]
    with torch.no_grad():
        for token in before:
            output = run.model(torch.tensor([[token]]), states)
            states = output.states
        new = []
        while len(new) < most:
            new.append(int(output.logits[0, 0].argmax()))
            if new[-1] == 1:
                break
            output = run.model(torch.tensor([[new[-1]]]), states)
            states = output.states
    return tokens, ids, new


def alike(one, two):
    """Whether two answers are the same, but for the last digits of numbers."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(alike(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(alike(*each) for each in zip(one, two, strict=True))
    return one == pytest.approx(two, abs=1e-5) if isinstance(one, float) else one == two


@pytest.mark.parametrize("name", LEVELS)
class TestEveryLevel:
    def test_the_client_gets_what_the_model_says(self, served, runs, name):
        _, _, client = served
        run = runs[name]
        for prompt in PROMPTS:
            found = client.completions.create(model=name, prompt=prompt, max_tokens=12, temperature=0)
            tokens, ids, new = greedy(run, prompt, 12)
            words = [*tokens, *run.vocabulary.decode([token for token in new if token != 1])]
            assert run.vocabulary.text(tokens) + found.choices[0].text == run.vocabulary.text(words)
            assert found.choices[0].finish_reason == ("stop" if new[-1] == 1 else "length")
            assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(ids), len(new))

    def test_log_probabilities_of_prompt_and_completion(self, served, runs, name):
        _, _, client = served
        how = {"max_tokens": 5, "temperature": 0, "logprobs": 3, "echo": True}
        (found,) = client.completions.create(model=name, prompt=PROMPTS[1], **how).choices
        _, ids, new = greedy(runs[name], PROMPTS[1], 5)
        assert found.logprobs.token_logprobs == pytest.approx(by_steps(runs[name], [*ids, *new]), abs=1e-4)
        for token, offset in zip(found.logprobs.tokens, found.logprobs.text_offset, strict=True):
            assert token == "<eos>" or found.text[offset:].startswith(token)
        told = (found.logprobs.tokens, found.logprobs.token_logprobs, found.logprobs.top_logprobs)
        for place, (token, own, top) in enumerate(zip(*told, strict=True)):
            assert top[token] == own and len(top) in (3, 4) and max(top.values()) <= 0
            assert own == max(top.values()) or place < len(ids)

    def test_ids_are_a_prompt_too(self, served, runs, name):
        _, _, client = served
        ids = prompt_ids(runs[name].vocabulary, prompt_tokens(runs[name].vocabulary, "the pilot"))
        how = {"model": name, "max_tokens": 6, "temperature": 0, "logprobs": 1, "echo": True}
        text, plain, begun = (
            client.completions.create(prompt="the pilot", **how),
            *(client.completions.create(prompt=given, **how) for given in (ids, [1, *ids])),
        )
        assert plain.choices == text.choices
        assert begun.choices[0].logprobs.token_logprobs == [None, *text.choices[0].logprobs.token_logprobs]
        assert begun.choices[0].text == text.choices[0].text and begun.usage.prompt_tokens == len(ids) + 1

    def test_a_stream_is_the_whole_in_parts(self, served, name):
        _, _, client = served
        how = {
            "model": name,
            "prompt": PROMPTS[:3],
            "n": 2,
            "max_tokens": 30,
            "seed": 5,
            "logprobs": 2,
            "stop": ["th", " dog c"],
        }
        whole = client.completions.create(**how)
        texts, reasons, logprobs, usage = [""] * 6, [None] * 6, [[] for _ in range(6)], None
        for part in client.completions.create(**how, stream=True, stream_options={"include_usage": True}):
            usage = part.usage or usage
            for choice in part.choices:
                assert reasons[choice.index] is None
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason
                logprobs[choice.index] += choice.logprobs.text_offset
        assert texts == [choice.text for choice in whole.choices]
        assert reasons == [choice.finish_reason for choice in whole.choices]
        assert logprobs == [choice.logprobs.text_offset for choice in whole.choices]
        assert usage == whole.usage


class TestBesideOthers:
    def test_every_answer_is_the_one_alone(self, served, runs):
        _, engine, client = served
        draw = random.Random(3)
        words = runs["run"].vocabulary.words
        asked = []
        for k in range(60):
            prompt = " ".join(draw.choices(words[2:], k=draw.choice([0, 1, 5, 70, 130])))
            how = {"model": draw.choice(["run", "lstm"]), "prompt": prompt, "max_tokens": draw.choice([1, 9, 40])}
            how |= {
                "temperature": draw.choice([0, 0.7, 1.3]),
                "top_p": draw.choice([1, 0.8]),
                "seed": k,
                "n": 1 + k % 3,
            }
            asked.append(how | {"logprobs": 2, "extra_body": {"ignore_eos": True}})
        with ThreadPoolExecutor(30) as pool:
            together = list(pool.map(lambda each: client.completions.create(**each).to_dict()["choices"], asked))
        alone = [client.completions.create(**each).to_dict()["choices"] for each in asked]
        assert all(alike(*each) for each in zip(together, alone, strict=True))
        assert engine.asked == 0

    def test_seeds(self, served):
        _, _, client = served

        def texts(**how):
            given = {"model": "run", "prompt": "the", "max_tokens": 12, "n": 3} | how
            return [choice.text for choice in client.completions.create(**given).choices]

        one = texts(seed=1)
        assert one == texts(seed=1) and len(set(one)) > 1
        assert texts(seed=2) != one and texts(seed=-1) == texts(seed=-1)
        assert texts() != texts()
        assert texts(seed=1, n=1) == one[:1]
        assert len(set(texts(temperature=0))) == len(set(texts(top_p=1e-9))) == 1

    def test_a_bias_bans_a_token(self, served, runs):
        _, _, client = served
        found = client.completions.create(model="run", prompt="the", max_tokens=1, temperature=0, logprobs=1)
        (token,) = found.choices[0].logprobs.tokens
        banned = {str(runs["run"].vocabulary.ids[token.strip()]): -100}
        other = client.completions.create(model="run", prompt="the", max_tokens=1, temperature=0, logit_bias=banned)
        assert other.choices[0].text != found.choices[0].text

    @pytest.mark.parametrize("stop", ["e", ["zzz", " t"], "\n", [" the"]])
    def test_stop(self, served, stop):
        _, _, client = served
        how = {"model": "char", "prompt": "the ", "max_tokens": 60, "seed": 4, "extra_body": {"ignore_eos": True}}
        (free,), (cut,) = client.completions.create(**how).choices, client.completions.create(**how, stop=stop).choices
        stops = [stop] if isinstance(stop, str) else stop
        places = [free.text.find(each) for each in stops if each in free.text]
        assert cut.text == (free.text[: min(places)] if places else free.text)
        assert cut.finish_reason == ("stop" if places else "length")


class TestCache:
    def test_a_beginning_that_repeats_is_read_once_with_the_same_bits(self, runs):
        long = "the cat that the dogs chase sleeps and " * 40  # more than one piece of 64 tokens
        asked = [long, long, long + "the", long + "a dog", "the", "the cat", long[:700], "the"]
        answers = []
        for cache in (64, 0):
            with limited(runs, cache_mib=cache) as (url, engine):
                how = {"max_tokens": 8, "logprobs": 5, "temperature": 0}
                answers.append([post(url, prompt=prompt, **how).json()["choices"] for prompt in asked])
                assert engine.cache.hits == (6 if cache else 0), engine.cache.hits
        assert alike(*answers)

    def test_memory_is_bounded_and_the_oldest_goes_first(self):
        states = [(torch.rand(1, 1, 50), torch.rand(1, 1, 50)), (torch.rand(1, 1, 20),)]
        cache, one = StateCache(100_000), Snapshot(states, torch.rand(1, 20))
        for k in range(1000):
            cache.keep("run", range(k), one)
            cache.keep("other", [5], one)
            assert cache.bytes == len(cache) * one.bytes <= 100_000
        assert cache.longest("run", range(1000))[0] == 999 and cache.longest("run", range(900))[0] == 0
        assert cache.longest("run", [5, 6]) == (0, None) and cache.longest("other", [5, 6])[0] == 1
        kept = cache.longest("other", [5])[1]
        assert all(torch.equal(a, b) and a is not b for a, b in zip(kept.states[0], states[0], strict=True))
        StateCache(10).keep("run", [1], one)  # too large to be kept


class TestReadings:
    def test_parse_is_the_command(self, served, levels, tmp_path):
        url, _, _ = served
        text = "the cat that the dogs chase sleeps\n\na dog\n42 cats\n"
        (tmp_path / "text").write_text(text)
        for how in (
            {},
            {"layer": "mean", "algorithm": "biased"},
            {"layer": 1, "gate": "master_input", "mapping": "exact"},
        ):
            options = [part for name, value in how.items() for part in (f"--{name}", value)]
            found = httpx.post(f"{url}/parse", json={"model": "run", "text": text} | how).json()
            assert found == {"model": "run", "sentences": records("parse", levels / "run", tmp_path / "text", *options)}
        listed = httpx.post(f"{url}/parse", json={"model": "run", "text": text[:-1].split("\n")}).json()
        assert listed == httpx.post(f"{url}/parse", json={"model": "run", "text": text}).json()

    @pytest.mark.parametrize("name", ["run", "char", "subword", "lstm"])
    def test_surprisal_is_the_command(self, served, levels, tmp_path, name):
        url, _, _ = served
        text = "the cat that the dogs chase sleeps\n\na dog unheardof\n"
        (tmp_path / "text").write_text(text)
        for how in ({}, {"tokens": True}, {"carried": True}):
            found = httpx.post(f"{url}/surprisal", json={"model": name, "text": text} | how).json()["sentences"]
            assert found == records("surprisal", levels / name, tmp_path / "text", *(f"--{name}" for name in how))


HTTP = httpx.Client(timeout=60, trust_env=False)
"""Makes connections of its own in every thread, faster than `httpx.post`."""


def post(url, path="/v1/completions", **body):
    return HTTP.post(url + path, json=body)


def raw(url, body, path="/v1/completions"):
    return HTTP.post(url + path, content=body, headers={"content-type": "application/json"})


BAD = {
    "no JSON": (b"{", 400, "must be JSON"),
    "nothing": (b"", 400, "must be a JSON object"),
    "a list": (b"[]", 400, "must be a JSON object"),
    "null": (b"null", 400, "must be a JSON object"),
    "not UTF-8": (b'{"prompt": "\xff"}', 400, "must be JSON that can be read; got bytes that are not UTF-8"),
    "too deep": (b"[" * 100_000, 400, "must be JSON that can be read; got too deep"),
    "a long number": (b'{"max_tokens": 1' + b"0" * 9999 + b"}", 400, "must be JSON"),
    "NaN": (b'{"model": "run", "temperature": NaN}', 400, "temperature: must be a finite number; got nan"),
    "infinity": (b'{"model": "run", "top_p": 1e999}', 400, "top_p: must be a finite number; got inf"),
    "a large number": (
        b'{"model": "run", "temperature": 1' + b"0" * 400 + b"}",
        400,
        "temperature: must be a valid number",
    ),
    "too hot": (b'{"model": "run", "temperature": 2.1}', 400, "temperature: must be less than or equal to 2; got 2.1"),
    "no model": (b'{"prompt": "a"}', 400, "model: must be given, as one of run, char"),
    "another model": (b'{"model": "rum"}', 404, "got 'rum'. Did you mean 'run'?"),
    "a model that is no text": (b'{"model": ["run"]}', 400, "model: must be a valid string"),
    "a surrogate": (b'{"model": "run", "prompt": "a \\ud800"}', 400, "prompt: must be a string, token ids"),
    "a surrogate model": (b'{"model": "\\ud800"}', 404, "got '\\ud800'"),
    "a surrogate stop": (b'{"model": "run", "stop": "\\udc00"}', 400, "stop: must be"),
    "a surrogate field": (b'{"model": "run", "\\ud800": 1}', 400, "names of fields must be text"),
    "no prompt in a list": (b'{"model": "run", "prompt": []}', 400, "prompt: must be a string, token ids"),
    "no id in a list": (b'{"model": "run", "prompt": [[]]}', 400, "prompt: must be a string, token ids"),
    "mixed prompts": (b'{"model": "run", "prompt": ["a", 1]}', 400, "prompt: must be a string, token ids"),
    "an id beyond": (b'{"model": "run", "prompt": [999999]}', 400, "prompt: ids must lie in 0"),
    "a negative id": (b'{"model": "run", "prompt": [-1]}', 400, "got -1"),
    "a huge id": (b'{"model": "run", "prompt": [1' + b"0" * 4000 + b"]}", 400, "prompt: "),
    "true for a number": (
        b'{"model": "run", "max_tokens": true}',
        400,
        "max_tokens: must be a valid integer; got True",
    ),
    "a text for a number": (b'{"model": "run", "n": "2"}', 400, "n: must be a valid integer; got '2'"),
    "many": (b'{"model": "run", "n": 65}', 400, "n: n × prompts must be at most 64; got 65"),
    "long": (b'{"model": "run", "max_tokens": 2049}', 400, "max_tokens: must be at most 2048; got 2049"),
    "a long prompt": (
        b'{"model": "run", "prompt": "' + b"a " * 9000 + b'"}',
        400,
        "prompt: must be at most 8192 tokens",
    ),
    "an empty stop": (b'{"model": "run", "stop": ["a", ""]}', 400, "stop: must be"),
    "many stops": (b'{"model": "run", "stop": ' + json.dumps(["a"] * 17).encode() + b"}", 400, "stop: must be"),
    "a bias": (b'{"model": "run", "logit_bias": {"the": 1}}', 400, "logit_bias: keys must be ids"),
    "a penalty": (b'{"model": "run", "presence_penalty": 1}', 400, "presence_penalty: must be 0"),
    "best of": (b'{"model": "run", "best_of": 3}', 400, "best_of: must equal n; got 3"),
    "an unknown field": (b'{"model": "run", "promt": "a"}', 400, "promt: is not known. Did you mean 'prompt'?"),
    "a long field": (b'{"model": "run", "' + b"x" * 9000 + b'": 1}', 400, "is not known"),
}

BAD_TEXTS = {
    "none": ({}, "text: is missing"),
    "empty": ({"text": " \n "}, "text: must hold at least one word"),
    "no list": ({"text": []}, "text: must be a string or a non-empty list of strings"),
    "a number": ({"text": 3}, "text: must be a string or a non-empty list of strings; got 3"),
    "a surrogate": ({"text": ["a \ud800"]}, "text: must be a string or a non-empty list of strings"),
    "a layer beyond": ({"text": "a", "layer": 3}, "must lie in 1…2, or be mean; got 3"),
    "no layer": ({"text": "a", "layer": "second"}, "must be a whole number from 1, or mean; got 'second'"),
    "a mapping": ({"text": "a", "mapping": "none"}, "mapping: must be one of exact, lower, number; got 'none'"),
    "long": ({"text": "a " * 9000}, "text: must be at most 8192 tokens"),
}  # fmt: skip


def refused(answer, status, told):
    """Whether an answer is an error in OpenAI's form, of one line."""
    error = answer.json()["error"]
    assert answer.status_code == status, answer.text
    assert error.keys() == {"message", "type", "param", "code"} and told in error["message"], error
    assert "\n" not in error["message"] and "Traceback" not in error["message"] and len(error["message"]) < 400
    return True


class TestRefusals:
    @pytest.mark.parametrize("name", BAD)
    def test_a_bad_request(self, served, capfd, name):
        body, status, told = BAD[name]
        assert refused(raw(served[0], body), status, told)
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize("path", ["/parse", "/surprisal"])
    @pytest.mark.parametrize("name", BAD_TEXTS)
    def test_a_bad_text(self, served, capfd, path, name):
        body, told = BAD_TEXTS[name]
        assert refused(raw(served[0], json.dumps({"model": "run"} | body), path), 400, told)
        assert capfd.readouterr().err == ""

    def test_what_a_run_cannot(self, served):
        url = served[0]
        told = "text: each sentence of a list must hold a word; got none in sentence 2. Leave it out"
        assert refused(post(url, "/surprisal", model="run", text=["a", " "]), 400, told)
        assert refused(
            post(url, "/parse", model="lstm", text="a"), 400, "needs a cell with master gates; got cell 'lstm'"
        )
        assert refused(post(url, "/parse", model="char", text="a"), 400, "needs a vocabulary of words; got level char")

    def test_the_client_sees_its_own_errors(self, served):
        _, _, client = served
        with pytest.raises(openai.BadRequestError, match="max_tokens: must be at most 2048"):
            client.completions.create(model="run", prompt="a", max_tokens=9999)
        with pytest.raises(openai.NotFoundError, match="must be one of the served models"):
            client.completions.create(model="gpt", prompt="a")

    def test_addresses(self, served):
        url = served[0]
        assert refused(httpx.get(f"{url}/v1/complete"), 404, "/v1/complete: no such address")
        assert refused(httpx.get(f"{url}/parse"), 405, "GET /parse: this method is not supported")
        assert refused(httpx.get(f"{url}/v1/models/none"), 404, "model: must be one of the served models")
        assert refused(httpx.get(f"{url}/healthz", headers={"host": "example.org"}), 403, "host: must be one of")
        assert refused(httpx.post(f"{url}/parse", content=b'{"text": "a"}'), 400, "content-type: application/json")

    def test_the_schema(self, served):
        found = httpx.get(f"{served[0]}/openapi.json").json()
        assert found["paths"].keys() >= {"/v1/models", "/v1/completions", "/parse", "/surprisal", "/healthz"}
        assert "logprobs" in found["components"]["schemas"]["CompletionBody"]["properties"]

    def test_a_body_too_large_with_and_without_its_length(self, served):
        url = served[0]
        assert refused(raw(url, b" " * 1_000_001), 413, "body: must be at most 1,000,000 bytes")
        assert refused(raw(url, b" " * 15_000_000), 413, "body: must be at most 1,000,000 bytes")
        assert refused(raw(url, iter([b" " * 50_000] * 21)), 413, "body: must be at most 1,000,000 bytes")
        head = b"POST /parse HTTP/1.1\r\nHost: localhost\r\n"
        for length in (b"16000001", b"9" * 20):
            with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as client:
                client.sendall(head + b"Content-Length: %b\r\n\r\n{" % length)
                assert b" 413 " in client.recv(4096).splitlines()[0]
        with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as client, contextlib.suppress(OSError):
            client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(2000):  # without an end
                client.sendall(b"4000\r\n" + b" " * 0x4000 + b"\r\n")
            raise AssertionError("a body without an end was read on")
        assert raw(url, b" " * 999_000 + b'{"model": "lstm", "max_tokens": 1}').status_code == 200

    def test_numbers_that_overflow(self, runs, levels):
        broken = load_run(levels / "other")
        with torch.no_grad():
            broken.model.decoder.bias[5] = float("inf")
        with serving({"broken": broken, "lstm": runs["lstm"]}) as (url, engine):
            for how in ({}, {"echo": True, "logprobs": 1}, {"n": 3}):
                assert refused(post(url, model="broken", prompt="the cat", **how), 500, "must be finite")
            assert post(url, model="lstm", prompt="the").status_code == 200 and engine.asked == 0

    def test_a_fault_of_the_server_ends_what_it_concerns(self, runs, monkeypatch, caplog):
        with limited(runs) as (url, engine):
            for name in ("_read", "_decoded", "_regroup", "_step"):
                with monkeypatch.context() as patched:
                    patched.setattr(Batch, name, lambda *_: 1 // 0)
                    how = {"prompt": "the", "ignore_eos": True}  # a drawn end would end it before the fault
                    assert refused(post(url, max_tokens=3, **how), 500, "got ZeroDivisionError")
                    assert "got ZeroDivisionError" in post(url, stream=True, **how).text
                assert post(url, prompt="the", max_tokens=3).status_code == 200
            assert stopped(engine) and caplog.text.count("a step failed") == 8  # once for each request


class TestLimits:
    def test_a_full_queue(self, runs):
        with (
            limited(runs, waiting=2, rows=1, seconds=5, new_tokens=10**7) as (url, engine),
            ThreadPoolExecutor(3) as pool,
        ):
            held = [pool.submit(post, url, max_tokens=10**7, ignore_eos=True) for _ in range(3)]
            deadline = time.monotonic() + 20
            while engine.asked < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            late = post(url, max_tokens=1)
            assert refused(late, 429, "3 completions are requested already, and the limit is 3")
            assert late.headers["retry-after"]
            assert [answer.result().status_code for answer in held] == [503] * 3  # their time is over
            assert stopped(engine) and post(url, max_tokens=1).status_code == 200

    def test_time(self, runs):
        with limited(runs, seconds=0.3, new_tokens=10**6) as (url, engine):
            assert refused(post(url, max_tokens=10**6, ignore_eos=True), 503, "no answer within 0.3 seconds")
            parts = post(url, max_tokens=10**6, ignore_eos=True, stream=True).text.split("\n\n")
            assert "no answer within" in json.loads(parts[-2].removeprefix("data: "))["error"]["message"]
            with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as slow:
                slow.sendall(b"POST /parse HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
                assert b"408" in slow.recv(4096).splitlines()[0]
            assert stopped(engine)

    def test_many_at_once(self, runs):
        with limited(runs, requests=2, seconds=5) as (url, _):
            place = ("127.0.0.1", httpx.URL(url).port)
            with contextlib.ExitStack() as stack:
                for _ in range(2):
                    one = stack.enter_context(socket.create_connection(place))
                    one.sendall(b"POST /parse HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
                time.sleep(0.2)
                assert refused(post(url, "/parse", text="a"), 503, "2 requests are open")
                assert httpx.get(f"{url}/healthz").status_code == 200
            time.sleep(0.2)
            assert refused(post(url, "/parse", text="a"), 400, "needs a cell with master gates")
            assert httpx.get(f"{url}/healthz").json() == {"status": "ok", "models": ["lstm"]}

    def test_a_long_reading_and_completions_take_turns(self, runs, levels, tmp_path, monkeypatch):
        monkeypatch.setattr("gatedrnn.serve.engine._SLICE", 0.001)
        how = {"text": "the dog sees a cat\n" * 2000, "carried": True}
        (tmp_path / "text").write_text(how["text"])
        with limited(runs, prompt_tokens=10**6, seconds=60) as (url, engine), ThreadPoolExecutor(1) as pool:
            reading = pool.submit(httpx.post, f"{url}/surprisal", json=how, timeout=60)
            deadline = time.monotonic() + 20
            while not engine._jobs and time.monotonic() < deadline:
                time.sleep(0.001)
            assert post(url, prompt="the", max_tokens=3).status_code == 200
            assert not reading.done()
            found = reading.result().json()["sentences"]
            assert found == records("surprisal", levels / "lstm", tmp_path / "text", "--carried")

    def test_long_readings_end_one_after_the_other_and_short_ones_before_them(self, runs, monkeypatch):
        monkeypatch.setattr("gatedrnn.serve.engine._SLICE", 0.002)
        monkeypatch.setattr("gatedrnn.serve.engine._SHORT", 0.3)
        engine, ended = Engine({}, Limits()), []

        def reading(count):
            for k in range(count):
                time.sleep(0.001)
                yield k

        engine.start()
        for name, count in (("one", 600), ("two", 600), ("short", 3)):
            future = engine.submit(lambda count=count: reading(count))
            future.add_done_callback(lambda done, name=name: ended.append((name, len(done.result()))))
        deadline = time.monotonic() + 20
        while len(ended) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        engine.stop()
        assert ended == [("short", 3), ("one", 600), ("two", 600)]

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_the_thread_leaves_nobody_waiting_when_it_ends(self):
        asked = threading.Event()

        def leaving():
            yield asked.wait(20)
            raise SystemExit  # no `Exception`

        engine = Engine({}, Limits())
        engine.start()
        futures = [engine.submit(work) for work in (leaving, lambda: iter(range(3)))]
        asked.set()
        for future in futures:
            with pytest.raises(ShutdownError):
                future.result(20)
        engine.stop()
        with pytest.raises(ShutdownError):
            engine.submit(leaving)

    def test_a_reading_is_left_when_its_time_is_over(self, runs):
        with limited(runs, prompt_tokens=10**6, seconds=0.5) as (url, engine):
            how = {"text": ["the dog sees a cat"] * 20_000, "carried": True}
            assert refused(httpx.post(f"{url}/surprisal", json=how, timeout=60), 503, "no answer within 0.5 seconds")
            deadline = time.monotonic() + 2
            while engine._jobs and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not engine._jobs and post(url, prompt="the", max_tokens=3).status_code == 200

    def test_a_client_that_does_not_read(self, runs):
        with limited(runs, new_tokens=10**7, seconds=1) as (url, engine), socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", httpx.URL(url).port))
            how = {"max_tokens": 10**7, "ignore_eos": True, "stream": True, "n": 32, "logprobs": 20}
            body = json.dumps(how).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            time.sleep(0.5)
            assert engine.asked == 32
            time.sleep(1.5)
            assert stopped(engine)

    def test_a_client_that_leaves_stops_its_generation(self, runs):
        with limited(runs, new_tokens=10**7, seconds=60) as (url, engine):
            how = {"max_tokens": 10**7, "ignore_eos": True, "n": 4}
            with httpx.stream("POST", f"{url}/v1/completions", json=how | {"stream": True}) as answer:
                lines = answer.iter_lines()  # kept: the connection is closed when it is collected
                next(lines)
                assert engine.asked == 4
            assert stopped(engine)
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{url}/v1/completions", json=how, timeout=0.3)
            assert stopped(engine)


def stopped(engine):
    """Whether an engine has nothing left to do, soon."""
    deadline = time.monotonic() + 5
    while engine.asked and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    before = engine.tokens
    time.sleep(0.1)
    return engine.asked == 0 and engine.tokens == before


@contextlib.contextmanager
def command(*arguments):
    """`gatedrnn serve` as a process, and the line that it prints first."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gatedrnn.cli.main", "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


class TestCommand:
    def test_it_answers_on_this_machine_alone_and_ends_on_ctrl_c(self, levels):
        with command(levels / "run", levels / "char", "--port", 0, "--json") as (process, line):
            begun = json.loads(line)
            assert begun["models"] == ["run", "char"] and begun["url"].startswith("http://127.0.0.1:")
            wait_for(begun["url"])
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.2", httpx.URL(begun["url"]).port), timeout=2)
            found = post(begun["url"], model="char", prompt="the", max_tokens=3, ignore_eos=True).json()
            assert found["usage"]["completion_tokens"] == 3
            how = {"model": "char", "max_tokens": 2048, "ignore_eos": True, "stream": True, "n": 8}
            with httpx.stream("POST", f"{begun['url']}/v1/completions", json=how, timeout=30) as answer:
                lines = answer.iter_lines()
                next(lines)
                process.send_signal(signal.SIGINT)
                assert "shutting down" in list(lines)[-2]
            out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "")
        assert json.loads(out)["completions"] == 1

    def test_names_a_port_taken_and_a_warning(self, levels, tmp_path, monkeypatch):
        (tmp_path / "run").mkdir()
        for file in (levels / "lstm").iterdir():
            if file.is_file():
                shutil.copy(file, tmp_path / "run")
        monkeypatch.setattr(server, "serve", lambda runs, limits, bound, name: Engine(runs, limits))
        code, out, err = call(
            "serve", levels / "run", tmp_path / "run", levels / "char", "--host", "0.0.0.0", "--port", 0
        )
        assert code == 0 and out.startswith(f"serving {levels / 'run'}, {tmp_path / 'run'}, char at http://0.0.0.0:")
        assert out.endswith("ended: 0 completions, 0 tokens\n")
        assert err.startswith("gatedrnn: warning: --host 0.0.0.0: every machine") and err.count("\n") == 1
        with socket.create_server(("127.0.0.1", 0)) as taken:
            told = fails("serve", levels / "run", "--port", taken.getsockname()[1])
            assert "must be a free port at an address of this machine; got 127.0.0.1:" in told
        assert "must lie in 0…65535; got 65536" in fails("serve", levels / "run", "--port", 65536)
        assert "must be at most 64; got 65" in fails("serve", levels / "run", "--rows", 65)

    def test_without_the_library(self, levels, monkeypatch):
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        monkeypatch.delitem(sys.modules, "gatedrnn.serve.server")
        assert "pip install 'gatedrnn[serve]'" in fails("serve", levels / "run")


def wait_for(url):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.ConnectError):
            return httpx.get(f"{url}/healthz").raise_for_status()
        time.sleep(0.05)
    raise AssertionError("the server does not answer")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_under_load_for_seconds(levels, capfd, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the benchmark sets
    _, out, err = run_script(ROOT / "benchmarks" / "serve.py", levels / "run", "--clients", 12, "--seconds", 2)
    assert "| wrong answers | 0 |" in out, out + err[-2000:]
    assert "Traceback" not in err + capfd.readouterr().err  # the server's is the process's own
