"""Weights that the `cpu` backend keeps packed in inference: when they are taken again, and when not."""

import copy
import gc

import pytest

pytest.importorskip("numba")

import torch
from harness import (
    RAGGED,
    B,
    D,
    H,
    call,
    every_cell,
    inputs_for,
    make,
)  # fmt: skip
from torch.func import functional_call

from gatedrnn import Recurrent
from gatedrnn.sequence.backends.cpu import packs


def check_inference(layer, x, mode=torch.no_grad):
    """Two calls, of which the second may use a pack, equal the reference."""
    with mode():
        backend, layer.backend = layer.backend, "reference"
        expected = layer(x)[0]
        layer.backend = backend
        for _ in range(2):
            torch.testing.assert_close(layer(x)[0], expected, rtol=0, atol=1e-5)
    return expected


def add_in_place(layer):
    with torch.no_grad():
        layer.weight_ih_l0.add_(0.1)


def add_in_place_recurrent(layer):
    with torch.no_grad():
        layer.weight_hh_l0.add_(0.1)


def step_of_an_optimiser(layer):
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)
    layer(torch.ones(2, 2, layer.input_size, dtype=layer.weight_hh_l0.dtype))[0].sum().backward()
    optimiser.step()


def load_other_weights(layer):
    layer.load_state_dict({name: value * -1.5 for name, value in layer.state_dict().items()})


def assign_other_weights(layer):
    layer.load_state_dict({name: value * -1.5 for name, value in layer.state_dict().items()}, assign=True)


def multiply_data(layer):
    layer.weight_hh_l0.data.mul_(2)


def replace_data(layer):
    layer.weight_ih_l0.data = layer.weight_ih_l0.data + 0.1


def replace_data_often(layer):
    for n in range(20):  # the allocator hands out an address again
        layer.weight_hh_l0.data = torch.full_like(layer.weight_hh_l0, 0.01 * n)


def to_float64_and_back(layer):
    layer.double()
    with torch.no_grad():
        layer(torch.ones(2, 2, layer.input_size, dtype=torch.float64))
        layer.weight_hh_l0.data.mul_(0.5)
    layer.float()


def silence_a_unit(layer):
    layer.weight_hh_l0.data[:, 3] = 0


def silence_an_input(layer):
    layer.weight_ih_l0.data[:, 5].mul_(3)


CHANGES = [
    add_in_place,
    add_in_place_recurrent,
    step_of_an_optimiser,
    load_other_weights,
    assign_other_weights,
    multiply_data,
    replace_data,
    replace_data_often,
    to_float64_and_back,
    silence_a_unit,
    silence_an_input,
]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("sizes", [(7, 15), (64, 64)], ids=["odd", "even"])
def test_a_changed_weight_is_packed_again(change, mode, sizes):
    packs.drop()
    layer = make("lstm", *sizes, dtype=torch.float32)
    x, _ = inputs_for(layer)
    before = check_inference(layer, x, mode)
    assert len(packs._PACKS) == 1
    change(layer)
    assert not torch.allclose(check_inference(layer, x, mode), before, atol=1e-4)


def test_a_pack_is_used_and_belongs_to_its_copy_alone():
    packs.drop()
    layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    check_inference(layer, x)
    (pack,) = packs._PACKS.values()
    check_inference(layer, x)
    assert next(iter(packs._PACKS.values())) is pack
    twin = copy.deepcopy(layer)
    multiply_data(twin)
    check_inference(twin, x)
    assert len(packs._PACKS) == 2
    check_inference(layer, x)


def test_training_keeps_no_packs():
    packs.drop()
    layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    layer(x)[0].sum().backward()
    assert not packs._PACKS


def test_dropped_or_given_weights_are_not_kept():
    packs.drop()
    layer = make("lstm", dtype=torch.float32, weight_dropout=0.5, training=True)
    x, _ = inputs_for(layer)
    with torch.no_grad():
        layer(x)
        functional_call(layer, {name: value.clone() for name, value in layer.state_dict().items()}, (x,))
    assert not packs._PACKS


def test_layers_that_come_and_go_never_get_another_s_pack():
    packs.drop()
    x = torch.randn(3, 2, D)
    for n in range(60):
        layer = Recurrent("lstm", D, 9, backend="cpu").eval()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-1, 1, generator=torch.Generator().manual_seed(n))
        check_inference(layer, x)
        del layer
    gc.collect()
    assert not packs._PACKS


def test_packs_die_with_a_layer_of_many():
    packs.drop()
    layer, kept = make("onlstm", D, H, 2, bidirectional=True, dtype=torch.float32), make("gru-before")
    check_inference(layer, inputs_for(layer)[0])
    check_inference(kept, inputs_for(kept)[0])
    assert len(packs._PACKS) == 5
    del layer
    gc.collect()
    assert len(packs._PACKS) == 1


def test_weights_made_in_inference_mode_are_not_kept():
    packs.drop()
    with torch.inference_mode():
        layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    check_inference(layer, x, torch.inference_mode)
    with torch.inference_mode():
        layer.weight_hh_l0.mul_(2)
    check_inference(layer, x, torch.inference_mode)
    assert not packs._PACKS


@every_cell
def test_packed_inference_equals_training_s_forward(variant):
    layer = make(variant, D, H, 2, bidirectional=True, dtype=torch.float32)
    x, states = inputs_for(layer)
    expected = call(layer, x, states, lengths=RAGGED[B])[0].detach()
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(call(layer, x, states, lengths=RAGGED[B])[0], expected)


def test_packs_of_float32_and_bfloat16_products_are_two():
    packs.drop()
    layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    outputs = []
    with torch.no_grad():
        for half in (False, True, False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                outputs.append(layer(x)[0])
    assert len(packs._PACKS) == 2
    assert torch.equal(outputs[0], outputs[2]) and torch.equal(outputs[1], outputs[3])
    assert not torch.equal(outputs[0], outputs[1])
