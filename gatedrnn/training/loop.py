"""The training loop: one pass after another, the best on the validation text kept, resumed exactly where it was.

Dimensions: T time, B batch.
"""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from gatedrnn.core.config import to_dict
from gatedrnn.core.errors import ArgumentError, CheckpointError
from gatedrnn.layers import RecurrentBase
from gatedrnn.models.saving import CONFIG_FILE, PretrainedModel, check_cells, load_weights, save_config, save_weights
from gatedrnn.tasks import Task
from gatedrnn.tasks.task import Batch, Score, check_read
from gatedrnn.training import checkpoint
from gatedrnn.training.averaging import Average
from gatedrnn.training.config import RunConfig, TrainingConfig, read_run_config
from gatedrnn.training.distribution import check_precision, gather, make_fabric, mean
from gatedrnn.training.memory import keep_freed_memory
from gatedrnn.training.progress import Display
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
from gatedrnn.training.schedule import betas, check_gates, gates_at, no_longer_better, plateau, rate, starts_averaging
from gatedrnn.training.signals import signals
from gatedrnn.training.state import Progress, TrainingState, check_epochs, check_same

_EXPLODED_NATS = 100.0


@dataclass(frozen=True)
class Outcome:
    """How a training ended: epochs completed, the best validation's measure (None before the first), and why it stopped."""

    epochs: int
    best: float | None
    stopped: str


def train(
    config: RunConfig,
    task: Task,
    folder: Path,
    display: Display,
    *,
    resume: bool = False,
    weights: dict[str, Tensor] | None = None,
    project: Project | None = None,
) -> Outcome:
    """Train a model for a task into `folder`, which is a usable run from the first moment on.

    Ctrl-C or a termination signal ends training after the current step, with a checkpoint.

    Args:
        config: the run's configuration; what follows from the data, as the vocabulary's size, is set.
        task: the configuration's, with its data.
        folder: of a new run.
        resume: if the folder holds a run of this configuration, resume it from its last checkpoint, bit for bit as if nothing had
            happened.
        weights: a model's state dict to begin with, else weights are drawn.
        project: applied to the weights for every step, validation and what is saved; steps add up in the weights behind them.

    Raises: DataError: the folder holds a run (without `resume`), one that is live, or a trained model without a checkpoint.
        CheckpointError: its checkpoints or another of its files are damaged. ArgumentError: the model
        cannot be built, the device is unknown, the configuration or the text is another one, or the loss explodes; the run then
        holds the best weights and its checkpoints.
    """
    training = config.training
    keep_freed_memory()
    config = replace(config, model=task.complete(config.model))
    fabric = make_fabric(training, folder)
    model: Any = task.network(config.model, training.backend)
    if weights is not None:
        model.load_state_dict(weights)
    loop = Loop(config, task, folder, display, fabric, model, project)
    given = weights is not None or project is not None
    with locked(folder) if fabric.is_global_zero else nullcontext():
        if not resume:
            check_free(folder)
        saved = checkpoint.load(folder) if resume and check_begun(folder, given) else None
        if saved is None:
            if not (folder / CONFIG_FILE).is_file():  # a run that has begun was checked, perhaps by an earlier version
                check_read(task, training)
            check_precision(training, fabric)
            check_gates([layer for layer, _ in loop.gates], training)
        else:
            continued(folder, config)
            check_cells(folder, model)
            check_same(*saved, loop.state.progress)
            check_epochs(saved[1], training, read_run_config(folder / CONFIG_FILE, written=True).training)
            if saved[1]["precision"]:  # the scaler of losses that a GPU used
                check_precision(training, fabric, resumed=True)
        fabric.barrier()
        if saved is None and given:
            loop._checkpoint()  # first, so that a command without them never trains a new model here
        if fabric.is_global_zero:
            if saved is None:
                write_begun(folder, config, task)
                save_weights(folder, model, trained=False)
                accept_run(folder)
            else:
                save_config(folder, to_dict(config))
        fabric.barrier()
        if fabric.is_global_zero:
            task.cache(folder / TOKENS_FOLDER)
        fabric.barrier()
        if not fabric.is_global_zero:
            task.cache(folder / TOKENS_FOLDER)  # as the first one wrote it
        if saved is not None:
            loop.state.load(*saved, training.learning_rate, fabric.device, fabric.global_rank)
            if fabric.is_global_zero:
                write_metrics(folder, loop.state.progress.metrics)  # what came after the checkpoint will come again
        return loop.run()


class Loop:
    """State of one training; see `train`."""

    def __init__(
        self, config: RunConfig, task: Task, folder: Path, display: Display, fabric: Fabric, model: PretrainedModel,
        project: Project | None = None,
    ) -> None:  # fmt: skip
        self.config, self.task, self.folder, self.display, self.fabric = config, task, folder, display, fabric
        training = config.training
        if training.batch_size % fabric.world_size:
            rule = f"must be a multiple of the {fabric.world_size} processes"
            advice = "Change it or the number of processes"
            raise ArgumentError("training.batch_size", rule, training.batch_size, advice)
        self.model, self.optimizer = fabric.setup(model, _optimizer(model, training))
        progress = Progress(
            base_rate=training.learning_rate,
            learning_rate=training.learning_rate,
            text=task.checksum("train"),
            valid_text=task.checksum("valid"),
            processes=fabric.world_size,
            project="" if project is None else project.name,
        )
        own: Any = self.optimizer
        self.state = TrainingState(
            model, own.optimizer, fabric.strategy.precision, progress, project, average_decay=training.average_decay
        )
        if starts_averaging(training, []):
            self.state.average = Average(model, training.average_decay)
        layers = [layer for layer in model.modules() if isinstance(layer, RecurrentBase)]
        self.gates = [(layer, layer.gates) for layer in layers]
        self.session_began = self.saved_at = time.perf_counter()
        self.stop: str | None = None
        self.spent = 0.0

    def run(self) -> Outcome:
        """Train to the end."""
        training, state = self.config.training, self.state
        self.spent = mean(self.fabric, self._spent())[0]
        if state.progress.best is not None and self.spent >= 1:
            self.stop = self._budget()
        with signals(self):
            while not self._stopped() and not self._finished():
                self._epoch()
        p = state.progress
        if p.best is None and self.stop == "interrupted" and self.fabric.is_global_zero:
            begun = bool(checkpoints(self.folder))  # a second Ctrl-C may come before the first of them
            with projected(state.model, state.project):
                save_weights(self.folder, state.model, trained=begun)
        if self.stop is None:
            self.stop = "all epochs done" if p.stage == "main" or not training.finetune_epochs else "finetuned"
        best = p.best_record()
        return Outcome(p.epoch - 1, None if best is None else best[f"valid_{self.task.measure}"], self.stop)

    def _stopped(self) -> bool:
        """Whether to stop now: what a signal says to one process, all must do."""
        if not mean(self.fabric, self.stop is not None)[0]:
            return False
        self.stop = self.stop or "interrupted"
        return True

    def _finished(self) -> bool:
        """Whether there is no epoch left; starts the second stage where there is one."""
        training, p = self.config.training, self.state.progress
        if p.stage == "main":
            early = training.patience is not None and p.since_best >= training.patience
            if p.epoch <= training.epochs and not early:
                return False
            if not training.finetune_epochs:
                self.stop = f"no better score in {p.since_best} epochs" if early else None
                return True
            if p.best is None:
                return True
            self._finetune()
            return False
        interval = training.average_interval if training.average_interval is not None else 5
        return len(p.losses) >= training.finetune_epochs or no_longer_better(p.losses, interval)

    def _finetune(self) -> None:
        """The second stage: from the best weights, a new optimiser, averaging from its first step."""
        state, p = self.state, self.state.progress
        state.average = None
        load_weights(self.folder, state.model)
        state.optimizer.load_state_dict(_optimizer(state.model, self.config.training).state_dict())
        state.average = Average(state.model, self.config.training.average_decay)
        p.stage, p.base_rate, p.losses, p.averaged = "finetune", self.config.training.learning_rate, [], 0
        p.batch, p.count, p.total_nats, state.carried = 0, 0, 0.0, None  # of an epoch that was begun before
        self._checkpoint()

    def _epoch(self) -> None:
        """What is left of one pass, and its validation; less if it is to stop."""
        p = self.state.progress
        batches = self.task.batches(self.config.training, p.epoch)
        self.display.start_epoch(p.epoch, len(batches))
        began, before = time.perf_counter(), p.count
        while p.batch < len(batches):
            batch = batches[p.batch]
            loss, stop, late, due, self.spent = mean(
                self.fabric,
                self._step(batch, len(batches)),
                self.stop is not None,
                self._out_of_time(),
                self._checkpoint_is_due(),
                self._spent(),
            )  # what a clock or a signal says to one process, all must do in the same step
            self._check_loss(loss)
            p.batch, p.step = p.batch + 1, p.step + 1
            p.total_nats, p.count = p.total_nats + loss * batch.count, p.count + batch.count
            p.smooth_nats = loss if p.batch == 1 else 0.98 * p.smooth_nats + 0.02 * loss
            self.display.step(p.batch, p.smooth_nats, (p.count - before) / (time.perf_counter() - began))
            if stop:
                self.stop = "interrupted"
                if p.batch < len(batches):
                    self._checkpoint()
                    return
            if late:
                break
            if due:
                self._checkpoint()
        if p.best is None:  # trained weights never lie beside no checkpoint
            self._checkpoint()
        self._validate((p.count - before) / (time.perf_counter() - began), p.batch == len(batches))
        self._checkpoint()

    def _step(self, whole: Batch, steps: int) -> float:
        """One optimiser step, later epochs taken to be as long as this; this process's share of the loss, times the processes."""
        training, state, p = self.config.training, self.state, self.state.progress
        batch = whole.part(self.fabric.global_rank, self.fabric.world_size)
        of_stage = self._training_of_stage()
        total = p.step - p.batch + steps * (training.epochs - p.epoch + 1)
        now = rate(of_stage, p.base_rate, p.step, total, whole.steps, self.spent)
        for group in self.optimizer.param_groups:
            group["lr"] = now
            if training.peak_beta is not None:
                group["betas"] = betas(of_stage, p.step, total, self.spent)
        if training.final_temperature is not None or training.final_noise_probability is not None:
            for layer, gates in self.gates:
                layer.gates = gates_at(training, gates, p.step, total, self.spent)
        divisor = whole.count / self.fabric.world_size
        self.optimizer.zero_grad()
        with projected(state.model, state.project):
            found = self.task.loss(self.model, training, batch, state.carried, divisor, self.fabric.device)
            self.fabric.backward(found.nats + found.penalty)
        norm = self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=training.gradient_clip or math.inf, error_if_nonfinite=False
        )
        if training.precision != "16-mixed":  # whose scaler leaves out such a step
            size = float(norm)  # type: ignore[arg-type]
            self._check("the gradient's norm must be finite", size, math.isfinite(size))
        self.optimizer.step()
        if state.average is not None:
            state.average.update()
        carried = found.carried
        state.carried = None if carried is None else [tuple(each.detach() for each in layer) for layer in carried]
        return float(found.nats.detach())

    def _training_of_stage(self) -> TrainingConfig:
        """The section training as the current stage reads it: finetuning keeps one learning rate, as AWD-LSTM's finetune.py."""
        training = self.config.training
        if self.state.progress.stage == "main":
            return training
        return replace(training, schedule="constant", warmup_steps=0, peak_beta=None)

    def _check_loss(self, nats: float) -> None:
        self._check(f"the loss must be finite and below {_EXPLODED_NATS:g} nats", nats, abs(nats) < _EXPLODED_NATS)

    def _check(self, rule: str, value: float, sound: bool) -> None:
        """Raises ArgumentError with what to do: a value is not sound."""
        if sound:
            return
        p, clipped = self.state.progress, self.config.training.gradient_clip
        clip = "a lower --training.gradient_clip" if clipped else "--training.gradient_clip 1"
        rate = f"--training.learning_rate or {clip}" if self.state.project is None else "--learning-rate"
        kept = "The run holds the best weights so far; continue from its last checkpoint with --resume and"
        how = kept if checkpoints(self.folder) else "Nothing is learned yet; start another run with"
        where = f"{rule} (epoch {p.epoch}, step {p.step + 1})"
        raise ArgumentError("training", where, value, f"{how} a lower {rate}")

    def _validate(self, per_second: float, ended: bool) -> None:
        """Score the validation text and keep the model if it is the best; where the epoch has ended, begin the next.

        Args: ended: else the budget ended within the epoch, which is not counted yet: `--resume` trains what is left of it.
        """
        state, training, p = self.state, self.config.training, self.state.progress
        began = time.perf_counter()
        score, improved = self._scored()
        rate_now, train_nats = self.optimizer.param_groups[0]["lr"], p.total_nats / max(1, p.count)
        if ended:
            before = min(p.losses, default=None)
            p.base_rate = plateau(self._training_of_stage(), p.base_rate, score.loss, before)
            p.since_best = 0 if before is None or score.loss < before else p.since_best + 1
            p.losses.append(score.loss)
        p.best = score.loss if improved else p.best
        p.validation_seconds = time.perf_counter() - began
        record = {
            "epoch": p.epoch,
            "step": p.step,
            **{f"train_{name}": value for name, value in self.task.shown(train_nats).items()},
            **{f"valid_{name}": value for name, value in score.shown.items()},
            "learning_rate": rate_now,
            "averaged": state.average is not None,
            f"{self.task.unit}_per_second": per_second,
            "seconds": self._seconds(),
            "best": improved,
        }
        if ended:
            if state.average is None and starts_averaging(training, p.losses):
                state.average = Average(state.model, training.average_decay)
            p.epoch, p.batch, p.total_nats, p.count, state.carried = p.epoch + 1, 0, 0.0, 0, None
        p.metrics = [*p.metrics, record]
        if self.fabric.is_global_zero:
            write_metrics(self.folder, p.metrics)
            self.fabric.log_dict({k: v for k, v in record.items() if k != "step"}, step=p.step)
        self.display.end_epoch(record)
        if mean(self.fabric, self._out_of_time())[0]:
            self.stop = self._budget()

    def _scored(self) -> tuple[Score, bool]:
        """The validation text's score, with the mean loss of all processes, and whether it is the best so far, which is saved."""
        state, best = self.state, self.state.progress.best
        if state.average is not None:
            state.average.swap()
        with projected(state.model, state.project):
            try:
                score = self.task.score(state.model, self.config.training)
            except CheckpointError:  # it is not finite
                self._check_loss(math.nan)
                raise
            # processes round differently, and must decide alike
            score = replace(score, loss=mean(self.fabric, score.loss)[0])
            improved = best is None or score.loss < best
            if improved and self.fabric.is_global_zero:
                save_weights(self.folder, state.model)
        if state.average is not None:
            state.average.swap()
        return score, improved

    def _budget(self) -> str:
        return f"the budget of {self.config.training.minutes:g} minutes is spent"

    def _seconds(self) -> float:
        return self.state.progress.seconds + time.perf_counter() - self.session_began

    def _spent(self) -> float:
        """The share of the budget of minutes that is spent, another validation included."""
        minutes = self.config.training.minutes
        return 0.0 if minutes is None else (self._seconds() + self.state.progress.validation_seconds) / (60 * minutes)

    def _out_of_time(self) -> bool:
        return self._spent() >= 1

    def _checkpoint_is_due(self) -> bool:
        return time.perf_counter() - self.saved_at > 60 * self.config.training.checkpoint_minutes

    def _checkpoint(self) -> None:
        self.saved_at = time.perf_counter()
        tensors, values = self.state.state_dict(self.fabric.device, partial(gather, self.fabric))
        values["seconds"] = self._seconds()
        if self.fabric.is_global_zero:
            checkpoint.save(self.folder, self.state.progress.step, tensors, values)
        self.fabric.barrier()


def _optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[training.optimizer]
    own: dict[str, Any] = {} if training.optimizer == "sgd" else {"betas": tuple(training.betas)}
    own["fused"] = training.precision != "16-mixed"  # with a scaler, gradients of fused ones cannot be clipped
    return make(model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, **own)
