"""Devices, precision, processes and loggers, by Lightning Fabric; processes are started by torchrun."""

import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision import DoublePrecision
from torch import Tensor

from gatedrnn.core.errors import ArgumentError
from gatedrnn.training.config import TrainingConfig


def make_fabric(training: TrainingConfig, folder: Path) -> Fabric:
    """Devices, precision and, under torchrun, processes; the seed is set, another one in each process.

    Raises: ArgumentError: no such device, or TensorBoard is not installed.
    """
    processes, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    strategy = "ddp" if processes > 1 else "auto"
    device = training.device
    if device == "auto":  # kernels are of the CPU and of CUDA: Apple's GPUs would run the reference
        device = "cuda" if torch.cuda.is_available() else "cpu"
    loggers = [_tensorboard(folder)] if training.tensorboard else None
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*precision='16-mixed'", UserWarning)  # `check_precision` tells it
            double = training.precision == "64-true"
            fabric = Fabric(
                accelerator=device, devices=local, num_nodes=processes // local, strategy=strategy, loggers=loggers,
                precision=None if double else training.precision, plugins=_Double() if double else None,  # type: ignore[arg-type]
            )  # fmt: skip
        fabric.launch()
    except (ValueError, RuntimeError) as error:
        got = f"{training.device!r} ({str(error).splitlines()[0].rstrip('.!')})"
        rule, advice = "must be a device of this machine", "Write --training.device auto, or cpu"
        raise ArgumentError("training.device", rule, got, advice) from error
    fabric.seed_everything((training.seed + fabric.global_rank) % (1 << 32), verbose=False)
    return fabric


class _Double(DoublePrecision):
    """Fabric's float64, which would round what the model returns, the loss too, to float32."""

    def convert_output(self, data: Any) -> Any:
        return data


def check_precision(training: TrainingConfig, fabric: Fabric, resumed: bool = False) -> None:
    """Raises ArgumentError: 16-mixed on a CPU, for which Fabric takes bfloat16. Args: resumed: whether a run is."""
    if training.precision == "16-mixed" and fabric.device.type == "cpu":
        rule, advice = "needs a GPU with 16-mixed", "Write --training.precision bf16-mixed, or 32-true"
        advice = "Resume the run on a GPU, or start another one" if resumed else advice
        raise ArgumentError("training.precision", rule, "16-mixed on the CPU", advice)


def mean(fabric: Fabric, *values: float) -> list[float]:
    """The mean of each number over all processes."""
    if fabric.world_size == 1:
        return list(values)
    shared = torch.tensor(values, dtype=torch.float64, device=fabric.device)
    total: Any = fabric.all_reduce(shared, reduce_op="mean")
    return total.tolist()


def gather(fabric: Fabric, own: Tensor) -> list[Tensor]:
    """A tensor of every process, of one shape in all, by rank."""
    every: Any = fabric.all_gather(own)
    return [own] if fabric.world_size == 1 else list(every)


def _tensorboard(folder: Path) -> Any:
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    with suppress(ModuleNotFoundError):
        return TensorBoardLogger(folder, name="", version="tensorboard")
    advice = "pip install 'gatedrnn[track]'"
    raise ArgumentError("training.tensorboard", "needs TensorBoard", "not installed", advice)
