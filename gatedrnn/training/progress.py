"""What a person sees while training: a live bar on a terminal, a line an epoch elsewhere."""

import time
from types import TracebackType
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gatedrnn.tasks import Task


@final
class TrainingDisplay:
    """A progress bar with loss and speed if `console` is a terminal; always a line an epoch.

    Args:
        console: where to write.
        epochs: for "epoch 3/10".
        task: whose measure and unit are shown.
    """

    def __init__(self, console: Console, epochs: int, task: Task) -> None:
        self.console, self.epochs, self.named = console, epochs, task
        columns = [TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.fields[state]}")]
        self.bar = Progress(
            *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self.task = self.bar.add_task("", total=1, state="")
        self.shown = 0.0

    def __enter__(self) -> "TrainingDisplay":
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def start_epoch(self, epoch: int, steps: int) -> None:
        """Epoch `epoch` (from 1) of `steps` windows begins."""
        self.bar.reset(self.task, total=steps, description=f"epoch {epoch}/{self.epochs}", state="")

    def step(self, done: int, loss_nats: float, per_second: float) -> None:
        """`done` windows of the epoch are finished."""
        if self.bar.disable or time.monotonic() - self.shown < 0.2:
            return
        self.shown = time.monotonic()
        name, value = list(self.named.shown(min(loss_nats, 30)).items())[-1]
        state = f"{name} {value:8.2f}  {per_second:,.0f} {self.named.unit}/s"
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
