"""What cells of one's own compute, noted beside a model's weights: they do not run with an equation that was edited since."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gatedrnn.cells import PACKAGED, Params
from gatedrnn.core.errors import EquationError
from gatedrnn.gates import Gates
from gatedrnn.layers import RecurrentBase

_CLOSE = {"float64": 1e-6, "float32": 1e-3}
"""Relative to the size of values; the same step in another PyTorch, or on another CPU, differs by less."""

Answers = dict[str, Any]
"""Of a cell: `gates`, its default; `sizes` of the layer and `dtype` in which it was asked; `values`, state or gate → its mean,
weighted, and that of its absolute values."""


def equations(model: nn.Module) -> dict[str, Answers]:
    """Of each cell of a model that is not the package's own, what it computes, but for those that cannot be asked."""
    return {name: answers for name, layer in _own(model).items() if (answers := _answers(layer))}


def check_equations(place: str, written: Any, model: nn.Module, accept: str) -> None:
    """Compare what `equations` gave once, read back from JSON, with the model's cells as they are now.

    Args: accept: what accepts another equation.
    Raises: EquationError: a cell gives something else, or this is damaged. A cell that was not asked, or cannot be, passes.
    """
    for name, layer in _own(model).items():
        try:
            before, now = written.get(name), _answers(layer)
            if before is None or now is None:
                continue
            changed = _changed(before, now)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise EquationError(
                place, "has a damaged note about its cells", repr(error), f"To remove it: {accept}"
            ) from error
        if changed:
            rule = f"must run with the equation of {name} that it was written with"
            advice = f"Give the file as it was; if the change was made on purpose: {accept}"
            raise EquationError(place, rule, f"another one: {changed}", advice)


def _changed(before: Answers, now: Answers) -> str:
    """What differs, in words; nothing if they are the same."""
    if before["gates"] != now["gates"]:
        return f"its gates were {before['gates']} and are {now['gates']}"
    close = max(_CLOSE[before["dtype"]], _CLOSE[now["dtype"]])
    for value in sorted(before["values"].keys() & now["values"].keys() if before["sizes"] == now["sizes"] else ()):
        (was, size), (gives, size_now) = before["values"][value], now["values"][value]
        if not abs(was - gives) <= close * max(size, size_now):
            return f"on fixed numbers, {value} was {was:.6g} and is {gives:.6g}"
    return ""


def _own(model: nn.Module) -> dict[str, RecurrentBase]:
    """By name of the cell, a layer of each that is not the package's."""
    layers = [each for each in model.modules() if isinstance(each, RecurrentBase)]
    return {layer.cell.name: layer for layer in reversed(layers) if layer.cell not in PACKAGED}


def _answers(layer: RecurrentBase) -> Answers | None:
    """What the cell's step gives for fixed weights, logits and states, a number for each state and gate.

    None where it cannot be asked: it fails, or draws random numbers.
    """
    weight: Any = layer.weight_hh_l0
    with torch.no_grad(), torch.autocast("cpu", enabled=False), _undrawn():
        if not weight.is_meta:  # first as batches do, as a step may keep what it makes in its first call
            with suppress(Exception), weight.device:  # whatever a user's step may raise: the first batch says so
                _asked(layer, weight.dtype)
        for dtype in (torch.float64, torch.float32):  # a constant tensor of the step may be float32
            with suppress(Exception), torch.device("cpu"):
                once, again = _asked(layer, dtype), _asked(layer, dtype)
                told = {"gates": _other_than_default(layer.cell.gates), "dtype": str(dtype).removeprefix("torch.")}
                sizes = [layer.input_size, layer.hidden_size, layer.proj_size]
                return told | {"sizes": sizes, "values": once} if once == again else None
    return None


def _other_than_default(gates: Gates) -> str:
    """A later version may have more fields."""
    default = asdict(Gates())
    return (
        ", ".join(f"{name}={value!r}" for name, value in asdict(gates).items() if value != default.get(name)) or "none"
    )


def _asked(layer: RecurrentBase, dtype: torch.dtype) -> dict[str, list[float]]:
    spec, width = layer.spec, layer.proj_size or layer.hidden_size

    def wave(*shape: int) -> Tensor:
        """Fixed numbers in −1…1, the same on every machine but for rounding."""
        return torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).mul_(0.7).sin_().view(shape).to(dtype)

    params = Params(
        wave(spec.rows, 1) * wave(1, layer.input_size),
        wave(spec.rows, 1) * wave(1, width) / math.sqrt(width),
        *((wave(spec.rows), wave(spec.rows)) if layer.bias else ()),
        weight_hr=wave(layer.proj_size, 1) * wave(1, layer.hidden_size) if layer.proj_size else None,
        extras={each.name: wave(*spec.extra_shape(each)) / 2 for each in spec.extras},
    )
    state = tuple(wave(2, width if k == 0 else layer.hidden_size) / 2 for k in range(len(spec.states)))
    state = tuple(torch.cat((each[:1].abs(), each[1:])) for each in state)  # some states are never negative
    new, trace = layer.cell.step(spec, params, 2 * wave(2, spec.rows), wave(2, spec.recurrent_rows), state)
    found = dict(trace) | dict(zip(spec.states, new, strict=True))
    reals = {name: value for name, value in found.items() if isinstance(value, Tensor) and value.is_floating_point()}
    weighted = {name: value.nan_to_num(0.0, 2.0, -2.0) * (2 + wave(*value.shape)) for name, value in reals.items()}
    return {name: [each.mean().item(), each.abs().mean().item()] for name, each in weighted.items() if each.numel()}


@contextmanager
def _undrawn() -> Iterator[None]:
    """Random numbers that are drawn within are drawn again after it."""
    numbers = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            np.random.set_state(numbers)


def written(text: str) -> Any:
    """`equations` as a note in JSON says; damaged, the error that `check_equations` names."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
