"""Cells whose kernels are compiled from their equation: the registered ones, which have rows by hand too, and new ones."""

import types

import numpy as np
import numpy.random as npr
import pytest
import torch
from harness import VARIANTS, every_cell, make
from torch.nn import functional as F

from gatedrnn import Gates, Recurrent
from gatedrnn.cells import CELLS, Cell, Extra, Gate, Spec
from gatedrnn.compiler.cell import compile_cell
from gatedrnn.compiler.kept import kept
from gatedrnn.core.errors import BackendError

harness = types.ModuleType("harness")
harness.slope = 2.0
B, T, D = 3, 5, 7


def recompiled(name, **options):
    """A registered cell under another step, which has no rows of its own."""
    cell = CELLS[name]

    def step(*given):
        return cell.step(*given)

    return Cell("mine", "mine", lambda hidden_size: cell.make_spec(hidden_size, **{**cell.options, **options}), step)


def mgu_spec(hidden_size):
    gates = Gate("forget_gate", hidden_size), Gate("cell_candidate", hidden_size, "tanh")
    return Spec(hidden_size, gates, ("h",), recurrent_gates=1)


def mgu_step(spec, params, x_gates, h_gates, state):
    """f = σ(W x + U h' + b); n = tanh(W x + U (f∘h') + b); h = (1 − f)∘h' + f∘n (Zhou et al. 2016)."""
    (h,) = state
    x_f, x_n = spec.split(x_gates)
    f = spec.squash("forget_gate", x_f + h_gates)
    first = spec.recurrent_rows
    b = None if params.bias_hh is None else params.bias_hh[first:]
    n = spec.squash("cell_candidate", x_n + F.linear(f * h, params.weight_hh[first:], b))
    h = (1 - f) * h + f * n
    return (h,), {"forget_gate": f, "cell_candidate": n}


def normed_step(spec, params, x_gates, h_gates, state):
    """An LSTM whose new c is divided by the root of its mean square, and whose output gate reads it."""
    _, c = state
    a_i, a_f, a_g, a_o = spec.split(x_gates + h_gates)
    i, f = spec.squash("input_gate", a_i), spec.squash("forget_gate", a_f)
    g, o = spec.squash("cell_candidate", a_g), spec.squash("output_gate", a_o)
    c = f * c + i * g
    c = c / torch.exp(0.5 * torch.log((c * c).sum(-1, keepdim=True) / spec.hidden_size + 0.1))
    h = o * torch.tanh(c)
    return (h, c), {"input_gate": i, "forget_gate": f, "cell_candidate": g, "output_gate": o}


def own_spec(hidden_size):
    gates = Gate("update_gate", hidden_size), Gate("cell_candidate", hidden_size, "tanh")
    owners = ("update_gate", "cell_candidate", "update_gate")
    extras = Extra("weight_mix", owners, full=True), Extra("weight_out", ("cell_candidate",), full=True)
    return Spec(hidden_size, gates, ("h", "c"), recurrent_gates=1, extras=(*extras, Extra("scale", ("update_gate",))))


def own_step(spec, params, x_gates, h_gates, state):
    """Products with matrices of the cell's own, in a gate's sum and beside it: of h', of c', and of what the step computes."""
    h, c = state
    x_z, x_n = spec.split(x_gates)
    M_z, M_n, M_r = params.extras["weight_mix"].chunk(3)
    z = spec.squash("update_gate", x_z + h_gates + F.linear(c, M_z, params.extras["scale"]))
    r = torch.sigmoid(h @ M_r.T)
    first = spec.recurrent_rows
    b = None if params.bias_hh is None else params.bias_hh[first:]
    n = spec.squash("cell_candidate", x_n + F.linear(r * h, params.weight_hh[first:], b))
    mixed = torch.tanh(torch.mm(z * n, M_n.t()))
    c = z * c + (1 - z) * mixed
    h = torch.tanh(F.linear(c, params.extras["weight_out"])) * r + 0.5 * n
    return (h, c), {"update_gate": z, "cell_candidate": n}


MGU = Cell("mgu", "MGU", mgu_spec, mgu_step)
OWN = Cell("own", "own matrices", own_spec, own_step)
BINARY = Gates(straight_through=True)
CELLS_HERE = {
    "lstm": (recompiled("lstm"), 13, Gates()),
    "onlstm-hard": (recompiled("onlstm", chunk_size=3), 24, BINARY),
    "own": (OWN, 11, Gates()),
    "own-1": (OWN, 1, BINARY),
    "own-cool": (OWN, 35, Gates(temperature=0.7, noise_probability=0.5)),
    "mgu": (MGU, 11, Gates()),
    "mgu-1": (MGU, 1, BINARY),
    "mgu-cool": (MGU, 11, Gates(temperature=0.7)),
}


def results(layer, x, lengths, noise, backend):
    """Output, states, gates and every gradient."""
    layer.backend = backend
    layer.zero_grad()
    x = x.clone().requires_grad_()
    output, states, traces = layer(x, lengths=lengths, return_gates=True, noise=noise)
    states = states if isinstance(states, tuple) else (states,)
    shown = [gate for trace in traces for gate in trace.values()]
    weights = torch.linspace(-1, 2, output.numel(), dtype=x.dtype).view_as(output)
    loss = (output * weights).sum() + sum((state**2).sum() for state in states)
    (loss + sum((gate * gate.cumsum(-1)).sum() for gate in shown)).backward()
    return [output, *states, *shown, x.grad, *(p.grad.clone() for p in layer.parameters())]


@pytest.mark.parametrize("name", CELLS_HERE)
def test_a_compiled_cell_is_its_equation(name):
    cell, hidden, gates = CELLS_HERE[name]
    layer = Recurrent(cell, D, hidden, gates=gates, bidirectional=True, dtype=torch.float64)
    x = torch.randn(T, B, D, dtype=torch.float64)
    for lengths in (None, [5, 2, 4]):
        noise = layer.sample_noise(T, B)
        expected = results(layer, x, lengths, noise, "reference")
        found = results(layer, x, lengths, noise, "cpu")
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def test_a_compiled_cell_runs_in_float32_without_gradients_and_by_itself():
    layer = Recurrent(MGU, D, 40)
    x = torch.randn(30, 4, D)
    with torch.no_grad():
        for _ in range(2):
            output, h = layer(x)
        layer.backend = "reference"
        expected, last = layer(x)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(h, last, atol=1e-5, rtol=1e-5)


def needs_logits(spec, params, x_gates, h_gates, state):
    a = x_gates + h_gates
    h = spec.squash("cell_candidate", a) * torch.tanh(a)
    return (h,), {"cell_candidate": spec.squash("cell_candidate", a)}


def three_states(spec, params, x_gates, h_gates, state):
    """The candidate, its sum over the steps, and how many steps there were."""
    candidate = spec.squash("cell_candidate", x_gates + h_gates)
    _, total, count = state
    total, count = total + candidate, count + 1
    return (total / count, total, count), {"cell_candidate": candidate}


def matrix_spec(hidden_size):
    return Spec(hidden_size, (Gate("cell_candidate", hidden_size, "tanh"),), ("h",), extras=(MATRIX,))


MATRIX = Extra("weight_own", ("cell_candidate", "cell_candidate"), full=True)


def with_matrices(given):
    """A step whose candidate is made of what `given` makes of the state and of both parts of a matrix of its own."""

    def step(spec, params, x_gates, h_gates, state):
        own = given(state[0], *params.extras["weight_own"].chunk(2))
        h = spec.squash("cell_candidate", x_gates + h_gates + own)
        return (h,), {"cell_candidate": h}

    return step


def not_turned(h, P, Q):
    return h @ P + h @ Q.t()


def one_alone(h, P, Q):
    return h @ P.t()


def twice(h, P, Q):
    return h @ P.t() + torch.tanh(h) @ P.t() + h @ Q.t()


def elementwise(h, P, Q):
    return h @ (2 * P).t() + h @ Q.t()


def detached_matrix(h, P, Q):
    return h @ P.detach().t() + h @ Q.t()


def detached_state(h, P, Q):
    return h.detach() @ P.t() + h @ Q.t()


def part_of_a_part(h, P, Q):
    return torch.cat((h @ P[:2].t(), h @ P[2:].t()), -1) + h @ Q.t()


def sorting(spec, params, x_gates, h_gates, state):
    h = torch.sort(torch.tanh(x_gates + h_gates)).values
    return (h,), {"cell_candidate": h}


def branching(spec, params, x_gates, h_gates, state):
    h = torch.tanh(x_gates + h_gates)
    return ((h if h.sum() > 0 else -h),), {"cell_candidate": h}


def shows_more(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h,), {"cell_candidate": h, "double": 2 * h}


def shows_another(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h,), {"cell_candidate": 2 * h}


def over_the_batch(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h - h.sum(0, keepdim=True),), {"cell_candidate": h}


def along_chunks(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return ((h.view(-1, 2, 3) - h.view(-1, 2, 3).sum(1, keepdim=True)).view(-1, 6),), {"cell_candidate": h}


def outer(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return ((h[:, :, None] * state[0][:, None, :]).sum(-1),), {"cell_candidate": h}


def with_alpha(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", torch.add(x_gates, h_gates, alpha=2))
    return (h,), {"cell_candidate": h}


def truncated(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h * (3 * h).to(torch.int32),), {"cell_candidate": h}


def reads_w(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h * params.bias_ih,), {"cell_candidate": h}


def reads_u(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h + state[0] @ params.weight_hh.t(),), {"cell_candidate": h}


def running(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", (x_gates + h_gates).cumsum(0))
    return (h,), {"cell_candidate": h}


SETTINGS = {"slope": 2.0}
slope = 2.0


def reads_settings(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", SETTINGS["slope"] * (x_gates + h_gates))
    return (h,), {"cell_candidate": h}


def reads_a_number(spec, params, x_gates, h_gates, state):
    def inner(values):
        return slope * values

    h = spec.squash("cell_candidate", inner(x_gates + h_gates))
    return (h,), {"cell_candidate": h}


def over_all(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h - h.sum(),), {"cell_candidate": h}


def first_row(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h + h[:1],), {"cell_candidate": h}


def nothing_of_it(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h + h[:, : spec.hidden_size - 6].sum(-1, keepdim=True),), {"cell_candidate": h}


def one_a_row(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h.mean(-1, keepdim=True),), {"cell_candidate": h}


def by_batch(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h / len(h),), {"cell_candidate": h}


def by_type(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h + torch.finfo(h.dtype).eps,), {"cell_candidate": h}


def two_states(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", x_gates + h_gates)
    return (h, h), {"cell_candidate": h}


class Config:
    slope = 2.0


ACTIVATION = torch.nn.Softplus(beta=2)


def reads_a_class(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", Config.slope * (x_gates + h_gates))
    return (h,), {"cell_candidate": h}


def reads_a_module(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", ACTIVATION(x_gates + h_gates))
    return (h,), {"cell_candidate": h}


def reads_a_file(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", harness.slope * (x_gates + h_gates))
    return (h,), {"cell_candidate": h}


def draws(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", (1.0 if np.random.rand() < 2 else 0.5) * (x_gates + h_gates))
    return (h,), {"cell_candidate": h}


def looks_up(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", globals()["slope"] * (x_gates + h_gates))
    return (h,), {"cell_candidate": h}


def draws_by_an_alias(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", (1.0 if npr.rand() < 2 else 0.5) * (x_gates + h_gates))
    return (h,), {"cell_candidate": h}


def stores(spec, params, x_gates, h_gates, state):
    global last
    h = spec.squash("cell_candidate", x_gates + h_gates)
    last = h.detach().mean()
    return (h,), {"cell_candidate": h}


last = 0.0


def reads_words(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", (2 if mode == "twice" else 1) * (x_gates + h_gates))
    return (h,), {"cell_candidate": h}


def reads_a_pair(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", betas[0] * (x_gates + h_gates))
    return (h,), {"cell_candidate": h}


mode, betas = "twice", (0.5, 1.0)


def rnn_spec(hidden_size):
    return Spec(hidden_size, (Gate("cell_candidate", hidden_size, "tanh"),), ("h",))


@pytest.mark.parametrize(
    "step, words",
    [
        (sorting, "operation sort"),
        (branching, "cannot be traced: "),
        (shows_more, "double"),
        (shows_another, "cell_candidate"),
        (over_the_batch, "along dimension 0"),
        (along_chunks, "along dimension 1"),
        (outer, "the operation mul that gives"),
        (with_alpha, "add with alpha"),
        (truncated, "conversion to torch.int32"),
        (reads_w, "parameter"),
        (reads_u, "b_hh"),
        (running, "along dimension 0"),
        (reads_settings, "SETTINGS, read from outside"),
        (reads_a_number, "slope, read from outside"),
        (reads_a_class, "Config, read from outside"),
        (reads_words, "mode, read from outside"),
        (reads_a_pair, "betas, read from outside"),
        (draws, "random, which may change"),
        (looks_up, "globals, which may change"),
        (draws_by_an_alias, "npr, which may change"),
        (stores, "last, which it sets outside of it"),
        (reads_a_module, "ACTIVATION, read from outside"),
        (reads_a_file, "harness, read from outside"),
        (over_all, "over more than one dimension"),
        (first_row, "along dimension 0"),
        (nothing_of_it, "a slice within a gate that is empty"),
        (by_batch, "batch's size or type"),
        (by_type, "batch's size or type"),
    ],
)
def test_what_is_not_compiled_says_why_and_runs_on_the_reference(step, words):
    layer = Recurrent(Cell("mine", "mine", rnn_spec, step), D, 6, dtype=torch.float64)
    x = torch.randn(T, B, D, dtype=torch.float64)
    found = layer(x)[0]
    layer.backend = "reference"
    assert torch.equal(found, layer(x)[0])
    layer.backend = "cpu"
    with pytest.raises(BackendError, match=words) as caught:
        layer(x)
    assert "\n" not in str(caught.value)


hidden_size = 64  # another one than the step's


def open(values):
    return values


def reads_an_attribute(spec, params, x_gates, h_gates, state):
    h = spec.squash("cell_candidate", open(x_gates + h_gates) / spec.hidden_size)
    return (h,), {"cell_candidate": h}


def test_an_attribute_is_no_global_of_its_name():
    layer = Recurrent(Cell("mine", "mine", rnn_spec, reads_an_attribute), D, 6, dtype=torch.float64)
    x = torch.randn(T, B, D, dtype=torch.float64)
    found = layer(x)[0]
    for backend in ("cpu", "reference"):
        layer.backend = backend
        torch.testing.assert_close(layer(x)[0], found, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "step, words", [(one_a_row, r"h of \[B, 1\], not \[B, 6\]"), (two_states, "2 new states, not the 1")]
)
def test_states_of_other_shapes_are_named(step, words):
    layer = Recurrent(Cell("mine", "mine", rnn_spec, step), D, 6, backend="cpu")
    with pytest.raises(BackendError, match=words) as caught:
        layer(torch.randn(T, B, D))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "given, words",
    [
        (not_turned, "a matrix that is not transposed"),
        (one_alone, "rows of a matrix of the cell's own that no product has"),
        (twice, "the same rows of a matrix"),
        (elementwise, "mul of a matrix, which only a product takes"),
        (detached_matrix, "a matrix that is detached"),
        (detached_state, "has no gradient, or whose left factor has none"),
        (part_of_a_part, "through the middle of a gate"),
    ],
)
def test_products_that_are_not_compiled_say_why_and_run_on_the_reference(given, words):
    layer = Recurrent(Cell("mine", "mine", matrix_spec, with_matrices(given)), D, 6)
    x = torch.randn(T, B, D)
    found = layer(x)[0]
    layer.backend = "reference"
    assert torch.equal(found, layer(x)[0])
    layer.backend = "cpu"
    with pytest.raises(BackendError, match=words) as caught:
        layer(x)
    assert "\n" not in str(caught.value)


def three_spec(hidden_size):
    return Spec(hidden_size, (Gate("cell_candidate", hidden_size, "tanh"),), ("h", "c", "n"))


@pytest.mark.parametrize(
    "make_spec, step",
    [(rnn_spec, needs_logits), (three_spec, three_states), (CELLS["lstm"].make_spec, normed_step)],
    ids=["logits", "three states", "a reduction over the row"],
)
def test_a_step_of_another_form_is_its_equation(make_spec, step):
    layer = Recurrent(Cell("mine", "mine", make_spec, step), D, 21, dtype=torch.float64)
    x = torch.randn(T, B, D, dtype=torch.float64)
    found, expected = (results(layer, x, None, None, backend) for backend in ("cpu", "reference"))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@every_cell
def test_cells_of_other_sizes_share_their_kernels(variant):
    step, cells = CELLS[VARIANTS[variant][0]].step, [make(variant, D, hidden) for hidden in (15, 35)]
    first, second = kept(step, cells[0].spec), compile_cell(step, cells[1].spec)
    assert (first.forward, first.backward) == (second.forward, second.backward)


def test_a_whole_number_of_the_step_that_is_no_size_stays():
    def step(spec, params, x_gates, h_gates, state):
        (h,) = state
        a = spec.squash("hidden", x_gates + h_gates)
        return (a * 3 + h.mean(-1, keepdim=True),), {"hidden": a}

    cell = Cell("three", "three", lambda hidden: Spec(hidden, (Gate("hidden", hidden, "tanh"),), ("h",)), step)
    for hidden in (1, 2, 3, 4):
        layer = Recurrent(cell, D, hidden, dtype=torch.float64, backend="cpu")
        x = torch.randn(T, B, D, dtype=torch.float64)
        found = layer(x)[0]
        layer.backend = "reference"
        torch.testing.assert_close(found, layer(x)[0], rtol=1e-12, atol=1e-12)
