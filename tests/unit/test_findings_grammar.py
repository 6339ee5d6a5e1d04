"""What a grammar says at the edges: spans that no tree may have, and probabilities below what a type holds."""

import math
from itertools import product

import pytest
import torch

from gatedrnn import ArgumentError
from gatedrnn.models.grammar import Grammar, GrammarConfig
from gatedrnn.models.inside import inside

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


@pytest.mark.parametrize("wrong", [torch.zeros(1, 3, 4), torch.zeros(3, 3), torch.zeros(1, 3, 3, dtype=torch.int64)])
def test_scores_that_do_not_fit_are_refused(wrong):
    model = Grammar(GrammarConfig(8, 3, 4, 5))
    with pytest.raises(ArgumentError, match=r"Grammar.spans: must be floating-point numbers \[1, 3, 3\]; got torch\."):
        model(torch.zeros(3, 1, dtype=torch.int64), [3], wrong)


def test_scores_of_another_type():
    model, ids = Grammar(GrammarConfig(8, 3, 4, 5)), torch.zeros(3, 1, dtype=torch.int64)
    expected = model(ids, [3], torch.ones(1, 3, 3))
    assert torch.equal(model(ids, [3], torch.ones(1, 3, 3, dtype=torch.float64)), expected)
