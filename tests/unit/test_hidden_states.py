"""Hidden states that a layer gives and a step returns: detached in place, or from an iterator."""

import pytest
import torch
from own_steps import one_gate

from gatedrnn import LSTM, Recurrent
from gatedrnn.cells import Cell


def test_states_may_come_from_an_iterator_on_the_reference():
    def mapped(spec, params, x, h, state):
        n = torch.tanh(x + h)
        return map(torch.relu, (n,)), {"n": n}

    layer = Recurrent(Cell("mapped", "mapped", one_gate, mapped), 4, 8, backend="reference")
    assert layer(torch.randn(3, 2, 4))[0].shape == (3, 2, 8)


@pytest.mark.parametrize("how", [{}, {"proj_size": 2}, {"backend": "reference"}, {"dtype": torch.bfloat16}])
def test_final_states_may_be_detached_in_place_without_a_gradient(how):
    layer = LSTM(3, 4, **how)
    x = torch.randn(2, 3, 3, dtype=how.get("dtype"))
    with torch.no_grad():
        for found in (layer(x)[1], layer(x, lengths=[2, 1, 1])[1], layer(x, return_gates=True)[1]):
            for state in found:
                state.detach_()
    for state in layer.requires_grad_(False)(x)[1]:
        state.detach_()


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_final_states_with_a_gradient_may_be_detached_in_place(name, backend):
    layer = Recurrent(name, 3, 4, backend=backend)
    output, found = layer(torch.randn(2, 3, 3))
    states = found if isinstance(found, tuple) else (found,)
    assert all(state.requires_grad for state in states)
    for state in states:
        state.detach_()
        state[:, 0] = 0
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.sum(), [*layer.parameters()]))
