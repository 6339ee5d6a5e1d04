"""Statistics of gates against sums by hand over a whole trace; what gates keep; pictures; the command."""

import numpy as np
import pytest
import torch

from gatedrnn import CELLS, Recurrent
from gatedrnn.cells import Cell, Gate, Spec
from gatedrnn.cli.commands.gates import _sentence
from gatedrnn.core.errors import DataError
from gatedrnn.data import EOS, UNK, Vocabulary
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.plots.gates import gates_of_words, histograms, update_frequencies
from gatedrnn.plots.trees import save, to_svg
from gatedrnn.studies.gates import BINS, collect, kept_share
from gatedrnn.studies.gates.statistics import HIGH, LOW, _LayerSums
from gatedrnn.tasks.gates import LayerGates, gates_by_word, stream_gates

WORDS = [UNK, EOS, "the", "cat", "N", "sees"]


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


@pytest.mark.parametrize("cell", ["rnn", "lstm", "peephole", "coupled", "gru", "onlstm", "g2lstm"])
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


SIZE = 12


def janet_spec(hidden_size):
    gates = Gate("forget_gate", hidden_size), Gate("cell_candidate", hidden_size, "tanh")
    return Spec(hidden_size, gates, ("h",))


def janet_step(spec, params, x_gates, h_gates, state):
    """h = f∘h' + (1 − f)∘n: the only state is h, and the gate keeps."""
    (h,) = state
    a, b = spec.split(x_gates + h_gates)
    f, n = spec.squash("forget_gate", a), spec.squash("cell_candidate", b)
    return (f * h + (1 - f) * n,), {"forget_gate": f, "cell_candidate": n}


def layers():
    """A layer of every cell."""
    for name, cell in CELLS.items():
        options = {"chunk_size": 4} if "chunk_size" in cell.options else {}
        yield name, Recurrent(name, 8, SIZE, backend="reference", **options)
    yield "gru, reset before", Recurrent("gru", 8, SIZE, backend="reference", reset_after=False)


@torch.no_grad()
def test_the_kept_share_is_how_much_of_the_old_state_remains(monkeypatch):
    """Gates that read neither h' nor c': then the new state moves with the old one by what is kept, and by nothing else."""
    torch.manual_seed(0)
    monkeypatch.setitem(CELLS._entries, "janet", Cell("janet", "JANET", janet_spec, janet_step))
    without = set()
    for name, layer in layers():
        for parameter, value in layer.named_parameters():
            value.zero_() if parameter.startswith(("weight_hh", "weight_ch")) else torch.nn.init.normal_(value)
        layer.eval()  # without noise
        x, states = torch.randn(1, 3, 8), [torch.rand(1, 3, SIZE) + 0.5 for _ in layer.spec.states]
        place = min(1, len(states) - 1)  # c, or h where there is no c

        def after(given, layer=layer, x=x, place=place):
            _, final, trace = layer(x, tuple(given) if len(given) > 1 else given[0], return_gates=True)
            return final[place] if isinstance(final, tuple) else final, trace[0]

        first, trace = after(states)
        moved, _ = after([state + (k == place) for k, state in enumerate(states)])
        kept = kept_share(layer.spec, trace)
        if kept is None:
            without.add(name)
        else:
            torch.testing.assert_close(kept, moved - first, msg=name)
    assert without == {"rnn", "slstm"}


def test_a_cell_with_one_master_gate_has_statistics():
    spec = Spec(4, (Gate("hidden", 4, "tanh"), Gate("master_forget", 4, "cumax")), ("h",))
    trace = {"hidden": torch.zeros(3, 4), "master_forget": torch.full((3, 4), 0.25)}
    (found,) = collect([[LayerGates("1", spec, trace)]])
    assert (found.split_points, found.distance, found.update_frequency) == ({"master_forget": 0.75}, 0.75, [])


@torch.no_grad()
def test_an_exponential_forget_gate_is_no_share_and_counts_as_1_at_most():
    torch.manual_seed(0)
    layer = Recurrent("slstm", 8, SIZE, backend="reference")
    layer.bias_ih_l0[:SIZE] = -60.0  # of the input gate
    trace = layer(torch.randn(5, 1, 8), return_gates=True)[2][0]
    assert trace["forget_gate"][0].min() > 1e9  # it multiplies an empty state
    held = {name: values[:, 0] for name, values in trace.items()}
    (found,) = collect([[LayerGates("1", layer.spec, held)]])
    assert found.update_frequency == []
    assert all(0 <= gate.mean <= 1 for name, gate in found.gates.items() if name != "cell_candidate")


def test_the_mean_of_a_cell_s_own_exponential_gate_is_what_it_is():
    spec = Spec(4, (Gate("hidden", 4, "tanh"), Gate("scale", 4, "exp")), ("h",))
    trace = {"hidden": torch.zeros(3, 4), "scale": torch.full((3, 4), 5.5)}
    (found,) = collect([[LayerGates("1", spec, trace)]])
    assert found.gates["scale"].mean == 5.5


def test_more_values_than_float32_counts_are_counted():
    sums = _LayerSums("layer 1")
    sums.add(
        CELLS["lstm"].example(), {"input_gate": torch.zeros((1 << 24) + 9, 1), "cell_candidate": torch.zeros(3, 1)}
    )
    assert int(sums.counts["input_gate"][0]) == (1 << 24) + 9


def test_a_long_word_leaves_room_for_the_table(tmp_path, recwarn):
    assert gates_of_words(["a" * 20_000], {"f": [0.5]}).get_figwidth() < 8
    figure = gates_of_words(["a", "x" * 120], {"input gate": [0.1, 0.2]})
    save(figure, tmp_path / "a.png")
    save(figure, tmp_path / "a.svg")
    assert figure.axes[0].get_position().height * figure.get_figheight() > 0.2 and not recwarn.list
    assert "<text" in (tmp_path / "a.svg").read_text()


def test_each_run_has_a_figure_of_its_own():
    for runs in (["x/y", "z/y", "x-y"], ["/tmp/y", "tmp/y"], ["a", "b"], ["x/y", "x-y", "x-y-1"]):
        names = [_sentence(dict.fromkeys(runs), run, 1) for run in runs]
        assert len(set(names)) == len(runs) and all(name.startswith("sentence-1-") for name in names)


def test_values_at_a_bound_are_beyond_none():
    spec = CELLS["lstm"].example()
    values = {"input_gate": LOW, "forget_gate": 0.5, "output_gate": HIGH}
    trace = {name: torch.full((3, 4), value) for name, value in values.items()}
    (found,) = collect([[LayerGates("1", spec, trace)]])
    assert [(gate.low, gate.high) for gate in found.gates.values()] == [(0, 0)] * 3
    assert found.update_frequency == [0] * 4
