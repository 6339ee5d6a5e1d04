"""Cells' rows and what compiles them, at the edges: sizes that leave no degree of freedom, threads that begin together."""

import sys
import types

import pytest
import torch

from gatedrnn import Recurrent
from gatedrnn.cells import Cell, Gate, Spec
from gatedrnn.core import torch_internals
from gatedrnn.core.errors import DataError
from gatedrnn.sequence.backends.cpu.compile import build
from gatedrnn.sequence.backends.cpu.runtime.target import best


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


@pytest.mark.filterwarnings("ignore:gatedrnn. kernels cannot be kept")
@pytest.mark.parametrize("nowhere", [True, False], ids=["no folder", "no writable folder"])
def test_what_cannot_be_kept_is_compiled_once_a_process(tmp_path, monkeypatch, nowhere):
    (tmp_path / "file").write_text("")

    def folder():
        if nowhere:
            raise DataError("cache folder", "the user must have a home folder", "none", "Set HOME")
        return tmp_path / "file"

    made = []
    monkeypatch.setattr(build, "cache_folder", folder)
    monkeypatch.setattr(build, "_UNKEPT", {}, raising=False)
    for name in ("loop", "rows", "loop"):
        assert build.cached(name, best(), lambda name=name: made.append(name) or name.encode()) == name.encode()
    assert made == ["loop", "rows"]


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


def test_layers_of_other_sizes_share_what_is_loaded():
    def train(hidden):
        Recurrent("lstm", 3, hidden, backend="cpu")(torch.randn(4, 2, 3))[0].sum().backward()
        return len(build._LOADED)

    assert train(5) == train(6)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_empty_slstm_takes_any_input(backend):
    """The forget gate of an empty state has nothing to keep; before, it overflowed and gave NaN."""
    layer = Recurrent("slstm", 1, 3, backend=backend)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor([-200.0, 200.0, 1.0, 1.0]).repeat_interleave(3)[:, None])
        layer.bias_ih_l0.zero_(), layer.bias_hh_l0.zero_(), layer.weight_hh_l0.zero_()
    x = torch.ones(2, 1, 1, requires_grad=True)
    output, _, gates = layer(x, return_gates=True)
    output.sum().backward()
    expected = torch.sigmoid(torch.tensor(1.0)) * torch.tanh(torch.tensor(1.0))
    torch.testing.assert_close(output, expected.expand(2, 1, 3))
    assert x.grad.isfinite().all() and gates[0]["forget_gate"].isfinite().all()
