"""Graphs of torch.export and torch.jit.trace in another process, which has run no layer."""

import subprocess
import sys

import pytest
import torch

from gatedrnn import LSTM, ONLSTM, LanguageModel, LanguageModelConfig

LOADS = """
import torch, gatedrnn.operators
for name in ("lstm", "onlstm"):
    x, expected = torch.load(f"{name}.numbers")
    found = torch.export.load(f"{name}.pt2").module()(x)[0], torch.jit.load(f"{name}.pt")(x)[0]
    assert all(torch.equal(each, expected) for each in found), name
tokens, expected = torch.load("model.numbers")
found = torch.export.load("model.pt2").module()(tokens)
assert type(found).__name__ == "LanguageModelOutput" and torch.equal(found.logits, expected)
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_saved_graphs_are_loaded_where_no_layer_has_run(tmp_path):
    x = torch.randn(4, 3, 5)
    for name, layer in {"lstm": LSTM(5, 7), "onlstm": ONLSTM(5, 8, chunk_size=2)}.items():
        torch.export.save(torch.export.export(layer.eval(), (x,)), tmp_path / f"{name}.pt2")
        torch.jit.trace(layer, (x,)).save(str(tmp_path / f"{name}.pt"))
        torch.save((x, layer(x)[0].detach()), tmp_path / f"{name}.numbers")
    model = LanguageModel(
        LanguageModelConfig(vocabulary_size=9, embedding_size=8, hidden_sizes=(8,), options={"chunk_size": 2})
    )
    tokens = torch.arange(8).reshape(4, 2)
    torch.export.save(torch.export.export(model.eval(), (tokens,)), tmp_path / "model.pt2")
    torch.save((tokens, model(tokens).logits.detach()), tmp_path / "model.numbers")
    done = subprocess.run([sys.executable, "-c", LOADS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
