"""`proj_size`: torch.nn.LSTM's numbers and names, on every backend, and for every cell that it suits."""

import itertools

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from gatedrnn import CELLS, GRU, LSTM, RNN, ArgumentError, BackendError, Gates, Recurrent
from gatedrnn.cells import Cell, Gate, Spec
from gatedrnn.sequence import BACKENDS, projected

D, H, J, T, B = 5, 7, 3, 6, 4
SUITED = ["rnn", "lstm", "peephole", "coupled", "onlstm", "g2lstm", "layernorm", "slstm"]


def states_of(layers, size=B):
    return tuple(torch.randn(layers, size, width, dtype=torch.float64, requires_grad=True) for width in (J, H))


def results(layer, x, hx, **fields):
    """Output, states and every gradient."""
    output, states, *_ = layer(x, hx, **fields)
    states = states if isinstance(states, tuple) else (states,)
    flat = output.data if hasattr(output, "data") and not isinstance(output, torch.Tensor) else output
    loss = flat.sin().sum() + sum(state.cos().sum() for state in states)
    given = [*layer.parameters(), *(hx or ())]
    return [flat, *states, *torch.autograd.grad(loss, given)]


def close(ours, theirs):
    for our, their in zip(ours, theirs, strict=True):
        assert our.shape == their.shape
        torch.testing.assert_close(our, their, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", "cpu", "torch", "auto"])
@pytest.mark.parametrize(("layers", "bias", "both"), itertools.product((1, 2), (True, False), (True, False)))
def test_it_is_torchs(backend, layers, bias, both):
    if backend == "cpu":
        pytest.importorskip("numba")
    options = {"bias": bias, "bidirectional": both, "proj_size": J, "dtype": torch.float64}
    torch.manual_seed(1)
    theirs = torch.nn.LSTM(D, H, layers, **options)
    torch.manual_seed(1)
    ours = LSTM(D, H, layers, **options, backend=backend)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    close(ours.parameters(), theirs.parameters())
    for steps, hx in itertools.product((1, T), (None, states_of(layers * (2 if both else 1)))):
        x = torch.randn(steps, B, D, dtype=torch.float64)
        close(results(ours, x, hx), results(theirs, x, hx))
    if backend != "torch":
        packed = pack_padded_sequence(torch.randn(T, B, D, dtype=torch.float64), [6, 2, 3, 1], enforce_sorted=False)
        close(results(ours, packed, hx), results(theirs, packed, hx))


@pytest.mark.parametrize(
    ("backend", "name"),
    [("cpu", name) for name in SUITED] + [("triton", name) for name in ("lstm", "onlstm", "layernorm")],
)
def test_every_cell_that_it_suits_is_the_reference(backend, name, monkeypatch):
    pytest.importorskip(*("numba",) if backend == "cpu" else ("triton", "3.3"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    fields = {"proj_size": J, "bidirectional": True, "dtype": torch.float64}
    if CELLS[name].gates == Gates() and name not in ("rnn", "layernorm"):
        fields["gates"] = Gates(temperature=0.7)
    layer = Recurrent(name, D, H, 2, **fields, backend="reference")
    sizes = [J] + [H] * (len(layer.spec.states) - 1)
    hx = tuple(torch.rand(4, B, size, dtype=torch.float64).add(1).requires_grad_() for size in sizes)
    hx = hx if len(hx) > 1 else hx[0]
    given = torch.randn(T, B, D, dtype=torch.float64), hx if isinstance(hx, tuple) else None
    noise = layer.sample_noise(T, B)
    fields = {"lengths": [6, 2, 4, 1], "noise": noise}
    expected = results(layer, *given, **fields)
    layer.backend = backend
    if name == "layernorm":  # U h' is normalised apart from W x
        with pytest.raises(BackendError, match="separately"):
            layer(given[0])
        return
    close(results(layer, *given, **fields), expected)


def test_autocast_and_weight_dropout_and_an_empty_batch():
    layer = LSTM(D, H, proj_size=J, weight_dropout=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        output, (h, c) = layer(torch.randn(T, B, D))
    assert output.shape == (T, B, J) and h.shape == (1, B, J) and c.shape == (1, B, H)
    assert layer(torch.randn(T, 0, D))[0].shape == (T, 0, J)
    assert layer(torch.randn(T, D))[1][0].shape == (1, J)


def two_states(hidden_size):
    return Spec(hidden_size, (Gate("n", hidden_size, "tanh"),), ("h", "p"))


def hands_h_on(spec, params, x_gates, h_gates, state):
    n = spec.squash("n", x_gates + h_gates)
    return (n, state[0]), {"n": n}


def raises_its_own(spec, params, x_gates, h_gates, state):
    if state[0] is None:
        raise ValueError("no h")
    return hands_h_on(spec, params, x_gates, h_gates, state)


def test_what_does_not_fit():
    with pytest.raises(ArgumentError, match="less than hidden_size=7"):
        LSTM(D, H, proj_size=H)
    with pytest.raises(ArgumentError, match="proj_size"):
        LSTM(D, H, proj_size=-1)
    for cell in ("gru", "mgu"):
        with pytest.raises(ArgumentError, match="uses h' only in U h'"):
            Recurrent(cell, D, H, proj_size=1)
    for step in (hands_h_on, raises_its_own):
        with pytest.raises(ArgumentError, match="uses h' only in U h'"):
            Recurrent(Cell("own", "own", two_states, step), D, H, proj_size=J)
    with pytest.raises(ArgumentError, match=r"h_0 must have shape \[1, 4, 3\]"):
        LSTM(D, H, proj_size=J)(torch.randn(T, B, D), (torch.zeros(1, B, H), torch.zeros(1, B, H)))
    with pytest.raises(ArgumentError):
        GRU(D, H, proj_size=J)
    assert "proj_size=3" in repr(LSTM(D, H, proj_size=J))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_gradient_that_is_nan_beyond_a_length_reaches_no_weight(backend):
    layer = LSTM(7, 15, proj_size=5, backend=backend)
    lengths = torch.tensor([2, 5, 3])
    alive = torch.arange(5)[:, None] < lengths
    output, _ = layer(torch.randn(5, 3, 7), lengths=lengths)
    (output.abs().sum(-1).sqrt() * alive).sum().backward()  # the root's slope at 0 is infinite, and 0 times that NaN
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())


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
