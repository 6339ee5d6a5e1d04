"""The training loop: one pass after another, the best on the validation text kept, resumed exactly where it was.

Dimensions: T time, B batch.
"""

import math
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from gatedrnn.core.config import to_dict
from gatedrnn.core.errors import ArgumentError, CheckpointError
from gatedrnn.data import EOS, Corpus
from gatedrnn.data.batching import Batches, SentenceBatches, StreamBatches, Window, window_lengths
from gatedrnn.models import LanguageModel
from gatedrnn.models.saving import load_weights, save_config, save_weights
from gatedrnn.training import checkpoint
from gatedrnn.training.averaging import Average
from gatedrnn.training.config import RunConfig, TrainingConfig
from gatedrnn.training.distribution import make_fabric
from gatedrnn.training.evaluation import Evaluation, evaluate
from gatedrnn.training.memory import keep_freed_memory
from gatedrnn.training.penalties import penalties
from gatedrnn.training.projected import Project, projected
from gatedrnn.training.run import (
    TOKENS_FOLDER,
    accept_run,
    check_begun,
    check_free,
    checkpoints,
    continued,
    locked,
    write_begun,
    write_metrics,
)
from gatedrnn.training.schedule import gates_at, no_longer_better, plateau, rate, starts_averaging
from gatedrnn.training.signals import signals
from gatedrnn.training.state import Progress, check_same, checksum, collect, restore

_EXPLODED_NATS = 100.0


class Display(Protocol):
    """What the loop tells of its progress; see `TrainingDisplay`."""

    def start_epoch(self, epoch: int, steps: int) -> None:
        """An epoch of `steps` batches begins, or goes on."""
        ...

    def step(self, done: int, loss_nats: float, tokens_per_second: float) -> None:
        """`done` batches of the epoch are finished."""
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


def train(
    config: RunConfig,
    corpus: Corpus,
    folder: Path,
    display: Display,
    *,
    resume: bool = False,
    weights: dict[str, Tensor] | None = None,
    project: Project | None = None,
) -> Outcome:
    """Train a language model into `folder`, which is a usable run from the first moment on.

    Ctrl-C or a termination signal ends training after the current step, with a checkpoint.

    Args:
        config: the run's configuration; its vocabulary size is set from the corpus.
        corpus: with splits train and valid.
        folder: of a new run.
        resume: if the folder holds a run of this configuration, go on from its last checkpoint, bit for bit as if nothing had
            happened.
        weights: a model's state dict to begin with, else weights are drawn.
        project: applied to the weights for every step, validation and what is saved; steps add up in the weights behind them.

    Raises: DataError: the folder holds a run (without `resume`), one that is live, or a trained model without a checkpoint.
        CheckpointError: its checkpoints or another of its files are damaged. ArgumentError: the model
        cannot be built, the device is unknown, the configuration or the text is another one, or the loss explodes; the run then
        holds the best weights and its checkpoints.
    """
    keep_freed_memory()
    config = replace(config, model=replace(config.model, vocabulary_size=len(corpus.vocabulary)))
    fabric = make_fabric(config.training, folder)
    model = LanguageModel(config.model, config.training.backend)
    if weights is not None:
        model.load_state_dict(weights)
    with locked(folder) if fabric.is_global_zero else nullcontext():
        if not resume:
            check_free(folder)
        saved = checkpoint.load(folder) if resume and check_begun(folder) else None
        if saved is not None:
            continued(folder, config)
            check_same(*saved, corpus, fabric.world_size, "" if project is None else project.name)
        fabric.barrier()
        if fabric.is_global_zero:
            if saved is None:
                write_begun(folder, config, corpus.vocabulary)
                save_weights(folder, config.model, model.state_dict(), trained=False)
                accept_run(folder)
            else:
                save_config(folder, to_dict(config))
            corpus.cache(folder / TOKENS_FOLDER)
        fabric.barrier()
        if not fabric.is_global_zero:
            corpus.cache(folder / TOKENS_FOLDER)  # as the first one wrote it
        loop = Loop(config, corpus, folder, display, fabric, model, project)
        if saved is not None:
            restore(loop, *saved)
        return loop.run()


class Loop:
    """State of one training; see `train`."""

    def __init__(
        self, config: RunConfig, corpus: Corpus, folder: Path, display: Display, fabric: Fabric, model: LanguageModel,
        project: Project | None = None,
    ) -> None:  # fmt: skip
        self.config, self.corpus, self.folder, self.display, self.fabric = config, corpus, folder, display, fabric
        self.raw, self.project = model, project
        self.eos = corpus.vocabulary.ids[EOS]
        training = config.training
        if training.batch_size % fabric.world_size:
            rule, advice = f"must be a multiple of the {fabric.world_size} processes", "Change it, or their number"
            raise ArgumentError("training.batch_size", rule, training.batch_size, advice)
        self.model, self.optimizer = fabric.setup(model, _optimizer(model, training))
        self.progress = Progress(
            base_rate=training.learning_rate,
            learning_rate=training.learning_rate,
            text=checksum(corpus["train"]),
            processes=fabric.world_size,
            project="" if project is None else project.name,
        )
        self.gates: list[Any] = [layer.gates for layer in self.raw.layers]
        self.average: Average | None = None
        self.states: Any = None
        self.session_began = self.saved_at = time.monotonic()
        self.stop: str | None = None
        self.spent = 0.0

    def run(self) -> Outcome:
        """Train to the end."""
        training, p = self.config.training, self.progress
        self.spent = self._mean(self._spent())[0]
        if p.best_nats is not None and self.spent >= 1:
            self.stop = self._budget()
        with signals(self):
            while self.stop is None and not self._finished():
                self._epoch()
        if p.best_nats is None and self.stop == "interrupted" and self.fabric.is_global_zero:
            begun = bool(checkpoints(self.folder))  # a second Ctrl-C may come before the first of them
            with projected(self.raw, self.project):
                save_weights(self.folder, self.config.model, self.raw.state_dict(), trained=begun)
        done = p.epoch - 1
        if self.stop is None:
            self.stop = "all epochs done" if p.stage == "main" or not training.finetune_epochs else "finetuned"
        return Outcome(done, None if p.best_nats is None else math.exp(min(p.best_nats, 700)), self.stop)

    def _finished(self) -> bool:
        """Whether there is no epoch left; starts the second stage where there is one."""
        training, p = self.config.training, self.progress
        if p.stage == "main":
            early = training.patience is not None and p.since_best >= training.patience
            if p.epoch <= training.epochs and not early:
                return False
            if not training.finetune_epochs:
                self.stop = f"no better in {p.since_best} epochs" if early else None
                return True
            if p.best_nats is None:
                return True
            self._finetune()
            return False
        interval = training.average_interval if training.average_interval is not None else 5
        return len(p.losses_nats) >= training.finetune_epochs or no_longer_better(p.losses_nats, interval)

    def _finetune(self) -> None:
        """The second stage: from the best weights, a new optimiser, averaging from its first step."""
        p = self.progress
        self.average = None
        load_weights(self.folder, self.config.model, self.raw)
        fresh = _optimizer(self.raw, self.config.training)
        self.optimizer.optimizer.load_state_dict(fresh.state_dict())
        self.average = Average(self.raw)
        p.stage, p.base_rate, p.losses_nats, p.averaged = "finetune", self.config.training.learning_rate, [], 0
        self._checkpoint()

    def _batches(self) -> Batches:
        training, tokens, epoch = self.config.training, self.corpus["train"], self.progress.epoch
        if training.unit == "sentence":
            return SentenceBatches(tokens, training.batch_size, self.eos, training.seed, epoch)
        draw = (training.seed, epoch) if training.random_lengths else None
        lengths = window_lengths(len(tokens), training.batch_size, training.sequence_length, draw)
        return StreamBatches(tokens, training.batch_size, lengths, self.eos)

    def _epoch(self) -> None:
        """What is left of one pass, and its validation; less if it is to stop."""
        p, batches = self.progress, self._batches()
        self.display.start_epoch(p.epoch, len(batches))
        began, before = time.monotonic(), p.tokens
        while p.batch < len(batches):
            window = batches[p.batch]
            loss, stop, late, due, self.spent = self._mean(
                self._step(window, len(batches)),
                self.stop is not None,
                self._out_of_time(),
                self._checkpoint_is_due(),
                self._spent(),
            )  # what a clock or a signal says to one process, all must do in the same step
            self._check("loss", loss, loss < _EXPLODED_NATS)
            p.batch, p.step = p.batch + 1, p.step + 1
            p.total_nats, p.tokens = p.total_nats + loss * window.tokens, p.tokens + window.tokens
            p.smooth_nats = loss if p.batch == 1 else 0.98 * p.smooth_nats + 0.02 * loss
            self.display.step(p.batch, p.smooth_nats, (p.tokens - before) / (time.monotonic() - began))
            if stop:
                self.stop = "interrupted"
                if p.batch < len(batches):
                    self._checkpoint()
                    return
            if late:
                break
            if due:
                self._checkpoint()
        if p.best_nats is None:  # trained weights never lie beside no checkpoint
            self._checkpoint()
        self._validate((p.tokens - before) / (time.monotonic() - began))
        self._checkpoint()

    def _step(self, whole: Window, steps: int) -> float:
        """One optimiser step; this process's share of the loss, times the number of processes."""
        training, p = self.config.training, self.progress
        window = whole.part(self.fabric.global_rank, self.fabric.world_size)
        main = training if p.stage == "main" else replace(training, schedule="constant", warmup_steps=0)
        now = rate(main, p.base_rate, p.step, steps * training.epochs, len(whole.inputs_TB), self.spent)
        for group in self.optimizer.param_groups:
            group["lr"] = now
        if training.final_temperature is not None or training.final_noise_probability is not None:
            layers: Any = self.raw.layers
            for layer, gates in zip(layers, self.gates, strict=True):
                layer.gates = gates_at(training, gates, p.step, steps * training.epochs, self.spent)
        inputs_TB, targets_TB = (self._tensor(array) for array in (window.inputs_TB, window.targets_TB))
        lengths_B = None if window.lengths_B is None else self._tensor(window.lengths_B)
        states = self.states if training.unit == "stream" else None
        divisor = whole.tokens / self.fabric.world_size
        self.optimizer.zero_grad()
        with projected(self.raw, self.project):
            output = self.model(inputs_TB, states, targets=targets_TB, lengths=lengths_B, divisor=divisor)
            self.fabric.backward(output.loss + penalties(training, output, lengths_B))
        norm = self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=training.gradient_clip or math.inf, error_if_nonfinite=False
        )
        if training.precision != "16-mixed":  # whose scaler leaves out such a step
            self._check("gradient's norm", float(norm))  # type: ignore[arg-type]
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        self.states = [tuple(state.detach() for state in layer) for layer in output.states]
        return float(output.loss.detach())

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(array).contiguous().to(self.fabric.device)

    def _check(self, what: str, value: float, sound: bool = True) -> None:
        p = self.progress
        if math.isfinite(value) and sound:
            return
        where = f"the {what} must stay finite and small, at epoch {p.epoch}, step {p.step + 1}"
        advice = "The run holds the best weights so far; go on from its last checkpoint with --resume and a lower"
        raise ArgumentError("training", where, value, f"{advice} --training.learning_rate or --training.gradient_clip")

    def _validate(self, tokens_per_second: float) -> None:
        """Score the validation text, keep the model if it is the best, adapt the learning rate, and end the epoch."""
        p, training = self.progress, self.config.training
        began = time.monotonic()
        result, improved = self._scored()
        rate_now, train_loss = self.optimizer.param_groups[0]["lr"], p.total_nats / max(1, p.tokens)
        p.base_rate = plateau(training, p.base_rate, result.loss_nats, p.best_nats)
        p.losses_nats.append(result.loss_nats)
        p.best_nats, p.since_best = (result.loss_nats, 0) if improved else (p.best_nats, p.since_best + 1)
        p.validation_seconds = time.monotonic() - began
        record = {
            "epoch": p.epoch,
            "step": p.step,
            "train_loss_nats": train_loss,
            "train_perplexity": math.exp(min(train_loss, 700)),
            "valid_loss_nats": result.loss_nats,
            "valid_perplexity": result.perplexity,
            "learning_rate": rate_now,
            "averaged": self.average is not None,
            "tokens_per_second": tokens_per_second,
            "seconds": self._seconds(),
            "best": improved,
        }
        if self.average is None and starts_averaging(training, p.losses_nats):
            self.average = Average(self.raw)
        p.epoch, p.batch, p.total_nats, p.tokens, self.states = p.epoch + 1, 0, 0.0, 0, None
        p.metrics = [*p.metrics, record]
        if self.fabric.is_global_zero:
            write_metrics(self.folder, p.metrics)
            self.fabric.log_dict({k: v for k, v in record.items() if k != "step"}, step=p.step)
        self.display.end_epoch(record)
        if self._mean(self._out_of_time())[0]:
            self.stop = self._budget()

    def _scored(self) -> tuple[Evaluation, bool]:
        """The validation text's score, and whether it is the best so far; the model that has it is saved."""
        best = self.progress.best_nats
        if self.average is not None:
            self.average.swap()
        with projected(self.raw, self.project):
            size = self.config.training.evaluation_batch_size
            try:
                result = evaluate(self.raw, self.corpus["valid"], self.corpus.vocabulary, batch_size=size)
            except CheckpointError:  # it is not finite
                self._check("loss", math.nan)
                raise
            improved = best is None or result.loss_nats < best
            if improved and self.fabric.is_global_zero:
                save_weights(self.folder, self.config.model, self.raw.state_dict())
        if self.average is not None:
            self.average.swap()
        return result, improved

    def _budget(self) -> str:
        return f"the budget of {self.config.training.minutes:g} minutes is spent"

    def _seconds(self) -> float:
        return self.progress.seconds + time.monotonic() - self.session_began

    def _spent(self) -> float:
        """The share of the budget of minutes that is spent, another validation included."""
        minutes = self.config.training.minutes
        return 0.0 if minutes is None else (self._seconds() + self.progress.validation_seconds) / (60 * minutes)

    def _out_of_time(self) -> bool:
        return self._spent() >= 1

    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self.saved_at > 60 * self.config.training.checkpoint_minutes

    def _mean(self, *values: float) -> list[float]:
        """The mean of numbers over all processes."""
        if self.fabric.world_size == 1:
            return list(values)
        shared = torch.tensor(values, dtype=torch.float64, device=self.fabric.device)
        total: Any = self.fabric.all_reduce(shared, reduce_op="mean")
        return total.tolist()

    def _checkpoint(self) -> None:
        self.saved_at = time.monotonic()
        values = asdict(replace(self.progress, seconds=self._seconds()))
        values["averaged"] = None if self.average is None else self.average.steps
        tensors, groups = collect(self)
        values["groups"], values["precision"] = groups, self.fabric.strategy.precision.state_dict()
        if self.fabric.is_global_zero:
            checkpoint.save(self.folder, self.progress.step, tensors, values)
        self.fabric.barrier()


def _optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[training.optimizer]
    return make(model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True)
