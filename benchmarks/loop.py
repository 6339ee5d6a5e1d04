"""What the training loop adds to the model's own time: `python benchmarks/loop.py [--data DIR] [--windows 60]`.

The same windows of the same text, by turns: bare steps (forward, backward, clipping, optimiser) on batches that lie ready, and
`train`, which makes its batches, carries states, accounts and reports. Medians of the ratio.
"""

import argparse
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gatedrnn.data import EOS, Corpus, find_splits, windows, write_corpus
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.tasks import LanguageModelling
from gatedrnn.training.config import RunConfig, TrainingConfig
from gatedrnn.training.distribution import make_fabric
from gatedrnn.training.loop import Loop


class Silent:
    """A display that shows nothing."""

    def start_epoch(self, epoch: int, steps: int) -> None: ...

    def step(self, done: int, loss_nats: float, per_second: float) -> None: ...

    def end_epoch(self, record: dict[str, object]) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with train.txt and valid.txt [the built-in grammar]")
    parser.add_argument("--windows", type=int, default=60, help="windows a turn")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.data or scratch)
        if options.data is None:
            write_corpus(folder, 1)
        corpus = Corpus(find_splits(folder))
        corpus.cache(Path(scratch) / "tokens")
        model = LanguageModelConfig(vocabulary_size=len(corpus.vocabulary))
        loop = Loop(
            RunConfig(model=model, training=TrainingConfig(epochs=1000, device="cpu", checkpoint_minutes=1e6)),
            LanguageModelling(corpus), Path(scratch), Silent(), make_fabric(TrainingConfig(device="cpu"), Path(scratch)),
            LanguageModel(model),
        )  # fmt: skip
        times = [(_bare(loop, options.windows), _whole(loop, options.windows)) for _ in range(options.turns + 1)][1:]
    ratio = statistics.median(whole / bare for bare, whole in times)
    bare = statistics.median(bare for bare, _ in times) / options.windows
    print(f"| a bare step | the loop adds |\n|--:|--:|\n| {1e3 * bare:.1f} ms | {100 * (ratio - 1):.1f} % |")


def _bare(loop: Loop, count: int) -> float:
    task: Any = loop.task
    training, eos = loop.config.training, task.corpus.vocabulary.ids[EOS]
    stream = windows(task.corpus["train"], training.batch_size, training.sequence_length, eos)
    ready = [
        (torch.from_numpy(w.inputs_TB), torch.from_numpy(w.targets_TB))
        for w, _ in zip(stream, range(count), strict=False)
    ]
    began, states = time.perf_counter(), None
    for inputs, targets in ready:
        output = loop.model(inputs, states, targets=targets)
        loop.optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(loop.state.model.parameters(), training.gradient_clip)
        loop.optimizer.step()
        states = [tuple(state.detach() for state in layer) for layer in output.states]
    return (time.perf_counter() - began) * count / len(ready)


def _whole(loop: Loop, count: int) -> float:
    loop.state.progress = replace(loop.state.progress, batch=0, count=0, total_nats=0.0)
    loop.state.carried = None

    class Enough(Exception):  # noqa: N818 - no error
        pass

    def step(done: int, loss_nats: float, per_second: float) -> None:
        if done == count:
            raise Enough

    loop.display.step = step  # type: ignore[method-assign]
    began = time.perf_counter()
    with suppress(Enough):
        loop._epoch()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
