"""Kernels against the reference: what was found by reading the code, each once an error or a wrong number."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from test_compiled_cells import results

from gatedrnn import LSTM, RNN, Gates, Recurrent
from gatedrnn.cells import Cell, Gate, Spec
from gatedrnn.core.errors import BackendError
from gatedrnn.sequence import BACKENDS, projected
from gatedrnn.sequence.plan import Plan, plan_for

T, B, D, H = 4, 3, 5, 6


# States that the triton backend gives.


@pytest.fixture
def triton_device(monkeypatch):
    """A GPU, or the CPU with Triton's interpreter."""
    pytest.importorskip("triton", minversion="3.3", reason="needs Triton 3.3 or later")
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


# Working memory.


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


# Gates of a cell's own.


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


# Projections.


def test_the_torch_backend_has_projections_of_lstms_only():
    x = torch.randn(T, B, D)
    with pytest.raises(BackendError, match=r"cannot run this request; got PyTorch has projections of LSTMs only"):
        RNN(D, H, proj_size=2, backend="torch")(x)
    for kind in (LSTM, RNN):
        layer = kind(D, H, proj_size=2, backend="torch" if kind is LSTM else "auto")
        found = layer(x)[0]
        layer.backend = "reference"
        torch.testing.assert_close(found, layer(x)[0])


@pytest.mark.parametrize("name", ["rnn", "lstm", "onlstm"])
def test_to_ask_for_a_projection_multiplies_nothing(name, monkeypatch):
    layer = Recurrent(name, D, H, proj_size=2)
    x, sizes = torch.randn(T, B, D), (2, H)
    request = layer.request(0, x, tuple(torch.zeros(B, size) for size in sizes[: len(layer.spec.states)]))
    monkeypatch.setattr(projected, "_unprojected", lambda request: pytest.fail("the weights were made"))
    assert BACKENDS["cpu"].supports(request) is None
    request.params.weight_hr = torch.zeros(2, H + 1)
    assert "weight_hr is " in (BACKENDS["cpu"].supports(request) or "")
