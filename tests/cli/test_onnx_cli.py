"""`gatedrnn export --to onnx` of runs of every level and task, and the code that docs/onnx.md shows."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from quicker import quicken_onnx
from safetensors.torch import load_file, save_file
from terminal import copy_of, fails, record, works

from gatedrnn.core.torch_internals import SCAN_SINCE, scan
from gatedrnn.data.logic import make_pairs, write_pairs
from gatedrnn.data.verb_final import write_parallel
from gatedrnn.export import onnx
from gatedrnn.export.agreement import alike, readings_by_graph, readings_of
from gatedrnn.training.run import load_run

pytestmark = pytest.mark.skipif(scan is None, reason=f"needs PyTorch {SCAN_SINCE} or later")

quicken_onnx()
PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
SMALL = ["--model.embedding_size", 8, "--model.hidden_sizes", "[8]", "--model.cell", "lstm", "--training.device", "cpu",
         "--training.epochs", 1, "--training.batch_size", 16]  # fmt: skip


def outputs(path, **given):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for each in session.get_inputs():
        if each.name not in given:  # a state
            given[each.name] = np.zeros((len(given["lengths"]), each.shape[1]), np.float32)
    found = session.run(None, {name: np.asarray(value) for name, value in given.items()})
    return {output.name: torch.from_numpy(value) for output, value in zip(session.get_outputs(), found, strict=True)}


@pytest.mark.parametrize("name", ["subword", "compressed"])
def test_levels_and_compressed_runs(levels, name, tmp_path):
    if name == "compressed":
        works("compress", levels / "lstm", "--method", "int8", "--out", tmp_path / "compressed")
    run = (tmp_path if name == "compressed" else levels) / name
    found = record("export", run, "--to", "onnx", "--out", tmp_path / "out")
    files = {"sequence.onnx", "step.onnx", "vocabulary.json"} | ({"tokenizer.json"} if name == "subword" else set())
    assert set(found["bytes"]) == files
    assert all(
        (run / name).read_bytes() == (tmp_path / "out" / name).read_bytes() for name in files if "onnx" not in name
    )
    model = load_run(run).model
    tokens, lengths = torch.randint(model.embedding.num_embeddings, (11, 3)), torch.tensor([11, 4, 1])
    with torch.no_grad():
        expected = (model.expand() if name == "compressed" else model)(tokens, lengths=lengths).logits
    logits = outputs(tmp_path / "out" / "sequence.onnx", tokens=tokens, lengths=lengths)["logits"]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("layer", "gate"), [(2, "master_forget"), ("mean", "both")])
def test_trees_by_a_graph_are_those_of_the_model(work, tmp_path, layer, gate):
    run = load_run(work / "run")
    run.model.config = replace(run.model.config, tree_layer=layer, tree_gate=gate)
    graph = onnx(run.model, tmp_path / "out", only=["sequence"])["sequence"].read_bytes()
    lines = (work / "text" / "test.txt").read_text().splitlines()[:30]
    sentences = [run.vocabulary.encode(run.vocabulary.tokens(line)) for line in lines]
    expected, found = readings_of(run, sentences), readings_by_graph(run, graph, sentences)
    assert alike(expected, found) and any(expected.trees)


def test_int8_keeps_the_perplexity(work, tmp_path):
    works("export", work / "lstm", "--to", "onnx", "--int8", "--out", tmp_path / "out")
    run, ids = load_run(work / "lstm"), [1]
    for line in (work / "text" / "test.txt").read_text().splitlines():
        ids += [*run.vocabulary.encode(run.vocabulary.tokens(line)), 1]
    tokens, targets = torch.tensor(ids[:-1])[:, None], torch.tensor(ids[1:])
    with torch.no_grad():
        expected = run.model(tokens).logits
    found = outputs(tmp_path / "out" / "sequence.onnx", tokens=tokens, lengths=torch.tensor([len(tokens)]))["logits"]
    nats = [float(torch.nn.functional.cross_entropy(each[:, 0], targets)) for each in (expected, found)]
    assert 0 < abs(nats[1] - nats[0]) < math.log(1.01)


def test_other_tasks(tmp_path):
    write_parallel(tmp_path / "translation", 1, 60, 20, 1)
    (tmp_path / "inference").mkdir()
    for split, seed in (("train", 1), ("dev", 2)):
        write_pairs(tmp_path / "inference" / f"{split}.tsv", make_pairs(60, seed))
    more = {"translation": ["--model.decoder_sizes", "[8]", "--data.level", "word"], "inference": []}
    graphs = {"translation": {"encoder.onnx", "step.onnx"}, "inference": {"sequence.onnx"}}
    for task, expected in graphs.items():
        run = tmp_path / f"{task}-run"
        works("train", "--task", task, *SMALL, *more[task], "--data", tmp_path / task, "--out", run)
        found = record("export", run, "--to", "onnx", "--out", tmp_path / f"{task}-onnx")
        assert {name for name in found["bytes"] if name.endswith(".onnx")} == expected
        assert any("vocabulary" in name for name in found["bytes"])
        refused = fails("export", run, "--to", "hf", "--out", tmp_path / "hf")
        assert (
            f"takes a run of the task language_modelling; got a run of the task {task}. Export it with --to onnx"
            in refused
        )


def test_the_code_of_the_page(work, tmp_path, monkeypatch, capsys):
    works("export", work / "run", "--to", "onnx", "--out", tmp_path / "my-graphs")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "docs/onnx.md", "exec"), {"__name__": "__docs__"})
    bits = capsys.readouterr().out.splitlines()[0].split()
    expected = record("surprisal", work / "run", _written(tmp_path, "the cat sleeps ."))
    assert [float(each) for each in bits] == pytest.approx(expected["surprisal_bits"][:4], abs=0.006)


def _written(folder, text):
    (folder / "text.txt").write_text(text + "\n")
    return folder / "text.txt"


class TestRefusals:
    def test_options(self, work, tmp_path):
        form = "must be one of hf, onnx, web; got 'onyx'"
        assert form in fails("export", work / "run", "--to", "onyx", "--out", tmp_path / "out")
        assert "must be a new or empty folder" in fails("export", work / "run", "--to", "onnx", "--out", work / "run")
        assert not (tmp_path / "out").exists()

    def test_a_run_with_nan(self, work, tmp_path):
        run = copy_of(work / "run", tmp_path / "nan")
        weights = load_file(run / "model.safetensors")
        weights["decoder.bias"][3] = float("nan")
        save_file(weights, run / "model.safetensors")
        assert "must hold finite weights" in fails("export", run, "--to", "onnx", "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_without_the_libraries(self, work, tmp_path, monkeypatch):
        from gatedrnn.export import writing

        monkeypatch.setattr(writing, "find_spec", lambda name: None)
        line = fails("export", work / "run", "--to", "onnx", "--out", tmp_path / "out")
        assert "pip install 'gatedrnn[onnx]'" in line and not (tmp_path / "out").exists()
