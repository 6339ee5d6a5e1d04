"""What a step may not decide by, because a trace would decide it once: biases, types, devices, tensors that some layers lack."""

import re

import pytest
import torch
from own_steps import BACKENDS, D, H, agrees, line_of, one_gate, own, refusal
from torch.nn import functional as F

from gatedrnn import Recurrent
from gatedrnn.cells import Gate, Spec
from gatedrnn.compiler.kept import kept


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


@pytest.mark.parametrize("step", [by_place_of_an_argument, by_dimension, by_keyword, by_walrus, by_getattr])
def test_a_decision_shows_in_every_argument_and_by_every_name(step):
    assert isinstance(kept(step, one_gate(8)), str)


def with_devices(spec, params, x, h, state):
    more = {"device": x.device, "dtype": x.dtype}
    n = torch.tanh(x + h + torch.zeros(8, **more))
    return (n,), {"n": n}


def test_devices_as_arguments_are_no_decision():
    assert not isinstance(kept(with_devices, one_gate(8)), str)


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
