"""The inside algorithm against the sum over every labelled tree, in float64 and float32; its gradients by gradcheck."""

import itertools
import math

import pytest
import torch

from gatedrnn.models.inside import inside


def shapes(i, j):
    """Every binary tree over words i … j − 1: a word's number, or a pair of trees."""
    if j - i == 1:
        yield i
    for k in range(i + 1, j):
        yield from itertools.product(shapes(i, k), shapes(k, j))


def spans_of(tree):
    """First and last word of each constituent of at least one word."""
    if isinstance(tree, int):
        return [(tree, tree)]
    inner = [span for child in tree for span in spans_of(child)]
    return [*inner, (min(inner)[0], max(end for _, end in inner))]


def labelled(tree, symbols):
    """Every labelling: symbol, and the labelled children or the word."""
    count, total = symbols
    if isinstance(tree, int):
        for symbol in range(count, total):
            yield symbol, tree
        return
    for symbol in range(count):
        for children in itertools.product(*(list(labelled(child, symbols)) for child in tree)):
            yield symbol, children


def log_probability(node, grammar):
    words, rules, _ = grammar
    symbol, inner = node
    if isinstance(inner, int):
        return float(words[inner, symbol - len(rules)])
    one, two = inner
    own = float(rules[symbol, one[0], two[0]])
    return own + log_probability(one, grammar) + log_probability(two, grammar)


def enumerated(grammar, n, scores=None):
    """Log of the sum over all labelled trees, and the probability of each span."""
    symbols = grammar[1].shape[:2]
    total, by_span = 0.0, {}
    for tree in shapes(0, n):
        spans = spans_of(tree)
        added = 0.0 if scores is None else sum(float(scores[span]) for span in spans)
        nodes = labelled(tree, symbols)
        weight = sum(math.exp(float(grammar[2][node[0]]) + log_probability(node, grammar) + added) for node in nodes)
        total += weight
        for span in spans:
            by_span[span] = by_span.get(span, 0.0) + weight
    return math.log(total), {span: weight / total for span, weight in by_span.items()}


def drawn(seed, batch, n, count=2, leaves=3, dtype=torch.float64, spread=2.0):
    """Random rules, words' probabilities [B, n, P] and scores of spans."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return spread * torch.randn(*shape, generator=generator, dtype=torch.float64)

    symbols = count + leaves
    rules = draw(count, symbols**2).log_softmax(-1).view(count, symbols, symbols).to(dtype)
    words, root = draw(batch, n, leaves).to(dtype) - 3, draw(count).log_softmax(-1).to(dtype)
    return words, rules, root, draw(batch, n, n).to(dtype)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scored", [False, True])
def test_ragged_sentences_have_the_sum_over_all_trees(seed, scored):
    lengths = [2, 4, 3, 4]
    words, rules, root, scores = drawn(seed, len(lengths), 4)
    scores = scores if scored else None
    found = inside(words, rules, root, torch.tensor(lengths), scores)
    for b, n in enumerate(lengths):
        expected, _ = enumerated((words[b], rules, root), n, None if scores is None else scores[b])
        assert float(found[b]) == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("leaves", [1, 3])
@pytest.mark.parametrize("count", [1, 2])
def test_the_gradient_of_a_spans_score_is_its_probability(count, leaves):
    lengths = torch.tensor([4, 2])
    words, rules, root, _ = drawn(count, 2, 4, count, leaves)
    scores = torch.zeros(2, 4, 4, dtype=torch.float64, requires_grad=True)
    inside(words, rules, root, lengths, scores).sum().backward()
    for b, n in enumerate(lengths.tolist()):
        _, expected = enumerated((words[b], rules, root), n)
        found = {(i, j): float(scores.grad[b, i, j]) for i in range(4) for j in range(4)}
        assert {span: value for span, value in found.items() if value} == pytest.approx(expected, abs=1e-12)


def test_every_gradient_is_right():
    lengths = torch.tensor([5, 2, 4, 5])
    *rules, scores = (each.requires_grad_() for each in drawn(5, 4, 5, 3, 2))
    torch.autograd.gradcheck(lambda *given: inside(*given[:3], lengths, given[3]), (*rules, scores))


@pytest.mark.parametrize("fixed", range(4))
def test_a_gradient_is_the_same_whichever_others_are_wanted(fixed):
    lengths = torch.tensor([5, 3])
    given = drawn(7, 2, 5)
    every = torch.autograd.grad(
        inside(*(rules := [each.clone().requires_grad_() for each in given])[:3], lengths, rules[3]).sum(), rules
    )
    for names in ([n for n in range(4) if n != fixed], [fixed]):
        some = [each.clone().requires_grad_(n in names) for n, each in enumerate(given)]
        found = torch.autograd.grad(inside(*some[:3], lengths, some[3]).sum(), [some[n] for n in names])
        assert all(torch.equal(one, every[n]) for one, n in zip(found, names, strict=True))


def test_a_longer_batch_changes_no_sentence():
    lengths = torch.tensor([3, 7, 5])
    words, rules, root, _ = drawn(9, 3, 7)
    words = torch.cat([words, 1e3 * torch.ones(3, 2, 3, dtype=torch.float64)], 1)
    together = inside(words, rules, root, lengths)
    for b, n in enumerate(lengths.tolist()):
        alone = inside(words[b : b + 1, :n], rules, root, lengths[b : b + 1])
        assert float(together[b]) == pytest.approx(float(alone), abs=1e-11)


def test_float32_is_as_near_as_its_rounding_for_long_sentences_and_sharp_rules():
    words, rules, root, _ = drawn(3, 2, 60, 8, 12, spread=8.0)
    lengths = torch.tensor([60, 41])
    exact = inside(words, rules, root, lengths)
    found = inside(*(each.float() for each in (words, rules, root)), lengths)
    assert torch.allclose(found.double(), exact, rtol=2e-6, atol=0)


def test_what_is_below_the_type_is_a_large_finite_loss():
    words = torch.zeros(1, 3, 2)
    rules = torch.full((1, 3, 3), -200.0)
    rules[0, 0, 0] = 0
    found = inside(words, rules, torch.zeros(1), torch.tensor([3]))
    assert torch.isfinite(found).all() and float(found) < -80


def test_no_sentence_at_all():
    words, rules, root, _ = drawn(1, 3, 4)
    rules.requires_grad_()
    found = inside(words[:0], rules, root, torch.zeros(0, dtype=torch.int64))
    found.sum().backward()
    assert found.shape == (0,) and not rules.grad.any()


def test_what_memory_held_before_changes_nothing():
    lengths = torch.tensor([5, 3])
    words, rules, root, scores = (each.requires_grad_() for each in drawn(2, 2, 5))
    expected = torch.autograd.grad(inside(words, rules, root, lengths, scores).sum(), (words, rules, scores))
    torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
    try:
        assert torch.empty(3).isnan().all()
        found = torch.autograd.grad(inside(words, rules, root, lengths, scores).sum(), (words, rules, scores))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
