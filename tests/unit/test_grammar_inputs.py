"""What `Grammar` takes for ids, lengths and scores of spans, and in which modes of autograd."""

import pytest
import torch

from gatedrnn import ArgumentError
from gatedrnn.models.grammar import Grammar, GrammarConfig

IDS, LENGTHS = torch.tensor([[1, 2], [3, 4], [5, 6], [0, 7]]), [4, 3]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Grammar(GrammarConfig(vocabulary_size=8, nonterminals=3, preterminals=4, state_size=5))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64])
def test_ids_and_lengths_are_of_any_integer_type(model, kind):
    assert torch.equal(model(IDS.to(kind), torch.tensor(LENGTHS).to(kind)), model(IDS, LENGTHS))


@pytest.mark.parametrize(
    ("ids", "lengths", "told"),
    [
        (IDS.float(), LENGTHS, r"tokens: must be integers \[T, B\]; got torch.float32"),
        (IDS > 3, LENGTHS, r"tokens: .*got torch.bool"),
        (IDS.to(torch.complex64), LENGTHS, r"tokens: .*got torch.complex64"),
        (IDS[:, 0], LENGTHS, r"tokens: .*got torch.int64 \[4\]"),
        (IDS, [2.7, 3], r"lengths: must be integers \[B\]; got torch.float32"),
        (IDS, torch.tensor([2.9, 3.0]), r"lengths: .*got torch.float32"),
        (IDS, [4], r"lengths: must be one per column of the ids \[T, B\]; got \[1\]"),
        (IDS, [], r"lengths: must be one per column"),
        (IDS, [4, 1], "lengths: must be between 2 and the 4 words"),
        (IDS, [5, 4], "lengths: must be between 2 and the 4 words"),
        (IDS + 1, LENGTHS, r"tokens: ids must lie in 0…7; got 1 to 8"),
        (IDS - 1, LENGTHS, r"tokens: ids must lie in 0…7; got -1 to 6"),
    ],
)
def test_what_is_no_sentence_is_refused(model, ids, lengths, told):
    for call in (model, model.spans):
        with pytest.raises(ArgumentError, match=told):
            call(ids, lengths)


def test_no_sentence_has_no_probability(model):
    assert model(IDS[:, :0], []).shape == (0,)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_spans_have_their_probabilities_in_every_mode(model, mode):
    expected = model.spans(IDS, LENGTHS)
    with mode():
        found = model.spans(IDS.clone(), torch.tensor(LENGTHS))
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert torch.equal(model(IDS, LENGTHS), expected[1])


def test_float16_is_refused():
    model = Grammar(GrammarConfig(20, 3, 4, 8)).half()
    with pytest.raises(ArgumentError, match="Grammar: cannot compute in float16"):
        model(torch.zeros(3, 1, dtype=torch.int64), [3])


@pytest.mark.parametrize("wrong", [torch.zeros(1, 3, 4), torch.zeros(3, 3), torch.zeros(1, 3, 3, dtype=torch.int64)])
def test_scores_that_do_not_fit_are_refused(wrong):
    model = Grammar(GrammarConfig(8, 3, 4, 5))
    with pytest.raises(ArgumentError, match=r"Grammar.spans: must be floating-point numbers \[1, 3, 3\]; got torch\."):
        model(torch.zeros(3, 1, dtype=torch.int64), [3], wrong)


def test_scores_of_another_type():
    model, ids = Grammar(GrammarConfig(8, 3, 4, 5)), torch.zeros(3, 1, dtype=torch.int64)
    expected = model(ids, [3], torch.ones(1, 3, 3))
    assert torch.equal(model(ids, [3], torch.ones(1, 3, 3, dtype=torch.float64)), expected)
