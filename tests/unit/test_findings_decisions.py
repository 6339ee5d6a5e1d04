"""What a step may decide by shows in its graphs; what its kernels' name holds; iterators and odd cells."""

import numpy as np
import pytest
import torch

from gatedrnn import Recurrent
from gatedrnn.cells import Cell, Extra, Gate, Spec
from gatedrnn.compiler import kept, mark
from gatedrnn.compiler.outside import fingerprint


def _clamped(x, low):
    return torch.clamp(x, max=0.1) if low else torch.clamp(x, min=0.1)


def by_place_of_an_argument(spec, params, x, h, state):
    (n,) = (torch.tanh(_clamped(x + h, x.dtype == torch.bfloat16)),)
    return (n,), {"n": n}


def by_dimension(spec, params, x, h, state):
    a = x + h
    n = torch.tanh(a - a.mean(0 if x.dtype == torch.bfloat16 else -1, keepdim=True))
    return (n,), {"n": n}


def by_keyword(spec, params, x, h, state):
    a = x + h
    n = torch.tanh(a * a.var(-1, keepdim=True, correction=0 if x.dtype == torch.bfloat16 else 1))
    return (n,), {"n": n}


def by_walrus(spec, params, x, h, state):
    n = torch.tanh((2.0 if (d := x.device).type == "cuda" else 1.0) * (x + h))
    return (n.to(d),), {"n": n}


def by_getattr(spec, params, x, h, state):
    n = torch.tanh((2.0 if getattr(x, "device").type == "cuda" else 1.0) * (x + h))  # noqa: B009
    return (n,), {"n": n}


def one_gate(H, **options):
    return Spec(H, (Gate("n", H, "tanh"),), ("h",), **options)


@pytest.mark.parametrize("step", [by_place_of_an_argument, by_dimension, by_keyword, by_walrus, by_getattr])
def test_a_decision_shows_in_every_argument_and_by_every_name(step):
    assert isinstance(kept(step, one_gate(8)), str)


def with_devices(spec, params, x, h, state):
    more = {"device": x.device, "dtype": x.dtype}
    n = torch.tanh(x + h + torch.zeros(8, **more))
    return (n,), {"n": n}


def test_devices_as_arguments_are_no_decision():
    assert not isinstance(kept(with_devices, one_gate(8)), str)


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


def every_second_row(spec, params, x, h, state):
    n = torch.tanh(x + h + torch.nn.functional.linear(state[0], params.extras["m"][::2]))
    return (n,), {"n": n}


def test_every_second_row_of_a_matrix_is_refused():
    found = kept(
        every_second_row,
        Spec(8, (Gate("n", 8, "tanh"), Gate("m", 8, "tanh")), ("h",), extras=(Extra("m", ("n", "m"), True),)),
    )
    assert isinstance(found, str)


def test_a_cell_whose_make_spec_raises_anything_has_no_example():
    def make_spec(hidden_size):
        assert hidden_size > 5000

    assert Cell("odd", "odd", make_spec, scaled).example() is None


def test_states_may_come_from_an_iterator_on_the_reference():
    def mapped(spec, params, x, h, state):
        n = torch.tanh(x + h)
        return map(torch.relu, (n,)), {"n": n}

    layer = Recurrent(Cell("mapped", "mapped", one_gate, mapped), 4, 8, backend="reference")
    assert layer(torch.randn(3, 2, 4))[0].shape == (3, 2, 8)
