"""The neural grammar: its model, what it is trained on, its likelihood, and the trees of least risk."""

import itertools
import math
import re
from itertools import product

import numpy as np
import pytest
import torch
from tiny_levels import of_level
from torch.nn import functional as F

from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.data import DataConfig, Vocabulary, write_corpus
from gatedrnn.data.ragged import Ragged
from gatedrnn.data.sentences import GrammarDataConfig, by_room, of_length, sentence_batches
from gatedrnn.models.grammar import LONGEST, Grammar, GrammarConfig
from gatedrnn.models.inside import inside
from gatedrnn.studies.parsing import parse_by_grammar, parse_lines_by_grammar, voter_weights
from gatedrnn.tasks import GrammarInduction
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.grammar import likelihood
from gatedrnn.training.loop import _optimizer
from gatedrnn.trees import best_tree, consensus

EOS = 1
SIZES = GrammarConfig(12, nonterminals=3, preterminals=4, state_size=5)


def made(config=SIZES, seed=1):
    torch.manual_seed(seed)
    model = Grammar(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return model.eval().requires_grad_(False)


def words():
    return Vocabulary(["<unk>", "<eos>", *"abcdefghij"])


def every_tree(i, j):
    """The spans of every binary tree over words i … j − 1."""
    if j - i < 2:
        yield frozenset()
    for k in range(i + 1, j):
        for one, other in itertools.product(every_tree(i, k), every_tree(k, j)):
            yield one | other | {(i, j)}


def test_every_distribution_sums_to_one():
    rules, root, emitted = made().rules()
    assert (rules.shape, root.shape, emitted.shape) == ((3, 7, 7), (3,), (12, 4))
    for log, dim in ((rules.flatten(1), 1), (root, 0), (emitted, 0)):
        assert torch.allclose(log.exp().sum(dim), torch.ones(()), atol=1e-6)


def test_all_sentences_of_two_and_three_words_have_the_probability_of_their_trees():
    model = made(GrammarConfig(2, 2, 2, 3)).double()
    rules, root, _ = (each.exp() for each in model.rules())
    every = [torch.tensor(list(itertools.product(range(2), repeat=n))).t() for n in (2, 3)]
    two, three = (float(model(ids, torch.full(ids.shape[1:], len(ids))).exp().sum()) for ids in every)
    pair = rules[:, 2:, 2:].sum((1, 2))  # both children are words
    assert two == pytest.approx(float(root @ pair))
    first, last = rules[:, 2:, :2].sum(1) @ pair, rules[:, :2, 2:].sum(2) @ pair  # one child is a word
    assert three == pytest.approx(float(root @ (first + last)))


def test_a_sentences_probability_does_not_depend_on_its_batch():
    model = made()
    ids = torch.randint(0, 12, (9, 4), generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor([9, 2, 5, 7])
    together = model(ids, lengths)
    for b, n in enumerate(lengths.tolist()):
        assert float(together[b]) == pytest.approx(float(model(ids[:n, b : b + 1], lengths[b : b + 1])), abs=1e-4)


def test_spans_are_probabilities_and_the_whole_is_certain():
    model, lengths = made(), torch.tensor([6, 3])
    probability, log = model.spans(torch.randint(0, 12, (6, 2)), lengths)
    assert probability.min() >= 0 and probability.max() <= 1 + 1e-5 and not log.requires_grad
    for b, n in enumerate(lengths.tolist()):
        assert float(probability[b, 0, n - 1]) == pytest.approx(1, abs=1e-5)
        assert float(probability[b].sum()) == pytest.approx(2 * n - 1, abs=1e-4)  # words among them
        assert not probability[b, n:].any() and not probability[b, :, n:].any()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_tree_has_the_most_probable_spans_of_all_trees():
    model, vocabulary = made(), words()
    for n in range(2, 8):
        sentence = [vocabulary.words[2 + (7 * k * k + n) % 10] for k in range(n)]
        ids = torch.tensor(vocabulary.encode(sentence))[:, None]
        probability, log = model.spans(ids, torch.tensor([n]))
        (parse,) = parse_by_grammar(model, vocabulary, [sentence])
        assert parse.log_likelihood_nats == pytest.approx(float(log), abs=1e-5)

        def worth(spans, probability=probability):
            return sum(float(probability[0, i, j - 1]) for i, j in spans)

        assert worth(parse.spans) == pytest.approx(max(map(worth, every_tree(0, n))), abs=1e-6)


def test_lines_in_are_trees_out_in_order_whatever_their_length():
    model, vocabulary = made(), words()
    lines = ["a b c", "", "a", "zebra b", *["c d e f g h i j a b"] * 5, "a b c"]
    found = list(parse_lines_by_grammar(model, vocabulary, lines))
    assert [parse.brackets for parse in found[1:3]] == ["", "(X a)"]
    assert [parse.log_likelihood_nats for parse in found[1:3]] == [None, None]
    assert [list(parse.words) for parse in found] == [line.split() for line in lines]
    assert found[0].spans == found[-1].spans and len(found[4].spans) == 9
    assert str(found[3].tree) == "(X zebra b)"


def test_a_sentence_that_is_too_long_is_named():
    parses = parse_by_grammar(made(), words(), [["a", "b"], ["a"] * (LONGEST + 1)])
    with pytest.raises(ArgumentError, match=r"takes at most 300 words with a grammar; got 301 in sentence 2"):
        list(parses)


def test_a_grammar_parses_words_only():
    characters = of_level("char")[1]
    with pytest.raises(ArgumentError, match="parse: needs a vocabulary of words; got level char"):
        parse_by_grammar(made(), characters, [["a", "b"]])


def test_the_longest_sentence_has_a_tree(monkeypatch):
    monkeypatch.setattr("gatedrnn.studies.parsing.grammars.LONGEST", 3)
    (parse,) = parse_by_grammar(made(), words(), [["a", "b", "c"]])
    assert len(parse.spans) == 2
    with pytest.raises(ArgumentError, match=r"at most 3 words with a grammar; got 4 in sentence 1"):
        list(parse_by_grammar(made(), words(), [["a"] * 4]))


@pytest.mark.parametrize(
    ("lengths", "ids", "error"),
    [
        ([1, 3], [3, 2], "must be between 2 and the 3 words of a column; got 1 to 3"),
        ([2, 4], [3, 2], "must be between 2 and the 3 words of a column; got 2 to 4"),
        ([2], [3, 2], r"must be one per column of the ids \[T, B\]; got \[1\] for ids \[3, 2\]"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths, ids, error):
    with pytest.raises(ArgumentError, match=error):
        made()(torch.zeros(ids, dtype=torch.int64), torch.tensor(lengths))


def test_any_integers_and_a_list_of_lengths_are_read():
    model, ids = made(), torch.tensor([[2, 3], [4, 5], [6, 1]])
    expected = model(ids, torch.tensor([3, 2]))
    assert torch.equal(model(ids.to(torch.uint8), [3, 2]), expected)
    assert torch.equal(model(ids.int(), torch.tensor([3, 2], dtype=torch.int32)), expected)
    with pytest.raises(ArgumentError, match=r"must be integers \[T, B\]; got torch.float32 \[3, 2\]"):
        model(ids.float(), [3, 2])


def test_ids_and_sizes_out_of_range_are_refused():
    with pytest.raises(ArgumentError, match=r"ids must lie in 0…11; got 12 to 12"):
        made()(torch.full((2, 1), 12), torch.tensor([2]))
    with pytest.raises(ArgumentError, match=r"model\.vocabulary_size: must be set to build a model"):
        Grammar(GrammarConfig())
    for name in ("nonterminals", "preterminals", "state_size", "vocabulary_size"):
        with pytest.raises(ArgumentError, match=rf"model\.{name}: must be a positive integer; got 0"):
            GrammarConfig(**{name: 0})


def test_a_model_that_holds_nan_is_named():
    model = made()
    torch.nn.init.constant_(model.words.bias, math.nan)
    with pytest.raises(CheckpointError, match="spans: must be finite; got NaN or infinity"):
        list(parse_by_grammar(model, words(), [["a", "b"]]))
    with pytest.raises(CheckpointError, match="perplexity: must be finite; got a loss of nan nats a word"):
        likelihood(model, np.array([2, 3, EOS]), EOS)


def test_saved_and_read_again_it_is_the_same(tmp_path):
    model = made()
    model.save_pretrained(tmp_path, words())
    again, ids = Grammar.from_pretrained(tmp_path), torch.tensor([[2], [5], [3]])
    assert torch.equal(again(ids, torch.tensor([3])), model(ids, torch.tensor([3]))) and len(again.vocabulary) == 12


def test_bfloat16_and_float64_have_the_likelihood_of_float32():
    model, ids, lengths = made(), torch.randint(0, 12, (5, 3)), torch.tensor([5, 4, 2])
    expected = model(ids, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(model(ids, lengths), expected, rtol=0.02)
    assert torch.allclose(model.double()(ids, lengths).float(), expected, rtol=1e-5)


TOKENS = np.array([2, EOS, 2, 3, EOS, 4, 5, 6, EOS, EOS, 7, 8, 9, 10, EOS, 2, 3, EOS], np.int32)


def test_sentences_of_some_length_are_chosen():
    ids_TB, lengths_B = of_length(TOKENS, EOS, 2, 3).batch(np.arange(3))
    assert ids_TB.T.tolist() == [[2, 3, EOS], [4, 5, 6], [2, 3, EOS]] and lengths_B.tolist() == [2, 3, 2]
    assert len(of_length(TOKENS, EOS, 5, 9)) == len(of_length(TOKENS[:0], EOS, 2, 3)) == 0


def test_an_epoch_has_every_sentence_once_padded_and_shared_out():
    batches = sentence_batches(of_length(TOKENS, EOS, 2, 4), 3, 1, 1)
    found = []
    for batch in (batches[k] for k in range(len(batches))):
        assert batch.count == batch.lengths_B.sum() and batch.steps == batch.lengths_B.max()
        parts = [batch.part(k, 2) for k in range(2)]
        assert np.array_equal(np.concatenate([part.tokens_TB for part in parts], 1), batch.tokens_TB)
        for column, length in zip(batch.tokens_TB.T, batch.lengths_B, strict=True):
            found.append(column[:length].tolist())
            assert (column[length:] == EOS).all()
    assert sorted(found) == [[2, 3], [2, 3], [4, 5, 6], [7, 8, 9, 10]]


def test_batches_without_gradients_have_room_for_their_spans():
    sentences = Ragged.of([[2] * n for n in (9, 2, 3, 2, 30)])
    batches = [batch.tolist() for batch in by_room(sentences, 100)]
    assert sorted(itertools.chain(*batches)) == [0, 1, 2, 3, 4] and [4] in batches
    for batch in batches:
        assert len(batch) == 1 or len(batch) * (max(sentences.lengths_N[batch]) + 1) ** 2 <= 100


def test_likelihood_counts_words_and_leaves_out_what_has_no_tree():
    model = made()
    found = likelihood(model, TOKENS, EOS)
    logs = [float(model(torch.tensor(ids)[:, None], torch.tensor([len(ids)]))) for ids in ([2, 3], [2, 3], [4, 5, 6])]
    logs.append(float(model(torch.tensor([[7], [8], [9], [10]]), torch.tensor([4]))))
    assert (found.sentences, found.words, found.left_out) == (4, 11, 2)
    assert found.log_likelihood_nats == pytest.approx(sum(logs) / 4, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(-sum(logs) / 11), rel=1e-6)
    with pytest.raises(DataError, match="must hold a sentence of 2 to 300 words; got 1 others"):
        likelihood(model, TOKENS[:2], EOS)


def test_longer_sentences_come_epoch_by_epoch(tmp_path):
    write_corpus(tmp_path, 1, train=80, valid=10, test=5)
    task = GrammarInduction.open(GrammarDataConfig(longest=8, first_longest=6), tmp_path)
    longest = []
    for epoch in range(1, 5):
        batches = task.batches(task.training, epoch)
        longest.append(max(batches[k].steps for k in range(len(batches))))
    assert longest == [6, 7, 8, 8]
    assert "sentences, of 2 to 8 words" in task.describe()


@pytest.mark.parametrize(
    ("split", "told"),
    [
        ("train", "2 to 30 words; got none. Check the file, or raise data.first_longest."),
        ("valid", "2 to 300 words; got none. Check the file."),
        ("test", "2 to 300 words; got none. Check the file."),
    ],
)
def test_a_text_without_a_sentence_to_read_is_refused_before_training(split, told, tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text("a\nb\n" if name == split else "a b\n")
    with pytest.raises(DataError, match=re.escape(f"{split}.txt: must hold a sentence of {told}") + "$"):
        GrammarInduction.open(GrammarDataConfig(), tmp_path)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"longest": 1}, r"data\.longest: must be an integer of at least 2; got 1"),
        ({"first_longest": 0}, r"data\.first_longest: must be an integer of at least 2; got 0"),
        ({"level": "char"}, r"data\.level: must be word for a grammar; got level=char"),
        ({"empty_lines": "eos"}, r"data\.empty_lines: must be skip for a grammar; got empty_lines=eos"),
    ],
)
def test_sections_of_no_use_to_a_grammar_are_refused(values, error):
    with pytest.raises(ArgumentError, match=error):
        GrammarDataConfig(**values)
    assert isinstance(GrammarDataConfig(), DataConfig)


@pytest.mark.parametrize("betas", [(0.5,), (0.5, 1.0), (-0.1, 0.9), (0.9, math.nan)])
def test_betas_that_are_no_shares_are_refused(betas):
    with pytest.raises(ArgumentError, match=r"training\.betas: must be two numbers in \[0, 1\)"):
        TrainingConfig(betas=betas)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_betas_reach_the_optimiser_that_has_them(name):
    found = _optimizer(made(), TrainingConfig(optimizer=name, betas=(0.75, 0.99)))
    assert found.defaults.get("betas", (0.75, 0.99)) == (0.75, 0.99)
    default = _optimizer(made(), TrainingConfig(optimizer=name))
    assert default.defaults.get("betas", (0.9, 0.999)) == (0.9, 0.999)


def test_families_have_the_same_weight():
    assert voter_weights(["a", "a", "a"]) is None
    assert voter_weights(["a", "b", "b"]) == [1, 0.5, 0.5]
    one, other = {(0, 2), (0, 3)}, {(1, 3), (0, 3)}
    assert consensus([one, other, other], 3) == other == consensus([one, other, other], 3, [1.0, 0.6, 0.6])
    assert consensus([one, other, other], 3, [1.0, 0.4, 0.4]) == one
    for weights in ([1.0], [1.0, 0.0], [1.0, math.inf]):
        with pytest.raises(ArgumentError, match=r"consensus\.weights: must be a finite number above 0 for each tree"):
            consensus([one, other], 3, weights)


def test_the_best_tree_of_any_worths_is_the_best_of_all():
    random = np.random.default_rng(1)
    for n in range(1, 8):
        worth = random.normal(size=(n + 1, n + 1))
        best = max(every_tree(0, n), key=lambda tree: sum(worth[span] for span in tree))
        assert best_tree(worth) == best


T, N, P = 4, 3, 4


def tables(dtype):
    torch.manual_seed(0)
    words = torch.randn(1, T, P, dtype=torch.float64).log_softmax(-1) - 2
    rules = torch.randn(N, (N + P) ** 2, dtype=torch.float64).log_softmax(-1).view(N, N + P, N + P)
    root = torch.randn(N, dtype=torch.float64).log_softmax(-1)
    return [each.to(dtype).requires_grad_() for each in (words, rules, root)]


@pytest.mark.parametrize(("dtype", "far"), product([torch.float64, torch.float32], [-1e5, -1e38, -math.inf]))
def test_a_span_that_no_tree_may_have(dtype, far):
    """Two spans of two words are forbidden, and with them every tree of the three words that they cover."""
    words, rules, root = tables(dtype)
    spans = torch.zeros(1, T, T, dtype=dtype)
    spans[0, 0, 1] = spans[0, 1, 2] = far
    spans.requires_grad_()
    found = inside(words, rules, root, torch.tensor([T]), spans)
    trees = [{(1, 3), (2, 3)}]  # the only one of five that has neither
    free = torch.zeros(1, T, T, dtype=dtype, requires_grad=True)
    whole = inside(words, rules, root, torch.tensor([T]), free)
    assert float(found.detach()) < float(whole.detach())
    (share,) = torch.autograd.grad(found.sum(), spans)
    expected = torch.zeros(T, T, dtype=dtype).index_put_(
        tuple(torch.tensor([*trees[0], (0, 3)]).t()), torch.ones(()).to(dtype)
    )
    assert torch.allclose(share[0].triu(1), expected, atol=1e-5)


def test_what_no_type_holds_is_impossible_and_has_no_gradient():
    words, rules, root = tables(torch.float32)
    with torch.no_grad():
        root[:], rules[0] = -200, -300
        root[0] = 0
    found = inside(words, rules, root, torch.tensor([T]))
    assert found.item() < -9e29
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(found.sum(), (words, rules, root)))


def test_rules_are_those_of_the_published_network():
    """Kim, Dyer & Rush 2019: f = g(g(W x)) with g(y) = ReLU(V ReLU(U y)) + y; children as left · S + right."""
    model = made().double()
    w = model.state_dict()

    def linear(x, name):
        return x @ w[f"{name}.weight"].t() + w[f"{name}.bias"]

    def f(x, name):
        y = linear(x, f"{name}.0")
        for k in (1, 2):
            y = F.relu(linear(F.relu(linear(y, f"{name}.{k}.inner.0")), f"{name}.{k}.inner.2")) + y
        return y

    rules, root, words = model.rules()
    children = linear(w["symbols"][:3], "pairs").softmax(-1)
    for left in range(7):
        for right in range(7):
            torch.testing.assert_close(rules[:, left, right].exp(), children[:, left * 7 + right])
    torch.testing.assert_close(root.exp(), linear(f(w["start"], "root"), "root.3")[0].softmax(-1))
    torch.testing.assert_close(words.exp(), linear(f(w["symbols"][3:], "word"), "words").softmax(-1).t())


def test_weights_are_drawn_xavier_uniform():
    torch.manual_seed(0)
    for name, weight in Grammar(GrammarConfig(40, 8, 12, 64)).named_parameters():
        if weight.dim() > 1:
            bound = math.sqrt(6 / sum(weight.shape))
            assert 0.9 * bound < weight.abs().max() <= bound, name
