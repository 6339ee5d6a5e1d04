"""Steps that have no kernel: one line that names the cell, the rule and the step's line."""

import re
import sys
import types

import numpy as np
import pytest
import torch
from own_steps import B, D, H, N, T, line_of, own, refusal
from torch.nn import functional as F

from gatedrnn import Recurrent
from gatedrnn.cells import Derived, Extra, Gate, Spec
from gatedrnn.compiler.kept import kept
from gatedrnn.core.errors import ArgumentError, BackendError


def every_second_row(spec, params, x, h, state):
    n = torch.tanh(x + h + torch.nn.functional.linear(state[0], params.extras["m"][::2]))
    return (n,), {"n": n}


def test_every_second_row_of_a_matrix_is_refused():
    found = kept(
        every_second_row,
        Spec(8, (Gate("n", 8, "tanh"), Gate("m", 8, "tanh")), ("h",), extras=(Extra("m", ("n", "m"), True),)),
    )
    assert isinstance(found, str)


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


TWO = Spec(H, (Gate("b", H), Gate("n", H, "tanh")), ("h",), recurrent_gates=1)


def branches(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n if n.sum() > 0 else -n,), {"n": n}


def chooses(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * n[n > 0].sum(),), {"n": n}


def reads_memory(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * float(np.from_dlpack(torch.ones(3)).sum()),), {"n": n}


def compiles(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (torch.compile(torch.relu)(n),), {"n": n}


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


def own_matrix(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n * params.weight_ih.sum(),), {"n": n}


slope = 2.0


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


def two_a_row(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (torch.cat([n, n]),), {"n": n}


def pairs(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return ((n[:, :, None] * n[:, None, :]).sum(-1),), {"n": n}


@pytest.mark.parametrize(
    "step, spec, words, place",
    [
        (branches, None, "cannot be traced: it reads a tensor's values", "n.sum()"),
        (chooses, None, "cannot be traced: it reads a tensor's values", "n[n > 0]"),
        (reads_memory, None, "cannot be traced: RuntimeError: Cannot access data pointer", "from_dlpack"),
        (compiles, None, "compile, which may change", "torch.compile"),
        (misfits, None, "cannot be traced", "torch.ones"),
        (a_tensor, None, "torch.tensor", "torch.tensor"),
        (own_bias, TWO, "b_hh by itself", "F.linear"),
        (own_matrix, None, "params.weight_ih or params.bias_ih, which only", "def own_matrix"),
        (reads_a_number, None, "slope, read from outside", "slope"),
        (reads_a_mode, None, "is_grad_enabled, which may change", "is_grad_enabled"),
        (imports, None, "import of pytest", "import pytest"),
        (one_a_row, None, "not [B, 6]", "def one_a_row"),
        (two_a_row, None, "of [2B, 6], not [B, 6]", "def two_a_row"),
        (pairs, None, "that gives [B, 6, 6]", "n[:, :, None]"),
    ],
)
def test_a_refusal_names_the_cell_and_the_line(step, spec, words, place):
    said = refusal(step, spec)
    assert words in said and line_of(step, place) in said and said.endswith("Use backend='auto' for the cell mine.")
    assert said.count("test_refused_steps.py:") == 1


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


def no_trace(spec, params, x_gates, h_gates, state):
    return (spec.squash("n", x_gates + h_gates),)


def trace_of_another_kind(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n,), n


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    "step, words",
    [
        (one_a_row, r"h of \[1, 1\], not \[1, 6\]"),
        (two_states, "2 states"),
        (no_tuple, "a Tensor"),
        (no_trace, "and a trace, gates by name; got 1 values"),
        (trace_of_another_kind, "got a trace that is a Tensor"),
    ],
)
def test_the_reference_refuses_states_of_another_form(step, words, steps):
    layer = Recurrent(own(step), D, H)
    with pytest.raises(ArgumentError, match=words) as caught:
        layer(torch.randn(steps, 1, D))
    assert "mine" in str(caught.value) and line_of(step, "def ") in str(caught.value)
    with pytest.raises(ArgumentError, match=re.sub("1, ", "4, ", words)):
        layer(torch.randn(steps, B, D))


def shows_no_row(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n,), {"n": n, "sum": n.sum(0)}


def test_the_reference_refuses_a_trace_that_is_no_row_each():
    layer = Recurrent(own(shows_no_row), D, H)
    layer(torch.randn(T, B, D))
    layer(torch.randn(T, B, D), return_gates=["n"])
    with pytest.raises(
        ArgumentError, match=rf"cell mine: .*a trace with sum of \[6\], not \[{B}, …\] \(test_refused_steps.py:"
    ):
        layer(torch.randn(T, B, D), return_gates=True)


def decays(spec, params, x_gates, h_gates, state):
    _, c = state
    n = spec.squash("n", x_gates + h_gates)
    c.mul_(0.9).add_(n)
    return (n, c), {"n": n}


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_step_that_writes_into_a_state_is_refused(mode, given):
    """It would change outputs that it gave before, or the caller's state; in inference mode, which counts no writes, copies."""
    layer = Recurrent(own(decays, Spec(H, N, ("h", "c"))), D, H)
    x, hx = torch.randn(T, B, D), tuple(torch.ones(1, B, H) for _ in range(2)) if given else None
    with mode():
        if mode is not torch.inference_mode or given:
            with pytest.raises(
                ArgumentError, match=r"its step must not write into a state; got a step that writes into (h or )?c "
            ) as caught:
                layer(x, hx)
            assert "cell mine" in str(caught.value) and line_of(decays, "def ") in str(caught.value)
            return
        lengths = [T, 1, T, 2]
        output, (_, c) = layer(x, lengths=lengths)
    expected = torch.zeros(B, H)
    for t, n in enumerate(output):
        alive = (t < torch.tensor(lengths))[:, None]
        expected = torch.where(alive, 0.9 * expected + n, expected)
    torch.testing.assert_close(c[0], expected)


def test_where_writes_are_not_counted_they_change_copies():
    layer = Recurrent(own(decays, Spec(H, N, ("h", "c"))), D, H)
    x, hx = torch.randn(T, B, D), tuple(torch.ones(1, B, H) for _ in range(2))
    expected = 0.9**T * torch.ones(B, H)
    with torch.no_grad():
        output, (_, c) = torch.vmap(lambda c: layer(x, (hx[0], c)))(hx[1][None])
    for k, n in enumerate(output[0]):
        expected = expected + 0.9 ** (T - 1 - k) * n
    torch.testing.assert_close(c[0, 0], expected)
    assert all(torch.equal(state, torch.ones_like(state)) for state in hx)


def adds_in_place(spec, params, x_gates, h_gates, state):
    n = x_gates.add_(h_gates).mul_(0.5)
    return (n,), {"n": n}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_step_may_write_into_its_logits_and_give_them(mode):
    """All steps' logits are views of one tensor, and count writes together."""
    layer = Recurrent(own(adds_in_place), D, H)
    x, h = torch.randn(T, B, D), torch.zeros(B, H)
    with mode():
        output = layer(x)[0]
    for x_t, found in zip(x, output, strict=True):
        h = F.linear(x_t, layer.weight_ih_l0, layer.bias_ih_l0) + F.linear(h, layer.weight_hh_l0, layer.bias_hh_l0)
        h = 0.5 * h
        torch.testing.assert_close(found, h)


def literal(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", 127 * x_gates + 131 * h_gates)
    return (n,), {"n": n}


def by_batch(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates * h_gates.shape[0])
    return (n,), {"n": n}


def test_a_number_is_no_size_of_the_batch_and_a_size_is_named():
    layer = Recurrent(own(literal), D, H, backend="cpu")
    x = torch.randn(T, B, D)
    found = layer(x)[0]
    layer.backend = "reference"
    torch.testing.assert_close(found, layer(x)[0], rtol=1e-4, atol=1e-4)
    assert "a number that follows from the batch's size" in refusal(by_batch)


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
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    said = []
    for text in (BAD, "# a comment\n" + BAD, BAD.replace("    return", "    # a comment\n    return")):
        space = types.ModuleType("space")
        exec(compile(text, "own_cell.py", "exec"), space.__dict__)
        for _ in range(2):
            said.append(kept(space.step, Spec(H, N, ("h",))))
            sys.modules["gatedrnn.compiler.kept"]._KNOWN.clear()  # the second time it is read from the disk
    lines = [re.search(r"own_cell.py:(\d+)", each).group(1) for each in said]
    assert lines == ["4", "4", "5", "5", "5", "5"]


def shows_other_sizes(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n,), {"n": n, "mean": n.mean(-1), "pairs": n.view(-1, 2, 3)}


def test_what_a_step_shows_is_masked_by_its_rows():
    """Whatever its dimensions are: beyond a row's length it is 0, before it what the row alone shows."""
    layer, x, lengths = Recurrent(own(shows_other_sizes), D, H), torch.randn(T, 2, D), torch.tensor([T, 2])
    gates = layer(x, lengths=lengths, return_gates=True)[-1][0]
    assert gates["mean"].shape == (T, 2) and gates["pairs"].shape == (T, 2, 2, 3)
    for row, length in enumerate(lengths.tolist()):
        alone = layer(x[:length, row : row + 1], return_gates=True)[-1][0]
        for name, gate in gates.items():
            torch.testing.assert_close(gate[:length, row], alone[name][:, 0])
            assert not gate[length:, row].any()
