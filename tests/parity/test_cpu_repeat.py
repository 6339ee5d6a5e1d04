"""Inference of a shape that was seen before: the same numbers as ever, and never those of other weights or circumstances."""

import copy
import gc
import threading

import pytest

pytest.importorskip("numba")

import torch
from torch.func import functional_call, vmap

from gatedrnn import CELLS, Gates, Recurrent
from gatedrnn.core.errors import ArgumentError
from gatedrnn.layers import repeat

D, H = 6, 12
CELLS_AND_OPTIONS = [(name, {}) for name in CELLS] + [("gru", {"reset_after": False}), ("onlstm", {"chunk_size": 4})]


def make(cell="lstm", *args, **kwargs):
    torch.manual_seed(3)
    return Recurrent(cell, D, H, *args, **kwargs).eval()


def shapes(layer):
    """How many shapes are remembered of a layer."""
    return len(repeat._KNOWN.get(layer, {}))


def states_for(layer, batch=2):
    states = tuple(torch.randn(layer.num_layers, batch, H, dtype=layer.weight_hh_l0.dtype) for _ in layer.spec.states)
    return states if len(states) > 1 else states[0]


def flat(result):
    output, states = result
    return [output, *(states if isinstance(states, tuple) else (states,))]


def check(layer, x, hx=None):
    """A call that is remembered, and the next, which may make use of it, equal the operator's."""
    expected = [tensor.detach() for tensor in flat(layer(x, hx))]  # with gradients: never remembered
    with torch.no_grad():
        for _ in range(3):
            found = flat(layer(x, hx))
            for a, b in zip(found, expected, strict=True):
                assert a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)
    return found


@pytest.mark.parametrize(("cell", "options"), CELLS_AND_OPTIONS)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_first_call(cell, options, layers, dtype):
    layer = make(cell, layers, dtype=dtype, **options)
    for steps, batch in ((1, 1), (5, 2), (3, 0)):
        x = torch.randn(steps, batch, D, dtype=dtype)
        check(layer, x)
        check(layer, x, states_for(layer, batch))
    assert shapes(layer) == 3


def test_a_stream_is_its_sequence():
    layer, x = make("onlstm", 2, chunk_size=3), torch.randn(9, 2, D)
    with torch.no_grad():
        whole, last = layer(x)
        states, outputs = None, []
        for step in x:
            output, states = layer(step[None], states)
            outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs), whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(states, last, rtol=0, atol=1e-6)
    assert shapes(layer) == 2


@pytest.mark.parametrize("batch_first", [False, True])
def test_layouts(batch_first):
    layer = make("gru", 2, batch_first=batch_first)
    for shape in ((4, D), (1, 1, D), (1, 3, D), (3, 1, D), (3, 4, D)):
        check(layer, torch.randn(shape))
    check(layer, torch.randn(4, D), torch.randn(2, H))
    check(layer, torch.randn(4, 5, D).transpose(0, 1))
    check(layer, torch.randn(D, 3, 2).permute(2, 1, 0))
    size = 3 if batch_first else 2
    check(layer, torch.randn(3, 2, D), torch.randn(2, H, size).transpose(1, 2))


def test_results_are_the_caller_s_own():
    layer, x = make(), torch.randn(1, 2, D)
    with torch.no_grad():
        results = [flat(layer(x)) for _ in range(4)]
        results[2][0].fill_(7)
    assert torch.equal(results[1][0], results[3][0]) and not torch.equal(results[2][0], results[3][0])
    assert len({tensor.data_ptr() for result in results for tensor in result}) == 12


def change_bias(layer):
    layer.bias_hh_l0.data.add_(1)


def change_peephole(layer):
    with torch.no_grad():
        layer.weight_ch_l0.mul_(3)


def load(layer):
    layer.load_state_dict({name: -value for name, value in layer.state_dict().items()})


def assign(layer):
    layer.weight_hh_l1 = torch.nn.Parameter(torch.ones_like(layer.weight_hh_l1))


def one_weight_by_data(layer):
    layer.weight_ih_l1.data[3, 5] += 2


@pytest.mark.parametrize("change", [change_bias, change_peephole, load, assign, one_weight_by_data])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_changed_parameter_is_seen(change, mode):
    layer, x = make("peephole", 2), torch.randn(2, 1, D)
    with mode():
        before = [layer(x)[0] for _ in range(2)][-1].clone()
    assert shapes(layer) == 1
    change(layer)
    with mode():
        after = [layer(x)[0] for _ in range(2)]
        layer.backend = "reference"
        expected = layer(x)[0]
    for found in after:
        assert not torch.allclose(found, before, atol=1e-4)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_circumstances_are_seen():
    layer, x = make("lstm", 2, dropout=0.5), torch.randn(2, 3, D)
    with torch.no_grad():
        plain = [layer(x)[0] for _ in range(2)][-1]
        with torch.autocast("cpu", torch.bfloat16):
            half = [layer(x)[0] for _ in range(2)][-1]
        assert not torch.equal(plain, half)
        assert torch.equal(layer(x)[0], plain)
        layer.train()
        assert not torch.equal(layer(x)[0], plain)
        layer.eval()
        layer.gates = Gates(evaluation_temperature=0.5)
        assert not torch.allclose(layer(x)[0], plain, atol=1e-4)
        layer.gates = Gates()
        layer.backend = "reference"
        assert not torch.equal(layer(x)[0], plain)
        torch.testing.assert_close(layer(x)[0], plain, rtol=0, atol=1e-6)


def test_other_ways_to_call_are_not_cut_short():
    layer, x = make(), torch.randn(3, 2, D)
    with torch.no_grad():
        output = [layer(x)[0] for _ in range(2)][-1]
        assert len(layer(x, return_gates=True)) == 3
        assert not torch.equal(layer(x, lengths=[1, 3])[0], output)
        other = {name: torch.zeros_like(value) for name, value in layer.state_dict().items()}
        assert not functional_call(layer, other, (x,))[0].any()
        torch.testing.assert_close(vmap(lambda one: layer(one)[0], 1, 1)(x), output, rtol=0, atol=1e-6)
        traced = torch.jit.trace(layer, (x,), check_trace=False)
        assert torch.equal(traced(2 * x)[0], layer(2 * x)[0])
    x.requires_grad_()
    layer(x)[0].sum().backward()
    assert x.grad is not None


def test_what_does_not_fit_is_said_as_before():
    layer, x = make(), torch.randn(3, 2, D)
    h, c = states_for(layer)
    with torch.no_grad():
        check(layer, x, (h, c))
        for bad in (h, (h,), (h, c[:, :1]), (h, c.double()), (h, None), "hc"):
            with pytest.raises(ArgumentError, match=r"LSTM\.hx|hx"):
                layer(x, bad)
        with pytest.raises(ArgumentError, match="input"):
            layer(x.double())


def test_a_parametrised_weight_is_never_remembered():
    layer, x = make(), torch.randn(1, 1, D)
    torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    with torch.no_grad():
        before = [layer(x)[0] for _ in range(3)][-1]
        layer.parametrizations.weight_hh_l0.original0.mul_(4)
        hx = tuple(torch.ones(1, 1, H) for _ in range(2))
        layer.backend = "auto"
        ours = layer(x, hx)[0]
        layer.backend = "reference"
        torch.testing.assert_close(ours, layer(x, hx)[0], rtol=0, atol=1e-6)
    assert shapes(layer) == 0 and before.shape == (1, 1, H)


def test_memory_of_shapes_is_bounded_and_dies_with_the_layer():
    layer = make()
    with torch.no_grad():
        for steps in range(1, 20):
            layer(torch.randn(steps, 1, D))
    assert shapes(layer) == repeat._SHAPES
    twin = copy.deepcopy(layer)
    assert shapes(twin) == 0
    count = len(repeat._KNOWN)
    layer.flatten_parameters()
    assert shapes(layer) == 0
    with torch.no_grad():
        check(layer, torch.randn(1, 1, D))
    del layer, twin
    gc.collect()
    assert len(repeat._KNOWN) <= count - 1


def test_threads_share_a_layer():
    layer = make("onlstm", 2)
    inputs = [torch.randn(3, 2, D) for _ in range(4)]
    with torch.no_grad():
        expected = [layer(x)[0] for x in inputs]
    wrong = []

    def work(x, want):
        with torch.no_grad():
            for _ in range(200):
                if not torch.equal(layer(x)[0], want):
                    wrong.append(1)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
