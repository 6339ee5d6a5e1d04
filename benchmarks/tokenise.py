"""Speed and memory of tokenising: `python benchmarks/tokenise.py [--megabytes 1000] [--level word …] [--train]`, as Markdown.

A text of made-up words, frequent and rare as in a natural one, is written to a temporary folder. Each level runs in a process of
its own, so that its peak memory is its own: learn the vocabulary, encode into the mapped arrays and, with --train, import torch
and take the first training steps. For subwords the library's own speed on the same lines stands beside it.
"""

import argparse
import platform
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np

from gatedrnn.data import Corpus, find_splits
from gatedrnn.data.subwords import Subwords
from gatedrnn.data.text import read_batches
from gatedrnn.data.vocabulary import Vocabulary

WORDS = 200_000
LINE_WORDS = 20


def write_text(folder: Path, megabytes: float) -> None:
    """train.txt of so many megabytes and a valid.txt of 1,000 lines; word k is drawn with a probability of about 1 / k."""
    rng = np.random.default_rng(1)
    letters = rng.integers(0, 26, (WORDS, 12)) + ord("a")
    lengths = np.minimum(1 + np.log(np.arange(1, WORDS + 1)).astype(int) // 2 + rng.integers(0, 5, WORDS), 12)
    words = np.array(
        [bytes(row[:n].astype(np.uint8)).decode() for row, n in zip(letters, lengths, strict=True)], object
    )
    cumulative = np.cumsum(1 / np.arange(1, WORDS + 1))

    def batch(lines: int) -> str:
        drawn = words[np.searchsorted(cumulative, rng.random((lines, LINE_WORDS)) * cumulative[-1])]
        return "".join(" ".join(line) + "\n" for line in drawn.tolist())

    with (folder / "train.txt").open("w") as stream:
        while stream.tell() < megabytes * 10**6:
            stream.write(batch(1_000))
    (folder / "valid.txt").write_text(batch(1_000))


def measure(folder: Path, level: str, train: bool) -> None:
    """Print one row of the table: this process's own times and peak memory."""
    began = time.perf_counter()
    corpus = Corpus(find_splits(folder), level=level)
    learned = time.perf_counter()
    corpus.cache(folder / level)
    encoded = time.perf_counter()
    words = corpus.lines["train"] * LINE_WORDS / 1e6
    tokenised = _peak_gigabytes()
    if train:
        _first_steps(corpus)
    trained = _peak_gigabytes()
    library = f"{_library_speed(folder, corpus.vocabulary):.2f}" if level == "subword" else ""
    speeds = [f"{words / seconds:.2f}" for seconds in (learned - began, encoded - learned, encoded - began)]
    peaks = [f"{tokenised:.2f}", f"{trained:.2f}" if train else ""]
    print(f"| {level} | {words:.1f} | {corpus.sizes['train'] / 1e6:.1f} | {' | '.join([*speeds, library, *peaks])} |")


def _library_speed(folder: Path, vocabulary: Vocabulary) -> float:
    """Million words a second of `tokenizers.Tokenizer.encode_batch` alone, on a few batches of the text."""
    assert isinstance(vocabulary.splitter, Subwords)
    count, seconds = 0, 0.0
    for lines in islice(read_batches(folder / "train.txt"), 20):
        began = time.perf_counter()
        vocabulary.splitter.tokenizer.encode_batch(lines, add_special_tokens=False)
        seconds += time.perf_counter() - began
        count += len(lines) * LINE_WORDS
    return count / seconds / 1e6


def _first_steps(corpus: Corpus) -> None:
    import torch

    from gatedrnn.data import windows
    from gatedrnn.models import LanguageModel, LanguageModelConfig

    config = LanguageModelConfig(
        vocabulary_size=len(corpus.vocabulary), embedding_size=64, hidden_sizes=(64,), options={"chunk_size": 8}
    )
    model = LanguageModel(config)
    optimizer = torch.optim.Adam(model.parameters())
    for window in islice(windows(corpus["train"], 20, 35, 1), 10):
        loss = model(torch.from_numpy(window.inputs_TB), targets=torch.from_numpy(window.targets_TB)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=5)
    parser.add_argument("--level", action="append", choices=("word", "char", "subword"))
    parser.add_argument("--train", action="store_true", help="also take the first steps of a small model")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        measure(options.folder, options.level[0], options.train)
        return
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        write_text(Path(name), options.megabytes)
        print(
            f"commit {commit or 'unknown'}, {platform.processor() or platform.machine()}; {options.megabytes:g} MB of text\n"
        )
        print(
            "| level | M words | M tokens | learn, M words/s | encode | both | library's encode | peak GB | training too |"
        )
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        for level in options.level or ["word", "char", "subword"]:
            command = [sys.executable, __file__, "--folder", name, "--level", level]
            subprocess.run([*command, *(["--train"] if options.train else [])], check=True)


if __name__ == "__main__":
    main()
