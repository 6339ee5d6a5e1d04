"""The training loop: truncated back-propagation over contiguous windows, best-on-valid kept, interruptible."""

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning_fabric import Fabric
from torch import nn

from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import EOS, Corpus, windows
from gatedrnn.data.batching import steps_per_epoch
from gatedrnn.models import LanguageModel
from gatedrnn.models.saving import save_weights
from gatedrnn.training.config import RunConfig, TrainingConfig
from gatedrnn.training.evaluation import evaluate
from gatedrnn.training.run import TOKENS_FOLDER, append_metrics, create_run


class Display(Protocol):
    """What the loop tells of its progress; see `TrainingDisplay`."""

    def start_epoch(self, epoch: int, steps: int) -> None:
        """An epoch of `steps` windows begins."""
        ...

    def step(self, done: int, loss_nats: float, tokens_per_second: float) -> None:
        """`done` windows of the epoch are finished."""
        ...

    def end_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is validated; its metrics."""
        ...


@dataclass(frozen=True)
class Outcome:
    """How a training ended: epochs completed, the best validation perplexity (None before the first), and why it stopped."""

    epochs: int
    best_valid_perplexity: float | None
    stopped: str


def train(config: RunConfig, corpus: Corpus, folder: Path, display: Display) -> Outcome:
    """Train a language model into `folder`, which is a usable run from the first moment on.

    Ctrl-C (KeyboardInterrupt) ends it early: the best weights so far stay, or the current ones before the first validation.

    Args:
        config: the run's configuration; its vocabulary size is set from the corpus.
        corpus: with splits train and valid.
        folder: of a new run.

    Raises: DataError: the folder holds a run. ArgumentError: the model cannot be built, the device is unknown, or the loss is
        no longer finite.
    """
    config = replace(config, model=replace(config.model, vocabulary_size=len(corpus.vocabulary)))
    fabric = _fabric(config.training)
    model = LanguageModel(config.model, config.training.backend)
    create_run(folder, config, corpus.vocabulary)
    save_weights(folder, config.model, model.state_dict())
    corpus.cache(folder / TOKENS_FOLDER)
    return _Loop(config, corpus, folder, display, fabric, model).run()


class _Loop:
    """State of one training."""

    def __init__(
        self, config: RunConfig, corpus: Corpus, folder: Path, display: Display, fabric: Fabric, model: LanguageModel
    ) -> None:
        self.config, self.corpus, self.folder, self.display, self.fabric = config, corpus, folder, display, fabric
        self.raw = model
        self.model, self.optimizer = fabric.setup(model, _optimizer(model, config.training))
        self.best: float | None = None
        self.steps = 0
        self.started = time.monotonic()
        self.validation_seconds = 0.0

    def run(self) -> Outcome:
        training = self.config.training
        stopped, done = "all epochs done", 0
        try:
            for epoch in range(1, training.epochs + 1):
                finished = self._epoch(epoch)
                done = epoch
                if not finished:
                    stopped = f"the budget of {training.minutes:g} minutes is spent"
                    break
        except KeyboardInterrupt:
            stopped = "interrupted"
            if self.best is None:
                self._save()
        return Outcome(done, None if self.best is None else math.exp(min(self.best, 700)), stopped)

    def _epoch(self, epoch: int) -> bool:
        """One pass and its validation; False when the budget ran out in it."""
        training = self.config.training
        tokens = self.corpus["train"]
        steps = steps_per_epoch(len(tokens), training.batch_size, training.sequence_length)
        self.display.start_epoch(epoch, steps)
        began, total, count, states = time.monotonic(), 0.0, 0, None
        smooth, finished = 0.0, True
        eos = self.corpus.vocabulary.ids[EOS]
        for done, window in enumerate(windows(tokens, training.batch_size, training.sequence_length, eos), 1):
            loss, states = self._step(window.inputs_TB, window.targets_TB, states)
            self.steps += 1
            if not math.isfinite(loss):
                advice = "The run holds the best weights so far; lower training.learning_rate or training.gradient_clip"
                raise ArgumentError("training", f"the loss must stay finite, at step {self.steps}", loss, advice)
            total, count = total + loss * window.tokens, count + window.tokens
            smooth = loss if done == 1 else 0.98 * smooth + 0.02 * loss
            self.display.step(done, smooth, count / (time.monotonic() - began))
            if self._out_of_time():
                finished = done == steps
                break
        seconds = time.monotonic() - began
        self._validate(epoch, total / count, count / seconds)
        return finished and not self._out_of_time()

    def _step(self, inputs: Any, targets: Any, states: Any) -> tuple[float, Any]:
        device = self.fabric.device
        inputs_TB, targets_TB = (torch.from_numpy(array).to(device) for array in (inputs, targets))
        output = self.model(inputs_TB, states, targets=targets_TB)
        self.optimizer.zero_grad()
        self.fabric.backward(output.loss)
        if self.config.training.gradient_clip:
            self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=self.config.training.gradient_clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        return float(output.loss.detach()), [tuple(state.detach() for state in layer) for layer in output.states]

    def _validate(self, epoch: int, train_loss: float, tokens_per_second: float) -> None:
        began = time.monotonic()
        training = self.config.training
        result = evaluate(
            self.model, self.corpus["valid"], self.corpus.vocabulary, batch_size=training.evaluation_batch_size
        )
        self.validation_seconds = time.monotonic() - began
        rate = self.optimizer.param_groups[0]["lr"]
        improved = math.isfinite(result.loss_nats) and (self.best is None or result.loss_nats < self.best)
        if self.best is not None and result.loss_nats > self.best * (1 - training.plateau_threshold):
            for group in self.optimizer.param_groups:
                group["lr"] *= training.plateau_factor
        if improved:
            self.best = result.loss_nats
            self._save()
        record = {
            "epoch": epoch,
            "step": self.steps,
            "train_loss_nats": train_loss,
            "train_perplexity": math.exp(min(train_loss, 700)),
            "valid_loss_nats": result.loss_nats,
            "valid_perplexity": result.perplexity,
            "learning_rate": rate,
            "tokens_per_second": tokens_per_second,
            "seconds": time.monotonic() - self.started,
            "best": improved,
        }
        append_metrics(self.folder, record)
        self.display.end_epoch(record)

    def _out_of_time(self) -> bool:
        minutes = self.config.training.minutes
        spent = time.monotonic() - self.started + self.validation_seconds
        return minutes is not None and spent >= 60 * minutes

    def _save(self) -> None:
        save_weights(self.folder, self.config.model, self.raw.state_dict())


def _optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[training.optimizer]
    return make(model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True)


def _fabric(training: TrainingConfig) -> Fabric:
    try:
        fabric = Fabric(accelerator=training.device, devices=1, precision=training.precision)  # type: ignore[arg-type]
        fabric.launch()
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(
            "training.device", "must be a device of this machine", repr(training.device), reason
        ) from error
    fabric.seed_everything(training.seed, verbose=False)
    return fabric
