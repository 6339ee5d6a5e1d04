"""Statistics of gates against sums by hand over a whole trace; pictures; the command."""

import numpy as np
import pytest
import torch

from gatedrnn.core.errors import DataError
from gatedrnn.data import EOS, UNK, Vocabulary
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.plots.gates import gates_of_words, histograms, update_frequencies
from gatedrnn.plots.trees import to_svg
from gatedrnn.studies.gates import BINS, collect, kept_share
from gatedrnn.tasks.gates import gates_by_word, stream_gates

WORDS = [UNK, EOS, "the", "cat", "N", "sees"]
CELLS = ["rnn", "lstm", "peephole", "coupled", "gru", "onlstm", "g2lstm"]


def make(cell, **options):
    torch.manual_seed(1)
    options = ({"options": {"chunk_size": 4}} if cell == "onlstm" else {}) | options
    model = LanguageModel(LanguageModelConfig(6, cell=cell, embedding_size=8, hidden_sizes=(12, 8), **options))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.9)
    return model.eval()


def traced(model, tokens, stretches):
    """Gates of the whole text at once, tokens that count alone: {gate: [M, N]} by layer."""
    length = -(-len(tokens) // stretches)
    inputs = np.full((length, stretches), 1)
    alive = np.zeros((length, stretches), bool)
    for k, token in enumerate([1, *tokens][: len(tokens)]):
        inputs[k % length, k // length] = token
        alive[k % length, k // length] = True
    inputs[0, 0] = 1
    with torch.no_grad():
        _, traces = model.gates(torch.from_numpy(inputs))
    return [{name: gate[torch.from_numpy(alive)].double() for name, gate in trace.items()} for trace in traces]


@pytest.mark.parametrize("cell", CELLS)
def test_statistics_are_those_of_the_whole_trace(cell):
    model, tokens = make(cell), np.random.default_rng(0).integers(1, 6, 101).astype(np.int32)
    found = collect(stream_gates(model, tokens, 1, 3, 7))
    for layer, own, trace in zip(model.layers, found, traced(model, tokens, 3), strict=True):
        assert list(own.gates) == list(trace)
        for name, values in trace.items():
            gate = own.gates[name]
            assert gate.mean == pytest.approx(float(values.mean()), abs=1e-6)
            assert gate.low == pytest.approx(float((values < 0.1).double().mean()), abs=1e-3)
            assert gate.high == pytest.approx(float((values > 0.9).double().mean()), abs=1e-3)
            counts, _ = np.histogram(values.clamp(gate.start, 1).numpy(), BINS, (gate.start, 1.0))
            assert sum(gate.counts) == values.numel() == counts.sum()
            assert np.abs(np.asarray(gate.counts) - counts).sum() <= 2  # values at the edge of a bin
        kept = kept_share(layer.spec, trace)
        if kept is None:
            assert cell == "rnn" and own.update_frequency == []
        else:
            assert own.update_frequency == pytest.approx((kept < 0.5).double().mean(0).tolist(), abs=1e-3)
        if cell == "onlstm":
            assert own.distance == pytest.approx(float((1 - trace["master_forget"].mean(-1)).mean()), abs=1e-6)
            assert own.split_points["master_input"] == pytest.approx(float(trace["master_input"].mean()), abs=1e-6)
        else:
            assert own.distance is None and own.split_points == {}


@pytest.mark.parametrize("cell", ["lstm", "coupled", "gru", "onlstm"])
@torch.no_grad()
def test_the_kept_share_is_what_multiplies_the_old_state(cell):
    model, x = make(cell), torch.randn(1, 1, 8)
    layer = model.layers[0]
    states = [torch.randn(1, 1, 12) for _ in layer.spec.states]

    def after(hx):
        output = layer(x, tuple(hx) if len(hx) > 1 else hx[0], return_gates=True)
        final = output[1]
        return final[-1] if isinstance(final, tuple) else final, output[2][0]

    first, trace = after(states)
    if len(states) > 1:  # gates read h' alone: c' moves alone
        moved, _ = after([states[0], states[1] + 1])
        torch.testing.assert_close(kept_share(layer.spec, trace)[0], (moved - first)[0])
    else:
        z, n = trace["update_gate"], trace["cell_candidate"]
        kept = kept_share(layer.spec, trace)
        torch.testing.assert_close(first, kept * states[0] + (1 - kept) * n)
        assert kept is z


def test_an_empty_text_is_refused():
    with pytest.raises(DataError, match=r"gates\.tokens: must hold at least one token; got 0"):
        collect(stream_gates(make("lstm"), np.zeros(0, np.int32), 1, 20))


@torch.no_grad()
def test_averages_by_word_are_means_over_units():
    model, vocabulary = make("onlstm"), Vocabulary(WORDS)
    found = gates_by_word(model, vocabulary, "The cat sees 12 dogs")
    assert found.words == ["The", "cat", "sees", "12", "dogs"]
    _, traces = model.gates(torch.tensor([1, 2, 3, 5, 4, 0])[:, None])
    for layer, trace, distances in zip(found.layers, traces, found.distances, strict=True):
        for name, gate in trace.items():
            assert layer[name] == pytest.approx(gate[1:, 0].mean(-1).tolist(), abs=1e-6)
        assert distances == pytest.approx([1 - value for value in layer["master_forget"]])
    exact = gates_by_word(model, vocabulary, "The cat", "exact")
    assert exact.layers[0]["input_gate"][0] != pytest.approx(found.layers[0]["input_gate"][0], abs=1e-6)
    plain = gates_by_word(make("gru"), vocabulary, "cat")
    assert plain.distances == [] and set(plain.layers[0]) == {"reset_gate", "update_gate", "cell_candidate"}


def test_pictures_name_what_they_show():
    layer = {
        "gates": {"input_gate": {"counts": [1, 2, 3], "start": 0.0, "low": 0.25, "high": 0.5}},
        "update_frequency": [0.5, 0.25],
    }
    runs = {"one": [layer], "two": [layer, layer]}
    assert all(
        text in to_svg(histograms(runs)) for text in ("input gate", "layer 2", "one", "two", "75 % outside 0.1…0.9")
    )
    assert all(text in to_svg(update_frequencies(runs)) for text in ("layer 1", "% of steps updated"))
    drawn = to_svg(gates_of_words(["US$", "cat"], {"1 input gate": [0.25, 0.75]}))
    assert all(text in drawn for text in ("US$", "cat", "0.25", "0.75", "1 input gate"))
