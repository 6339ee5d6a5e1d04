"""Cells' rows and what compiles them, at the edges: sizes that leave no degree of freedom, threads that begin together."""

import sys
import types

import pytest
import torch

from gatedrnn import Recurrent
from gatedrnn.cells import Cell, Gate, Spec
from gatedrnn.core import torch_internals


@pytest.mark.filterwarnings("ignore:var")
def test_a_variance_without_degrees_of_freedom_is_pytorchs():
    def step(spec, params, x_gates, h_gates, state):
        a = spec.squash("hidden", x_gates + h_gates)
        return (a / (1 + a.var(-1, correction=2, keepdim=True)),), {"hidden": a}

    cell = Cell("var", "var", lambda hidden: Spec(hidden, (Gate("hidden", hidden, "tanh"),), ("h",)), step)
    layer, x = Recurrent(cell, 3, 1, dtype=torch.float64, backend="cpu"), torch.randn(2, 2, 3, dtype=torch.float64)
    found = layer(x)[0]
    layer.backend = "reference"
    torch.testing.assert_close(found, layer(x)[0], equal_nan=True)


def test_an_operator_runs_while_another_thread_imports_torch_compile(monkeypatch):
    class Shielded:
        def __init__(self, function):
            self.__wrapped__ = function

    half = types.ModuleType("torch._dynamo")  # as other threads see it meanwhile: without what it will have
    vars(half)["__spec__"] = types.SimpleNamespace(_initializing=True)
    function = lambda value: value + 1  # noqa: E731 - it is given attributes
    torch_internals.start_light(types.SimpleNamespace(_backend_fns={"cpu": Shielded(function)}))
    monkeypatch.setitem(sys.modules, "torch._dynamo", half)
    assert function.__dynamo_disable(2) == 3
