"""Reading distances off a model, scoring trees, and judging pairs."""

from dataclasses import replace
from itertools import count, islice

import numpy as np
import pytest
import torch
from nltk.tree import Tree

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import DataConfig, Vocabulary, sample_trees
from gatedrnn.gates import syntactic_distance
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.studies.parsing import (
    BASELINE_NAMES,
    GATES,
    agreements,
    by_length,
    cells_with_master_gates,
    evaluate_parsing,
    has_distances,
    layer_named,
    parse_sentences,
)
from gatedrnn.studies.parsing import read_sentences as read
from gatedrnn.studies.parsing.evaluation import _baseline
from gatedrnn.studies.syntax import log_probabilities
from gatedrnn.trees import ALGORITHMS, bootstrap, distances_to_spans, gold_tree, score
from gatedrnn.trees.scores import bootstrap_mean

WORDS, EOS = 30, 1


def make_model(cell="onlstm", sizes=(8, 12, 8), seed=0):
    torch.manual_seed(seed)
    own, tied = {"options": {"chunk_size": 2}} if cell == "onlstm" else {}, sizes[-1] == 8
    config = LanguageModelConfig(WORDS, cell=cell, embedding_size=8, hidden_sizes=sizes, tied=tied, **own)
    model = LanguageModel(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


def draw_sentences(count, longest, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(2, WORDS, rng.integers(1, longest + 1)).tolist() for _ in range(count)]


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_batched_reading_equals_one_sentence_at_a_time_in_order(layer):
    model, sentences = make_model(), draw_sentences(40, 15)
    readings = list(read(model, sentences, EOS, [layer], keep_gates=True))
    assert [len(r.distances[layer]) for r in readings] == [len(s) for s in sentences]
    for sentence, reading in zip(sentences, readings, strict=True):
        with torch.no_grad():
            gates = model(torch.tensor([EOS, *sentence])[:, None], return_gates=True).gates
        master_TN = gates[layer - 1]["master_forget"][1:, 0]
        assert reading.distances[layer] == pytest.approx((1 - master_TN.mean(-1)).tolist(), abs=1e-5)
        assert reading.distances[layer] == pytest.approx(syntactic_distance(master_TN).tolist(), abs=1e-5)
        np.testing.assert_allclose(reading.gates[layer], master_TN.numpy(), atol=1e-5)
        (alone,) = read(model, [sentence], EOS, [layer])
        assert reading.distances[layer] == pytest.approx(alone.distances[layer], abs=1e-5)
        assert alone.gates == {}


CHUNK = 100


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("gatedrnn.studies.parsing.distances._SORTED_SENTENCES", CHUNK)


def test_order_is_kept_over_many_chunks_of_one_stream(small_chunks):
    model, sentences = make_model(sizes=(8,)), draw_sentences(2 * CHUNK + 52, 9, seed=1)
    readings = list(read(model, iter(sentences), EOS, [1]))
    assert [len(r.distances[1]) for r in readings] == [len(s) for s in sentences]
    for k in (0, 50, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 51):
        assert readings[k].distances[1] == pytest.approx(
            next(read(model, [sentences[k]], EOS, [1])).distances[1], abs=1e-5
        )


def test_reading_needs_no_more_than_a_part_of_the_stream():
    def endless():
        while True:
            yield [2, 3, 4]

    assert len(next(read(make_model(), endless(), EOS, [1])).distances[1]) == 3


def gate_means(model, sentence, gate):
    """Mean of a gate at each word [layers, words], by a plain forward of the sentence alone."""
    with torch.no_grad():
        traces = model(torch.tensor([EOS, *sentence])[:, None], return_gates=True).gates
    return np.stack([trace[gate][1:, 0].double().mean(-1).numpy() for trace in traces])


@pytest.mark.parametrize("gate", ["master_forget", "master_input"])
def test_layers_read_in_one_pass_are_those_read_alone_and_their_mean(gate):
    model, sentences, layers = make_model(), draw_sentences(30, 12, seed=5), [3, "mean", 1, 2]
    together = list(read(model, sentences, EOS, layers, gate=gate))
    alone = {layer: list(read(model, sentences, EOS, [layer], gate=gate)) for layer in layers}
    for k, (sentence, reading) in enumerate(zip(sentences, together, strict=True)):
        means = gate_means(model, sentence, gate)
        each = 1 - means if gate == "master_forget" else means
        wanted = {1: each[0], 2: each[1], 3: each[2], "mean": (each[0] + each[1] + each[2]) / 3}
        assert list(reading.distances) == layers and reading.gates == {}
        for layer in layers:
            assert reading.distances[layer] == pytest.approx(wanted[layer].tolist(), abs=1e-5)
            assert alone[layer][k].distances == {layer: pytest.approx(reading.distances[layer], abs=1e-5)}


@pytest.mark.parametrize("gate", ["master_forget", "master_input"])
def test_the_gates_kept_are_those_of_every_layer_read(gate):
    model, (sentence,) = make_model(), draw_sentences(1, 9, seed=6)
    for layers, read_ones in (([2], [2]), ([3, 1], [1, 3]), (["mean"], [1, 2, 3])):
        (reading,) = read(model, [sentence], EOS, layers, gate=gate, keep_gates=True)
        assert sorted(reading.gates) == read_ones
        for layer, values in reading.gates.items():
            assert values.shape == (len(sentence), (8, 12, 8)[layer - 1] // 2)
            assert values.mean(-1) == pytest.approx(gate_means(model, sentence, gate)[layer - 1], abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [1, "median"]}, r"parsing\.layer: must be a positive integer; got 'median'"),
        ({"layers": [True]}, r"parsing\.layer: must be a positive integer; got True"),
        ({"layers": [1.0]}, r"parsing\.layer: must be a positive integer; got 1\.0"),
        ({"layers": ["mean", 4]}, r"parsing\.layer: must lie in 1…3, or be mean; got 4"),
        (
            {"layers": [1], "gate": "forget"},
            r"parsing\.gate: must be one of master_forget, master_input, both; got 'forget'",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_before_any_sentence_is(options, message):
    def unread():
        raise AssertionError
        yield

    with pytest.raises(ArgumentError, match=message):
        read(make_model(), unread(), EOS, **options)


def test_layers_are_named_by_number_or_as_their_mean():
    assert [layer_named(name) for name in ("1", "12", "mean")] == [1, 12, "mean"]
    for name in ("two", "", "1.5", "Mean"):
        with pytest.raises(ArgumentError, match=rf"must be a whole number from 1, or mean; got '{name}'"):
            layer_named(name)


@pytest.mark.parametrize("cell", ["rnn", "lstm", "peephole", "coupled", "gru", "g2lstm"])
def test_cells_without_master_gates_are_refused_naming_onlstm(cell):
    with pytest.raises(ArgumentError, match=rf"needs a cell with master gates; got cell '{cell}'.*onlstm"):
        read(make_model(cell), [[2]], EOS, [1])
    assert cells_with_master_gates() == ["onlstm"]
    assert not has_distances(make_model(cell)) and has_distances(make_model())


@pytest.mark.parametrize("layer", [0, -1, 4])
def test_a_layer_out_of_range_is_refused(layer):
    with pytest.raises(ArgumentError, match=rf"parsing\.layer: must .*; got {layer}"):
        read(make_model(), [[2]], EOS, [1, layer])


def test_an_empty_sentence_is_refused():
    with pytest.raises(ArgumentError, match="at least one word; got length 0"):
        list(read(make_model(), [[2], [], [3]], EOS, [1]))
    with pytest.raises(ArgumentError, match="at least one word; got length 0"):
        log_probabilities(make_model(), [[2], []], EOS)


def test_the_papers_layer_is_the_default():
    assert [make_model(sizes=(8,) * layers).config.layer_of_trees for layers in (1, 2, 3, 4)] == [1, 2, 2, 2]


@pytest.mark.parametrize("layer", [1, 3, "mean"])
def test_a_model_says_which_layer_makes_trees(layer):
    model, vocabulary = make_model(), Vocabulary(["<unk>", "<eos>", *(f"w{k}" for k in range(WORDS - 2))])
    sentences = [[f"w{k}" for k in ids] for ids in draw_sentences(20, 12)]
    named = list(parse_sentences(model, vocabulary, sentences, layer=layer))
    assert named != list(parse_sentences(model, vocabulary, sentences))
    model.config = replace(model.config, tree_layer=layer)
    assert model.config.layer_of_trees == layer and named == list(parse_sentences(model, vocabulary, sentences))


@pytest.mark.parametrize("gate", ["master_input", "both"])
def test_a_model_says_which_gate_makes_trees(gate):
    model, vocabulary = make_model(), Vocabulary(["<unk>", "<eos>", *(f"w{k}" for k in range(WORDS - 2))])
    sentences = [[f"w{k}" for k in ids] for ids in draw_sentences(20, 12)]
    named = list(parse_sentences(model, vocabulary, sentences, gate=gate))
    assert named != list(parse_sentences(model, vocabulary, sentences))
    model.config = replace(model.config, tree_gate=gate)
    assert named == list(parse_sentences(model, vocabulary, sentences))
    assert named != list(parse_sentences(model, vocabulary, sentences, gate="master_forget"))


@pytest.mark.parametrize("layers", [[1, 3], [2, "mean"]])
def test_the_distance_by_both_gates_is_the_mean_of_the_two(layers):
    model, sentences = make_model(), draw_sentences(30, 15)
    erased, written, both = (
        [each.distances for each in read(model, sentences, EOS, layers, gate=gate)] for gate in GATES
    )
    for a, b, mean in zip(erased, written, both, strict=True):
        for layer in layers:
            np.testing.assert_allclose(mean[layer], (np.array(a[layer]) + np.array(b[layer])) / 2, rtol=1e-12)
    kept = [next(read(model, sentences, EOS, [1], gate=gate, keep_gates=True)).gates[1] for gate in GATES]
    assert np.array_equal(kept[0], kept[2]) and not np.array_equal(kept[0], kept[1])


@pytest.mark.parametrize("layer", [0, 4, -1, "last", ""])
def test_a_layer_that_the_model_has_not_makes_no_trees(layer):
    with pytest.raises(ArgumentError, match=rf"model.tree_layer: must lie in 1…3, or be mean; got {layer!r}"):
        replace(make_model().config, tree_layer=layer)


def test_a_cell_without_distances_has_no_layer_of_trees():
    with pytest.raises(ArgumentError, match=r"model.tree_layer: needs a cell with a master forget gate; got cell=gru"):
        replace(make_model("gru").config, tree_layer=1)
    with pytest.raises(ArgumentError, match=r"model.tree_gate: needs a cell with a master forget gate; got cell=gru"):
        replace(make_model("gru").config, tree_gate="both")
    with pytest.raises(ArgumentError, match=r"model.tree_gate: must be one of .*; got 'forget'"):
        replace(make_model().config, tree_gate="forget")


GOLD = [gold_tree(tree) for tree in sample_trees(80, seed=1)]


def test_evaluation_filters_by_length_and_keeps_the_models_trees_aligned():
    rng = np.random.default_rng(0)
    predicted = [distances_to_spans(rng.random(len(g)), "unbiased") for g in GOLD]
    result = evaluate_parsing(GOLD, predicted, max_words=8, baselines=("right",))
    short = [k for k, g in enumerate(GOLD) if len(g) <= 8]
    assert 0 < len(short) < len(GOLD)
    assert (result.sentences, result.max_words) == (len(short), 8)
    assert list(result.scores) == ["model", "right"]
    assert result.scores["model"] == score([predicted[k] for k in short], [GOLD[k] for k in short]).as_dict()
    assert evaluate_parsing(GOLD, [g.spans for g in GOLD]).recall["NP"]["recall"] == 100
    assert evaluate_parsing(GOLD).recall == {}
    assert list(evaluate_parsing(GOLD).scores) == ["left", "right", "balanced", "random", "upper_bound"]


@pytest.mark.parametrize("max_words", [None, 12, 10, 5])
def test_scores_by_length_are_those_of_the_sentences_of_that_length(max_words):
    rng = np.random.default_rng(1)
    predicted = [distances_to_spans(rng.random(len(g)), "unbiased") for g in GOLD]
    found = by_length(GOLD, predicted, ("right", "random"), max_words)
    lengths = {"1–10": range(1, 11), "11–20": range(11, 21), "21–30": range(21, 31)}
    chosen = {
        name: [k for k, g in enumerate(GOLD) if len(g) in span and len(g) <= (max_words or 99)]
        for name, span in lengths.items()
    }
    assert list(found) == [name for name, places in chosen.items() if places] and len(found) >= 1
    for name, part in found.items():
        trees = [GOLD[k] for k in chosen[name]]
        assert part.sentences == len(trees)
        assert part.sentences_B == score(right_branching(trees), trees).sentences_B
        assert part.scores["model"] == score([predicted[k] for k in chosen[name]], trees).as_dict()
        assert part.scores["right"] == score(right_branching(trees), trees).as_dict()
    whole = evaluate_parsing(GOLD, predicted, max_words=max_words)
    assert sum(part.sentences for part in found.values()) == whole.sentences


def right_branching(trees):
    return [{(i, len(g)) for i in range(len(g) - 1)} for g in trees]


def test_the_sentences_of_protocol_b_have_two_words_or_more():
    trees = [gold_tree(Tree.fromstring(text)) for text in ["(S (NN a))", "(S (NN a))", "(S (NN a) (NN b))"]]
    (part,) = by_length(trees, None, ("right",)).values()
    assert (part.sentences, part.sentences_B) == (3, 1)


def test_no_score_where_no_sentence_counts():
    one, two = (gold_tree(Tree.fromstring(text)) for text in ("(S (NN a))", "(S (NN a) (NN b))"))
    found = score([set()], [one])
    assert found.as_dict() == {
        "A": pytest.approx(100),
        "AW": pytest.approx(100),
        "B": None,
        "B_star": None,
        "corpus": None,
    }
    assert score([set()], [two]).as_dict()["corpus"] == pytest.approx(100)
    assert bootstrap([set()], [one], samples=3)["B"] is None
    low, high = bootstrap([set(), set()], [one, two], samples=30)["B"]
    assert low == high == pytest.approx(100)
    result = evaluate_parsing([one], [set()], samples=2)
    assert result.scores["random"]["B"] is None is result.intervals["model"]["corpus"]
    assert agreements([[set()], [set()]], [one]) == [[None, None], [None, None]]


def test_unknown_baselines_and_empty_selections_are_refused():
    with pytest.raises(ArgumentError, match=f"must be one of {', '.join(BASELINE_NAMES)}; got 'middle'"):
        evaluate_parsing(GOLD, baselines=("right", "middle"))
    with pytest.raises(ArgumentError, match="max_words: must be a positive integer; got 0"):
        evaluate_parsing(GOLD, max_words=0)
    with pytest.raises(DataError, match="must hold a sentence with a word that counts; got 80 trees"):
        evaluate_parsing(GOLD, max_words=1)
    with pytest.raises(DataError, match="got 0 trees"):
        evaluate_parsing([])


def by_hand(model, sentence):
    """log P(sentence, eos), one token at a time."""
    total, states, before = 0.0, None, EOS
    for word in [*sentence, EOS]:
        output = model(torch.tensor([[before]]), states)
        total += torch.log_softmax(output.logits[0, 0].double(), -1)[word].item()
        states, before = output.states, word
    return total


@pytest.mark.parametrize("cell", ["onlstm", "gru"])
@torch.no_grad()
def test_log_probabilities_are_the_sum_over_single_steps(cell):
    model, sentences = make_model(cell), draw_sentences(12, 8)
    found = log_probabilities(model, sentences, EOS)
    assert found == pytest.approx([by_hand(model, s) for s in sentences], abs=1e-4)
    many = [*sentences, *draw_sentences(150, 4, seed=2)]
    assert log_probabilities(model, many, EOS)[:12] == pytest.approx(found, abs=1e-4)


# ---------------------------------------------------------------- plain sentences in, trees out

VOCABULARY = Vocabulary.build([["the", "cat", "sees", "N", "dogs", *(f"w{k}" for k in range(23))]], min_count=1)


def split(words, distances):
    """The tree as nested lists: split before the largest distance of words 2…n, and recurse."""
    if len(words) == 1:
        return words[0]
    k = max(range(1, len(words)), key=lambda i: distances[i])
    return [split(words[:k], distances[:k]), split(words[k:], distances[k:])]


def written(tree):
    return tree if isinstance(tree, str) else f"(X {' '.join(map(written, tree))})"


def nested(tree):
    return tree if isinstance(tree, str) else [nested(child) for child in tree]


def ends(tree, start=0):
    """(where a tree of nested lists ends, its spans of two words and more)."""
    if isinstance(tree, str):
        return start + 1, set()
    end, spans = start, set()
    for child in tree:
        end, inner = ends(child, end)
        spans |= inner
    return end, spans | {(start, end)}


@pytest.mark.parametrize(("layer", "read_ones"), [(1, [0]), (3, [2]), (None, [1]), ("mean", [0, 1, 2])])
def test_a_parse_has_distances_spans_brackets_and_a_tree(layer, read_ones):
    model = make_model()
    sentences = [["the", "cat", "sees", "N", "dogs"], ["unseen", "cat"], ["w1", *["dogs", "cat", "N"] * 6]]
    found = list(parse_sentences(model, VOCABULARY, iter(sentences), layer=layer))
    for words, parsed in zip(sentences, found, strict=True):
        distances = 1 - gate_means(model, VOCABULARY.encode(words), "master_forget")[read_ones].mean(0)
        assert parsed.words == words and parsed.distances == pytest.approx(distances.tolist(), abs=1e-5)
        tree = split(words, parsed.distances)
        assert nested(parsed.tree) == tree and parsed.tree.label() == "X"
        assert parsed.spans == ends(tree)[1] and parsed.brackets == written(tree)
    (alone,) = parse_sentences(model, VOCABULARY, [["cat"]], layer=layer)
    assert (alone.brackets, alone.spans, nested(alone.tree)) == ("(X cat)", set(), ["cat"])


def test_brackets_of_a_parse_escape_brackets_in_words():
    words = ["the", "(", "cat", ")"]
    (parsed,) = parse_sentences(make_model(), VOCABULARY, [words])
    assert parsed.brackets == written(split(["the", "-LRB-", "cat", "-RRB-"], parsed.distances))


@pytest.mark.parametrize("gate", ["master_forget", "master_input"])
def test_a_parse_is_by_the_named_gate_and_algorithm(gate):
    words = ["w1", "the", "w7", "cat", "w9", "N", "dogs", "sees"]
    how = {"layer": 3, "gate": gate}
    found = {a: next(parse_sentences(make_model(), VOCABULARY, [words], algorithm=a, **how)) for a in ALGORITHMS}
    means = gate_means(make_model(), VOCABULARY.encode(words), gate)[2]
    for algorithm, parsed in found.items():
        assert parsed.distances == pytest.approx((1 - means if gate == "master_forget" else means).tolist(), abs=1e-5)
        assert parsed.spans == distances_to_spans(parsed.distances, algorithm)


def test_parses_come_from_an_endless_stream_in_order(small_chunks):
    taken = count()
    stream = (["w1"] * (1 + next(taken) % 3) for _ in count())
    parses = list(islice(parse_sentences(make_model(sizes=(8,)), VOCABULARY, stream), 250))
    assert [parsed.words for parsed in parses] == [["w1"] * (1 + k % 3) for k in range(250)]
    assert all(len(parsed.distances) == len(parsed.words) for parsed in parses)
    assert next(taken) <= 3 * CHUNK


@pytest.mark.parametrize(
    ("mapping", "seen"),
    [
        ("exact", ["<unk>", "cat", "<unk>", "dogs"]),
        ("lower", ["the", "cat", "<unk>", "dogs"]),
        ("number", ["the", "cat", "N", "dogs"]),
        (None, ["the", "cat", "N", "dogs"]),
    ],
)
def test_words_of_a_parse_are_looked_up_by_the_named_rule_and_kept_as_written(mapping, seen):
    words, named = ["The", "cat", "2nd", "dogs"], {"mapping": mapping} if mapping else {}
    (parsed,) = parse_sentences(make_model(), VOCABULARY, [words], **named)
    (wanted,) = parse_sentences(make_model(), VOCABULARY, [seen], mapping="exact")
    assert parsed.distances == wanted.distances and parsed.words == parsed.tree.leaves() == words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 4}, "must lie in 1…3, or be mean; got 4"),
        ({"layer": "two"}, "parsing.layer: .*; got 'two'"),
        ({"gate": "input"}, "parsing.gate: .*; got 'input'"),
        ({"algorithm": "best"}, "algorithm: must be one of biased, unbiased; got 'best'"),
        ({"mapping": "upper"}, "mapping: must be one of exact, lower, number; got 'upper'"),
    ],
)
def test_a_parse_that_cannot_be_made_is_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        list(parse_sentences(make_model(), VOCABULARY, [["cat"]], **options))
    with pytest.raises(ArgumentError, match="at least one word; got length 0"):
        list(parse_sentences(make_model(), VOCABULARY, [["cat"], []]))
    with pytest.raises(ArgumentError, match="needs a cell with master gates; got cell 'lstm'"):
        parse_sentences(make_model("lstm"), VOCABULARY, [["cat"]])
    characters = Vocabulary.learn(iter([["cat"]]), DataConfig(level="char"))
    with pytest.raises(ArgumentError, match="parse: needs a vocabulary of words; got level char"):
        parse_sentences(make_model(), characters, [["cat"]])


def test_the_interval_of_random_trees_is_of_the_mean_of_their_runs():
    result = evaluate_parsing(GOLD, samples=200, baselines=("random",))
    low, high = result.intervals["random"]["B"]
    assert low < result.scores["random"]["B"] < high
    alone = [bootstrap(run, GOLD, samples=200)["B"] for run in _baseline("random", GOLD)]
    assert high - low < max(b - a for a, b in alone)
    same = [[set(tree.spans) for tree in GOLD]] * 2
    assert bootstrap_mean(same, GOLD, samples=20) == bootstrap(same[0], GOLD, samples=20)
