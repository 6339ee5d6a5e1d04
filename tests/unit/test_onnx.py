"""ONNX graphs of layers and models compute what the modules do, at every length and batch size; what has no graph is refused."""

import math
import os
import threading

import numpy as np
import onnx as onnx_library
import onnxruntime
import pytest
import torch
from quicker import quicken_onnx
from torch import nn
from torch.nn.utils import prune

from gatedrnn import GRU, LSTM, ONLSTM, Gates, Recurrent
from gatedrnn.cells import CELLS, Cell, lstm, own
from gatedrnn.core.errors import ArgumentError, DataError, GatedRNNError
from gatedrnn.core.torch_internals import SCAN_SINCE, scan
from gatedrnn.export import checking, onnx, writing
from gatedrnn.models import (
    LanguageModel,
    LanguageModelConfig,
    PairClassifier,
    PairClassifierConfig,
    TranslationConfig,
    TranslationModel,
)

pytestmark = pytest.mark.skipif(scan is None, reason=f"needs PyTorch {SCAN_SINCE} or later")

quicken_onnx()
STANDARD = {"lstm": "LSTM", "g2lstm": "LSTM", "peephole": "LSTM", "coupled": "LSTM", "gru": "GRU", "rnn": "RNN"}
BOUND = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(autouse=True)
def seeded():
    """The same weights and inputs every time."""
    torch.manual_seed(0)


class Session:
    """A graph in onnxruntime, by names."""

    def __init__(self, path):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.run = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])

    def __call__(self, **given):
        found = self.run.run(None, {name: np.asarray(value) for name, value in given.items()})
        names = (output.name for output in self.run.get_outputs())
        return {name: torch.from_numpy(value) for name, value in zip(names, found, strict=True)}


def operators(path):
    """Names of the operators, those inside of loops too."""

    def inside(graph):
        for node in graph.node:
            yield node.op_type
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from inside(attribute.g)

    return list(inside(onnx_library.load(path).graph))


def as_hx(states):
    return tuple(states) if len(states) > 1 else states[0]


def as_tuple(states):
    return states if isinstance(states, tuple) else (states,)


@pytest.mark.parametrize("cell", sorted(name for name, _ in CELLS.items()))
def test_every_cell(cell, tmp_path):
    layer = Recurrent(cell, 3, 20).eval()
    files = onnx(layer, tmp_path / "graphs")
    assert set(files) == {"sequence", "step"}
    assert {STANDARD.get(cell, "Scan")} == {"LSTM", "GRU", "RNN", "Scan"} & set(operators(files["sequence"]))
    sequence, step = Session(files["sequence"]), Session(files["step"])
    names = layer.spec.states
    masters = [gate.name for gate in layer.spec.gates if gate.name.startswith("master")]
    for T in (1, 7, 200):
        for B in (1, 5):
            x, states = torch.randn(T, B, 3), [torch.rand(1, B, 20) for _ in names]
            lengths = torch.randint(1, T + 1, (B,))
            with torch.no_grad():
                output, finals, traces = layer(x, as_hx(states), lengths=lengths, return_gates=True)
            given = {f"{name}_0": state for name, state in zip(names, states, strict=True)}
            found = sequence(input=x, lengths=lengths, **given)
            expected = {"output": output}
            expected |= {f"{name}_n": final for name, final in zip(names, as_tuple(finals), strict=True)}
            expected |= {f"{name}_1": traces[0][name] for name in masters}
            if masters:
                expected["distance_1"] = 1 - traces[0]["master_forget"].mean(-1)
            assert set(found) == set(expected)
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, **BOUND)
            if T == 7:
                whole = sequence(input=x, lengths=torch.full((B,), T), **given)
                for t in range(T):
                    found = step(input=x[t], **given)
                    for name in ["output", *(f"{name}_1" for name in masters)]:
                        torch.testing.assert_close(found[name], whole[name][t], **BOUND)
                    given = {f"{name}_0": found[f"{name}_n"] for name in names}
                for name in names:
                    torch.testing.assert_close(given[f"{name}_0"], whole[f"{name}_n"], **BOUND)


@pytest.mark.parametrize(
    "layer",
    [
        GRU(3, 8, num_layers=2, bidirectional=True, reset_after=False),
        LSTM(3, 8, proj_size=4, bias=False),
        LSTM(3, 8, bidirectional=True, batch_first=True, gates=Gates(temperature=0.7)),
        ONLSTM(3, 8, chunk_size=2, bidirectional=True, split_points="free", gates=Gates(straight_through=True)),
    ],
    ids=["gru", "projected", "both ways", "hard"],
)  # fmt: skip
def test_options_of_layers(layer, tmp_path):
    layer.train()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    sequence = Session(onnx(layer, tmp_path / "graphs", only=["sequence"])["sequence"])
    assert layer.training
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    layer.eval()
    layer.batch_first = False
    x, lengths, P = torch.randn(6, 2, 3), torch.tensor([6, 3]), layer.num_layers * (1 + layer.bidirectional)
    sizes = [layer.proj_size or 8, 8][: len(layer.spec.states)]
    states = [torch.rand(P, 2, size) for size in sizes]
    with torch.no_grad():
        expected, finals = layer(x, as_hx(states), lengths=lengths)
    given = {f"{name}_0": state for name, state in zip(layer.spec.states, states, strict=True)}
    found = sequence(input=x, lengths=lengths, **given)
    torch.testing.assert_close(found["output"], expected, **BOUND)
    for name, final in zip(layer.spec.states, as_tuple(finals), strict=True):
        torch.testing.assert_close(found[f"{name}_n"], final, **BOUND)


def test_a_layer_that_amplifies_rounding(tmp_path, monkeypatch):
    layer = Recurrent("rnn", 3, 20).eval()
    nn.init.normal_(layer.weight_hh_l0)  # states a millionth apart are unlike after 50 steps
    onnx(layer, tmp_path / "graphs", only=["sequence"])
    monkeypatch.setattr(checking, "OWN_ERRORS", 0)
    with pytest.raises(GatedRNNError, match="must compute what the module does"):
        onnx(layer, tmp_path / "others", only=["sequence"])


def language_model(cell, V=30, E=8, sizes=(12, 8), **more):
    options = {"chunk_size": 4} if cell == "onlstm" else {}
    config = LanguageModelConfig(
        vocabulary_size=V, cell=cell, embedding_size=E, hidden_sizes=sizes, options=options, **more
    )
    return LanguageModel(config).eval()


class TestLanguageModels:
    @pytest.mark.parametrize("cell", ["onlstm", "lstm"])
    def test_sequence_and_steps(self, cell, tmp_path):
        model = language_model(cell, tied=cell == "onlstm")
        files = onnx(model, tmp_path / "graphs")
        tokens, lengths = torch.randint(30, (9, 3)), torch.tensor([9, 1, 4])
        states = {f"{name}_{k}": torch.rand(3, size) for k, size in ((1, 12), (2, 8)) for name in "hc"}
        given = [tuple(states[f"{name}_{k}"][None] for name in "hc") for k in (1, 2)]
        with torch.no_grad():
            expected = model(tokens, given, lengths=lengths, return_gates=True)
        found = Session(files["sequence"])(tokens=tokens, lengths=lengths, **states)
        torch.testing.assert_close(found["logits"], expected.logits, **BOUND)
        torch.testing.assert_close(found["c_2_out"], expected.states[1][1][0], **BOUND)
        if cell == "onlstm":
            for name in ("master_input", "master_forget"):
                torch.testing.assert_close(found[f"{name}_2"], expected.gates[1][name], **BOUND)
            far = 1 - expected.gates[0]["master_forget"].mean(-1)
            torch.testing.assert_close(found["distance_1"], far, **BOUND)
        step = Session(files["step"])
        for t in range(9):
            found = step(tokens=tokens[t], **states)
            states = {name: found[f"{name}_out"] for name in states}
            torch.testing.assert_close(found["logits"][0], expected.logits[t, 0], **BOUND)

    def test_a_tied_weight_is_stored_once(self, tmp_path):
        model = language_model("rnn", V=3000, E=32, sizes=(32,), tied=True)
        held = sum(parameter.nbytes for parameter in model.parameters())
        path = onnx(model, tmp_path / "graphs", only=["sequence"])["sequence"]
        assert held <= path.stat().st_size < held + 10_000

    @pytest.mark.parametrize(("cell", "tied"), [("onlstm", True), ("lstm", False), ("gru", True)])
    def test_int8(self, cell, tied, tmp_path):
        model = language_model(cell, V=2000, E=64, sizes=(64,), tied=tied)
        for weight in (model.embedding.weight, model.decoder.weight):
            nn.init.normal_(weight, std=0.5)
        large, small = (
            onnx(model, tmp_path / f"{int8}", int8=int8, only=["sequence"])["sequence"] for int8 in (False, True)
        )
        assert small.stat().st_size <= 0.3 * large.stat().st_size
        kinds = operators(small)
        assert "MatMulInteger" in kinds and ("DynamicQuantizeLSTM" in kinds) == (cell == "lstm")
        tokens, targets = torch.randint(2000, (40, 4)), torch.randint(2000, (160,))
        states = {f"{name}_1": torch.zeros(4, 64) for name in model.layers[0].spec.states}
        losses = []
        for path in (large, small):
            logits = Session(path)(tokens=tokens, lengths=torch.full((4,), 40), **states)["logits"]
            losses.append(float(nn.functional.cross_entropy(logits.flatten(0, 1), targets)))
        assert 0 < abs(losses[1] - losses[0]) < math.log(1.01)


def test_a_pair_classifier(tmp_path):
    sizes = {"vocabulary_size": 12, "classes": 7, "embedding_size": 6, "hidden_sizes": (8,)}
    config = PairClassifierConfig(cell="onlstm", options={"chunk_size": 2}, **sizes)
    model = PairClassifier(config).eval()
    sequence = Session(onnx(model, tmp_path / "graphs")["sequence"])
    for T, S, B in ((5, 3, 2), (1, 4, 3), (6, 1, 1)):
        left, right = torch.randint(12, (T, B)), torch.randint(12, (S, B))
        lengths = torch.randint(1, T + 1, (B,)), torch.randint(1, S + 1, (B,))
        with torch.no_grad():
            expected = model(left, right, *lengths)
        found = sequence(left=left, right=right, left_lengths=lengths[0], right_lengths=lengths[1])
        torch.testing.assert_close(found["logits"], expected, **BOUND)


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
        expected = model.decode(known, torch.tensor([[1, 3], [2, 2]]))
    found = Session(files["encoder"])(source=source, lengths=lengths)
    torch.testing.assert_close(found["memory"], known.memory_BSM, **BOUND)
    step = Session(files["step"])
    for t, tokens in enumerate(([1, 3], [2, 2])):
        after = step(tokens=torch.tensor(tokens), **found)
        torch.testing.assert_close(after["logits"], expected.scores[t], **BOUND)
        torch.testing.assert_close(after["attention"], expected.attention[t], **BOUND)
        found |= {name.removesuffix("_out"): value for name, value in after.items() if name.endswith("_out")}


@pytest.fixture
def branching():
    """A cell whose step branches on values; what is registered is taken back."""

    def step(spec, params, x_gates, h_gates, state):
        return lstm.step(spec, params, x_gates * 2 if float(x_gates.sum()) > 0 else x_gates, h_gates, state)

    CELLS.register("branching", Cell("branching", "branching LSTM", lstm.make_spec, step))
    yield "branching"
    CELLS._entries.pop("branching")
    own._RUN.clear()


class TestRefusals:
    def test_another_module(self, tmp_path):
        with pytest.raises(ArgumentError, match=r"takes one of LanguageModel, .*; got Linear"):
            onnx(nn.Linear(2, 2), tmp_path / "graphs")

    def test_another_precision(self, tmp_path):
        with pytest.raises(ArgumentError, match=r"needs weights in float32; got torch\.float64 in weight_ih_l0"):
            onnx(LSTM(2, 2, dtype=torch.float64), tmp_path / "graphs")

    def test_weights_without_numbers(self, tmp_path):
        with pytest.raises(ArgumentError, match="needs weights with numbers; got weight_ih_l0 on meta"):
            onnx(LSTM(2, 2, device="meta"), tmp_path / "graphs")

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_weights_without_a_value(self, tmp_path, value):
        layer = LSTM(2, 2)
        nn.init.constant_(layer.bias_hh_l0, value)
        with pytest.raises(ArgumentError, match="needs finite weights; got NaN or infinity in bias_hh_l0"):
            onnx(layer, tmp_path / "graphs")

    def test_weights_that_overflow(self, tmp_path):
        model = language_model("rnn")
        nn.init.constant_(model.decoder.weight, 3e38)
        with pytest.raises(GatedRNNError, match="must compute finite numbers; got NaN or infinity in logits"):
            onnx(model, tmp_path / "graphs")

    def test_a_missing_library(self, tmp_path, monkeypatch):
        monkeypatch.setattr(writing, "find_spec", lambda name: None if name == "onnxscript" else name)
        with pytest.raises(ArgumentError, match=r"got no onnxscript\. Install them: pip install 'gatedrnn\[onnx\]'"):
            onnx(LSTM(2, 2), tmp_path / "graphs")

    def test_a_folder_with_files(self, tmp_path):
        (tmp_path / "x").write_text("mine")
        with pytest.raises(DataError, match="new or empty folder"):
            onnx(LSTM(2, 2), tmp_path)

    def test_a_file_that_is_too_large(self, tmp_path, monkeypatch):
        monkeypatch.setattr(writing, "LARGEST_BYTES", 100)
        with pytest.raises(ArgumentError, match=r"files of at most 2 GB; got [\d,]+ bytes in sequence\.onnx"):
            onnx(LSTM(2, 2), tmp_path / "graphs")

    def test_a_step_that_cannot_be_traced(self, tmp_path, branching, capfd):
        with pytest.raises(ArgumentError, match=r"needs modules that torch\.export can trace; got Could not guard"):
            onnx(Recurrent(branching, 2, 2), tmp_path / "graphs")
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("int8", [False, True])
    def test_a_graph_that_computes_something_else(self, tmp_path, monkeypatch, int8):
        name = "quantised" if int8 else "_translated"
        make = getattr(writing, name)

        def spoiled(*given):
            model = make(*given)
            for each in model.graph.initializer:
                if each.name.endswith("W_scale" if int8 else "W"):
                    values = onnx_library.numpy_helper.to_array(each) * np.float32(5 if int8 else 1.001)
                    each.CopyFrom(onnx_library.numpy_helper.from_array(values, each.name))
            return model

        monkeypatch.setattr(writing, name, spoiled)
        with pytest.raises(GatedRNNError, match=r"must compute what the module does; got \w+ off by"):
            onnx(LSTM(2, 20), tmp_path / "graphs", int8=int8)
        assert not (tmp_path / "graphs").exists()


@pytest.mark.parametrize("only", [["steps"], ["step", "sequences"], "sequences"])
def test_a_graph_that_the_module_does_not_have_is_refused(tmp_path, only):
    with pytest.raises(ArgumentError, match=r"must name graphs of the module: sequence, step; got '(steps|sequences)'"):
        onnx(LSTM(2, 2), tmp_path / "graphs", only=only)
    with pytest.raises(ArgumentError, match="must name graphs of the module: sequence; got 'step'"):
        onnx(LSTM(2, 2, bidirectional=True), tmp_path / "graphs", only="step")
    assert not (tmp_path / "graphs").exists()


@pytest.fixture
def own_cell():
    """`own_cell(change)`: the name of an LSTM whose x W is changed; what is registered is taken back."""

    def register(change):
        def step(spec, params, x_gates, h_gates, state):
            return lstm.step(spec, params, change(x_gates), h_gates, state)

        CELLS.register("odd", Cell("odd", "odd LSTM", lstm.make_spec, step))
        return "odd"

    yield register
    CELLS._entries.pop("odd", None)


def test_an_operation_that_onnx_lacks_is_named_in_one_line(tmp_path, own_cell):
    cell = own_cell(lambda x: x.cummax(-1).values)
    with pytest.raises(ArgumentError, match=r"needs operations that ONNX has; got .*cummax") as raised:
        onnx(Recurrent(cell, 2, 2), tmp_path / "graphs", only="step")
    assert "\n" not in str(raised.value) and not (tmp_path / "graphs").exists()


def test_a_step_that_draws_random_numbers_is_refused(tmp_path, own_cell):
    cell = own_cell(lambda x: torch.dropout(x, 0.5, True))
    with pytest.raises(GatedRNNError, match=r"must compute what the module does; got .* off by"):
        onnx(Recurrent(cell, 2, 20), tmp_path / "graphs", only="step")


def test_a_pruned_layer_is_refused(tmp_path):
    layer = LSTM(2, 3)
    prune.l1_unstructured(layer, "weight_hh_l0", 0.5)
    layer(torch.randn(2, 1, 2))
    with pytest.raises(ArgumentError, match=r"got a computed weight_hh_l0\. .*prune\.remove"):
        onnx(layer, tmp_path / "graphs", only="step")
    assert not (tmp_path / "graphs").exists()


def test_settings_of_pytorch_do_not_matter(tmp_path):
    layer = ONLSTM(2, 4)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            assert onnx(layer, tmp_path / "graphs", only="sequence")["sequence"].is_file()
    finally:
        torch.set_default_dtype(torch.float32)


def test_threads_take_turns(tmp_path):
    found = []

    def export(k):
        found.append(onnx(LSTM(2, 3), tmp_path / str(k), only="step"))

    threads = [threading.Thread(target=export, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2


def test_a_child_forked_in_the_middle_of_an_export_may_export():
    with writing._ONE_EXPORT:
        child = os.fork()
        if not child:
            os._exit(0 if writing._ONE_EXPORT.acquire(timeout=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
