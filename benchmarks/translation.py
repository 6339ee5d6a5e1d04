"""Speed of training a translation model beside the same architecture on torch.nn.LSTM: `python benchmarks/translation.py [DIR]`.

DIR holds parallel text (as `train --task translation --data DIR`, with --source and --target); without it, the built-in pair of
languages. Both models take optimiser steps on the same batches, in turn; the baseline has torch.nn.LSTM (packed where a layer
reads from both ends) and torch's cross-entropy, and is checked to give the same loss first.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gatedrnn.data.config import ParallelDataConfig
from gatedrnn.data.parallel import TranslationBatch
from gatedrnn.models import TranslationConfig, TranslationModel
from gatedrnn.tasks import Translation
from gatedrnn.tasks.text import on

CPU = torch.device("cpu")


class Layer(nn.Module):
    """`torch.nn.LSTM` where a `Recurrent` stood, with its weights."""

    def __init__(self, ours: Any) -> None:
        super().__init__()
        self.bidirectional, self.spec = ours.bidirectional, ours.spec
        self.lstm = nn.LSTM(ours.input_size, ours.hidden_size, bidirectional=self.bidirectional)
        self.lstm.load_state_dict(ours.state_dict())

    def forward(self, x: Tensor, state: Any = None, lengths: Any = None, return_gates: bool = False) -> tuple[Any, Any]:
        """As `Recurrent`'s, but for final states where only one end is read; what lies beyond a length is 0."""
        if not self.bidirectional:
            output, final = self.lstm(x, state)
            return output * (torch.arange(len(x))[:, None, None] < lengths[:, None]), final
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        output, final = self.lstm(packed, state)
        return pad_packed_sequence(output, total_length=len(x))[0], final


def baseline_of(model: TranslationModel) -> TranslationModel:
    """The same model on torch.nn.LSTM."""
    other = TranslationModel(model.config)
    other.load_state_dict(model.state_dict())
    for layers in (other.encoder.layers, other.layers):
        for k, ours in enumerate(layers):
            layers[k] = Layer(ours)
    return other


def torch_loss(model: TranslationModel, batch: TranslationBatch) -> Tensor:
    """Of the baseline."""
    scores = model(*(on(CPU, array) for array in batch.arrays[:4])).flatten(0, 1)
    return F.cross_entropy(scores, on(CPU, batch.targets_TB).flatten(), label_smoothing=model.config.label_smoothing)


def our_loss(model: TranslationModel, batch: TranslationBatch) -> Tensor:
    """Of ours."""
    return sum(model(*(on(CPU, array) for array in batch.arrays)))  # type: ignore[return-value]


def main() -> None:
    """Measure, and print a line a model and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--source", default="vf")
    parser.add_argument("--target", default="en")
    parser.add_argument("--steps", type=int, default=20, help="optimiser steps of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        data = ParallelDataConfig(given.folder, given.source, given.target)
        if given.folder is None:
            Translation.make(Path(made), 1, data)
        task = Translation.open(data, given.folder or made)
    torch.manual_seed(1)
    ours = TranslationModel(task.complete(TranslationConfig()))
    models = {"gatedrnn": (ours, our_loss), "torch.nn.LSTM": (baseline_of(ours), torch_loss)}
    batches: Any = task.batches(replace(Translation.training, batch_size=given.batch_size), 1)
    part = [batches[k] for k in range(min(given.steps, len(batches)))]
    with torch.no_grad():
        losses = [float(loss(model.eval(), part[0])) for model, loss in models.values()]
    assert abs(losses[0] - losses[1]) < 1e-3 * losses[1], losses
    tokens = sum(int(batch.source_B.sum() + batch.target_B.sum()) for batch in part)
    optimizers = {name: torch.optim.Adam(model.train().parameters(), 1e-4) for name, (model, _) in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(given.rounds + 1):  # the first compiles, and does not count
        for name, (model, loss) in models.items():
            began = time.perf_counter()
            for batch in part:
                optimizers[name].zero_grad()
                loss(model, batch).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizers[name].step()
            seconds[name] += [time.perf_counter() - began] if number else []
    for name, each in seconds.items():
        print(f"{name:14} {tokens / statistics.median(each):8,.0f} tokens/s, of both sides")
    ratio = statistics.median(theirs / own for own, theirs in zip(*seconds.values(), strict=True))
    print(f"gatedrnn is {ratio:.2f} times as fast; {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
