"""What a person sees while training: a live bar on a terminal, a line an epoch elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gatedrnn.tasks import Task

_BAR_SECONDS, _LOG_SECONDS = 0.2, 60.0


class Display(Protocol):
    """What the loop tells of its progress."""

    def start_epoch(self, epoch: int, steps: int) -> None:
        """An epoch of `steps` batches begins, or is resumed."""
        ...

    def step(self, done: int, loss_nats: float, per_second: float) -> None:
        """`done` batches of the epoch are finished."""
        ...

    def end_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is validated; its metrics."""
        ...


@final
class TrainingDisplay:
    """Always a line an epoch; within an epoch a bar if `console` is a terminal, else a line a minute on standard error.

    Args:
        console: where to write.
        epochs: for "epoch 3/10".
        task: whose measure and unit are shown.
        clock: seconds, rising.
    """

    def __init__(self, console: Console, epochs: int, task: Task, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.epochs, self.named, self.clock = console, epochs, task, clock
        self.log = Console(stderr=True, quiet=console.quiet)
        columns = [TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.fields[state]}")]
        self.bar = Progress(
            *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self.task = self.bar.add_task("", total=1, state="")
        self.shown = clock()
        self.epoch = self.steps = 0

    def __enter__(self) -> "TrainingDisplay":
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def start_epoch(self, epoch: int, steps: int) -> None:
        """Epoch `epoch` (from 1) of `steps` windows begins."""
        self.epoch, self.steps, self.shown = epoch, steps, self.clock()
        self.bar.reset(self.task, total=steps, description=f"epoch {epoch}/{self.epochs}", state="")

    def step(self, done: int, loss_nats: float, per_second: float) -> None:
        """`done` windows of the epoch are finished."""
        now = self.clock()
        if now - self.shown < (_LOG_SECONDS if self.bar.disable else _BAR_SECONDS):
            return
        self.shown = now
        name, value = list(self.named.shown(min(loss_nats, 30)).items())[-1]
        state = f"{name} {value:8.2f}  {per_second:,.0f} {self.named.unit}/s"
        if self.bar.disable:
            where = f"epoch {self.epoch:3d}/{self.epochs}  {100 * done / self.steps:3.0f} %"
            self.log.print(f"{where}  {state}", highlight=False, soft_wrap=True)
        else:
            self.bar.update(self.task, completed=done, state=state)

    def end_epoch(self, record: dict[str, Any]) -> None:
        """Print an epoch's line from its metrics."""
        star = " *" if record["best"] else ""
        unit, measure = self.named.unit, self.named.measure
        trained = f"train_{measure}" if f"train_{measure}" in record else "train_loss_nats"
        self.console.print(
            f"epoch {record['epoch']:3d}  train {record[trained]:8.2f}  valid {record[f'valid_{measure}']:8.2f}"
            f"  lr {record['learning_rate']:.2g}  {record[f'{unit}_per_second']:,.0f} {unit}/s  {record['seconds']:.0f} s{star}",
            highlight=False,
            soft_wrap=True,
        )
