"""RNN, LSTM and GRU are drop-ins for torch.nn's: weights, outputs, states, every gradient, arguments and seeds."""

import itertools

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import gatedrnn

KINDS = {
    "rnn_tanh": (torch.nn.RNN, gatedrnn.RNN, {}),
    "rnn_relu": (torch.nn.RNN, gatedrnn.RNN, {"nonlinearity": "relu"}),
    "lstm": (torch.nn.LSTM, gatedrnn.LSTM, {}),
    "gru": (torch.nn.GRU, gatedrnn.GRU, {}),
}
T, B, D, H = 5, 3, 3, 4


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def pair(kind, *args, **kwargs):
    """torch's module and ours, with torch's state dict loaded unchanged."""
    theirs_class, ours_class, options = KINDS[kind]
    torch.manual_seed(3)
    theirs = theirs_class(D, H, *args, **kwargs, **options, dtype=torch.float64)
    ours = ours_class(D, H, *args, **kwargs, **options, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def states_for(module, size=B):
    shape = (module.num_layers * (2 if module.bidirectional else 1), *([size] if size else []), H)
    return [torch.randn(shape, dtype=torch.float64) for _ in range(2 if "LSTM" in type(module).__name__ else 1)]


def measure(module, input, states, wrap=lambda x: x):
    """Output, final states and the gradients of a fixed functional of them."""
    x = input.clone().requires_grad_()
    given = [state.clone().requires_grad_() for state in states]
    hx = None if not given else tuple(given) if len(given) > 1 else given[0]
    output, finals = module(wrap(x), hx)
    finals = finals if isinstance(finals, tuple) else (finals,)
    values = [getattr(output, "data", output) if hasattr(output, "batch_sizes") else output, *finals]
    torch.manual_seed(9)
    sum((value * torch.randn_like(value)).sum() for value in values).backward()
    gradients = {"x": x.grad} | {f"state{i}": state.grad for i, state in enumerate(given)}
    gradients |= {name: parameter.grad for name, parameter in module.named_parameters()}
    return output, [value.detach() for value in values], gradients


def same(theirs, ours):
    assert len(theirs[1]) == len(ours[1])
    for their_value, our_value in zip(theirs[1], ours[1], strict=True):
        close(our_value, their_value)
    assert theirs[2].keys() == ours[2].keys()
    for name, gradient in theirs[2].items():
        torch.testing.assert_close(
            ours[2][name], gradient, rtol=0, atol=1e-12, msg=lambda text, name=name: f"gradient of {name}: {text}"
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("bidirectional", "batch_first", "bias"), itertools.product([False, True], repeat=3))
def test_padded_batch(kind, layers, bidirectional, batch_first, bias):
    arguments = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": batch_first, "bias": bias}
    theirs, ours = pair(kind, **arguments)
    x = torch.randn((B, T, D) if batch_first else (T, B, D), dtype=torch.float64)
    for states in ([], states_for(theirs)):
        theirs.zero_grad()
        ours.zero_grad()
        same(measure(theirs, x, states), measure(ours, x, states))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_unbatched(kind, batch_first, bidirectional):
    theirs, ours = pair(kind, 2, batch_first=batch_first, bidirectional=bidirectional)
    x = torch.randn(T, D, dtype=torch.float64)
    for states in ([], states_for(theirs, 0)):
        theirs.zero_grad()
        ours.zero_grad()
        same(measure(theirs, x, states), measure(ours, x, states))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("lengths", "enforce_sorted"), [([2, 5, 3], False), ([5, 5, 1], True)])
def test_packed_sequence(kind, bidirectional, batch_first, lengths, enforce_sorted):
    theirs, ours = pair(kind, 2, bidirectional=bidirectional, batch_first=batch_first)
    x = torch.randn((B, T, D) if batch_first else (T, B, D), dtype=torch.float64)

    def wrap(x):
        return pack_padded_sequence(x, torch.tensor(lengths), batch_first, enforce_sorted)

    for states in ([], states_for(theirs)):
        theirs.zero_grad()
        ours.zero_grad()
        expected, got = measure(theirs, x, states, wrap), measure(ours, x, states, wrap)
        same(expected, got)
        for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            left, right = getattr(expected[0], field), getattr(got[0], field)
            assert (left is None and right is None) or torch.equal(left, right), field


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_same_seed_gives_the_same_parameters(kind, bidirectional):
    theirs_class, ours_class, options = KINDS[kind]
    modules = []
    for module_class in (theirs_class, ours_class):
        torch.manual_seed(11)
        modules.append(module_class(D, H, 2, bidirectional=bidirectional, **options))
    theirs, ours = (dict(module.named_parameters()) for module in modules)
    assert list(theirs) == list(ours)
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("lstm", (2, False, True, 0.25, True)),
        ("gru", (2, False, True, 0.25, True)),
        ("rnn_tanh", (2, "relu", False, True, 0.25, True)),
    ],
)
def test_positional_arguments(kind, arguments):
    theirs_class, ours_class, _ = KINDS[kind]
    theirs, ours = theirs_class(D, H, *arguments), ours_class(D, H, *arguments)
    for name in ("num_layers", "bias", "batch_first", "dropout", "bidirectional"):
        assert getattr(ours, name) == getattr(theirs, name), name
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, T, D)
    torch.testing.assert_close(ours.eval()(x)[0], theirs.eval()(x)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", gatedrnn.CELLS)
def test_no_two_gradients_lie_in_one_memory(name, backend):
    layer = gatedrnn.Recurrent(name, D, H, 2, bidirectional=True, backend=backend)
    x = torch.randn(T, B, D, requires_grad=True)
    output, _ = layer(x)
    found = torch.autograd.grad(output.square().sum(), [x, *layer.parameters()])
    places = sorted((each.data_ptr(), each.data_ptr() + each.numel() * each.element_size()) for each in found)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(places))
