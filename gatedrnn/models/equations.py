"""What cells of one's own compute, noted beside a model's weights: they do not run with an equation that was edited since."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gatedrnn.cells import Params
from gatedrnn.core.errors import EquationError
from gatedrnn.layers import RecurrentBase

NOTE = "equations"
"""Its name among the notes of `model.safetensors`: cell → state or gate → a number, in JSON."""

_CLOSE = 1e-6
"""Relative; the same step in another PyTorch, or on another CPU, differs by less."""

Answers = dict[str, float]


def noted(model: nn.Module) -> dict[str, str]:
    """The note about a model's cells; none of the package's own, and of those that cannot be asked."""
    found = {name: answers for name, layer in _own(model).items() if (answers := _answers(layer))}
    return {NOTE: json.dumps(found)} if found else {}


def check_equations(path: Path, notes: Mapping[str, str], model: nn.Module) -> None:
    """Compare a file's note with the model's cells as they are now.

    Raises: EquationError: a cell gives something else. A cell that a note does not name, or that cannot be asked, passes.
    """
    written: dict[str, Answers] = json.loads(notes.get(NOTE, "{}"))
    for name, layer in _own(model).items() if written else ():
        before, now = written.get(name, {}), _answers(layer)
        if not before or not now:
            continue
        for value in sorted(before.keys() | now.keys()):
            was, gives = before.get(value, math.nan), now.get(value, math.nan)
            if not math.isclose(was, gives, rel_tol=_CLOSE, abs_tol=_CLOSE * _CLOSE) and (was, gives) != (gives, was):
                got = f"another step: on fixed numbers {value} was {was:.6g} and is {gives:.6g}"
                advice = f"Give the file as it was; if the change was made on purpose: gatedrnn accept {path.parent}"
                rule = f"must run with the equation of {name} that it was written with"
                raise EquationError(str(path), rule, got, advice)


def _own(model: nn.Module) -> dict[str, RecurrentBase]:
    """By name of the cell, a layer of each that is not the package's."""
    layers = [each for each in model.modules() if isinstance(each, RecurrentBase)]
    package = f"{__name__.partition('.')[0]}."
    return {
        layer.cell.name: layer
        for layer in reversed(layers)
        if not all(
            f"{getattr(of, '__module__', '')}.".startswith(package) for of in (layer.cell.step, layer.cell.make_spec)
        )
    }


def _answers(layer: RecurrentBase) -> Answers | None:
    """What the cell's step gives for fixed weights, logits and states, a number for each state and gate.

    None where it cannot be asked: it fails, or draws random numbers.
    """
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"), _undrawn():
            once, again = _asked(layer), _asked(layer)
    except Exception:  # whatever a user's step may raise: the first batch says so
        return None
    return once if once == again else None


def _asked(layer: RecurrentBase) -> Answers:
    spec, width = layer.spec, layer.proj_size or layer.hidden_size
    params = Params(
        _wave(spec.rows, 1) * _wave(1, layer.input_size),
        _wave(spec.rows, 1) * _wave(1, width) / math.sqrt(width),
        *((_wave(spec.rows), _wave(spec.rows)) if layer.bias else ()),
        weight_hr=_wave(layer.proj_size, 1) * _wave(1, layer.hidden_size) if layer.proj_size else None,
        extras={each.name: (each.start or 0.0) + _wave(*spec.extra_shape(each)) / 2 for each in spec.extras},
    )
    state = tuple(_wave(2, width if k == 0 else layer.hidden_size) / 2 for k in range(len(spec.states)))
    new, trace = layer.cell.step(spec, params, 2 * _wave(2, spec.rows), _wave(2, spec.recurrent_rows), state)
    found = dict(zip(spec.states, new, strict=True)) | dict(trace)
    return {name: (value * (2 + _wave(*value.shape))).mean().item() for name, value in found.items()}


def _wave(*shape: int) -> Tensor:
    """Fixed numbers in −1…1, the same on every machine but for rounding."""
    return torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).mul_(0.7).sin_().view(shape)


@contextmanager
def _undrawn() -> Iterator[None]:
    """Random numbers that are drawn within are drawn again after it."""
    numbers = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            np.random.set_state(numbers)
