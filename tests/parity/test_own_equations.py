"""Equations that once gave wrong numbers: compiled now, or refused in a line that names the operation."""

import copy
import os
import types

import pytest
import torch
from test_compiled_cells import results
from torch.nn import functional as F

from gatedrnn import Gates, Recurrent
from gatedrnn.cells import CELLS, Cell, Extra, Gate, Spec, repeat_chunks
from gatedrnn.core.errors import ArgumentError, BackendError
from gatedrnn.sequence.plan import Plan, plan_for

H, T, B, D = 6, 3, 4, 3


def gates(count, units=H):
    names = ("a", "b", "n")[3 - count :]
    return tuple(Gate(name, units, "tanh" if name == "n" else "sigmoid") for name in names)


def of_whole_rows(spec, params, x_gates, h_gates, state):
    """A masked softmax in two states, two states that nothing reads, an extra under a sum from the left."""
    n = spec.squash("n", x_gates + h_gates)
    q = torch.softmax((n * torch.cumsum(params.extras["w"], -1)).masked_fill(n < -0.3, float("-inf")), -1)
    return (q, q, torch.tanh(n), (n * 0.5).detach()), {"n": n}


def of_chunks(spec, params, x_gates, h_gates, state):
    """An extra with a value a chunk."""
    m, n = (spec.squash(gate.name, part) for gate, part in zip(spec.gates, spec.split(x_gates + h_gates), strict=True))
    return (n * repeat_chunks(params.extras["w"][None], spec.hidden_size),), {"m": m, "n": n}


def without_x(spec, params, x_gates, h_gates, state):
    """Two gates of three whose W gets no gradient."""
    first, rest = h_gates.split([H, 2 * H], 1)
    a, (b, n) = spec.squash("a", spec.split(x_gates)[0] + first), rest.chunk(2, 1)
    b, n = spec.squash("b", b), spec.squash("n", n)
    return (a * n + (1 - a) * b,), {"a": a, "b": b, "n": n}


def product_of_h(spec, params, x_gates, h_gates, state):
    """The last gate multiplies h' inside the step, as it is."""
    x_b, x_n = spec.split(x_gates)
    rows = spec.recurrent_rows
    b = spec.squash("b", x_b + h_gates)
    bias = None if params.bias_hh is None else params.bias_hh[rows:]
    n = spec.squash("n", x_n + F.linear(state[0], params.weight_hh[rows:], bias))
    return (b * n + (1 - b) * state[0],), {"b": b, "n": n}


def times_a_product(spec, params, x_gates, h_gates, state):
    """The last gate's W x is multiplied by the product inside the step, whose gradient therefore reads it."""
    x_b, x_n = spec.split(x_gates)
    rows = spec.recurrent_rows
    b = spec.squash("b", x_b + h_gates)
    bias = None if params.bias_hh is None else params.bias_hh[rows:]
    n = spec.squash("n", x_n * F.linear(b * state[0], params.weight_hh[rows:], bias))
    return (b * n + (1 - b) * state[0],), {"b": b, "n": n}


def again_after_it(spec, params, x_gates, h_gates, state):
    """What the product inside the step multiplies is read again after it."""
    x_b, x_n = spec.split(x_gates)
    rows = spec.recurrent_rows
    kept = spec.squash("b", x_b + h_gates) * state[0]
    bias = None if params.bias_hh is None else params.bias_hh[rows:]
    n = spec.squash("n", x_n + F.linear(kept, params.weight_hh[rows:], bias))
    return (kept + 0.5 * n,), {"b": spec.squash("b", x_b + h_gates), "n": n}


def times_its_own(spec, params, x_gates, h_gates, state):
    """The last gate's sum is multiplied by a product with a matrix of the cell's own."""
    a, b, n = spec.split(x_gates + h_gates)
    a, b = spec.squash("a", a), spec.squash("b", b)
    n = spec.squash("n", n * F.linear(a * state[1], params.extras["w"]))
    c = b * n + (1 - b) * state[1]
    return (a * torch.tanh(c), c), {"a": a, "b": b, "n": n}


def a_free_master(spec, params, x_gates, h_gates, state):
    """A state that is a master gate with a split point past its units: the beginning of a longer row."""
    m, n = (spec.squash(gate.name, part) for gate, part in zip(spec.gates, spec.split(x_gates + h_gates), strict=True))
    return (torch.tanh(n * state[0] + 0.3 * m), m), {"m": m, "n": n}


def by_shapes(spec, params, x_gates, h_gates, state):
    """Sizes of the batch that only make other tensors, names that tensors have too, a copy that a batch of one does not need."""
    size, width = x_gates.shape
    a, b = spec.split(x_gates + h_gates)
    size = size if a.shape == b.shape and size == h_gates.size(0) and width == spec.rows else 0
    a, b = spec.squash("storage", a.contiguous().view(size, -1)), spec.squash("grad", b)
    ones = torch.ones(size, spec.hidden_size, dtype=a.dtype)
    return (a * state[0] * spec.constant("seed") + (ones - a) * b.reshape(b.shape),), {"storage": a, "grad": b}


MASTERS = (Gate("m", 3, "cumax"), Gate("n", H, "tanh"))
RIGHT = {
    "whole rows": (Spec(H, gates(1), ("h", "c", "u", "v"), extras=(Extra("w", ("n",)),)), of_whole_rows),
    "chunks": (Spec(H, MASTERS, ("h",), extras=(Extra("w", ("m",)),)), of_chunks),
    "shapes": (Spec(H, (Gate("storage", H), Gate("grad", H, "tanh")), ("h",), constants=(("seed", 0.5),)), by_shapes),
    "no x": (Spec(H, gates(3), ("h",)), without_x),
    "a free master": (Spec(H, (Gate("m", H + 1, "cumax", H), Gate("n", H, "tanh")), ("h", "c")), a_free_master),
    "times a product": (Spec(H, gates(2), ("h",), recurrent_gates=1), times_a_product),
    "times its own": (Spec(H, gates(3), ("h", "c"), extras=(Extra("w", ("n",), full=True),)), times_its_own),
    "again after it": (Spec(H, gates(2), ("h",), recurrent_gates=1), again_after_it),
    "a product of h": (Spec(H, gates(2), ("h",), recurrent_gates=1), product_of_h),
}


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("name", RIGHT)
def test_every_value_reaches_every_place(name, backend, monkeypatch):
    if backend == "triton":
        pytest.importorskip("triton", minversion="3.4")
        monkeypatch.setitem(os.environ, "TRITON_INTERPRET", "1")
    spec, step = RIGHT[name]
    layer = Recurrent(Cell("own", "own", lambda hidden_size: spec, step), D, H, dtype=torch.float64)
    x = torch.randn(T, B, D, dtype=torch.float64)
    if name == "times its own" and backend == "triton":
        with pytest.raises(BackendError, match="a product with a matrix of the cell's own"):
            results(layer, x, None, None, backend)
        return
    for found, expected in zip(*(results(layer, x, None, None, each) for each in (backend, "reference")), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


def across_rows(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * (n.sum(-1).detach()[:, None] - n.sum(-1).detach()[None, :]).sum(-1, keepdim=True),), {"n": n}


def most_of_rows(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * n.amax(-1).amax(0).detach(),), {"n": n}


def truths_added(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * ((n > 0) + (state[0] > 0)),), {"n": n}


def logic_of_numbers(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * torch.logical_or(n, state[0]),), {"n": n}


def bits_of_a_count(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * ((n > 0).sum(-1, keepdim=True) & 1),), {"n": n}


def a_number_cut_off(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * torch.full_like(n, 1.7, dtype=torch.int64),), {"n": n}


def by_precision(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (torch.tanh(n) if n.dtype == torch.float64 else torch.sigmoid(n),), {"n": n}


def by_bias(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n if params.bias_hh is None else 2 * n,), {"n": n}


def by_mode(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n if torch.is_grad_enabled() else 2 * n,), {"n": n}


def by_gradient(spec, params, x_gates, h_gates, state):
    b = spec.squash("n", x_gates)
    return (2 * b if b.requires_grad else b,), {"n": b}


def by_name(spec, params, x_gates, h_gates, state):
    b = spec.squash("n", x_gates)
    return (2 * b if getattr(state[0], "is_leaf") else b,), {"n": b}  # noqa: B009 - as a name alone


def by_threads(spec, params, x_gates, h_gates, state):
    b = spec.squash("n", x_gates)
    return (2 * b if torch.get_num_threads() > 1 else b,), {"n": b}


def by_length(spec, params, x_gates, h_gates, state):
    b = spec.squash("n", x_gates)
    return (2 * b if len(b) == 1 else b,), {"n": b}


def by_one(spec, params, x_gates, h_gates, state):
    b = spec.squash("n", x_gates)
    return (2 * b if b.size(0) == 1 else b,), {"n": b}


def by_some(spec, params, x_gates, h_gates, state):
    b = spec.squash("n", x_gates)
    return (2 * b if b.shape[0] in (16, 32) else b,), {"n": b}


def by_a_share(spec, params, x_gates, h_gates, state):
    b = spec.squash("n", x_gates)
    return (2 * b if b.shape[0] * 2 - 1 > 10.0 else b,), {"n": b}


def by_elements(spec, params, x_gates, h_gates, state):
    b = spec.squash("n", x_gates)
    return (2 * b if b.numel() >= 300 else b,), {"n": b}


def by_width(spec, params, x_gates, h_gates, state):
    b = spec.squash("n", x_gates)
    return (2 * b if b.shape[0] == spec.hidden_size else b,), {"n": b}


def by_a_helper(spec, params, x_gates, h_gates, state):
    b = spec.squash("n", x_gates)
    return (_doubled_between(b, 100, LARGE),), {"n": b}


LARGE = 120


def _doubled_between(b, low, high):
    return 2 * b if low < b.shape[0] < high else b


def by_import(spec, params, x_gates, h_gates, state):
    import pytest as settings

    n = spec.squash("n", x_gates + h_gates)
    return (n * len(settings.__name__),), {"n": n}


def by_attribute(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * by_attribute.slope,), {"n": n}


by_attribute.slope = 2.0


def not_a_number(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (torch.where(n > 2, float("nan"), n),), {"n": n}


def other_chunks(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * n.view(-1, 2, 3).mean(-1).sum(-1, keepdim=True),), {"n": n}


def a_power(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (2**n,), {"n": n}


def interleaved(spec, params, x_gates, h_gates, state):
    both = ((x_gates + h_gates).view(-1, H, 2) * state[0].detach().unsqueeze(-1)).reshape(-1, 2 * H)
    b, n = (spec.squash(gate.name, part) for gate, part in zip(spec.gates, spec.split(both), strict=True))
    return (b * n,), {"b": b, "n": n}


def no_product(spec, params, x_gates, h_gates, state):
    x_b, x_n = spec.split(x_gates)
    b, n = spec.squash("b", x_b + h_gates), spec.squash("n", x_n)
    return ((1 - b) * state[0] + b * n,), {"b": b, "n": n}


ONE, TWO = Spec(H, gates(1), ("h",)), Spec(H, gates(2), ("h",))
REFUSED = [
    (across_rows, ONE, "across rows of the batch"),
    (most_of_rows, ONE, r"operation amax across rows of the batch \(test_own_equations.py:"),
    (truths_added, ONE, r"operation add of truth values \(test_own_equations.py:"),
    (logic_of_numbers, ONE, "logical_or of values that are not true or false"),
    (bits_of_a_count, ONE, "bitwise_and of values that are not true or false"),
    (a_number_cut_off, ONE, "the number 1.7 as torch.int64"),
    (by_precision, ONE, "operations that follow from the batch's size or type"),
    (by_bias, ONE, "params.bias_hh, a parameter that a layer with bias=False does not have"),
    (by_mode, ONE, "is_grad_enabled, which may change"),
    (by_gradient, ONE, "requires_grad, which may change"),
    (by_name, ONE, "is_leaf, which may change"),
    (by_threads, ONE, "get_num_threads, which may change"),
    (by_length, ONE, r"len\(\), a number that follows from the batch's size"),
    (by_one, ONE, "a number that follows from the batch's size"),
    (by_some, ONE, "a number that follows from the batch's size"),
    (by_a_share, ONE, "a number that follows from the batch's size"),
    (by_elements, ONE, "a number that follows from the batch's size"),
    (by_width, ONE, "a number that follows from the batch's size"),
    (by_a_helper, ONE, "a number that follows from the batch's size"),
    (by_import, ONE, "import of pytest inside it"),
    (by_attribute, ONE, "by_attribute.slope"),
    (not_a_number, ONE, "the constant NaN"),
    (other_chunks, ONE, "chunks of 3 units"),
    (a_power, ONE, r"a power that is computed \(test_own_equations.py:"),
    (interleaved, TWO, "values of several gates in another shape"),
    (no_product, Spec(H, gates(2), ("h",), recurrent_gates=1), "no product inside it"),
    (no_product, Spec(H, gates(2), ("h",), recurrent_gates=0), "no gate with U h'"),
]


@pytest.mark.parametrize(
    "step, spec, words", REFUSED, ids=[f"{step.__name__}-{k}" for k, (step, *_) in enumerate(REFUSED)]
)
def test_refused_in_a_line_and_run_by_the_reference(step, spec, words):
    layer = Recurrent(Cell("own", "own", lambda hidden_size: spec, step), D, H, dtype=torch.float64)
    layer.backend = "cpu"
    with pytest.raises(BackendError, match=words) as caught:
        layer(torch.randn(T, B, D, dtype=torch.float64))
    assert "\n" not in str(caught.value)


class Slope(Spec):
    """A Spec with a number that no kernel sees."""


def test_a_spec_of_another_class_is_refused():
    spec = Slope(H, gates(1), ("h",))
    layer = Recurrent(Cell("own", "own", lambda hidden_size: spec, a_power), D, H, backend="cpu")
    with pytest.raises(BackendError, match="its Spec is a Slope"):
        layer(torch.randn(T, B, D))


class TestWhatChanges:
    """A layer has the equation of the time when it was made."""

    @staticmethod
    def space():
        """A module with a step and the constant that it reads."""
        space = types.ModuleType("space")
        text = (
            "import torch\nSLOPE = 1.0\n"
            "def step(spec, params, x_gates, h_gates, state):\n"
            "    n = spec.squash('n', x_gates + h_gates)\n    return (SLOPE * torch.tanh(n) + n,), {'n': n}\n"
        )
        exec(text, space.__dict__)
        return space

    @staticmethod
    def cell(space):
        return Cell(
            "changing", "changing", lambda hidden_size: Spec(hidden_size, gates(1, hidden_size), ("h",)), space.step
        )

    @pytest.mark.parametrize("backend", ["cpu", "triton"])
    def test_a_new_layer_has_the_constant_of_its_time(self, backend, monkeypatch):
        if backend == "triton":
            pytest.importorskip("triton", minversion="3.4")
            monkeypatch.setenv("TRITON_INTERPRET", "1")
        space, x = self.space(), torch.randn(T, B, D)
        for slope in (1.0, 3.0):
            space.SLOPE = slope
            new = Recurrent(self.cell(space), D, H)
            with torch.no_grad():
                new.backend = backend
                found = new(x)[0]
                new.backend = "reference"
                torch.testing.assert_close(found, new(x)[0])

    def test_a_graph_made_before_is_refused(self):
        from gatedrnn.sequence.plan import Plan, cell_of, plan_for

        space = self.space()
        plan = plan_for(space.step, Spec(H, gates(1), ("h",)))
        assert isinstance(plan, Plan) and cell_of(plan.kernel)[0] is space.step
        space.SLOPE = 3.0
        with pytest.raises(BackendError, match="must not change after its layer was made"):
            cell_of(plan.kernel)

    def test_a_change_before_the_first_call_is_refused(self):
        space = self.space()
        layer = Recurrent(self.cell(space), D, H, backend="cpu")
        space.SLOPE = 3.0
        with pytest.raises(BackendError, match="must not change after its layer was made"):
            layer(torch.randn(T, B, D))

    def test_a_compiled_graph_is_not_taken_for_a_layer_of_another_equation(self):
        space, x = self.space(), torch.randn(T, B, D)
        cell = self.cell(space)
        CELLS.register(cell.name, cell)
        layers = []
        try:
            for slope in (1.0, 3.0, 1.0):
                space.SLOPE = slope
                layers.append(Recurrent(cell.name, D, H, backend="cpu"))
                reference = Recurrent(cell.name, D, H, backend="reference")
                for layer in (layers[-1], copy.deepcopy(layers[0])):
                    reference.load_state_dict(layer.state_dict())
                    found = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)[0]
                    torch.testing.assert_close(found, reference(x)[0])
        finally:
            CELLS.remove(cell.name)
            torch.compiler.reset()

    def test_another_cell_under_its_name(self):
        """A layer computes on by the equation that it was made with, gradients too."""
        space, x = self.space(), torch.randn(T, B, D)
        cell = self.cell(space)
        CELLS.register(cell.name, cell)
        try:
            layer = Recurrent(cell.name, D, H, backend="cpu")
            with torch.no_grad():
                before = layer(x)[0]
            CELLS.remove(cell.name)
            CELLS.register(cell.name, self.cell(self.space()))
            after = layer(x)[0]
            after.sum().backward()
            found, layer.weight_hh_l0.grad = layer.weight_hh_l0.grad, None
            layer.backend = "reference"
            layer(x)[0].sum().backward()
            torch.testing.assert_close(after, before)
            torch.testing.assert_close(found, layer.weight_hh_l0.grad)
        finally:
            CELLS.remove(cell.name)


@pytest.mark.parametrize("name", ["a|b", "a,b", "a;b", "a b", ""])
def test_names_that_a_kernel_could_not_have(name):
    for made in (lambda: Spec(H, (Gate(name, H),), ("h",)), lambda: Spec(H, gates(1), (name,))):
        with pytest.raises(ArgumentError, match="names must consist of letters"):
            made()
    with pytest.raises(ArgumentError, match="a name must consist of letters"):
        CELLS.register(f"{name}:", Cell("own", "own", lambda hidden_size: ONE, by_mode))


@pytest.mark.parametrize("value", ["relu", None, [1.0], 10**400])
def test_constants_that_are_no_numbers(value):
    with pytest.raises(ArgumentError, match="must be numbers"):
        Spec(H, gates(1), ("h",), constants=(("k", value),))


def gated_last(spec, params, x_gates, h_gates, state):
    """A GRU whose candidate is a sigmoid gate: its W x and U h' stand apart, and so first in the kernel's columns."""
    (h,) = state
    (x_r, x_z, x_n), (h_r, h_z, h_n) = spec.split(x_gates), spec.split(h_gates)
    r, z = spec.squash("r", x_r + h_r), spec.squash("z", x_z + h_z)
    n = spec.squash("n", x_n + r * h_n)
    return ((1 - z) * n + z * h,), {"r": r, "z": z, "n": n}


def exponential(spec, params, x_gates, h_gates, state):
    """An exponential gate by the Spec's own squash."""
    a_i, a_n = spec.split(x_gates + h_gates)
    i, n = spec.squash("i", a_i), spec.squash("n", a_n)
    return (torch.tanh(i * n),), {"i": i, "n": n}


def hard_of_its_own(spec, params, x_gates, h_gates, state):
    a_i, a_n = spec.split(x_gates + h_gates)
    i, n = spec.squash("i", a_i), spec.squash("n", a_n)
    return (n * i + (1 - i) * state[0],), {"i": i, "n": n}


def layer_of(step, *gates, **kwargs):
    spec = Spec(H, gates, ("h",))
    return Recurrent(Cell("mine", "mine", lambda hidden_size: spec, step), D, H, dtype=torch.float64, **kwargs)


def test_noise_is_drawn_for_a_last_gate_that_stands_first():
    gates = Gates(temperature=0.7, noise_probability=0.5)
    layer = layer_of(gated_last, Gate("r", H), Gate("z", H), Gate("n", H), gates=gates).train()
    plan = plan_for(layer.cell.step, layer.spec)
    assert isinstance(plan, Plan) and plan.shift
    x, found = torch.randn(T, B, D, dtype=torch.float64), []
    for backend in ("cpu", "reference"):
        torch.manual_seed(3)
        found.append(results(layer, x, None, None, backend))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    "layer",
    [
        layer_of(exponential, Gate("i", H, "exp"), Gate("n", H, "tanh")),
        layer_of(
            hard_of_its_own,
            Gate("i", H, hard=True),
            Gate("n", H),
            gates=Gates(straight_through=True, names=("n",)),
        ),
    ],
    ids=["exp", "hard"],
)
def test_a_gate_of_a_cell_s_own_has_a_kernel(layer):
    x = torch.randn(T, B, D, dtype=torch.float64)
    for ours, expected in zip(*(results(layer, x, None, None, each) for each in ("cpu", "reference")), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)
    if any(gate.hard for gate in layer.spec.gates):
        assert set(layer(x, return_gates=("i",))[2][0]["i"].flatten().tolist()) <= {0.0, 1.0}
