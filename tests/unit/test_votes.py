"""Votes of several parsers: weights of families, the right-branching prior, and what each voter adds."""

import numpy as np
import pytest

from gatedrnn.core.errors import ArgumentError
from gatedrnn.studies.parsing import PRIOR, Ballot, Parse, Reading, agreements, induced_trees, vote, voter_weights
from gatedrnn.studies.parsing.grammars import GrammarParse
from gatedrnn.trees import Gold, consensus
from gatedrnn.trees.baselines import left, right

WORDS = ["a", "b", "c", "d"]
MIDDLE = {(0, 4), (0, 2), (2, 4)}


def parse(spans, words=WORDS):
    return GrammarParse(words, spans, None)


def trees(*each):
    return {algorithm: list(each) for algorithm in ("biased", "unbiased")}


def gold(*lengths):
    return [Gold([str(k) for k in range(n)], ["NN"] * n, set(), [], False) for n in lengths]


def test_weights_of_families():
    assert voter_weights(["a", "a"]) is None and voter_weights(["a"], {"a": 2}) is None
    assert voter_weights(["a", "b", "b"]) == [1, 0.5, 0.5]
    assert voter_weights(["a", "b", "b"], {"b": 3}) == [1, 1.5, 1.5]
    for told in ({"c": 1}, {"a": 0}, {"a": -1}, {"a": float("nan")}, {"a": float("inf")}):
        with pytest.raises(ArgumentError, match="weight"):
            voter_weights(["a", "b"], told)


def test_a_vote_is_the_consensus_and_keeps_order_and_empty_lines():
    one = [parse(left(4)), parse(set(), []), parse({(0, 2)}, ["a", "b"])]
    two = [parse(MIDDLE), parse(set(), []), parse({(0, 2)}, ["a", "b"])]
    three = [parse(MIDDLE), parse(set(), []), parse({(0, 2)}, ["a", "b"])]
    found = list(vote([one, two, three], ["g", "g", "g"]))
    assert [each.spans for each in found] == [MIDDLE, set(), {(0, 2)}]
    assert [each.brackets for each in found] == ["(X (X a b) (X c d))", "", "(X a b)"]
    record = found[0].record()
    assert record["words"] == WORDS and record["voters"][0] == "(X (X (X a b) c) d)" and len(record["voters"]) == 3
    assert found[2].tree.leaves() == ["a", "b"]


def test_each_family_counts_the_same_unless_told_otherwise():
    voters = [[parse(left(4))], [parse(left(4))], [parse(right(4))]]
    families = ["g", "g", "l"]
    first = next(vote(voters, families, {"l": 1.5})).spans
    assert first == right(4) and next(vote(voters, families, {"g": 1.5})).spans == left(4)
    assert next(vote(voters, ["g", "g", "g"])).spans == left(4)


def test_the_prior_is_a_voter_of_its_own():
    assert next(vote([[parse(left(4))]], ["g"], {PRIOR: 2})).spans == right(4)
    assert next(vote([[parse(left(4))]], ["g"], {PRIOR: 0.5})).spans == left(4)
    ballot = Ballot([trees(left(4), left(3), set())], ["g"], gold(4, 3, 0), {PRIOR: 2})
    assert ballot.trees("unbiased") == [right(4), right(3), set()]
    assert ballot.weights == [1] and ballot.by_family == {"g": 1, PRIOR: 2}


def test_voters_must_read_the_same_words_and_as_many_sentences():
    with pytest.raises(ArgumentError, match=r"same words; got in sentence 1, 'a b c d' and 'A b c d'"):
        list(vote([[parse(left(4))], [parse(left(4), ["A", *WORDS[1:]])]], ["g", "g"]))
    with pytest.raises(ValueError, match="shorter"):
        list(vote([[parse(left(4))], []], ["g", "g"]))
    with pytest.raises(ArgumentError, match="at least one voter"):
        vote([], [])
    assert next(vote([[Parse(WORDS, MIDDLE, [0.1, 0.2, 0.9, 0.3])]], ["l"])).spans == MIDDLE


def test_a_ballot_is_the_consensus_and_says_what_the_others_do():
    every = [trees(left(4), left(5)), trees(left(4), right(5)), trees(right(4), right(5))]
    ballot = Ballot(every, ["g", "g", "l"], gold(4, 5))
    assert ballot.weights == [0.5, 0.5, 1] and ballot.by_family == {"g": 1, "l": 1}
    expected = [consensus([tree["unbiased"][k] for tree in every], n, [0.5, 0.5, 1]) for k, n in enumerate((4, 5))]
    assert ballot.trees("unbiased") == expected
    alone = ballot.without(2)
    assert alone.weights is None and alone.by_family == {} and alone.trees("unbiased")[0] == left(4)
    assert ballot.without(0).weights == [1, 1]


def test_a_family_that_has_left_takes_its_weight_along():
    ballot = Ballot([trees(left(4)), trees(right(4)), trees(MIDDLE)], ["g", "l", "l"], gold(4), {"g": 5, PRIOR: 0.1})
    assert ballot.trees("biased") == [left(4)]
    rest = ballot.without(0)
    assert rest.by_family == {"l": 1, PRIOR: 0.1} and rest.trees("biased") == [right(4)]
    with pytest.raises(ArgumentError, match="must name a family among the voters: g"):
        Ballot([trees(left(4))], ["g"], gold(4), {"x": 1})


def test_voters_agree_where_a_sentence_has_two_words():
    assert agreements([[left(4)]], gold(4)) == []
    assert agreements([[left(2)], [left(2)]], gold(2)) == [[pytest.approx(100)] * 2] * 2
    found = agreements([[set(), left(3)], [set(), right(3)]], gold(1, 3))
    assert found == [[pytest.approx(100), 0], [0, pytest.approx(100)]]


def test_a_sentence_without_a_word_has_an_empty_tree():
    readings = [Reading({1: []}), Reading({1: [0.5, 0.1]})]
    assert induced_trees(readings, 1) == trees(set(), {(0, 2)})


LEFT, RIGHT = {(0, 2), (0, 3), (0, 4)}, {(2, 4), (1, 4), (0, 4)}


@pytest.mark.parametrize("far", [1e308, 1e17, 1e-320, 5e-324])
def test_weights_of_any_size(far):
    assert consensus([LEFT, RIGHT, RIGHT], 4, [far, 1 / 3, 1 / 3]) == (LEFT if far > 1 else RIGHT)
    assert consensus([LEFT, RIGHT, RIGHT], 4, [far] * 3) == RIGHT


@pytest.mark.parametrize("weights", [np.ones(3, np.float32), np.array([1, 2, 3]), [True, 1, 2.0]])
def test_weights_of_any_type(weights):
    assert consensus([LEFT, RIGHT, RIGHT], 4, weights) == RIGHT
