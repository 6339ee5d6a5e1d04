"""`input_cap`: an LSTM whose input gate is at most 1 − f, on every backend, in ONNX and in a run's configuration."""

import importlib.util

import harness
import pytest
import torch
from torch.nn import functional as F

from gatedrnn import G2LSTM, LSTM, ArgumentError, Gates, Recurrent
from gatedrnn.cells import CELLS, lstm
from gatedrnn.compiler.cell import compile_cell
from gatedrnn.core.errors import BackendError
from gatedrnn.core.torch_internals import SCAN_SINCE, scan
from gatedrnn.export.standard import standard
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.sequence.backends.cpu.availability import unavailable

T, B, D, H = 5, 3, 7, 15
BACKENDS = [
    pytest.param("cpu", marks=pytest.mark.skipif(unavailable(torch.empty(0)) is not None, reason="no kernels here")),
    pytest.param(
        "triton", marks=pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
    ),
]  # fmt: skip


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.manual_seed(1)


def capped(dtype=torch.float64, **kwargs):
    return LSTM(D, H, dtype=dtype, input_cap=True, **kwargs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("straight_through", [False, True])
def test_values_gates_and_gradients_equal_the_reference(backend, straight_through):
    gates = Gates(temperature=0.7, noise_probability=0.6, straight_through=straight_through)
    layer = capped(gates=gates, bidirectional=True).train()
    x, states = harness.inputs_for(layer)
    how = {"noise": layer.sample_noise(T, B), "lengths": [2, 5, 3]}
    harness.equal(*(harness.measure(layer, each, x, states, **how) for each in (backend, "reference")))


@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_errs_no_more_than_the_reference(backend):
    harness.check_float32(capped(torch.float32), T, B, [2, 5, 3], backend=backend)


def test_gradients_of_the_reference_are_those_of_the_minimum():
    layer = capped(backend="reference")
    x, states = harness.inputs_for(layer)
    W, U, b, d = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0

    def written_out():
        h, c = (state[0] for state in states)
        for x_t in x:
            i, f, g, o = F.linear(x_t, W, b).add(F.linear(h, U, d)).chunk(4, 1)
            f = torch.sigmoid(f)
            c = f * c + torch.minimum(torch.sigmoid(i), 1 - f) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h.sum()

    weights = list(layer.parameters())
    ours = torch.autograd.grad(layer(x, tuple(states))[1][0].sum(), weights)
    for found, expected in zip(ours, torch.autograd.grad(written_out(), weights), strict=True):
        torch.testing.assert_close(found, expected)


def test_the_gates_returned_are_capped_and_the_cell_state_is_bounded():
    layer = capped()
    with torch.no_grad():
        layer.bias_ih_l0[: 2 * H] += 4  # both gates open: without the cap c would grow by 1 a step
        layer.bias_ih_l0[2 * H : 3 * H] += 9
    _, (_, c), [gates] = layer(torch.randn(50, B, D, dtype=torch.float64), return_gates=True)
    torch.testing.assert_close(gates["input_gate"], 1 - gates["forget_gate"])
    assert c.abs().max() <= 1
    layer = LSTM(D, H)
    assert layer(torch.randn(T, B, D), return_gates=True)[2][0]["input_gate"].max() > 0.5


def test_hard_gates_are_never_both_open():
    layer = capped(gates=Gates(straight_through=True))
    gates = layer(3 * torch.randn(T, B, D, dtype=torch.float64), return_gates=True)[2][0]
    assert set(gates["input_gate"].unique().tolist()) == {0, 1}
    assert (gates["input_gate"] + gates["forget_gate"]).max() == 1


def test_the_default_keeps_its_kernels():
    """Nothing of the option is in the text of the kernels, in their names, or in what names them."""
    plain, option = lstm.make_spec(H), lstm.make_spec(H, input_cap=True)
    assert plain.constants == () and "input_cap" in option.text() and "input_cap" not in plain.text()
    texts = [compile_cell(CELLS["lstm"].step, spec) for spec in (plain, option)]
    assert "least" not in "".join([*texts[0].forward, *texts[0].backward]) and "least" in texts[1].forward[0]
    assert texts[0].plan.kept == 0  # the gates' values take the place of their logits, as before


def test_other_programs_lstm_is_not_it():
    layer = capped(torch.float32, backend="torch")
    with pytest.raises(BackendError, match="backend='torch': cannot run this request; got PyTorch has no such cell"):
        layer(torch.randn(T, B, D))
    assert not hasattr(layer, "mode") and hasattr(LSTM(D, H), "mode")
    assert standard(layer, 0) is None and standard(LSTM(D, H), 0) is not None


@pytest.mark.skipif(scan is None, reason=f"needs PyTorch {SCAN_SINCE} or later")
def test_onnx_writes_the_step(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    import onnx as reader

    from gatedrnn.export import onnx

    path = onnx(capped(torch.float32).eval(), tmp_path / "graphs", only=["sequence"])["sequence"]  # compared there
    found = {node.op_type for node in reader.load(path).graph.node}
    assert "LSTM" not in found and "Scan" in found


def test_g2lstm_and_layers_by_name():
    for layer in (G2LSTM(D, H, input_cap=True), Recurrent("g2lstm", D, H, input_cap=True)):
        gates = layer.eval()(torch.randn(T, B, D), return_gates=True)[2][0]
        assert (gates["input_gate"] <= 1 - gates["forget_gate"] + 1e-6).all()
    assert repr(LSTM(3, 4, input_cap=True)) == "LSTM(3, 4, input_cap=True)"


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_only_a_truth_value_is_taken(value):
    with pytest.raises(ArgumentError, match=rf"LSTM.input_cap: must be True or False; got {value!r}\."):
        LSTM(3, 4, input_cap=value)


def test_in_a_model(tmp_path):
    sizes = {"vocabulary_size": 9, "embedding_size": 6, "hidden_sizes": (6,)}
    model = LanguageModel(LanguageModelConfig(cell="lstm", options={"input_cap": True}, **sizes)).eval()
    assert model.layers[0].options == {"input_cap": True}
    model.save_pretrained(tmp_path)
    tokens = torch.randint(0, 9, (4, 2))
    loaded = LanguageModel.from_pretrained(tmp_path)
    assert loaded.config == model.config and torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert LanguageModelConfig(cell="lstm", **sizes).options == {"input_cap": False}
    with pytest.raises(ArgumentError, match=r"model.options.input_cap: applies only to lstm, g2lstm; got True"):
        LanguageModelConfig(cell="gru", options={"input_cap": True}, **sizes)
