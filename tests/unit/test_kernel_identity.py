"""What decides on a kernel: its name holds all that a step can read of its Spec, and the code that the step calls."""

import functools
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from own_steps import BACKENDS, B, D, H, N, T, agrees, one_gate, own
from torch.nn import functional as F

from gatedrnn import Recurrent
from gatedrnn.cells import CELLS, Cell, Extra, Gate, Spec
from gatedrnn.compiler.cell import Compiled
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.kept import kept
from gatedrnn.compiler.outside import fingerprint, mark
from gatedrnn.core.errors import BackendError
from gatedrnn.gates import SQUASHES
from gatedrnn.sequence.backends.cpu.recurrence.compiled import parts_of
from gatedrnn.sequence.plan import cell_of


def scaled(spec, params, x, h, state):
    n = torch.tanh((x + h) * spec.constant("k"))
    return (n,), {"n": n}


def test_a_constant_may_be_a_bool_and_one_of_a_layer_saved_before_a_number_of_numpy():
    assert not isinstance(kept(scaled, one_gate(8, constants=(("k", True),))), str)
    spec = one_gate(8, constants=(("k", 1.0),))
    object.__setattr__(spec, "constants", (("k", np.float64(0.5)),))  # as unpickling leaves it
    assert spec.text() == one_gate(8, constants=(("k", 0.5),)).text()


def functions(source):
    """The functions that a text defines, in a file without a name of its own."""
    space = {"torch": torch, "Cell": Cell, "one_gate": one_gate}
    exec(source, space)
    return space


BASE = """
def plain(spec, params, x, h, state):
    n = torch.tanh(NUMBER * (x + h))
    return (n,), {"n": n}
BASE = Cell("base", "base", one_gate, plain)
def outer(spec, params, x, h, state):
    new, shown = BASE.step(spec, params, x, h, state)
    return new, shown
"""
COUNT = """
def count(PARTS): return len(parts)
def outer(spec, params, x, h, state):
    n = torch.tanh((x + h) / count((1, 2)))
    return (n,), {"n": n}
"""


@pytest.mark.parametrize(
    ("one", "two"),
    [(BASE.replace("NUMBER", "1.0"), BASE.replace("NUMBER", "0.5")),
     (COUNT.replace("PARTS", "parts"), COUNT.replace("PARTS", "*parts"))],
)  # fmt: skip
def test_another_equation_has_another_fingerprint(one, two):
    assert fingerprint(functions(one)["outer"]) != fingerprint(functions(two)["outer"])
    assert mark(functions(one)["outer"]) != mark(functions(two)["outer"])


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


WRAPPED = """
import enum, functools, gatedrnn, torch, typing
import torch.nn.functional as F
class Opt(typing.NamedTuple):
    gain: float
    decay: float
class Level(enum.IntEnum):
    ONE = 1
    gain = property(lambda self: 2.0)
OPT = Opt(2.0, 1.0)
SHAPE = gatedrnn.cells.Gate("shape", 4, "tanh")
LEVEL = Level.ONE
@functools.wraps(F.hardtanh)
def doubled(n):
    return 2.0 * n
def step(spec, params, x_gates, h_gates, state):
    n = spec.squash('n', x_gates + h_gates)
    return (VALUE,), {'n': n}
"""


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        ("doubled(n)", "2.0 * n", "3.0 * n"),
        ("OPT.gain * n", "Opt(2.0, 1.0)", "Opt(decay=2.0, gain=1.0)"),
        ("OPT.gain * n", "    gain: float\n    decay: float", "    decay: float\n    gain: float"),
        ("LEVEL.gain * n", "self: 2.0", "self: 3.0"),
        ("SHAPE(n)", '"tanh"', '"relu"'),
    ],
    ids=["a helper under wraps", "other fields", "fields in another order", "a property", "a gate"],
)
def test_what_a_step_reads_of_its_file_decides(value, old, new):
    for text in (WRAPPED, WRAPPED.replace(old, new)):
        space = types.ModuleType("space")
        exec(text.replace("VALUE", value), space.__dict__)
        agrees(Recurrent(own(space.step), D, H), "auto")


def test_a_layer_may_be_made_before_a_helper_of_its_step(interpreted):
    space = types.ModuleType("space")
    exec(CHANGING.replace("SLOPE * torch.tanh(n)", "helper(n)"), space.__dict__)
    layer = Recurrent(own(space.step), D, H)
    exec("def helper(n): return 2.0 * torch.tanh(n)", space.__dict__)
    agrees(layer, "cpu")


def test_a_cell_that_takes_a_name_of_the_package_s_leaves_the_package_s_cell_its_own():
    gru, x = CELLS["gru"], torch.randn(T, B, D)
    layer = Recurrent("gru", D, 9)
    expected = agrees(layer, "cpu", x)

    def halved(spec, params, x_gates, h_gates, state):
        (h,), shown = gru.step(spec, params, x_gates, h_gates, state)
        return (0.5 * h,), shown

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CELLS, "_entries", dict(CELLS.items()))  # afterwards, all are in their order again
        CELLS.remove("gru")
        CELLS.register("gru", Cell("gru", "own", gru.make_spec, halved))
        parts_of.cache_clear()  # as if its kernels had not been needed yet
        layer.spec = replace(layer.spec)  # planned anew
        agrees(layer, "cpu", x)
        assert cell_of(f"gru:{layer.spec.text()}")[0] is gru.step
    assert torch.equal(expected, agrees(layer, "cpu", x))


@pytest.mark.parametrize(
    "text",
    ["import gatedrnn\nK = gatedrnn.cells.Derived('d', 'n', lambda n: 2.0 * n)", "class Own:\n    k = 2.0\nK = Own()"],
    ids=["derived", "a class made without a name"],
)
def test_what_holds_more_than_its_values_is_never_a_constant(text):
    space = {}
    exec(
        f"{text}\ndef step(spec, params, x_gates, h_gates, state):\n    K\n    return (x_gates + h_gates,), {{}}\n",
        space,
    )
    with pytest.raises(UnsupportedError, match="K, read from outside"):
        fingerprint(space["step"])


@pytest.mark.parametrize("way", ["cells.CELLS['base'].step", "gates.SQUASHES['base']"])
def test_what_others_may_enter_something_into_is_never_a_constant(way, registered, monkeypatch):
    text = "from gatedrnn import cells, gates\ndef step(spec, params, x_gates, h_gates, state):\n    return VALUE\n"
    given = "(spec, params, x_gates, h_gates, state)" if "CELLS" in way else "(x_gates + h_gates, False), {}"
    for factor in (1.0, 3.0):

        def base(spec, params, x_gates, h_gates, state, factor=factor):
            return (factor * spec.squash("n", x_gates + h_gates),), {}

        registered(Cell("base", "base", own(base).make_spec, base))
        monkeypatch.setitem(SQUASHES, "base", lambda z, hard, factor=factor: (factor * torch.tanh(z),))
        space = types.ModuleType("space").__dict__
        exec(text.replace("VALUE", way + given), space)
        agrees(Recurrent(own(space["step"]), D, H), "auto")
        CELLS.remove("base")


@pytest.mark.parametrize("known", [True, False], ids=["registered", "not registered"])
def test_a_step_under_wraps_of_the_package_s_own_is_not_the_package_s(registered, known):
    lstm = CELLS["lstm"]
    for factor in (1.0, 3.0):

        @functools.wraps(lstm.step)
        def step(spec, params, x_gates, h_gates, state, factor=factor):
            return lstm.step(spec, params, factor * x_gates, h_gates, state)

        cell = own(step, lstm.make_spec(H))
        agrees(Recurrent(registered(cell) if known else cell, D, H), "cpu")
        if known:
            CELLS.remove("mine")


def test_a_gate_of_ones_own_class_is_the_reference_s():
    class Sharp(Gate):
        def __call__(self, logits):
            return torch.sigmoid(4 * logits)

    def step(spec, params, x_gates, h_gates, state):
        n = spec.gate("n")(x_gates + h_gates)
        return (n,), {"n": n}

    layer = Recurrent(own(step, Spec(H, (Sharp("n", H),), ("h",))), D, H)
    agrees(layer, "auto")
    layer.backend = "cpu"
    with pytest.raises(BackendError, match="its n is a Sharp, which may hold values that kernels do not see"):
        layer(torch.randn(T, B, D))


def test_a_squash_under_wraps_of_the_package_s_own_is_not_the_package_s(monkeypatch):
    sigmoid = SQUASHES["sigmoid"]
    monkeypatch.setitem(SQUASHES, "sigmoid", functools.wraps(sigmoid)(lambda z, hard=False: 2 * sigmoid(z, hard)))
    assert "the squash 'sigmoid' of its gate n is not one of the package's own" in kept(
        scaled, Spec(H, (Gate("n", H),), ("h",))
    )


def test_layers_of_one_spec_have_the_equation_of_their_day():
    space = types.ModuleType("space")
    exec(CHANGING, space.__dict__)
    spec = one_gate(H)  # which make_spec gives to all
    for slope in (1.0, 3.0):
        space.SLOPE = slope
        agrees(Recurrent(own(space.step, spec), D, H), "cpu")


BAD = """
def step(spec, params, x_gates, h_gates, state):
    n = spec.squash('n', x_gates + h_gates)
    return (n.sort(-1).values,), {'n': n}
"""


def test_a_kernel_is_found_again_whatever_stands_above_it():
    found = []
    good = BAD.replace("n.sort(-1).values", "n")
    for text in (good, "# a comment\n" + good):
        space = types.ModuleType("space")
        exec(compile(text, "own_cell.py", "exec"), space.__dict__)
        found.append(kept(space.step, Spec(H, N, ("h",))))
    assert isinstance(found[0], Compiled) and found[0] is found[1]
