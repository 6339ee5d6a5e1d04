"""What decides on a kernel: all that a step can read is in its name, or is refused in a message that names the step's line."""

import importlib.util
import re
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from gatedrnn import Recurrent
from gatedrnn.cells import CELLS, Cell, Derived, Extra, Gate, Spec
from gatedrnn.cli.commands import explain
from gatedrnn.compiler import Compiled, kept
from gatedrnn.core.errors import ArgumentError, BackendError
from gatedrnn.gates import SQUASHES, Gates, squash
from gatedrnn.models.config import LanguageModelConfig
from gatedrnn.studies.parsing import cells_with_master_gates

H, T, B, D = 6, 3, 4, 3
N = (Gate("n", H, "tanh"),)
BACKENDS = ["cpu", "triton"]


@pytest.fixture
def interpreted(monkeypatch):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def registered():
    """Registers cells, and removes them again."""
    before = set(CELLS)
    yield lambda cell: CELLS.register(cell.name, cell)
    for name in set(CELLS) - before:
        CELLS.remove(name)


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
    import inspect

    lines, first = inspect.getsourcelines(step)
    return f"test_findings_identity.py:{first + next(k for k, line in enumerate(lines) if text in line)}"


# What is in a kernel's name.


def by_norm(spec, params, x_gates, h_gates, state):
    a = x_gates + h_gates
    if spec.normalised:
        a = F.layer_norm(a, (spec.rows,))
    n = spec.squash("n", a)
    return (n,), {"n": n}


def by_memory(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n if spec.gate("n").memory else 0.5 * n,), {"n": n}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["normalised", "memory"])
@pytest.mark.parametrize("known", [True, False], ids=["registered", "not registered"])
def test_options_that_differ_in_a_field_alone_have_kernels_of_their_own(registered, interpreted, backend, kind, known):
    def make_spec(hidden_size, value=False):
        if kind == "normalised":
            return Spec(hidden_size, N, ("h",), normalised=value)
        return Spec(hidden_size, (Gate("n", hidden_size, "tanh", memory=value),), ("h",))

    step = by_norm if kind == "normalised" else by_memory
    cell = Cell("mine", "mine", make_spec, step, options={"value": False})
    if known:
        registered(cell)
    x, found = torch.randn(T, B, D), []
    for value in (False, True):
        torch.manual_seed(0)
        found.append(agrees(Recurrent(cell, D, H, value=value), backend, x))
    assert not torch.allclose(*found, atol=1e-3)


def test_a_text_says_all_and_is_read_again():
    spec = Spec(
        H,
        (Gate("a", H, memory=False), Gate("b", H, hard=True), Gate("n", H, "cumax", units=H)),
        ("h", "c"),
        recurrent_gates=2,
        extras=(Extra("w", ("a", "b")), Extra("m", ("n",), full=True)),
        constants=(("rounds", 3), ("beta", 3.0), ("huge", float("inf")), ("on", True)),
        normalised=True,
    )
    again = Spec.of(spec.text())
    assert again == spec and again.text() == spec.text() and " " not in spec.text()
    assert [type(value) for _, value in again.constants] == [int, float, float, bool]


def test_texts_of_earlier_versions_are_read():
    old = "6|a,6,sigmoid,0,0;n,6,cumax,0,1|h,c||w,0,a|beta,1.0"
    spec = Spec.of(old)
    assert [gate.memory for gate in spec.gates] == [True, True] and [gate.hard for gate in spec.gates] == [False, True]
    assert not spec.normalised and spec.constants == (("beta", 1.0),) and spec.extras == (Extra("w", ("a",)),)


def reads_derived(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return ((2 if spec.derived else 1) * n,), {"n": n}


def reads_start(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return ((2 if spec.extras[0].start else 1) * n * params.extras["w"],), {"n": n}


def compares(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return ((2 if spec == Spec(6, N, ("h",)) else 1) * n,), {"n": n}


def compares_extras(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return ((2 if spec.extras == (WITH_START,) else 1) * n * params.extras["w"],), {"n": n}


WITH_START = Extra("w", ("n",), start=1.0)
TWICE = Derived("double", "n", torch.neg)


@pytest.mark.parametrize(
    "step, spec, words, place",
    [
        (reads_derived, Spec(H, N, ("h",), derived=(TWICE,)), "spec.derived, which kernels do not see", "2 if"),
        (
            reads_start,
            Spec(H, N, ("h",), extras=(WITH_START,)),
            "the start of an Extra, which kernels do not see",
            "2 if",
        ),
        (compares, Spec(H, N, ("h",)), "a comparison of its Spec", "2 if"),
        (compares_extras, Spec(H, N, ("h",), extras=(WITH_START,)), "a comparison of an Extra", "2 if"),
    ],
)
def test_what_no_text_says_is_refused(step, spec, words, place):
    said = refusal(step, spec)
    assert words in said and line_of(step, place) in said


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("known", [True, False], ids=["registered", "not registered"])
def test_a_whole_number_stays_one(registered, interpreted, backend, known):
    def step(spec, params, x_gates, h_gates, state):
        n = spec.squash("n", x_gates + h_gates)
        h = n
        for _ in range(spec.constant("rounds")):
            h = h + 0.5 * torch.tanh(h)
        return (h,), {"n": n}

    cell = own(step, Spec(H, N, ("h",), constants=(("rounds", 3),)))
    agrees(Recurrent(registered(cell) if known else cell, D, H), backend)


def test_numbers_of_every_kind():
    assert Spec(H, N, ("h",), constants=(("k", 3),)).text() != Spec(H, N, ("h",), constants=(("k", 3.0),)).text()
    given = np.float32(0.5), np.float64(0.1), np.int64(3), True, np.bool_(False)
    spec = Spec(H, N, ("h",), constants=tuple((f"k{k}", value) for k, value in enumerate(given)))
    assert [value for _, value in spec.constants] == [0.5, 0.1, 3, True, False]
    assert [type(value) for _, value in spec.constants] == [float, float, int, bool, bool]
    assert Spec.of(spec.text()) == spec


# What changes behind a name.

CHANGING = """
import torch
SLOPE = 1.0
def step(spec, params, x_gates, h_gates, state):
    n = spec.squash('n', x_gates + h_gates)
    return (SLOPE * torch.tanh(n) + n,), {'n': n}
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("known", [True, False], ids=["registered", "not registered"])
def test_a_changed_number_has_a_new_kernel(registered, interpreted, backend, known):
    space = types.ModuleType("space")
    exec(CHANGING, space.__dict__)
    cell = own(space.step)
    if known:
        registered(cell)
    for slope in (1.0, 3.0):
        space.SLOPE = slope
        agrees(Recurrent(cell, D, H), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_edited_step_of_the_same_name_has_a_new_kernel(registered, interpreted, backend):
    for text in (CHANGING, CHANGING.replace("torch.tanh(n) + n", "torch.sigmoid(n)")):
        space = types.ModuleType("space")
        exec(text, space.__dict__)
        agrees(Recurrent(registered(own(space.step)), D, H), backend)
        CELLS.remove("mine")


# Decisions that a trace would make once.


def two_gates(spec, params, x_gates, h_gates, state):
    x_b, x_n = spec.split(x_gates)
    rows = spec.recurrent_rows
    b = spec.squash("b", x_b + h_gates)
    bias = None if params.bias_hh is None else params.bias_hh[rows:]
    n = spec.squash("n", x_n + F.linear(b * state[0], params.weight_hh[rows:], bias))
    return b, n


def product_by_bias(spec, params, x_gates, h_gates, state):
    b, n = two_gates(spec, params, x_gates, h_gates, state)
    return (n if params.bias_hh is None else 2 * n,), {"b": b, "n": n}


def product_by_either_bias(spec, params, x_gates, h_gates, state):
    b, n = two_gates(spec, params, x_gates, h_gates, state)
    return ((1.5 if params.bias_ih is None else 2) * n,), {"b": b, "n": n}


def product_given_by_bias(spec, params, x_gates, h_gates, state):
    b, n = two_gates(spec, params, x_gates, h_gates, state)
    return (1.5 * (n if params.bias_hh is None else b),), {"b": b, "n": n}


def product_with_zeros(spec, params, x_gates, h_gates, state):
    x_b, x_n = spec.split(x_gates)
    rows = spec.recurrent_rows
    b = spec.squash("b", x_b + h_gates)
    bias = torch.zeros(spec.rows - rows, dtype=x_n.dtype) if params.bias_hh is None else params.bias_hh[rows:]
    n = spec.squash("n", x_n + F.linear(b * state[0], params.weight_hh[rows:], bias))
    return (n,), {"b": b, "n": n}


TWO = Spec(H, (Gate("b", H), Gate("n", H, "tanh")), ("h",), recurrent_gates=1)


@pytest.mark.parametrize("step", [product_by_bias, product_by_either_bias, product_given_by_bias])
@pytest.mark.parametrize("bias", [True, False])
def test_what_a_bias_decides_is_refused(step, bias):
    assert "follow from whether the layer has biases" in refusal(step, TWO, bias=bias)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_or_zeros_in_its_place_are_one_equation(interpreted, backend, bias):
    agrees(Recurrent(own(product_with_zeros, TWO), D, H, bias=bias), backend)
    agrees(Recurrent("mgu", D, H, bias=bias), backend)


def by_half(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (2 * n if x_gates.dtype == torch.bfloat16 else n,), {"n": n}


def by_float16(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (torch.sigmoid(n) if n.dtype == torch.float16 else n,), {"n": n}


def by_kind(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (2 * n if x_gates.device.type == "cuda" else n,), {"n": n}


def by_device(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (2 * n if x_gates.device != torch.device("cpu") else n,), {"n": n}


def by_device_text(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (2 * n if "cuda" in str(x_gates.device) else n,), {"n": n}


def by_index(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (2 * n if n.get_device() >= 0 else n,), {"n": n}


def by_bytes(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (2 * n if n.element_size() == 2 else n,), {"n": n}


def by_half_given(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (state[0] * 1.5 if n.dtype == torch.bfloat16 else n * 1.5,), {"n": n}


def by_double_given(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (state[0] - n if n.dtype == torch.float64 else n - state[0],), {"n": n}


@pytest.mark.parametrize("step", [by_half, by_float16, by_bytes, by_half_given, by_double_given])
def test_what_a_small_type_decides_is_refused(step):
    assert re.search("follows? from the batch's size or type", refusal(step))


@pytest.mark.parametrize("step", [by_kind, by_device, by_device_text, by_index])
def test_what_a_device_decides_is_refused(step):
    said = refusal(step)
    assert "device" in said and line_of(step, "2 * n if") in said


def places_only(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    ones = torch.ones(n.shape, dtype=n.dtype, device=n.device)
    place = state[0].device
    return (n.to(place) * ones.to(state[0]),), {"n": n}


def test_a_device_and_a_type_may_be_passed_on():
    agrees(Recurrent(own(places_only), D, H), "cpu")


def projects(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n if params.weight_hr is None else 2 * n,), {"n": n}


def counts(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * len(params.tensors()),), {"n": n}


@pytest.mark.parametrize("step, word", [(projects, "params.weight_hr"), (counts, "params.tensors")])
def test_parameters_that_only_some_layers_have(step, word):
    said = refusal(step)
    assert word in said and line_of(step, "return") in said


# Names.


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Spec(H, (Gate("g", H, "softmax"),), ("h",)), "'softmax' of the gate g.* Known: sigmoid, cumax"),
        (lambda: Spec(H, (Gate("g", H), Gate("g", H, "tanh")), ("h",)), "gates.* a name for one only.* got 'g'"),
        (lambda: Spec(H, N, ("h", "h")), "states.* a name for one only.* got 'h'"),
        (lambda: Spec(H, N, ("h",), extras=(Extra("w", ("n",)),) * 2), "extras.* a name for one only.* got 'w'"),
        (lambda: Spec(H, N, ("h",), constants=(("k", 1), ("k", 2))), "constants.* a name for one only.* got 'k'"),
        (lambda: Spec(H, N, ("h",), derived=(Derived("n", "n", torch.neg),)), "derived.* got 'n'"),
        *[
            (lambda name=name: Spec(H, N, ("h",), extras=(Extra(name, ("n",)),)), f"extras.* the layer's own.*'{name}'")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        ],
        *[
            (lambda name=name: Spec(H, (Gate(name, H),), ("h",)), "names must consist of letters")
            for name in ("a|b", "a;b", "a,b", "a:b", "a#b", "a b")
        ],
    ],
)
def test_names_are_checked(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


def test_squashes_of_ones_own_are_known(monkeypatch):
    monkeypatch.setitem(SQUASHES, "softsign", lambda z, hard: F.softsign(z))
    gates = (Gate("n", H, "softsign"),)

    def step(spec, params, x_gates, h_gates, state):
        n = spec.squash("n", x_gates + h_gates)
        return (n,), {"n": n}

    assert Recurrent(own(step, Spec(H, gates, ("h",))), D, H)(torch.randn(T, B, D))[0].shape == (T, B, H)
    monkeypatch.setitem(SQUASHES, "soft,sign", squash.sigmoid)
    with pytest.raises(ArgumentError, match="names must consist of letters"):
        Spec(H, (Gate("n", H, "soft,sign"),), ("h",))


# Sizes.


def grouped(hidden_size, groups):
    if hidden_size % groups:
        raise ArgumentError("mine.groups", "must divide hidden_size", f"{hidden_size}, {groups}", "Try 1")
    gates = Gate("master_forget", hidden_size), Gate("forget_gate", hidden_size)
    return Spec(hidden_size, gates, ("h",))


def grouped_step(spec, params, x_gates, h_gates, state):
    m, f = (spec.squash(g.name, a) for g, a in zip(spec.gates, spec.split(x_gates + h_gates), strict=True))
    return (m * f,), {"master_forget": m, "forget_gate": f}


@pytest.fixture
def of_groups(registered):
    return registered(Cell("mine", "mine", grouped, grouped_step, options={"groups": 3}))


def test_a_cell_that_refuses_most_sizes_can_be_configured(of_groups):
    made = LanguageModelConfig(
        cell="mine", embedding_size=12, hidden_sizes=(12, 12), forget_bias=1.0, master_bias=1.0, tree_layer=1,
        gates=Gates(temperature=0.9),
    )  # fmt: skip
    assert made.options == {"groups": 3}
    assert LanguageModelConfig.without_unread({"cell": "mine", "gates": {"temperature": 0.9}})["gates"]
    with pytest.raises(ArgumentError, match="needs a cell with a master forget gate"):
        LanguageModelConfig(cell="lstm", tree_layer=1)


def test_a_cell_that_refuses_every_size_tried_stops_no_other(registered):
    def nothing(hidden_size):
        raise ArgumentError("mine", "must be of another size", hidden_size, "Try another")

    registered(Cell("mine", "mine", nothing, grouped_step))
    assert cells_with_master_gates() == ["onlstm"]
    LanguageModelConfig(cell="mine", embedding_size=12, hidden_sizes=(12,), forget_bias=1.0)


def test_cells_that_refuse_a_size_are_listed_and_explained(of_groups):
    assert cells_with_master_gates() == ["onlstm", "mine"]
    rows = next(hop["how"] for hop in explain.hops("mine")["hops"] if hop["what"] == "rows of weights")
    assert rows == "master_forget [H] sigmoid, forget_gate [H] sigmoid"
    assert "def forward" in explain.kernel("mine")


def test_options_without_a_default_in_make_spec_are_given(registered):
    registered(
        replace(
            CELLS["lstm"], name="mine", make_spec=lambda hidden_size, k: Spec(hidden_size, N, ("h",)), options={"k": 1}
        )
    )
    LanguageModelConfig(cell="mine", embedding_size=12, hidden_sizes=(12,))


# One line that names the cell and the line.


def branches(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n if n.sum() > 0 else -n,), {"n": n}


def misfits(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n + torch.ones(5),), {"n": n}


def a_tensor(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * torch.tensor(0.5),), {"n": n}


def own_bias(spec, params, x_gates, h_gates, state):
    x_b, x_n = spec.split(x_gates)
    rows = spec.recurrent_rows
    b = spec.squash("b", x_b + h_gates)
    n = spec.squash("n", x_n + F.linear(b, params.weight_hh[rows:], params.bias_hh[rows:]))
    return (n * params.bias_hh[rows:],), {"b": b, "n": n}


slope = 2.0
NUMBERS = {"slope": 2.0}


def reads_a_number(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * slope,), {"n": n}


def reads_a_mode(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n if torch.is_grad_enabled() else -n,), {"n": n}


def imports(spec, params, x_gates, h_gates, state):
    import pytest as settings

    n = spec.squash("n", x_gates + h_gates)
    return (n * len(settings.__name__),), {"n": n}


def one_a_row(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n.mean(-1, keepdim=True),), {"n": n}


@pytest.mark.parametrize(
    "step, spec, words, place",
    [
        (branches, None, "cannot be traced: it decides by a tensor's values", "n.sum()"),
        (misfits, None, "cannot be traced", "torch.ones"),
        (a_tensor, None, "torch.tensor", "torch.tensor"),
        (own_bias, TWO, "b_hh by itself", "F.linear"),
        (reads_a_number, None, "slope, read from outside", "slope"),
        (reads_a_mode, None, "is_grad_enabled, which may change", "is_grad_enabled"),
        (imports, None, "import of pytest", "import pytest"),
        (one_a_row, None, "not [B, 6]", "def one_a_row"),
    ],
)
def test_a_refusal_names_the_cell_and_the_line(step, spec, words, place):
    said = refusal(step, spec)
    assert words in said and line_of(step, place) in said and said.endswith("Use backend='auto' for the cell mine.")
    assert said.count("test_findings_identity.py:") == 1


def two_products(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates + F.linear(state[0], params.extras["m"]))
    return (n,), {"n": n}


def test_a_refusal_of_a_gpu_names_them_too(interpreted):
    spec = Spec(H, N, ("h",), extras=(Extra("m", ("n",), full=True),))
    layer = Recurrent(own(two_products, spec), D, H, backend="triton")
    with pytest.raises(BackendError, match="kernels for a GPU do not support that") as caught:
        layer(torch.randn(T, B, D))
    said = str(caught.value)
    assert line_of(two_products, "def ") in said and said.count("backend='triton'") == 1 and "cell mine" in said


def two_states(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n, n), {"n": n}


def no_tuple(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return n, {"n": n}


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    "step, words",
    [(one_a_row, r"h of \[1, 1\], not \[1, 6\]"), (two_states, "2 states"), (no_tuple, "a Tensor")],
)
def test_the_reference_refuses_states_of_another_form(step, words, steps):
    layer = Recurrent(own(step), D, H)
    with pytest.raises(ArgumentError, match=words) as caught:
        layer(torch.randn(steps, 1, D))
    assert "mine" in str(caught.value) and line_of(step, "def ") in str(caught.value)
    with pytest.raises(ArgumentError, match=re.sub("1, ", "4, ", words)):
        layer(torch.randn(steps, B, D))


# Lines of what is refused.


def good_then_bad(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    good = n * n
    return ((good[:, :, None] * n[:, None, :]).sum(-1),), {"n": n}


def test_an_operation_is_named_with_all_its_lines():
    said = refusal(good_then_bad)
    first, second = line_of(good_then_bad, "good = n"), line_of(good_then_bad, "return")
    assert f"({first}, {second.rpartition(':')[2]})" in said


BAD = """
def step(spec, params, x_gates, h_gates, state):
    n = spec.squash('n', x_gates + h_gates)
    return (n.sort(-1).values,), {'n': n}
"""


def test_lines_are_those_of_the_file_as_it_is(tmp_path, monkeypatch):
    from gatedrnn.compiler import kept as keeping

    monkeypatch.setenv("GATEDRNN_CACHE", str(tmp_path))
    said = []
    for text in (BAD, "# a comment\n" + BAD, BAD.replace("    return", "    # a comment\n    return")):
        space = types.ModuleType("space")
        exec(compile(text, "own_cell.py", "exec"), space.__dict__)
        for _ in range(2):
            said.append(kept(space.step, Spec(H, N, ("h",))))
            getattr(keeping, "_KNOWN", {}).clear()
    lines = [re.search(r"own_cell.py:(\d+)", each).group(1) for each in said]
    assert lines == ["4", "4", "5", "5", "5", "5"]


def test_a_kernel_is_found_again_whatever_stands_above_it():
    found = []
    good = BAD.replace("n.sort(-1).values", "n")
    for text in (good, "# a comment\n" + good):
        space = types.ModuleType("space")
        exec(compile(text, "own_cell.py", "exec"), space.__dict__)
        found.append(kept(space.step, Spec(H, N, ("h",))))
    assert isinstance(found[0], Compiled) and found[0] is found[1]
