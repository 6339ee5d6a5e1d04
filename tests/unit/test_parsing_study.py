"""Reading distances off a model, scoring trees, and judging pairs."""

import numpy as np
import pytest
import torch

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import sample_trees
from gatedrnn.gates import syntactic_distance
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.studies.parsing import BASELINE_NAMES, cells_with_master_gates, default_layer, evaluate_parsing
from gatedrnn.studies.parsing import read_sentences as read
from gatedrnn.studies.syntax import log_probabilities, pair_accuracy
from gatedrnn.trees import distances_to_spans, gold_tree, score

WORDS, EOS = 30, 1


def make_model(cell="onlstm", sizes=(8, 12, 8), seed=0):
    torch.manual_seed(seed)
    config = LanguageModelConfig(
        vocabulary_size=WORDS, cell=cell, embedding_size=8, hidden_sizes=sizes, chunk_size=2, tied=sizes[-1] == 8
    )
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
        assert reading.distances[layer] == pytest.approx((1 - master_TN.mean(-1)).tolist(), abs=1e-6)
        assert reading.distances[layer] == pytest.approx(syntactic_distance(master_TN).tolist(), abs=1e-6)
        np.testing.assert_allclose(reading.gates[layer], master_TN.numpy(), atol=1e-6)
        (alone,) = read(model, [sentence], EOS, [layer])
        assert reading.distances[layer] == pytest.approx(alone.distances[layer], abs=1e-6)
        assert alone.gates == {}


def test_order_is_kept_over_many_chunks_of_one_stream():
    model, sentences = make_model(sizes=(8,)), draw_sentences(2100, 9, seed=1)
    readings = list(read(model, iter(sentences), EOS, [1]))
    assert [len(r.distances[1]) for r in readings] == [len(s) for s in sentences]
    for k in (0, 500, 1023, 1024, 1025, 2047, 2048, 2099):
        assert readings[k].distances[1] == pytest.approx(
            next(read(model, [sentences[k]], EOS, [1])).distances[1], abs=1e-6
        )


def test_reading_needs_no_more_than_a_part_of_the_stream():
    def endless():
        while True:
            yield [2, 3, 4]

    assert len(next(read(make_model(), endless(), EOS, [1])).distances[1]) == 3


@pytest.mark.parametrize("cell", ["rnn", "lstm", "peephole", "coupled", "gru", "g2lstm"])
def test_cells_without_master_gates_are_refused_naming_onlstm(cell):
    with pytest.raises(ArgumentError, match=rf"needs a cell with master gates; got cell '{cell}'.*onlstm"):
        read(make_model(cell), [[2]], EOS, [1])
    assert cells_with_master_gates() == ["onlstm"]


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
    assert [default_layer(make_model(sizes=(8,) * layers)) for layers in (1, 2, 3, 4)] == [1, 2, 2, 2]


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


@torch.no_grad()
def test_pair_accuracy_is_the_share_of_wins_and_a_tie_is_none():
    model, good, bad = make_model(), draw_sentences(30, 6, seed=3), draw_sentences(30, 6, seed=4)
    wins = [by_hand(model, g) > by_hand(model, b) for g, b in zip(good, bad, strict=True)]
    assert 0 < sum(wins) < 30
    assert pair_accuracy(model, good, bad, EOS) == sum(wins) / 30
    assert pair_accuracy(model, good, good, EOS) == 0
    for g, b in (([], []), (good, bad[1:])):
        with pytest.raises(ArgumentError, match=f"as many good as bad sentences; got {len(g)} and {len(b)}"):
            pair_accuracy(model, g, b, EOS)
