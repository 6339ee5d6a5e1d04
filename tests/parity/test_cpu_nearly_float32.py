"""Inference in nearly float32, on matrix registers, where torch.set_float32_matmul_precision("high") or a study allows it."""

import pytest

pytest.importorskip("numba")

import torch
from harness import make

from gatedrnn import LSTM, Gates
from gatedrnn.layers import Recurrent
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.sequence import modes
from gatedrnn.sequence.backends.cpu.runtime.target import best, targets
from gatedrnn.sequence.modes import nearly_float32, products
from gatedrnn.studies.parsing import read_sentences

needs_registers = pytest.mark.skipif(best().half != "amx", reason="no matrix registers here")
B, D, H = 33, 40, 36


@pytest.fixture
def high():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def inference(layer, backend, x, **given):
    layer.backend = backend
    with torch.no_grad():
        return layer(x, **given)[0]


def check(layer, x, **given):
    """Near the reference, and not what float32 gives."""
    ours, exact = (inference(layer, backend, x, **given) for backend in ("cpu", "reference"))
    assert (ours - exact).abs().max() < 5e-5
    torch.set_float32_matmul_precision("highest")
    assert not torch.equal(ours, inference(layer, "cpu", x, **given))
    torch.set_float32_matmul_precision("high")


@needs_registers
@pytest.mark.parametrize("variant", ["lstm", "gru-after", "gru-before", "onlstm-chunks"])  # every form of product
def test_layers_are_nearly_float32_s(variant, high):
    layer = make(variant, D, H, 2, bidirectional=True, dtype=torch.float32).eval()
    x = torch.randn(7, B, D)
    for given in ({}, {"lengths": torch.arange(B) % 7 + 1}):
        check(layer, x, **given)


@needs_registers
def test_temperature_is_folded_into_split_weights(high):
    layer = Recurrent("onlstm", D, H, gates=Gates(evaluation_temperature=0.5)).eval()
    x = torch.randn(7, B, D)
    check(layer, x)


def test_small_batches_gradients_and_other_types_are_left_alone(high):
    layer = LSTM(D, H).eval()
    for x in (torch.randn(5, 15, D), torch.randn(5, B, D).double()):
        layer = layer.to(x.dtype)
        found = inference(layer, "cpu", x)
        torch.set_float32_matmul_precision("highest")
        assert torch.equal(found, inference(layer, "cpu", x))
        torch.set_float32_matmul_precision("high")
    layer, x = layer.float(), torch.randn(5, B, D)
    found = layer(x)[0]
    torch.set_float32_matmul_precision("highest")
    assert torch.equal(found, layer(x)[0])


@needs_registers
def test_what_is_allowed_is_seen_at_every_call(high):
    layer, x = LSTM(D, H).eval(), torch.randn(5, B, D)
    outputs = {}
    for precision in ("high", "highest", "medium", "highest", "high"):
        torch.set_float32_matmul_precision(precision)
        with torch.no_grad():
            found = [layer(x)[0] for _ in range(3)]
        for output in found:
            assert torch.equal(output, outputs.setdefault(precision, found[0]))
    assert torch.equal(outputs["high"], outputs["medium"]) and not torch.equal(outputs["high"], outputs["highest"])


def test_compiled_and_exported_layers_stay_in_float32_at_any_batch(high):
    layer, x = LSTM(D, H, batch_first=True).eval(), torch.randn(B, 5, D)
    exported = torch.export.export(layer, (x,), dynamic_shapes={"input": {0: torch.export.Dim.DYNAMIC}})
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)[0]
        found = exported.module()(x)[0]
        small = exported.module()(x[:3])[0]
        torch.set_float32_matmul_precision("highest")
        expected = layer(x)[0]
    assert torch.equal(compiled, expected) and torch.equal(found, expected)
    torch.testing.assert_close(small, expected[:3])


@pytest.mark.parametrize("name", [name for name in targets() if name != "amx"])
def test_targets_without_matrix_registers_stay_in_float32(name, monkeypatch, high):
    monkeypatch.setenv("GATEDRNN_CPU", name)
    layer, x = LSTM(D, H).eval(), torch.randn(5, B, D)
    found = inference(layer, "cpu", x)
    torch.set_float32_matmul_precision("highest")
    assert torch.equal(found, inference(layer, "cpu", x))


@pytest.mark.skipif(not modes._SWITCHES, reason="this PyTorch has one switch")
def test_pytorch_s_newer_switch_is_heard_too(monkeypatch):
    switch = torch.backends.mkldnn.matmul
    with torch.no_grad():
        for value, found in (("tf32", "split"), ("bf16", "split"), ("ieee", "float"), ("none", "float")):
            switch.fp32_precision = value
            assert products(16) == found
        torch.set_float32_matmul_precision("high")
        monkeypatch.setattr(modes, "_SWITCHES", False)
        assert products(16) == "split"
        torch.set_float32_matmul_precision("highest")
        assert products(16) == "float"


def test_a_study_may_allow_it_for_itself():
    with torch.no_grad():
        assert products(16) == "float"
        with nearly_float32():
            assert (products(16), products(15)) == ("split", "float")
            with torch.enable_grad():
                assert products(16) == "float"
            with torch.autocast("cpu", torch.bfloat16):
                assert products(16) == "bf16"
        assert products(16) == "float"


def test_distances_are_the_reference_s_to_a_hundred_thousandth():
    torch.manual_seed(1)
    config = LanguageModelConfig(
        50, cell="onlstm", tied=False, embedding_size=32, hidden_sizes=(64, 64), options={"chunk_size": 4}
    )
    ours, slow = LanguageModel(config).eval(), LanguageModel(config, backend="reference").eval()
    for p in ours.parameters():
        p.data.mul_(4)  # gates far from the middle, as training makes them
    slow.load_state_dict(ours.state_dict())
    sentences = [torch.randint(2, 50, (1 + k % 30,)).tolist() for k in range(64)]
    for layer in (1, 2):
        for a, b in zip(*(list(read_sentences(model, sentences, 1, [layer])) for model in (ours, slow)), strict=True):
            torch.testing.assert_close(
                torch.tensor(a.distances[layer]), torch.tensor(b.distances[layer]), rtol=0, atol=1e-5
            )
