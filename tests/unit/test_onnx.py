"""Graphs of ONNX compute what the modules do; the export itself compares them, and here others do too."""

import numpy as np
import onnx as onnx_library
import onnxruntime
import pytest
import torch

from gatedrnn import GRU, LSTM, ONLSTM, Gates, Recurrent
from gatedrnn.cells import CELLS
from gatedrnn.core.errors import ArgumentError, DataError, GatedRNNError
from gatedrnn.export import onnx, writing
from gatedrnn.models import (
    LanguageModel,
    LanguageModelConfig,
    PairClassifier,
    PairClassifierConfig,
    TranslationConfig,
    TranslationModel,
)

STANDARD = {"lstm": "LSTM", "g2lstm": "LSTM", "peephole": "LSTM", "coupled": "LSTM", "gru": "GRU", "rnn": "RNN"}


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def outputs(path, **given):
    run = session(path)
    found = run.run(None, {name: np.asarray(value) for name, value in given.items()})
    return {output.name: torch.from_numpy(value) for output, value in zip(run.get_outputs(), found, strict=True)}


def operators(path):
    return [node.op_type for node in onnx_library.load(path).graph.node]


@pytest.mark.parametrize("cell", sorted(name for name, _ in CELLS.items()))
def test_every_cell(cell, tmp_path):
    layer = Recurrent(cell, 3, 20)
    files = onnx(layer, tmp_path / "graphs")
    assert STANDARD.get(cell, "Scan") in operators(files["sequence"])
    layer.eval()
    names = [f"{name}_0" for name in layer.spec.states]
    for T, B in ((1, 1), (7, 5), (200, 1)):
        x, lengths = torch.randn(T, B, 3), torch.randint(1, T + 1, (B,))
        states = [torch.rand(1, B, 20) for _ in names]
        with torch.no_grad():
            expected, finals = layer(x, tuple(states) if len(states) > 1 else states[0], lengths=lengths)
        given = dict(zip(names, states, strict=True))
        found = outputs(files["sequence"], input=x, lengths=lengths, **given)
        torch.testing.assert_close(found["output"], expected, atol=1e-5, rtol=1e-5)
        for name, final in zip(layer.spec.states, finals if len(states) > 1 else [finals], strict=True):
            torch.testing.assert_close(found[f"{name}_n"], final, atol=1e-5, rtol=1e-5)
    x = torch.randn(4, 2, 3)
    states = [torch.rand(1, 2, 20) for _ in names]
    whole = outputs(files["sequence"], input=x, lengths=torch.full((2,), 4), **dict(zip(names, states, strict=True)))
    for t in range(4):
        step = outputs(files["step"], input=x[t], **dict(zip(names, states, strict=True)))
        torch.testing.assert_close(step["output"], whole["output"][t], atol=1e-5, rtol=1e-5)
        states = [step[f"{name}_n"] for name in layer.spec.states]


@pytest.mark.parametrize(
    "layer",
    [
        GRU(3, 8, num_layers=2, bidirectional=True, reset_after=False),
        LSTM(3, 8, proj_size=4, bias=False),
        LSTM(3, 8, bidirectional=True, batch_first=True, gates=Gates(temperature=0.7)),
        ONLSTM(3, 8, chunk_size=2, num_layers=2, split_points="free", gates=Gates(straight_through=True)),
    ],
    ids=["gru", "projected", "both ways", "hard"],
)
def test_options_of_layers(layer, tmp_path):
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.train()
    onnx(layer, tmp_path / "graphs")  # raises where they differ
    assert layer.training
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("cell", ["onlstm", "lstm"])
def test_a_language_model(cell, tmp_path):
    options = {"chunk_size": 4} if cell == "onlstm" else {}
    config = LanguageModelConfig(cell=cell, vocabulary_size=30, embedding_size=8, hidden_sizes=(12, 8), options=options)
    model = LanguageModel(config).eval()
    files = onnx(model, tmp_path / "graphs")
    tokens, lengths = torch.randint(30, (9, 3)), torch.tensor([9, 1, 4])
    states = {f"{name}_{k}": torch.zeros(3, size) for k, size in ((1, 12), (2, 8)) for name in "hc"}
    with torch.no_grad():
        expected = model(tokens, lengths=lengths, return_gates=True)
    found = outputs(files["sequence"], tokens=tokens, lengths=lengths, **states)
    torch.testing.assert_close(found["logits"], expected.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["c_2_out"], expected.states[1][1][0], atol=1e-5, rtol=1e-5)
    if cell == "onlstm":
        far = 1 - expected.gates[0]["master_forget"].mean(-1)
        torch.testing.assert_close(found["distance_1"], far, atol=1e-5, rtol=1e-5)
    for t in range(9):
        step = outputs(files["step"], tokens=tokens[t], **states)
        states = {name: step[f"{name}_out"] for name in states}
        torch.testing.assert_close(step["logits"][0], expected.logits[t, 0], atol=1e-5, rtol=1e-5)


def test_a_pair_classifier(tmp_path):
    sizes = {"vocabulary_size": 12, "classes": 7, "embedding_size": 6, "hidden_sizes": (8,)}
    model = PairClassifier(PairClassifierConfig(cell="onlstm", options={"chunk_size": 2}, **sizes)).eval()
    files = onnx(model, tmp_path / "graphs")
    left, right = torch.randint(12, (5, 2)), torch.randint(12, (3, 2))
    lengths = torch.tensor([5, 2]), torch.tensor([1, 3])
    with torch.no_grad():
        expected = model(left, right, *lengths)
    found = outputs(files["sequence"], left=left, right=right, left_lengths=lengths[0], right_lengths=lengths[1])
    torch.testing.assert_close(found["logits"], expected, atol=1e-5, rtol=1e-5)


def test_a_translation_model(tmp_path):
    sizes = {
        "vocabulary_size": 12,
        "target_size": 11,
        "embedding_size": 6,
        "hidden_sizes": (8, 8),
        "decoder_sizes": (8, 8),
    }
    model = TranslationModel(TranslationConfig(cell="lstm", **sizes)).eval()
    files = onnx(model, tmp_path / "graphs")
    source, lengths = torch.randint(12, (6, 2)), torch.tensor([6, 4])
    with torch.no_grad():
        known = model.encode(source, lengths)
        expected = model.decode(known, torch.tensor([[1, 3]]))
    found = outputs(files["encoder"], source=source, lengths=lengths)
    torch.testing.assert_close(found["memory"], known.memory_BSM, atol=1e-5, rtol=1e-5)
    step = outputs(files["step"], tokens=torch.tensor([1, 3]), **found)
    torch.testing.assert_close(step["logits"], expected.scores[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(step["attention"], expected.attention[0], atol=1e-5, rtol=1e-5)


class TestRefusals:
    def test_what_is_no_model(self, tmp_path):
        with pytest.raises(ArgumentError, match=r"takes one of .*; got Linear"):
            onnx(torch.nn.Linear(2, 2), tmp_path / "graphs")

    def test_another_precision(self, tmp_path):
        with pytest.raises(ArgumentError, match=r"needs weights in float32; got torch\.float64"):
            onnx(LSTM(2, 2, dtype=torch.float64), tmp_path / "graphs")

    def test_a_folder_with_files(self, tmp_path):
        (tmp_path / "x").write_text("mine")
        with pytest.raises(DataError, match="new or an empty folder"):
            onnx(LSTM(2, 2), tmp_path)

    def test_a_graph_that_computes_something_else(self, tmp_path, monkeypatch):
        strip = writing._strip

        def spoiled(graph):
            strip(graph)
            for each in graph.initializer:
                if len(each.dims) > 1:
                    values = onnx_library.numpy_helper.to_array(each) + np.float32(0.01)
                    each.CopyFrom(onnx_library.numpy_helper.from_array(values, each.name))

        monkeypatch.setattr(writing, "_strip", spoiled)
        with pytest.raises(GatedRNNError, match="must compute what the module does; got output off by"):
            onnx(LSTM(2, 2), tmp_path / "graphs")
        assert not (tmp_path / "graphs").exists()
