"""Cells of one's own: the names, gates, squashes and sizes that they may have."""

import importlib
import inspect
from dataclasses import dataclass, replace
from functools import partial, wraps

import numpy
import pytest
import torch
from own_steps import BACKENDS, B, D, H, N, T, own
from torch.nn import functional as F

from gatedrnn import Recurrent
from gatedrnn.cells import CELLS, Cell, Derived, Extra, Gate, Spec, lstm
from gatedrnn.cells.spec import ARGUMENTS
from gatedrnn.cli.commands import explain
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import SQUASHES, Gates, squash
from gatedrnn.layers.recurrent import RecurrentBase
from gatedrnn.models.config import LanguageModelConfig
from gatedrnn.studies.parsing import cells_with_master_gates

kept = importlib.import_module("gatedrnn.compiler.kept")


def scaled(spec, params, x, h, state):
    n = torch.tanh((x + h) * spec.constant("k"))
    return (n,), {"n": n}


def test_a_cell_whose_make_spec_raises_anything_has_no_example():
    def make_spec(hidden_size):
        assert hidden_size > 5000

    assert Cell("odd", "odd", make_spec, scaled).example() is None


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


@pytest.mark.parametrize(
    "given, words",
    [
        ({"gates": (Gate("n", H / 2),)}, r"Gate.rows of n: must be a positive integer; got 3.0"),
        ({"gates": (Gate("n", 0),)}, "Gate.rows of n: must be a positive integer; got 0"),
        ({"gates": (Gate("n", H, units=H + 1),)}, "Gate.units of n: must be at most 6, its rows; got 7"),
        ({"gates": (Gate("n", H, units=0),)}, "Gate.units of n: must be a positive integer; got 0"),
        ({"gates": Gate("n", H)}, "Spec.gates: must be a tuple of Gate; got Gate"),
        (
            {"states": "h"},
            "Spec.states: must be a tuple of str; got 'h'. Write a tuple, one of a single value with a comma",
        ),
        ({"extras": Extra("w", ("n",))}, "Spec.extras: must be a tuple of Extra; got Extra"),
        ({"constants": ("beta", 1.0)}, r"Spec.constants: must be a tuple of pairs \(name, number\)"),
        ({"constants": (("beta", 1.0, 2.0),)}, "Spec.constants: must be a tuple of pairs"),
        ({"recurrent_gates": -1}, "Spec.recurrent_gates: must be a number of leading gates, 0…1; got -1"),
        ({"recurrent_gates": 2}, "0…1; got 2"),
        ({"recurrent_gates": ("n",)}, r"0…1; got \('n',\)"),
    ],
)
def test_what_a_spec_is_made_of_is_checked(given, words):
    with pytest.raises(ArgumentError, match=words):
        Spec(**{"hidden_size": H, "gates": N, "states": ("h",)} | given)


def test_lists_are_tuples():
    spec = Spec(H, [*N], ["h"], constants=[["k", 2]], derived=[Derived("m", "n", torch.neg)])
    assert spec == Spec(H, N, ("h",), constants=(("k", 2),), derived=(Derived("m", "n", torch.neg),))
    assert Recurrent(own(scaled, spec), D, H)(torch.randn(T, B, D), return_gates=["m"])[2][0].keys() == {"m"}


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_what_is_derived_is_asked_for_only_where_it_is_wanted(backend):
    layer = Recurrent(CELLS["coupled"], D, H, backend=backend)
    for name in ("output_gate", "cell_candidate", "input_gate"):
        assert layer(torch.randn(T, B, D), return_gates=(name,))[2][0].keys() == {name}


def test_an_error_within_make_spec_is_its_own():
    def of_text(hidden_size):
        return "a" / hidden_size

    with pytest.raises(TypeError, match="unsupported operand"):
        Recurrent(Cell("mine", "mine", of_text, scaled), D, H)
    with pytest.raises(ArgumentError, match="cell mine: make_spec must take hidden_size and the cell's options"):
        Recurrent(Cell("mine", "mine", lambda size, other: None, scaled), D, H)


def test_a_make_spec_that_returns_none_is_named():
    with pytest.raises(ArgumentError, match="cell mine: make_spec must return a Spec; got a NoneType"):
        Recurrent(Cell("mine", "mine", lambda hidden_size: None, scaled), D, H)


def test_what_is_derived_of_no_gate_is_named():
    layer = Recurrent(
        own(scaled, Spec(H, N, ("h",), constants=(("k", 1),), derived=(Derived("m", "o", torch.neg),))), D, H
    )
    with pytest.raises(ArgumentError, match=r"Derived.of of m: .*; got 'o', not in the trace"):
        layer(torch.randn(T, B, D), return_gates=True)


OF_ROWS = {
    "a number": lambda v: v.mean(-1),
    "one of a row": lambda v: v[:, :1],
    "a matrix": lambda v: v[:, :, None] * v[:, None, :2],
}


@pytest.mark.parametrize("function", OF_ROWS.values(), ids=OF_ROWS)
@pytest.mark.parametrize("lengths", [None, [3, T, 1]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_derived_may_have_any_shape_for_each_row(function, lengths, backend, interpreted):
    spec = replace(CELLS["lstm"].make_spec(H), derived=(Derived("m", "output_gate", function),))
    layer = Recurrent(own(CELLS["lstm"].step, spec), D, H, bidirectional=True, batch_first=True, backend=backend)
    x = torch.randn(3, T, D)
    found = layer(x, lengths=lengths, return_gates=True)[2]
    layer.backend = "reference"
    for each, expected in zip(found, layer(x, lengths=lengths, return_gates=True)[2], strict=True):
        values = expected["output_gate"]
        assert each["m"].shape == expected["m"].shape == (3, T, *function(values[0]).shape[1:])
        torch.testing.assert_close(each["m"], expected["m"])
        live = [row[: T if lengths is None else n] for row, n in zip(expected["m"], lengths or [T] * 3, strict=True)]
        for row, value in zip(live, values, strict=True):
            torch.testing.assert_close(row, function(value[: len(row)]))
        assert expected["m"].abs().sum().isclose(sum(row.abs().sum() for row in live)), "0 beyond the length of each"


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_what_is_derived_sees_rows_of_tokens_alone(backend, interpreted):
    def entropy(v):
        assert (v > 0).all(), "a row that is no sequence's"
        return torch.distributions.Categorical(probs=v / v.sum(-1, keepdim=True)).entropy()

    spec = replace(CELLS["lstm"].make_spec(H), derived=(Derived("m", "output_gate", entropy),))
    layer = Recurrent(own(CELLS["lstm"].step, spec), D, H, backend=backend)
    trace = layer(torch.randn(T, B, D), lengths=[2, T, 1, 3], return_gates=["m"])[2][0]
    trace["m"].sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_what_is_derived_keeps_its_own_type(backend, interpreted):
    spec = replace(CELLS["lstm"].make_spec(H), derived=(Derived("m", "output_gate", lambda v: v.argmax(-1)),))
    layer = Recurrent(own(CELLS["lstm"].step, spec), D, H, backend=backend, dtype=torch.bfloat16)
    (trace,) = layer(torch.randn(T, B, D, dtype=torch.bfloat16), lengths=[2, T, 1, 3], return_gates=True)[2]
    assert trace["m"].dtype == torch.int64 and trace["output_gate"].dtype == torch.bfloat16
    dead = torch.arange(T)[:, None] >= torch.tensor([2, T, 1, 3])
    assert torch.equal(trace["m"], trace["output_gate"].argmax(-1).masked_fill(dead, 0))


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize(
    ("function", "got"), [(torch.mean, r"\[\]"), (lambda v: v.T, rf"\[{H}, \d+\]"), (lambda v: [v], "a list")]
)
def test_what_is_derived_without_a_row_for_each_is_refused(function, got, backend, interpreted):
    spec = replace(CELLS["lstm"].make_spec(H), derived=(Derived("m", "output_gate", function),))
    layer = Recurrent(own(CELLS["lstm"].step, spec), D, H, backend=backend)
    with pytest.raises(ArgumentError, match=f"Derived.function of m: must give a row for each of its own; got {got}"):
        layer(torch.randn(T, B, D), return_gates=True)


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


def test_a_gate_of_a_cell_s_own_that_is_hard_stays_hard():
    spec = Spec(4, (Gate("a", 4, hard=True), Gate("b", 4), Gate("c", 4)), ("h",))
    made = spec.with_gates(Gates(straight_through=True, names=("b",)))
    assert [gate.hard for gate in made.gates] == [True, True, False]


def test_a_hard_gate_that_has_no_binary_values_is_refused():
    with pytest.raises(ArgumentError, match=r"^Gate\.hard: needs .*; got n with squash='tanh'\. Leave hard out\.$"):
        Spec(4, (Gate("n", 4, "tanh", hard=True),), ("h",))


@dataclass(eq=False)
class HashableStep:
    """An object that is called as a step."""

    slope: float = 1.0

    def __call__(self, spec, params, x_gates, h_gates, state):
        h = spec.squash("n", self.slope * (x_gates + h_gates))
        return (h,), {"n": h}


@dataclass
class Step(HashableStep):
    """The same, compared by value, and so without a hash."""


def make_spec(hidden_size):
    return Spec(hidden_size, (Gate("n", hidden_size, "tanh"),), ("h",))


def test_a_step_without_a_hash_is_refused_and_another_object_runs():
    with pytest.raises(ArgumentError, match=r"^Cell\.step: must be hashable; got Step\. Write a function"):
        Cell("mine", "mine", make_spec, Step())
    layer, x = Recurrent(Cell("mine", "mine", make_spec, HashableStep()), 3, 4), torch.randn(2, 3, 3)
    expected = layer(x)[0]
    with torch.no_grad():
        assert torch.equal(layer(x)[0], expected)


def test_a_step_is_to_take_what_it_is_given():
    def short(spec, x_gates, h_gates, state): ...

    def long(spec, params, x_gates, h_gates, state, more): ...

    def named(spec, params, x_gates, h_gates, *, state): ...

    for step in (short, long, named):
        with pytest.raises(
            ArgumentError, match=r"^cell mine: its step must take spec, params, x_gates, h_gates, state; got"
        ):
            Cell("mine", "mine", make_spec, step)

    @wraps(long)
    def decorated(spec, params, x_gates, h_gates, state):
        return long(spec, params, x_gates, h_gates, state, 1)

    for step in (decorated, lambda *given: None, lambda a, b, c, d, e, f=1: None, partial(long, more=1)):
        Cell("mine", "mine", make_spec, step)


def test_a_squash_of_one_s_own_runs_on_the_reference(monkeypatch):
    """Its name does not say what it computes, now or in a later process."""
    for name in ("mine", "exp"):
        monkeypatch.setitem(SQUASHES, name, lambda z, hard: torch.nn.functional.softplus(z))
        spec = Spec(4, (Gate("g", 4, name, memory=False), Gate("f", 4)), ("h",))
        told = kept.kept(lstm.step, spec)
        assert told == f"the squash '{name}' of its gate g is not one of the package's own"


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


def test_settings_of_gates_that_only_an_option_gives_a_cell_are_kept(registered):
    def maybe(hidden_size, *, ordered=False):
        return (
            grouped(hidden_size, groups=3)
            if ordered
            else Spec(hidden_size, (Gate("forget_gate", hidden_size),), ("h",))
        )

    registered(Cell("mine", "mine", maybe, grouped_step, options={"ordered": False}))
    values = {"cell": "mine", "options": {"ordered": True}, "tree_layer": 1, "tree_gate": "both", "master_bias": 2.0}
    assert LanguageModelConfig.without_unread(values) == values
    assert LanguageModelConfig.without_unread(values | {"options": {}}).keys() == {"cell", "options"}


def test_no_option_is_called_like_an_argument_of_a_layer():
    arguments = {*inspect.signature(RecurrentBase).parameters, *inspect.signature(Recurrent).parameters}
    assert set(ARGUMENTS) == arguments - {"options"}
    with pytest.raises(ArgumentError, match=r"not have the name of a layer's argument.* got 'dropout'"):
        own(scaled, options={"dropout": 0.3})


@pytest.mark.parametrize(
    "given, rule",
    [({"k": "2"}, "a number"), ({"k": True}, "a number"), ({"n": 2.0}, "an integer"), ({"f": 1}, "True or False")],
)
def test_an_option_has_the_type_of_its_default(given, rule):
    def make_spec(hidden_size, k, n, f):
        return Spec(hidden_size, N, ("h",), constants=(("k", k * n),))

    cell = Cell("mine", "mine", make_spec, scaled, {"k": 1.0, "n": 2, "f": False})
    assert Recurrent(cell, D, H, k=2, n=numpy.int64(3), f=numpy.True_).options == {"k": 2, "n": 3, "f": True}
    with pytest.raises(ArgumentError, match=f"must be {rule}; got"):
        Recurrent(cell, D, H, **given)


def test_a_step_that_is_a_partial_is_explained(registered):
    registered(Cell("mine", "mine", partial(grouped, groups=1), partial(grouped_step)))
    places = {hop["what"]: hop["where"] for hop in explain.hops("mine")["hops"]}
    assert "test_own_cells.py:" in places["step"] and "test_own_cells.py:" in places["rows of weights"]
