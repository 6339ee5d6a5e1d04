"""Projected weights: the model computes with them, and what a training step changes is the weights behind them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn


class Project(Protocol):
    """Parameters by name → what the model is to be used with instead of some of them; its name and memory go into checkpoints."""

    name: str
    memory: dict[str, Tensor]

    def __call__(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those that differ."""
        ...


@contextmanager
def projected(model: nn.Module, project: Project | None) -> Iterator[None]:
    """The model with its weights projected, if they are to be."""
    if project is None:
        yield
        return
    named = dict(model.named_parameters())
    kept = {name: (named[name].detach().clone(), value) for name, value in project(named).items()}
    with torch.no_grad():
        for name, (_, value) in kept.items():
            named[name].copy_(value)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, (dense, _) in kept.items():
                named[name].copy_(dense)
