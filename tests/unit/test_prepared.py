"""Calls that differ in numbers alone share how they are run; whatever else differs is seen, at the very next call."""

import contextlib
import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from gatedrnn import GRU, LSTM, ONLSTM, RNN, Gates, PeepholeLSTM, Recurrent
from gatedrnn.cells import CELLS, Cell
from gatedrnn.core.errors import ArgumentError
from gatedrnn.layers import RecurrentBase, prepared, recurrent
from gatedrnn.sequence.modes import nearly_float32
from gatedrnn.weights.compressed import CompressedWeight
from gatedrnn.weights.forms import Block

LAYERS = {
    "lstm": lambda **o: LSTM(5, 6, **o),
    "two": lambda **o: LSTM(5, 6, num_layers=3, **o),
    "no bias": lambda **o: ONLSTM(5, 6, chunk_size=2, bias=False, **o),
    "peephole": lambda **o: PeepholeLSTM(5, 6, **o),
    "gru": lambda **o: GRU(5, 6, num_layers=2, **o),
    "gru before": lambda **o: GRU(5, 6, reset_after=False, num_layers=2, **o),
    "rnn": lambda **o: RNN(5, 6, **o),
    "bidirectional": lambda **o: LSTM(5, 6, bidirectional=True, **o),
}
SHAPES = {"batch": (4, 3, 5), "one step": (1, 1, 5), "single": (4, 5), "empty": (4, 0, 5), "many": (40, 33, 5)}


def states_for(layer, x):
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    size = () if x.dim() == 2 else (x.shape[0 if layer.batch_first else 1],)
    states = tuple(torch.randn(rows, *size, 6, dtype=x.dtype) for _ in layer.spec.states)
    return states if len(states) > 1 else states[0]


def flat(result):
    output, states = result
    return (output, *(states if isinstance(states, tuple) else (states,)))


def as_reference(layer, x, hx=None, tolerance=2e-6):
    """The layer's result, which must be the reference's in every number and shape."""
    backend, layer.backend = layer.backend, "reference"
    expected = flat(layer(x, hx))
    layer.backend = backend
    found = flat(layer(x, hx))
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert torch.allclose(a, b, atol=tolerance, rtol=1e-5, equal_nan=True)
    return found


@pytest.fixture(autouse=True)
def fresh():
    prepared._KNOWN.clear()
    with torch.no_grad():
        yield
    prepared._KNOWN.clear()


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_the_second_call_is_as_right_as_the_first(make, shape, batch_first):
    layer = make(batch_first=batch_first)
    shape = (0, 4, 5) if batch_first and shape == SHAPES["empty"] else shape
    for k in range(3):
        x = torch.randn(shape)
        as_reference(layer, x, states_for(layer, x) if k else None)
        as_reference(layer, x)
    assert len(prepared._KNOWN) == 4  # with and without states, reference and kernels
    if 0 not in shape:  # and what is returned is nobody else's
        first = layer(x)
        kept = [tensor.clone() for tensor in flat(first)]
        layer(x + 1)
        assert all(torch.equal(a, b) for a, b in zip(flat(first), kept, strict=True))


def weight(layer, value):
    layer.weight_hh_l0 = nn.Parameter(value)


class Twice(nn.Module):
    def forward(self, w):
        return 2 * w


CHANGES = {
    "in place": lambda layer: layer.weight_hh_l0.mul_(2),
    "by .data": lambda layer: layer.weight_hh_l0.data.mul_(2),
    "new .data": lambda layer: setattr(layer.bias_ih_l0, "data", torch.randn(layer.spec.rows)),
    "strided": lambda layer: setattr(layer.weight_ih_l0, "data", layer.weight_ih_l0.data.t().contiguous().t()),
    "another parameter": lambda layer: weight(layer, torch.randn(layer.spec.rows, 6)),
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight_hh_l0", 0.5),
    "parametrised": lambda layer: parametrize.register_parametrization(layer, "weight_hh_l0", Twice()),
    "temperature": lambda layer: setattr(layer, "gates", Gates(temperature=0.5)),
    "layout": lambda layer: setattr(layer, "batch_first", True),
    "training": lambda layer: layer.train(),
    "double": lambda layer: layer.double(),
    "one bias less": lambda layer: setattr(layer, "bias_hh_l0", nn.Parameter(torch.zeros(layer.spec.rows))),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(change):
    layer = LSTM(5, 6)
    x = torch.randn(3, 3, 5)
    before = as_reference(layer, x)[0]
    as_reference(layer, x)
    change(layer)
    x = x.to(layer.weight_ih_l0.dtype)
    after = as_reference(layer, x)[0]
    assert change in (CHANGES["strided"], CHANGES["training"], CHANGES["double"]) or not torch.allclose(before, after)


@pytest.mark.parametrize("wrong", ["dtype", "shape", "device", "kind", "number"])
def test_what_is_refused_is_refused_after_a_right_call_too(wrong):
    layer, x = LSTM(5, 6), torch.randn(3, 2, 5)
    h, c = torch.zeros(2, 1, 2, 6)
    for _ in range(2):
        layer(x, (h, c))
    bad = {
        "dtype": (x, (h.double(), c)),
        "shape": (x, (h[:, :1], c)),
        "device": (x, (h, c.to("meta"))),
        "kind": (x, (h, [0.0])),
        "number": (x, h),
    }[wrong]
    with pytest.raises(ArgumentError, match=r"LSTM\.hx"):
        layer(*bad)
    with pytest.raises(ArgumentError, match=r"LSTM\.input"):
        layer(x[..., :4], (h, c))


def test_two_cells_of_one_spec_keep_their_equations():
    spec = CELLS["lstm"].make_spec(6)

    def half(*given):
        (h, c), trace = CELLS["lstm"].step(*given)
        return (h / 2, c), trace

    x = torch.randn(3, 2, 5)
    for step in (CELLS["lstm"].step, half):
        layer = Recurrent(Cell("mine", "mine", lambda hidden_size: spec, step), 5, 6)
        for _ in range(2):
            as_reference(layer, x)


def test_a_compressed_state_is_read_as_the_matrix_it_is():
    layer, x = GRU(8, 8), torch.randn(3, 8)
    state = CompressedWeight([Block(0, 1, "float32", {"values": torch.randn(1, 8)})], 8)
    for _ in range(3):
        as_reference(layer, x, state)


@pytest.mark.parametrize("name, value", [("num_layers", 1), ("bidirectional", False), ("input_size", 4)])
@pytest.mark.parametrize("before", [True, False])
def test_a_layer_whose_sizes_are_changed_does_what_it_did_by_its_slow_way(name, value, before):
    layer, x = LSTM(5, 6, num_layers=2, bidirectional=name == "bidirectional"), torch.randn(3, 2, 5)
    if before:
        layer(x)
        layer(x)
    setattr(layer, name, value)
    results = []
    for slow in (True, False, False):
        try:
            with pytest.MonkeyPatch.context() as patch:
                if slow:
                    patch.setattr(recurrent, "read_call", lambda *_: None)
                results.append(flat(layer(x)))
        except (ArgumentError, RuntimeError) as error:
            results.append((torch.tensor([ord(c) for c in str(error)]),))
    for found in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], found, strict=True))


def test_a_layer_that_is_told_to_be_narrower_does_not_write_beyond():
    layer, x = LSTM(5, 6), torch.randn(3, 2, 5)
    layer(x)
    layer.hidden_size = 1
    for _ in range(2):
        with contextlib.suppress(ArgumentError, RuntimeError):
            layer(x)
    layer.hidden_size = 6
    as_reference(layer, x)


class Doubled(RecurrentBase):
    cell = CELLS["lstm"]

    def request(self, place, x_TBD, state, **fields):
        return super().request(place, 2 * x_TBD, state, **fields)


def test_a_subclass_with_a_request_of_its_own_is_asked_every_time():
    layer, x = Doubled(5, 6), torch.randn(3, 2, 5)
    first = layer(x)[0]
    assert torch.equal(first, layer(x)[0]) and not torch.equal(first, LSTM.forward(layer, x / 2)[0])


def test_what_is_parametrised_is_computed_once_a_call():
    class Counted(nn.Module):
        count = 0

        def forward(self, w):
            Counted.count += 1
            return w

    layer, x = LSTM(5, 6), torch.randn(3, 2, 5)
    parametrize.register_parametrization(layer, "weight_ih_l0", Counted())
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            Counted.count = 0
            layer(x)
            assert Counted.count == 1


def test_large_calls_hold_no_layer_s_input():
    layer, x = LSTM(64, 64, num_layers=8, bidirectional=True), torch.randn(500, 8, 64)
    layer(x)
    assert not prepared._KNOWN


def test_no_tensor_is_refused_in_a_line():
    with pytest.raises(ArgumentError, match="must be a tensor"):
        LSTM(5, 6)(None)


def test_random_numbers_are_drawn_anew():
    layer, x = LSTM(5, 6, num_layers=2, dropout=0.5, weight_dropout=0.5), torch.randn(9, 2, 5)
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    layer.train()
    assert not torch.equal(layer(x)[0], layer(x)[0])


def test_gradients_are_still_asked_for():
    layer, x = LSTM(5, 6), torch.randn(3, 2, 5)
    layer(x)
    layer(x)
    with torch.enable_grad():
        assert layer(x)[0].requires_grad
        layer.requires_grad_(False)
        assert layer(x)[0].grad_fn is None and layer(x.clone().requires_grad_())[0].requires_grad


def test_autocast_and_the_precision_of_products_are_seen():
    layer, x = LSTM(64, 64), torch.randn(6, 32, 64)
    exact = [layer(x)[0] for _ in range(2)][1]
    with torch.autocast("cpu", torch.bfloat16):
        lowered = [layer(x)[0] for _ in range(2)]
    assert torch.allclose(lowered[0], lowered[1]) and torch.allclose(lowered[0], exact, atol=0.05)
    with nearly_float32():
        nearly = layer(x)[0]
    assert torch.allclose(nearly, exact, atol=1e-3) and torch.equal(layer(x)[0], exact)


def test_a_thread_count_and_a_target_are_seen(monkeypatch):
    layer, x = LSTM(64, 64), torch.randn(32, 32, 64)
    before = torch.get_num_threads()
    for threads, target in ((2, ""), (1, ""), (1, "portable"), (2, "")):
        torch.set_num_threads(threads)
        monkeypatch.setenv("GATEDRNN_CPU", target)
        as_reference(layer, x)
    torch.set_num_threads(before)
    monkeypatch.setenv("GATEDRNN_CPU", "nonsense")
    with pytest.raises(ArgumentError, match="GATEDRNN_CPU"):
        layer(x)


def test_copies_and_pickles_know_nothing_of_it():
    layer, x = LSTM(5, 6), torch.randn(3, 2, 5)
    as_reference(layer, x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x)[0], layer(x)[0])
        twin.weight_hh_l0.zero_()
        as_reference(twin, x)


def test_a_shape_that_comes_and_goes_is_no_leak():
    layer = LSTM(2, 3)
    for steps in range(1, prepared._MOST_KNOWN + 20):
        layer(torch.ones(steps % 40 + 1, steps // 40 + 1, 2))
    assert len(prepared._KNOWN) <= prepared._MOST_KNOWN
