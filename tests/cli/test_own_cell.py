"""A cell in a file outside the package: one file, one registry line, and everything that cells have."""

import copy
import json
import sys

import numpy as np
import pytest
import torch
from terminal import fails, record, works

from gatedrnn import CELLS, Gates, Recurrent
from gatedrnn.cells import own
from gatedrnn.core.errors import BackendError, DataError
from gatedrnn.core.torch_internals import scan
from gatedrnn.models.equations import noted

TEXT = '''"""A unit of leaky candidates: what leaks is a gate."""

import torch

from gatedrnn.cells import CELLS, Cell, Extra, Gate, Spec


def make_spec(hidden_size: int, rate: float = 0.5) -> Spec:
    gates = Gate("leak_gate", hidden_size), Gate("cell_candidate", hidden_size, "tanh")
    extras, constants = (Extra("weight_leak", ("leak_gate",)),), (("rate", rate),)
    return Spec(hidden_size, gates, ("h", "c"), extras=extras, constants=constants)


def step(spec, params, x_gates, h_gates, state):
    """l = rate σ(W x + U h' + w∘c'); c = (1 − l)∘c' + l∘n; h = tanh(c)."""
    _, c = state
    a, n = spec.split(x_gates + h_gates)
    l = spec.squash("leak_gate", a + params.extras["weight_leak"] * c)
    n = spec.squash("cell_candidate", n)
    moved = spec.constant("rate") * l
    c = (1 - moved) * c + moved * n
    return (torch.tanh(c), c), {"leak_gate": l, "cell_candidate": n}


'''
LAST = 'CELLS.register("leaky", Cell("leaky", "leaky unit", make_spec, step, options={"rate": 0.5}))\n'
B, T, D, H = 3, 5, 7, 9


def forget():
    """What a new process does not know."""
    for name in ["leaky", *(name for name in sys.modules if name.startswith("gatedrnn_own"))]:
        CELLS._entries.pop(name, None)
        sys.modules.pop(name, None)
    own._RUN.clear()


@pytest.fixture
def leaky(tmp_path):
    """The file; what it registers is taken back."""
    path = tmp_path / "leaky.py"
    path.write_text(TEXT + LAST, "utf-8")
    yield path
    forget()


def results(layer, backend, x, lengths, noise):
    layer.backend = backend
    x = x.clone().requires_grad_()
    output, states, traces = layer(x, lengths=lengths, return_gates=True, noise=noise)
    shown = [gate for trace in traces for gate in trace.values()]
    loss = sum(
        (value * torch.linspace(-1, 1, value.numel()).view_as(value)).sum() for value in [output, *states, *shown]
    )
    return [output, *states, *shown, *torch.autograd.grad(loss, [x, *layer.parameters()])]


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_it_has_a_layer_lengths_directions_gates_noise_and_kernels(leaky, monkeypatch, backend):
    if backend == "triton":
        pytest.importorskip("triton", minversion="3.4")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    own.import_cells(leaky)
    gates = Gates(temperature=0.9, noise_probability=0.5)
    layer = Recurrent("leaky", D, H, bidirectional=True, gates=gates, rate=0.25)
    x, noise = torch.randn(T, B, D), layer.sample_noise(T, B)
    try:
        found = results(layer, backend, x, [5, 2, 4], noise)
    except BackendError as error:
        pytest.skip(str(error)) if "cannot run here" in str(error) else pytest.fail(str(error))
    for ours, theirs in zip(found, results(layer, "reference", x, [5, 2, 4], noise), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
    assert torch.equal(copy.deepcopy(layer.eval())(x)[0], layer(x)[0])
    other = Recurrent("leaky", D, H, bidirectional=True, gates=gates, rate=0.5)
    other.load_state_dict(layer.state_dict())
    first, second = results(layer, backend, x, None, noise), results(other, backend, x, None, noise)
    assert not torch.allclose(first[0], second[0])
    torch.testing.assert_close(second[0], results(other, "reference", x, None, noise)[0], atol=2e-5, rtol=1e-4)


def test_every_command_knows_it(leaky, work, tmp_path):
    small = [
        "--model.embedding_size",
        8,
        "--model.hidden_sizes",
        "[8]",
        "--training.epochs",
        1,
        "--training.batch_size",
        8,
    ]
    train = ["train", "--data", work / "text", "--model.cell", "leaky", "--model.options.rate", 0.1, *small]
    assert "must be a registered cell; got 'leaky'" in fails(*train, "--out", tmp_path / "run")
    works(*train, "--out", tmp_path / "run", "--import", leaky)
    forget()
    assert fails("evaluate", tmp_path / "run", "--data", work / "text" / "test.txt").count("--import FILE") == 1
    found = record("evaluate", tmp_path / "run", "--data", work / "text" / "test.txt", f"--import={leaky}")
    assert 1 < found["perplexity"] < 1e4
    if scan is not None:  # an older PyTorch does not write ONNX
        works("export", tmp_path / "run", "--to", "onnx", "--out", tmp_path / "onnx", "--import", leaky)
    hops = record("explain", "leaky", "--import", leaky)
    assert hops["backend"] in ("cpu", "reference") and any(str(leaky) in hop["where"] for hop in hops["hops"])
    assert "leaky" in works("bench", "--cell", "leaky", "--shape", "H8-B2-T3", "--runs", 1, "--import", leaky)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("slope = 1\n", r'must define a Cell; got none. Write CELLS.register("NAME", Cell(…)), as'),
        (
            TEXT.replace("spec, params, x_gates", "spec, x_gates") + LAST,
            "cell leaky: its step must take spec, params, x_gates, h_gates, state; got a step that takes (spec, x_gates, h_gates",
        ),
        ("def step(:\n", "SyntaxError in line 1"),
        ("import torch\n\n1 / 0\n", "ZeroDivisionError in line 3"),
        ("import gatedrnn.cells.nothing\n", "ModuleNotFoundError in line 1"),
        ('from gatedrnn import CELLS\nCELLS["lstmm"]\n', "Did you mean 'lstm'? Fix the file."),
        (TEXT + LAST.replace('"leaky"', '"lstm"', 1), "a name can be registered once; got 'lstm'"),
    ],
)
def test_a_file_without_a_cell_is_named(leaky, tmp_path, text, words):
    path = tmp_path / "other.py"
    if text is not None:
        path.write_text(text, "utf-8")
    assert words in fails("explain", "lstm", "--import", path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("return (torch.tanh(c), c)", "return (torch.tanh(c), nothing)", "NameError in line 22: name 'nothing'"),
        (
            "return (torch.tanh(c), c), {",
            "return (torch.tanh(c),) #",
            "of the new h, c, each [B, H], and a trace, gates by name; got 1 values",
        ),
        (
            'Gate("leak_gate", hidden_size)',
            'Gate("leak_gate", hidden_size / 2)',
            "Gate.rows of leak_gate: must be a positive",
        ),
        (
            "def make_spec(hidden_size",
            "def make_spec(size, hidden_size",
            "make_spec must take hidden_size and the cell's options",
        ),
    ],
)
def test_a_mistake_in_a_cell_is_one_line(leaky, work, tmp_path, old, new, words):
    text = leaky.read_text()
    assert old in text
    leaky.write_text(text.replace(old, new))
    for command in (
        ("explain", "leaky"),
        ("train", "--model.cell", "leaky", "--data", work / "text", "--out", tmp_path / "x"),
    ):
        told = fails(*command, "--import", leaky)
        assert words in told and "Traceback" not in told


def test_a_file_that_only_holds_a_cell_and_one_that_changed(leaky):
    leaky.write_text(
        TEXT + LAST.replace('CELLS.register("leaky", ', "CELL = (").replace("make_spec, step,", "make_spec, step,")
    )
    own.import_cells(leaky)
    own.import_cells(leaky)
    assert CELLS["leaky"].title == "leaky unit"
    leaky.write_text(TEXT + LAST + "# another\n")
    with pytest.raises(DataError, match="must not change after"):
        own.import_cells(leaky)


@pytest.fixture
def trained(leaky, work, tmp_path):
    """A run of the leaky cell, and the file, as a new process finds them."""
    small = [
        "--model.embedding_size",
        8,
        "--model.hidden_sizes",
        "[8]",
        "--training.epochs",
        1,
        "--training.batch_size",
        8,
    ]
    given = [
        "train",
        "--data",
        work / "text",
        "--model.cell",
        "leaky",
        *small,
        "--out",
        tmp_path / "run",
        "--import",
        leaky,
    ]
    works(*given)
    forget()
    return tmp_path / "run", given


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(1 - moved) * c", "(1 - moved * moved) * c"),
        ("rate: float = 0.5) -> Spec:", "rate: float = 0.5) -> Spec:\n    rate = 0.4"),
    ],
)
def test_a_run_does_not_go_on_with_another_equation(trained, leaky, work, old, new):
    run, given = trained
    text, scored = leaky.read_text(), ["evaluate", run, "--data", work / "text" / "test.txt", "--import", leaky]
    before = record(*scored)["perplexity"]
    assert old in text
    leaky.write_text(text.replace(old, new))
    more = [*given, "--training.epochs", 2, "--resume"]
    for command in (scored, more):
        forget()
        told = fails(*command)
        assert (
            "must run with the equation of leaky that it was written with; got another step: on fixed numbers" in told
        )
        assert f"if the change was made on purpose: gatedrnn accept {run}" in told
    forget()
    leaky.write_text(text.replace("    _, c = state", "    h, c = state  # the same"))
    assert record(*scored)["perplexity"] == before
    forget()
    leaky.write_text(text.replace(old, new))
    assert "the equation of its cell" in works("accept", run, "--import", leaky)
    forget()
    assert record(*scored)["perplexity"] != before
    forget()
    works(*more)


def test_a_cell_that_cannot_be_asked_has_no_note_and_no_numbers_are_drawn(leaky):
    text = leaky.read_text()
    leaky.write_text(
        text.replace('rate") * l', 'rate") * l * torch.rand(()) * numpy.random.rand()').replace(
            "import torch", "import numpy, torch"
        )
    )
    own.import_cells(leaky)
    layer, plain = Recurrent("leaky", D, H, bias=False, proj_size=4), Recurrent("lstm", D, H)
    seeds = torch.get_rng_state(), np.random.get_state()[1].copy()
    assert noted(layer) == {} and noted(plain) == {}
    assert torch.equal(torch.get_rng_state(), seeds[0]) and (np.random.get_state()[1] == seeds[1]).all()
    forget()
    leaky.write_text(text)
    own.import_cells(leaky)
    found = noted(Recurrent("leaky", D, H, bias=False, proj_size=4, dtype=torch.bfloat16))
    assert set(json.loads(found["equations"])["leaky"]) == {"h", "c", "leak_gate", "cell_candidate"}
