"""The layers as modules: dropouts, the trace, and torch's tools around them."""

import copy
import pickle
import re

import pytest
import torch
from torch.func import functional_call

from gatedrnn import (  # fmt: skip
    CELLS,
    GRU,
    LSTM,
    ONLSTM,
    RNN,
    ArgumentError,
    CoupledLSTM,
    Gates,
    LayerNormLSTM,
    Recurrent,
)
from gatedrnn.layers import EmbeddingDropout, LockedDropout
from gatedrnn.layers.dropout import dropped_weight

T, B, D, H = 4, 3, 5, 6
X = torch.randn(T, B, D, generator=torch.Generator().manual_seed(0))


# weight dropout


def doubling_rnn(p=0.5):
    """h_t = x_t + U h_{t−1} with U the identity: what is kept doubles at each step, what is dropped vanishes."""
    layer = RNN(64, 64, nonlinearity="relu", bias=False, weight_dropout=p)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(64))
        layer.weight_hh_l0.copy_(torch.eye(64))
    return layer


def impulse():
    x = torch.zeros(4, 2, 64)
    x[0] = 1
    return x


def test_weight_dropout_has_one_mask_a_forward():
    torch.manual_seed(0)
    layer = doubling_rnn()
    output = layer(impulse())[0].detach()
    kept = output[1, 0] > 0
    assert 0 < kept.sum() < 64
    for t in range(1, 4):
        assert torch.equal(output[t], (kept * 2.0**t).expand(2, 64))
    assert not torch.equal(layer(impulse())[0].detach(), output)


def test_weight_dropout_keeps_the_expectation():
    torch.manual_seed(0)
    layer = doubling_rnn(0.25)
    values = torch.stack([layer(impulse())[0][1, 0].detach() for _ in range(60)])
    torch.testing.assert_close(values.unique(), torch.tensor([0.0, 4 / 3]))
    assert abs(values.mean() - 1) < 5 * (1 / 3 / 3840) ** 0.5


def test_nothing_but_the_forward_sees_the_mask():
    torch.manual_seed(0)
    layer = doubling_rnn()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    assert list(before) == list(RNN(64, 64, bias=False).state_dict())
    output = layer(impulse())[0]
    output.sum().backward()
    dropped = output[1, 0].detach() == 0
    gradient = layer.weight_hh_l0.grad
    assert (gradient.diagonal()[dropped] == 0).all() and (gradient.diagonal()[~dropped] > 0).all()
    clone = copy.deepcopy(layer)
    for module in (layer, clone):
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
        assert all(parameter.is_leaf and parameter.requires_grad for parameter in module.parameters())
        assert len(list(module.parameters())) == 2


@pytest.mark.parametrize("name", CELLS)
def test_weight_dropout_is_off_in_evaluation_and_spares_the_input_weights(name):
    torch.manual_seed(0)
    layer = Recurrent(name, D, H, 2, weight_dropout=1.0, gates=Gates())
    plain = Recurrent(name, D, H, 2)
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer.eval()(X)[0], plain.eval()(X)[0])
    with torch.no_grad():
        plain.weight_hh_l0.zero_()
        plain.weight_hh_l1.zero_()
    torch.testing.assert_close(layer.train()(X)[0], plain(X)[0])


# dropout between layers and the AWD dropouts


def test_dropout_is_between_layers_only():
    torch.manual_seed(0)
    one, two = LSTM(D, H, dropout=1.0), LSTM(D, H, 2, dropout=1.0)
    assert torch.equal(one.train()(X)[0], one.eval()(X)[0])
    output, (h_n, _) = two.train()(X)
    upper = LSTM(H, H)
    upper.load_state_dict({name: getattr(two, name.replace("_l0", "_l1")) for name in upper.state_dict()})
    assert torch.equal(output, upper(torch.zeros(T, B, H))[0])
    assert torch.count_nonzero(h_n[0]) == h_n[0].numel()
    evaluated = two.eval()(X)[0]
    two.dropout = 0.0
    assert torch.equal(evaluated, two.train()(X)[0]) and not torch.equal(evaluated, output)


def test_dropout_between_layers_rescales():
    torch.manual_seed(0)
    layer = RNN(1, 64, 2, "relu", bias=False, dropout=0.5)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(1)
        layer.weight_ih_l1.copy_(torch.eye(64))
        layer.weight_hh_l0.zero_()
        layer.weight_hh_l1.zero_()
    output = layer(torch.ones(5, 40, 1))[0].detach()
    assert set(output.unique().tolist()) == {0.0, 2.0} and abs(output.mean() - 1) < 5 / 12800**0.5


def test_locked_dropout_has_one_mask_for_all_steps():
    torch.manual_seed(0)
    dropout = LockedDropout(0.5)
    value = dropout(torch.ones(7, 3, 50))
    assert torch.equal(value, value[:1].expand_as(value)) and set(value.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(value[0, 0], value[0, 1]) and not torch.equal(dropout(torch.ones(7, 3, 50)), value)
    x = torch.randn(2, 3, 4)
    assert dropout.eval()(x) is x and torch.count_nonzero(LockedDropout(1.0)(x)) == 0


def test_embedding_dropout_drops_whole_words():
    torch.manual_seed(0)
    tokens = torch.arange(400).repeat(2, 1).view(20, 40)  # every word twice
    embedded, dropout = torch.ones(20, 40, 3), EmbeddingDropout(0.2)
    ratio = dropout(embedded, tokens, 500).view(2, 400, 3)
    assert torch.equal(ratio[0], ratio[1]) and torch.equal(ratio, ratio[..., :1].expand_as(ratio))
    torch.testing.assert_close(ratio.unique(), torch.tensor([0.0, 1.25]))
    assert abs((ratio[0, :, 0] == 0).float().mean() - 0.2) < 0.1
    assert dropout.eval()(embedded, tokens, 500) is embedded


@pytest.mark.parametrize("p", [0.0, 0.1, 0.45, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropped_weights(p, dtype):
    torch.manual_seed(0)
    weight = torch.ones(301, 333, dtype=dtype, requires_grad=True)
    dropped = dropped_weight(weight, p)
    assert dropped.dtype == dtype and abs((dropped == 0).double().mean().item() - p) < 0.006
    scale = 1 / (1 - p) if p < 1 else 0.0
    assert set(dropped.detach().unique().tolist()) <= {0.0, torch.tensor(scale, dtype=dtype).item()}
    dropped.sum().backward()
    assert torch.equal(weight.grad, dropped.detach())
    columns = (dropped == 0).double().mean(0)  # masks that share a random number are as independent as others
    assert (columns - p).abs().max() < 0.15
    again = dropped_weight(weight, p)
    assert p in (0.0, 1.0) or not torch.equal(again, dropped)


@pytest.mark.parametrize("p", [1 - 2**-18, 1 - 2**-17, 1 - 1.5 * 2**-16, 0.999, 1e-3, 2**-18])
def test_dropped_weights_near_0_and_1_keep_the_expectation(p):
    torch.manual_seed(0)
    size = 1 << 24
    dropped = dropped_weight(torch.ones(size), p)
    deviation = (p * (1 - p) / size) ** 0.5  # of the share that is kept
    assert abs(dropped.count_nonzero().item() / size - (1 - p)) < 4 * deviation
    assert abs(dropped.double().mean().item() - 1) < 4 * deviation / (1 - p)


def test_common_probabilities_read_four_masks_off_a_random_number():
    weight = torch.ones(1000)
    for p in (0.1, 0.5, 0.9):
        torch.manual_seed(0)
        dropped = dropped_weight(weight, p)
        torch.manual_seed(0)
        bits = torch.empty(250, dtype=torch.int64).random_(-(1 << 63), None).view(torch.int16)
        assert torch.equal(dropped != 0, bits >= round(p * 65536) - 32768)


@pytest.mark.parametrize("kind", [LockedDropout, EmbeddingDropout])
def test_awd_dropouts_check_their_probability(kind):
    with pytest.raises(ArgumentError, match=rf"^{kind.__name__}\.p: must be a probability between 0 and 1; got 2\."):
        kind(2)
    assert repr(kind(0.5)) == f"{kind.__name__}(p=0.5)"


# the trace

NAMES = {
    "rnn": {"cell_candidate": H},
    "gru": {"reset_gate": H, "update_gate": H, "cell_candidate": H},
    "mgu": {"forget_gate": H, "cell_candidate": H},
    "onlstm": dict.fromkeys(("input_gate", "forget_gate", "cell_candidate", "output_gate"), H)
    | {"master_input": 3, "master_forget": 3},
} | dict.fromkeys(
    ("lstm", "peephole", "coupled", "g2lstm", "layernorm", "slstm"),
    dict.fromkeys(("input_gate", "forget_gate", "cell_candidate", "output_gate"), H),
)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_trace_names_shapes_and_layout(name, batch_first):
    options = {"chunk_size": 2} if name == "onlstm" else {}
    layer = Recurrent(name, D, H, 2, batch_first=batch_first, bidirectional=True, **options).eval()
    x = X.transpose(0, 1) if batch_first else X
    output, states, trace = layer(x, return_gates=True)
    plain, plain_states = layer(x)
    assert torch.equal(output, plain)
    assert all(map(torch.equal, *((s if isinstance(s, tuple) else (s,)) for s in (states, plain_states))))
    assert isinstance(trace, list) and len(trace) == 4
    lead = (B, T) if batch_first else (T, B)
    for place in trace:
        assert {gate: tuple(value.shape) for gate, value in place.items()} == {
            gate: (*lead, width) for gate, width in NAMES[name].items()
        }
    unbatched = layer(X[:, 1], return_gates=True)[2]
    for place, single in zip(trace, unbatched, strict=True):
        for gate, value in place.items():
            row = value[1] if batch_first else value[:, 1]
            torch.testing.assert_close(single[gate], row, rtol=0, atol=1e-6)


def test_trace_goes_by_layers_then_directions():
    torch.manual_seed(0)
    layer = LSTM(D, H, 2, bidirectional=True)
    with torch.no_grad():
        for place, suffix in enumerate(("l0", "l0_reverse", "l1", "l1_reverse")):
            for kind in ("weight_ih", "weight_hh", "bias_hh", "bias_ih"):
                getattr(layer, f"{kind}_{suffix}").zero_()
            getattr(layer, f"bias_ih_{suffix}").fill_(place + 1)
    trace = layer(X, return_gates=True)[2]
    for place, gates in enumerate(trace):
        torch.testing.assert_close(gates["input_gate"], torch.sigmoid(torch.full((T, B, H), place + 1.0)))


def test_trace_of_the_coupled_lstm_has_coupled_gates():
    gates = CoupledLSTM(D, H)(X, return_gates=True)[2][0]
    torch.testing.assert_close(gates["input_gate"], 1 - gates["forget_gate"])


def test_gates_carry_gradients():
    layer = ONLSTM(D, H)
    layer(X, return_gates=True)[2][0]["master_forget"].sum(-1).square().sum().backward()
    assert layer.weight_ih_l0.grad[-H:].abs().max() > 0 and layer.weight_ih_l0.grad[3 * H : 4 * H].abs().max() > 0


# torch's tools


@pytest.mark.parametrize("name", CELLS)
def test_deepcopy_and_pickle(name):
    layer = Recurrent(name, D, H, 2, bidirectional=True).eval()
    output = layer(X)[0]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(X)[0], output)
        with torch.no_grad():
            other.weight_hh_l0.add_(1)
        assert not torch.equal(other(X)[0], output) and torch.equal(layer(X)[0], output)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="PyTorch 2.8 tells of an error without its words")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_an_error_says_the_same_where_one_graph_is_wanted(backend, dynamic):
    rule, got = ("input_size=5", "shape [4, ") if backend == "auto" else ("cannot run", "cannot hold this kernel")
    torch.compiler.reset()
    compiled = torch.compile(LSTM(D, H, backend=backend), fullgraph=True, backend="eager", dynamic=dynamic)
    with pytest.raises(Exception, match=re.escape(rule) + ".*" + re.escape(got)):  # wrapped in one of Dynamo's
        compiled(X[..., :-1] if backend == "auto" else X)


@pytest.mark.parametrize("make", [lambda: LSTM(D, H), lambda: ONLSTM(D, H, chunk_size=2)], ids=["lstm", "onlstm"])
def test_compiles_as_one_graph(make):
    layer = make()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    lengths = torch.tensor([4, 2, 1])
    output, (_, c_n) = layer(X, lengths=lengths)
    compiled_output, (_, compiled_c) = compiled(X, lengths=lengths)
    torch.testing.assert_close(compiled_output, output)
    torch.testing.assert_close(compiled_c, c_n)
    (expected,) = torch.autograd.grad(output.sum(), layer.weight_hh_l0)
    (gradient,) = torch.autograd.grad(compiled_output.sum(), layer.weight_hh_l0)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("make", [lambda: GRU(D, H), lambda: ONLSTM(D, H, chunk_size=2)], ids=["gru", "onlstm"])
def test_exports(make):
    layer = make().eval()
    exported = torch.export.export(layer, (X,)).module()
    other = torch.randn(T, B, D)
    torch.testing.assert_close(exported(other)[0], layer(other)[0])


def test_functional_call_uses_the_given_parameters():
    layer, other = ONLSTM(D, H, 2), ONLSTM(D, H, 2)
    output = functional_call(layer, dict(other.named_parameters()), (X,))[0]
    assert torch.equal(output, other(X)[0]) and not torch.equal(output, layer(X)[0])


def test_functional_call_takes_plain_tensors_under_torch_func():
    layer = ONLSTM(D, H)
    weights = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    gradients = torch.func.grad(lambda given: functional_call(layer, given, (X,))[0].sum())(weights)
    layer(X)[0].sum().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad)


def test_a_parametrized_weight_is_read():
    layer = LSTM(D, H)
    output = layer(X)[0].detach()
    torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    torch.testing.assert_close(layer(X)[0], output)


def test_a_parametrized_gain_begins_anew_as_another():
    layer = LayerNormLSTM(D, H)
    torch.nn.utils.parametrize.register_parametrization(layer, "gain_ih_l0", torch.nn.Identity())
    layer.reset_parameters()
    assert torch.equal(layer.gain_ih_l0, torch.ones_like(layer.gain_ih_l0))
    assert not torch.equal(layer.weight_ih_l0, torch.ones_like(layer.weight_ih_l0))


@pytest.mark.parametrize("dims", [(0, 0), (None, 0), (0, None)])
def test_vmap_runs_over_lengths(dims):
    layer = ONLSTM(D, H, 2, bidirectional=True)
    x, lengths = torch.randn(3, T, B, D), torch.randint(1, T + 1, (3, B))
    given = [each if dim == 0 else each[0] for each, dim in zip((x, lengths), dims, strict=True)]
    found = torch.vmap(lambda q, n: layer(q, lengths=n)[0], dims)(*given)
    rows = [[each[k] if dim == 0 else each for each, dim in zip(given, dims, strict=True)] for k in range(3)]
    torch.testing.assert_close(found, torch.stack([layer(q, lengths=n)[0] for q, n in rows]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_device_dtype_and_backend_arguments(backend):
    layer = ONLSTM(D, H, 1, True, False, 0.0, False, "cpu", torch.float64, backend=backend)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}
    assert layer(X.double())[0].dtype == torch.float64
    assert ONLSTM(D, H, device="meta").weight_hh_l0.is_meta


@pytest.mark.parametrize("name", ["lstm", "gru", "onlstm", "slstm"])
def test_final_states_may_be_changed_in_place(name):
    layer = Recurrent(name, 5, 8)
    _, found = layer(torch.randn(3, 2, 5))
    states = found if isinstance(found, tuple) else (found,)
    for state in states:
        state[:, 0] = 0
    sum(state.sum() for state in states).backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
