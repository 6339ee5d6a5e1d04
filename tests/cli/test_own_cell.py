"""A cell in a file outside the package: one file, one registry line, and everything that cells have."""

import copy
import math
import sys
from dataclasses import dataclass, replace
from functools import partial, wraps

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from terminal import fails, record, works
from torch import nn

from gatedrnn import CELLS, Gates, Recurrent
from gatedrnn.cells import Cell, Extra, Gate, Spec, own
from gatedrnn.cli.commands.sweep import _begun
from gatedrnn.core.errors import BackendError, DataError
from gatedrnn.core.torch_internals import scan
from gatedrnn.models.own_cells import equations

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
        (
            "return (torch.tanh(c), c)",
            "return (torch.tanh(c), nothing)",
            "cell leaky: its step must run without an error; got NameError in line 22 of leaky.py: name 'nothing'",
        ),
        (
            "return (torch.tanh(c), c), {",
            "return (torch.tanh(c), c[:, :-1]), {",
            "of the new h, c, each [B, H], and a trace, gates by name; got c of [",
        ),
        (
            'spec.squash("leak_gate"',
            'spec.squash("leaky_gate"',
            "its step must run without an error; got an error in line 18 of leaky.py: Spec.gate: unknown gate; got 'leaky_gate'.",
        ),
        ("-> Spec:", "-> Spec:\n    1 / 0", "cell leaky: its make_spec(hidden_size="),
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
    small = ["--model.embedding_size", 8, "--model.hidden_sizes", "[8]", "--training.epochs", 1]
    given = ["train", "--data", work / "text", "--model.cell", "leaky", *small, "--training.batch_size", 8]
    given += ["--out", tmp_path / "run", "--import", leaky]
    works(*given)
    forget()
    return tmp_path / "run", given


def edited(leaky, old, new):
    """The file with another text, as a new process finds it."""
    forget()
    text = leaky.read_text()
    assert old in text
    leaky.write_text(text.replace(old, new))


OTHER = "must run with the equation of leaky that it was written with; got another one: "


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("(1 - moved) * c", "(1 - moved * moved) * c", "on fixed numbers, c was"),
        ("0.5) -> Spec:", "0.5) -> Spec:\n    rate = 0.4", "on fixed numbers, c was"),
        (
            'options={"rate": 0.5}',
            'options={"rate": 0.5}, gates=Gates(evaluation_temperature=0.3)',
            "its gates were none and are evaluation_temperature=0.3",
        ),
    ],
)
def test_a_run_does_not_go_on_with_another_equation(trained, leaky, work, old, new, what):
    run, given = trained
    leaky.write_text(leaky.read_text().replace("import torch\n", "import torch\nfrom gatedrnn.gates import Gates\n"))
    first, scored = leaky.read_text(), ["evaluate", run, "--data", work / "text" / "test.txt", "--import", leaky]
    before = record(*scored)["perplexity"]
    more = [*given, "--training.epochs", 2, "--resume"]
    edited(leaky, old, new)
    for command in (scored, more):
        told = fails(*command)
        forget()
        assert OTHER + what in told and f"gatedrnn accept {run} --import FILE" in told
    leaky.write_text(first.replace("    _, c = state", "    h, c = state  # the same"))
    assert record(*scored)["perplexity"] == before
    forget()
    leaky.write_text(first.replace(old, new))
    assert "the equation of its cell" in works("accept", run, "--import", leaky)
    forget()
    assert record(*scored)["perplexity"] != before
    edited(leaky, "torch.tanh(c), c", "torch.tanh(2 * c), c")
    assert OTHER in fails(*scored)
    edited(leaky, "torch.tanh(2 * c), c", "torch.tanh(c), c")
    works(*more)


def test_compressed_and_exported_runs_know_it_too(trained, leaky, tmp_path):
    run, known = trained[0], ["--import", leaky]
    works("compress", run, "--method", "int8", "--out", tmp_path / "small", *known)
    works("export", run, "--to", "hf", "--out", tmp_path / "hf", *known)
    edited(leaky, "(1 - moved) * c", "(1 - l) * c")
    assert OTHER in fails("generate", tmp_path / "small", *known)
    assert OTHER in fails("import", tmp_path / "hf", "--out", tmp_path / "back", *known)
    edited(leaky, "(1 - l) * c", "(1 - moved) * c")
    works("import", tmp_path / "hf", "--out", tmp_path / "back", *known)


@pytest.mark.parametrize(
    "note", ['{"leaky": ', "[1]", '{"leaky": 3}', '{"leaky": {"h": 1}}', '{"leaky": {"gates": "none", "dtype": 1}}']
)
def test_a_damaged_note_is_named_and_can_be_accepted(trained, leaky, note):
    run, known = trained[0], ["--import", leaky]
    path = run / "model.safetensors"
    save_file(load_file(path), path, {"equations": note})
    (run / "checksums.json").unlink()
    told = fails("generate", run, *known)
    assert "has a damaged note about its cells" in told and "gatedrnn accept" in told
    works("accept", run, *known)
    works("generate", run, *known)


def test_a_sweep_does_not_mix_equations(leaky, tmp_path):
    own.import_cells(leaky)
    settings, out = {"config": {"model": {"cell": "leaky"}}, "import": own.imported_texts()}, tmp_path / "sweep"
    out.mkdir()
    assert _begun(out, settings) == _begun(out, settings) == {}
    edited(leaky, "(1 - moved) * c", "(1 - l) * c")
    own.import_cells(leaky)
    with pytest.raises(DataError, match="must hold a sweep with the same settings; got --import"):
        _begun(out, settings | {"import": own.imported_texts()})


def test_resuming_does_not_read_weights_that_it_does_not_need(work, tmp_path):
    small = ["--model.embedding_size", 8, "--model.hidden_sizes", "[8]", "--training.batch_size", 8]
    given = [
        "train",
        "--data",
        work / "text",
        "--model.cell",
        "lstm",
        *small,
        "--out",
        tmp_path / "run",
        "--training.epochs",
    ]
    works(*given, 1)
    (tmp_path / "run" / "checksums.json").unlink()
    path = tmp_path / "run" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    works(*given, 2, "--resume")


def asked(step, **fields):
    spec = partial(Spec, gates=(Gate("n", H, "tanh"),), states=("h",))
    layer = Recurrent(
        Cell("mine", "mine", lambda hidden_size: spec(hidden_size, **fields), step), D, H, bias=False, proj_size=4
    )
    return equations(layer).get("mine", {}).get("values")


ROLL = torch.eye(H).roll(1, 0)


def rolls(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates) @ ROLL
    return (n,), {"n": n}


def counts(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates) + torch.log(x_gates) * params.extras["w"]
    return (n,), {"n": n, "count": 3.0, "empty": n[:, H:], "phase": torch.complex(n, n)}


KEPT = []


def keeps(spec, params, x_gates, h_gates, state):
    if not KEPT:
        KEPT.append(torch.eye(H, dtype=x_gates.dtype))
    n = spec.squash("n", x_gates + h_gates) @ KEPT[0]
    return (n,), {"n": n}


@dataclass(frozen=True)
class More(Gates):
    extra: float = 1.0


def draws(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates) * torch.rand(()) * np.random.rand()
    return (n,), {}


@wraps(rolls)
def wrapped(spec, params, x_gates, h_gates, state):
    return rolls(spec, params, x_gates, -h_gates, state)


def test_what_is_asked_of_a_cell():
    """In float32 where its own tensors are, without NaN, of tensors; whatever its name; not of a random step."""
    assert asked(rolls) and asked(wrapped) and asked(rolls) != asked(wrapped)
    found = [asked(counts, extras=(Extra("w", ("n",), start=start),)) for start in (1.0, None)]
    assert found[0] == found[1] and found[0].keys() == {"h", "n"}
    assert all(math.isfinite(number) for pair in found[0].values() for number in pair)
    assert asked(keeps) and KEPT[0].dtype == torch.float32  # what it keeps is as batches have it
    assert equations(nn.ModuleList(Recurrent(name, D, 2 * H) for name, _ in CELLS.items())) == {}
    mine = [replace(CELLS["lstm"], name="mine", gates=gates) for gates in (Gates(evaluation_temperature=0.3), More())]
    said = [equations(Recurrent(cell, D, H))["mine"]["gates"] for cell in mine]
    assert said == ["evaluation_temperature=0.3", "extra=1.0"]
    layer = Recurrent(
        Cell("mine", "mine", lambda hidden_size: Spec(hidden_size, (Gate("n", H, "tanh"),), ("h",)), draws), D, H
    )
    seeds = torch.get_rng_state(), np.random.get_state()[1].copy()
    assert equations(layer) == {}
    assert torch.equal(torch.get_rng_state(), seeds[0]) and (np.random.get_state()[1] == seeds[1]).all()
    lstm = CELLS["lstm"]
    step = wraps(lstm.step)(lambda *given: lstm.step(*given))
    assert equations(Recurrent(Cell("mine", "mine", lstm.make_spec, step), D, H, dtype=torch.bfloat16)).keys() == {
        "mine"
    }
