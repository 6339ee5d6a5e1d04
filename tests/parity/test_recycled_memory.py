"""Memory that is used again: final states share none of it, and rows that were packed in inference mode are packed anew."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gatedrnn import LSTM, Recurrent
from gatedrnn.sequence import BACKENDS

T, B, D, H = 4, 3, 5, 6


@pytest.fixture
def triton_device(monkeypatch):
    """A GPU, or the CPU with Triton's interpreter."""
    pytest.importorskip("triton", minversion="3.4", reason="needs Triton 3.4 or later")
    if torch.cuda.is_available():
        return "cuda"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return "cpu"


def unstacked(layer, x):
    """Output and final states, as the backend gives them."""
    zeros = tuple(x.new_zeros(x.shape[1], layer.hidden_size) for _ in layer.spec.states)
    request = layer.request(0, x, zeros)
    assert BACKENDS["triton"].supports(request) is None
    result = BACKENDS["triton"].run(request)
    return result.output_TBH, result.state


@pytest.mark.parametrize("name", ["rnn", "lstm", "slstm"])
def test_states_of_the_triton_backend_share_no_memory(name, triton_device):
    layer = Recurrent(name, D, H, backend="triton", device=triton_device)
    x = torch.randn(2, B, D, device=triton_device)
    output, states = unstacked(layer, x)
    for state in states:
        state[:, 0] = 0
    loss = sum((value.sum() for value in states), output.sum())
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, [*layer.parameters()]))
    with torch.no_grad():
        for output, states in (unstacked(layer, x), layer(x)):
            before, states = output.clone(), states if isinstance(states, tuple) else (states,)
            for state in states:
                assert state.untyped_storage().nbytes() == state.nbytes  # a carried state holds nothing else
                state.zero_()
            assert torch.equal(output, before)


def test_rows_that_were_packed_in_inference_mode_are_packed_again_in_training():
    layer, x = LSTM(D, H, backend="cpu"), torch.randn(T, B, D)
    expected = layer(x, lengths=[2, 4, 3])[0]

    def work():  # in a thread whose room is still to be made
        with torch.inference_mode():
            layer(torch.randn(4 * T, B, D), lengths=[16, 2, 3])
        found = layer(x, lengths=[2, 4, 3])[0]
        found.sum().backward()
        return found

    with ThreadPoolExecutor(1) as thread:
        assert torch.equal(thread.submit(work).result(), expected)
