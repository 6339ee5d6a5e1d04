"""A server under load: `python benchmarks/serve.py RUN [--clients 50] [--seconds 120] [--seed 1]`.

Starts `gatedrnn serve RUN` and lets clients ask at once: completions (greedy and sampled, whole and streamed), trees, surprisal,
streams that are cut off, bodies that are too large, and malformed ones. Every greedy completion is compared with one computed by
single steps of the model alone, a sampled one with the first answer to the same request, and every refusal must be a 4xx of one
line. Prints requests and tokens a second, latency, and the server's resident memory; exits with 1 if an answer is wrong or memory
grew. Linux only. The clients run on the same machine, and take their share of it.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read as torch is imported, here and in the server

import httpx
import torch

from gatedrnn.data.prompt import prompt_ids, prompt_tokens
from gatedrnn.models import surprisals
from gatedrnn.studies.parsing import has_distances, parse_sentences
from gatedrnn.training.run import Run, load_run

PROMPTS, LONGEST = 60, 48  # different prompts, and new tokens at most
CLOSE = 1e-5  # logits nearer than that may change places by rounding
GROWTH = 0.03  # of the resident memory
MALFORMED = [
    b"{", b"[]", b"\xff", b"null", b'{"prompt": NaN}', b'{"prompt": "\\ud800"}', b'{"prompt": []}', b'{"prompt": [-1]}',
    b'{"max_tokens": -1}', b'{"max_tokens": 1e9}', b'{"temperature": 1e999}', b'{"n": 1000}', b'{"stop": ""}', b'{"promt": ""}',
    b'{"model": "none"}', b"[" * 20_000, b'{"seed": 1' + b"0" * 5000 + b"}", b'{"logit_bias": {"x": 1}}',
]  # fmt: skip
KINDS = {
    "greedy": 36, "greedy stream": 24, "sampled": 10, "cancelled": 10, "parse": 4, "surprisal": 4, "large": 4, "malformed": 8,
}  # fmt: skip
"""What is asked, and how often of a hundred times."""


class Truth:
    """What the model says, one step at a time and nothing beside it."""

    def __init__(self, run: Run, draw: random.Random) -> None:
        self.run, words = run, run.vocabulary.words[2:]
        self.prompts = [
            run.vocabulary.text(draw.choices(words, k=draw.choice([0, 1, 3, 10, 30, 100]))) for _ in range(PROMPTS)
        ]
        self.greedy = [self._greedy(prompt) for prompt in self.prompts]
        self.seen: dict[Any, str] = {}
        sentences = [draw.choices(words, k=6) for _ in range(20)]
        self.lines = [run.vocabulary.text(words) for words in sentences]
        ids = [run.vocabulary.encode(run.vocabulary.tokens(line)) for line in self.lines]
        self.bits = [sum(bits) for (bits,) in ([*surprisals(run.model, [each], 1)] for each in ids)]
        self.parses = run.vocabulary.level == "word" and has_distances(run.model)
        trees = ([*parse_sentences(run.model, run.vocabulary, [line.split()])] for line in self.lines)
        self.trees = [tree.brackets for (tree,) in trees] if self.parses else []

    @torch.no_grad()
    def _greedy(self, prompt: str) -> tuple[list[str], bool]:
        """Texts of 0, 1, … new tokens, up to `<eos>`, and whether two tokens were too close to tell which comes first."""
        vocabulary, model = self.run.vocabulary, self.run.model
        tokens, states, close = prompt_tokens(vocabulary, prompt), None, False
        start, texts, given = len(vocabulary.text(tokens)), [""], [1, *prompt_ids(vocabulary, tokens)]
        while len(texts) <= LONGEST:
            for token in given:
                output = model(torch.tensor([[token]]), states)
                states = output.states
            values, best = output.logits[0, 0].topk(2)
            close |= bool(values[0] - values[1] < CLOSE)
            given = best[:1].tolist()
            if given == [1]:
                break
            tokens += vocabulary.decode(given)
            texts.append(vocabulary.text(tokens)[start:])
        return texts, close


class Load:
    """Clients that ask, and what they found."""

    def __init__(self, url: str, truth: Truth, draw: random.Random) -> None:
        self.url, self.truth, self.draw = url, truth, draw
        self.counts, self.wrong, self.latency = Counter[str](), list[str](), list[float]()
        self.tokens, self.computed, self.share = 0, 0, 0.0

    async def client(self, until: float) -> None:
        """Ask until a time, one thing after another."""
        async with httpx.AsyncClient(base_url=self.url, timeout=120, trust_env=False) as http:
            while time.monotonic() < until:
                (kind,) = self.draw.choices(list(KINDS), list(KINDS.values()))
                try:
                    await getattr(self, f"_{kind.replace(' ', '_')}")(http)
                except (httpx.HTTPError, KeyError, ValueError) as error:
                    self.wrong.append(f"{kind}: {type(error).__name__}: {error}")
                self.counts[kind] += 1

    async def _greedy(self, http: httpx.AsyncClient) -> None:
        k, most = self.draw.randrange(PROMPTS), self.draw.randint(1, LONGEST)
        body = {"prompt": self.truth.prompts[k], "max_tokens": most, "temperature": 0}
        self._compare(k, most, await self._asked(http, body))

    async def _greedy_stream(self, http: httpx.AsyncClient) -> None:
        k, most, text, began = self.draw.randrange(PROMPTS), self.draw.randint(1, LONGEST), "", time.monotonic()
        body = {"prompt": self.truth.prompts[k], "max_tokens": most, "temperature": 0, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                    self.tokens += 1
        self.latency.append(time.monotonic() - began)
        self._compare(k, most, text)

    async def _sampled(self, http: httpx.AsyncClient) -> None:
        k, seed = self.draw.randrange(PROMPTS), self.draw.randrange(3)
        body = {"prompt": self.truth.prompts[k], "max_tokens": LONGEST, "seed": seed, "top_p": 0.9}
        found = await self._asked(http, body)
        if self.truth.seen.setdefault((k, seed), found) != found:
            self.wrong.append(f"sampled: {body}: {found!r} and {self.truth.seen[k, seed]!r}")

    async def _asked(self, http: httpx.AsyncClient, body: dict[str, Any]) -> str:
        began = time.monotonic()
        found = (await http.post("/v1/completions", json=body)).raise_for_status().json()
        self.latency.append(time.monotonic() - began)
        self.tokens += found["usage"]["completion_tokens"]
        return found["choices"][0]["text"]

    async def _cancelled(self, http: httpx.AsyncClient) -> None:
        body = {"prompt": self.draw.choice(self.truth.prompts), "max_tokens": 2000, "ignore_eos": True, "n": 3}
        if self.draw.random() < 0.5:
            async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
                async for _ in answer.aiter_lines():
                    if self.draw.random() < 0.1:
                        return
        try:
            await http.post("/v1/completions", json=body, timeout=self.draw.uniform(0.01, 0.3))
        except httpx.TimeoutException:
            return

    async def _parse(self, http: httpx.AsyncClient) -> None:
        if self.truth.parses:
            k = self.draw.randrange(len(self.truth.lines))
            body = {"text": self.truth.lines[k], "mapping": "exact"}
            found = (await http.post("/parse", json=body)).raise_for_status().json()
            if found["sentences"][0]["tree"] != self.truth.trees[k]:
                self.wrong.append(f"parse: {self.truth.lines[k]!r}: {found}")

    async def _surprisal(self, http: httpx.AsyncClient) -> None:
        k = self.draw.randrange(len(self.truth.lines))
        found = (await http.post("/surprisal", json={"text": self.truth.lines[k]})).raise_for_status().json()
        if abs(sum(found["sentences"][0]["surprisal_bits"]) - self.truth.bits[k]) > 1e-3:
            self.wrong.append(f"surprisal: {self.truth.lines[k]!r}: {found}")

    async def _large(self, http: httpx.AsyncClient) -> None:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * 60_000

        content: Any = parts() if self.draw.random() < 0.5 else b" " * 1_200_000
        try:
            self._refused(await http.post("/v1/completions", content=content), 413)
        except (httpx.WriteError, httpx.ReadError):  # the server closed the connection before it was read
            self.counts["large, cut off"] += 1

    async def _malformed(self, http: httpx.AsyncClient) -> None:
        headers = {"content-type": "application/json"}
        body, path = self.draw.choice(MALFORMED), self.draw.choice(["/v1/completions", "/parse", "/surprisal"])
        self._refused(await http.post(path, content=body, headers=headers))

    def _refused(self, answer: httpx.Response, status: int | None = None) -> None:
        message = answer.json()["error"]["message"]
        if not 400 <= answer.status_code < 500 or status not in (None, answer.status_code) or "\n" in message:
            self.wrong.append(f"refusal: {answer.status_code}: {message}")

    def _compare(self, k: int, most: int, text: str) -> None:
        texts, close = self.truth.greedy[k]
        if text != texts[min(most, len(texts) - 1)]:
            if close:
                self.counts["too close to tell"] += 1
            else:
                self.wrong.append(f"greedy: {self.truth.prompts[k]!r}, {most}: {text!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(options.seed)
    truth = Truth(load_run(options.run), draw)
    command = [sys.executable, "-m", "gatedrnn.cli.main", "serve", options.run, "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        load = Load(json.loads(server.stdout.readline())["url"], truth, draw)
        used = _processor(server.pid)
        seconds, memory = asyncio.run(_asking(load, options.clients, options.seconds, server.pid))
        load.share = (_processor(server.pid) - used) / seconds
        server.send_signal(signal.SIGINT)
        ended, _ = server.communicate(timeout=30)
        load.computed, clean = json.loads(ended)["new_tokens"], server.returncode == 0
    finally:
        server.kill()
        server.wait()
    return 0 if _tell(load, seconds, memory) and clean else 1


async def _asking(load: Load, clients: int, seconds: float, pid: int) -> tuple[float, list[float]]:
    """Let all clients ask; how long it took, and the server's resident memory in MiB, now and then."""
    began, memory = time.monotonic(), list[float]()

    async def watch() -> None:
        while True:
            await asyncio.sleep(min(1.0, seconds / 40))
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(load.client(began + seconds) for _ in range(clients)))
    watcher.cancel()
    return time.monotonic() - began, memory


def _processor(pid: int) -> float:
    """Seconds of a processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _tell(load: Load, seconds: float, memory: list[float]) -> bool:
    """Print what was found, and return whether all was well."""
    cuts = quantiles(load.latency, n=100)
    part = max(1, len(memory) // 5)
    warm, end = mean(memory[part : 2 * part]), mean(memory[-part:])
    print("| figure | value |\n|---|--:|")
    for kind, count in load.counts.items():
        print(f"| {kind} | {count:,} |")
    print(f"| requests a second | {sum(load.counts[kind] for kind in KINDS) / seconds:.1f} |")
    print(f"| new tokens a second | {load.tokens / seconds:,.0f} |")
    print(f"| new tokens a second, of what was cancelled too | {load.computed / seconds:,.0f} |")
    print(f"| processors that the server had | {load.share:.2f} |")
    for percent in (50, 95, 99):
        print(f"| latency of a completion, p{percent} | {1000 * cuts[percent - 1]:.0f} ms |")
    print(f"| resident memory, second fifth | {warm:.1f} MiB |\n| resident memory, last fifth | {end:.1f} MiB |")
    print(f"| wrong answers | {len(load.wrong)} |", flush=True)
    for told in load.wrong[:10]:
        print(told[:500], file=sys.stderr)
    return not load.wrong and end <= warm * (1 + GROWTH)


if __name__ == "__main__":
    sys.exit(main())
