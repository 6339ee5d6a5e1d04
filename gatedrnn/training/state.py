"""Where a training is, and its state as tensors and plain values: what a checkpoint holds."""

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import Corpus
from gatedrnn.training.averaging import Average
from gatedrnn.training.run import write_metrics

if TYPE_CHECKING:
    from gatedrnn.training.loop import Loop


@dataclass
class Progress:
    """Where a training is, as a checkpoint holds it.

    Args:
        stage: main or finetune.
        epoch: the current one, from 1, over both stages; batch: of it, the next; step: batches in all.
        base_rate: the learning rate before warm-up and cosine.
        best_nats, since_best: best validation loss, and epochs without a better one.
        losses_nats: the stage's validation losses.
        averaged: steps in the average, None while there is none.
        total_nats, tokens, smooth_nats: of the current epoch.
        metrics: lines of metrics.jsonl.
        project: how the weights are projected for every step, in words; nothing where they are not.
        learning_rate, text, processes: as configured, a checksum of the training text's tokens, and how many train.
        seconds: spent so far, over all sessions; validation_seconds: of the last validation.
    """

    stage: str = "main"
    epoch: int = 1
    batch: int = 0
    step: int = 0
    base_rate: float = 0.0
    best_nats: float | None = None
    since_best: int = 0
    losses_nats: list[float] = field(default_factory=list)
    averaged: int | None = None
    total_nats: float = 0.0
    tokens: int = 0
    smooth_nats: float = 0.0
    metrics: list[dict[str, Any]] = field(default_factory=list)
    project: str = ""
    learning_rate: float = 0.0
    text: int = 0
    processes: int = 1
    seconds: float = 0.0
    validation_seconds: float = 0.0


def checksum(tokens: np.ndarray) -> int:
    """CRC-32 of a token array, which may be a memory map."""
    total = 0
    for start in range(0, len(tokens), 1 << 22):
        total = zlib.crc32(np.ascontiguousarray(tokens[start : start + (1 << 22)]).tobytes(), total)
    return total


def check_same(
    tensors: dict[str, Tensor], values: dict[str, Any], corpus: Corpus, processes: int, project: str
) -> None:
    """Raises ArgumentError if a checkpoint is of another text, projection or number of processes; before anything is written."""
    now = checksum(corpus["train"])
    if values["text"] != now:
        rule, got = (
            "must hold the text the run began with",
            f"another text (checksum {now}, and {values['text']} before)",
        )
        raise ArgumentError("data.folder", rule, got, "Restore that text, or start another run")
    if values["project"] is None and (project or any(name.startswith("project.") for name in tensors)):
        rule, got = "needs a checkpoint that says how the weights are projected", "one of version 1, which does not"
        raise ArgumentError(
            "--resume", rule, got, "Start again in another --out, or go on with the version that began it"
        )
    if (values["project"] or "") != project:
        rule, got = (
            "must project the weights as the run began",
            f"{project or 'none'}, and {values['project'] or 'none'} before",
        )
        raise ArgumentError("train --resume", rule, got, "Go on with the command that began it")
    if values["processes"] != processes:
        rule, got = "must go on with as many processes as it had", f"{processes}, and {values['processes']} before"
        raise ArgumentError("train --resume", rule, got, "Start as many")


def collect(loop: "Loop") -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """All tensors of the training's state by name, those of every process included; the optimiser's groups."""
    optimizer = loop.optimizer.optimizer.state_dict()
    tensors = {f"model.{name}": value for name, value in loop.raw.state_dict().items()}
    if loop.config.model.tied:
        del tensors["model.decoder.weight"]
    for index, state in optimizer["state"].items():
        tensors |= {
            f"optimizer.{index}.{key}": torch.as_tensor(value) for key, value in state.items() if value is not None
        }
    if loop.average is not None:
        tensors |= {f"average.{k}": mean for k, mean in enumerate(loop.average.means)}
    if loop.project is not None:
        tensors |= {f"project.{name}": value for name, value in loop.project.memory.items()}
    own = {"rng": torch.get_rng_state().to(loop.fabric.device)}
    if loop.fabric.device.type == "cuda":
        own["rng_cuda"] = torch.cuda.get_rng_state().to(loop.fabric.device)
    for k, layer in enumerate(loop.states or ()):
        own |= {f"states.{k}.{n}": state for n, state in enumerate(layer)}
    for name, value in own.items():
        ranks = [torch.empty_like(value) for _ in range(loop.fabric.world_size)]
        if len(ranks) > 1:
            torch.distributed.all_gather(ranks, value.contiguous())
        else:
            ranks = [value]
        tensors |= {f"rank.{rank}.{name}": entry for rank, entry in enumerate(ranks)}
    return tensors, optimizer["param_groups"]


def restore(loop: "Loop", tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Go on from a checkpoint's tensors and values."""
    training = loop.config.training
    groups, precision = values.pop("groups"), values.pop("precision")
    values["project"] = loop.progress.project  # the same, by `check_same`, where the checkpoint names it
    loop.progress = p = Progress(**values)
    p.base_rate *= training.learning_rate / p.learning_rate
    p.learning_rate = training.learning_rate
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    if loop.config.model.tied:
        weights["decoder.weight"] = weights["embedding.weight"]
    loop.raw.load_state_dict(weights)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = value
    loop.optimizer.optimizer.load_state_dict({"state": state, "param_groups": groups})
    loop.fabric.strategy.precision.load_state_dict(precision)
    if p.averaged is not None:
        loop.average = Average(loop.raw)
        loop.average.steps = p.averaged
        for k, mean in enumerate(loop.average.means):
            mean.copy_(tensors[f"average.{k}"])
    if loop.project is not None:
        loop.project.memory |= {n.removeprefix("project."): t for n, t in tensors.items() if n.startswith("project.")}
    _restore_rank(loop, tensors)
    if loop.fabric.is_global_zero:
        write_metrics(loop.folder, p.metrics)  # what came after the checkpoint will come again


def _restore_rank(loop: "Loop", tensors: dict[str, Tensor]) -> None:
    """This process's random numbers and carried states."""
    rank = f"rank.{loop.fabric.global_rank}."
    torch.set_rng_state(tensors[f"{rank}rng"])
    if f"{rank}rng_cuda" in tensors and loop.fabric.device.type == "cuda":
        torch.cuda.set_rng_state(tensors[f"{rank}rng_cuda"].cpu())
    states: list[list[Tensor]] = []
    for k in range(len(loop.raw.layers)):
        names = [f"{rank}states.{k}.{n}" for n in range(2)]
        states.append([tensors[name].to(loop.fabric.device) for name in names if name in tensors])
    loop.states = [tuple(layer) for layer in states] if states[0] else None
