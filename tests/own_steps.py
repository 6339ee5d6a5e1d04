"""Layers of a step of one's own on `cpu` and `triton`, for the tests of what the compiler reads of it."""

import inspect
from pathlib import Path

import pytest
import torch

from gatedrnn import Recurrent
from gatedrnn.cells import Cell, Gate, Spec
from gatedrnn.core.errors import BackendError

H, T, B, D = 6, 3, 4, 3
N = (Gate("n", H, "tanh"),)
BACKENDS = ["cpu", "triton"]


def one_gate(H, **options):
    return Spec(H, (Gate("n", H, "tanh"),), ("h",), **options)


def own(step, spec=None, **fields):
    return Cell("mine", "mine", lambda hidden_size: spec or Spec(hidden_size, N, ("h",)), step, **fields)


def agrees(layer, backend, x=None):
    """The layer's output, which `backend` and the reference agree on."""
    x = torch.randn(T, B, D, dtype=layer.weight_hh_l0.dtype) if x is None else x
    with torch.no_grad():
        layer.backend = "reference"
        expected = layer(x)[0]
        layer.backend = backend
        torch.testing.assert_close(layer(x)[0], expected, atol=1e-5, rtol=1e-5)
    return expected


def refusal(step, spec=None, **fields):
    """Why `cpu` cannot run a layer of that step."""
    layer = Recurrent(own(step, spec), D, H, backend="cpu", **fields)
    with pytest.raises(BackendError) as caught:
        layer(torch.randn(T, B, D, dtype=layer.weight_hh_l0.dtype))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def line_of(step, text):
    """`file.py:12` of the first line of the step that contains `text`."""
    lines, first = inspect.getsourcelines(step)
    return f"{Path(inspect.getsourcefile(step)).name}:{first + next(k for k, line in enumerate(lines) if text in line)}"
