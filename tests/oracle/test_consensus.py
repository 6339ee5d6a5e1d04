"""The consensus tree against every binary tree there is."""

import random
from collections import Counter

import pytest

from gatedrnn.core.errors import ArgumentError
from gatedrnn.studies.parsing.votes import agreed
from gatedrnn.trees import consensus, left, random_spans, right, sentence_f1


def every_tree(i, j):
    """The spans of every binary tree over words i … j − 1."""
    if j - i < 2:
        yield frozenset()
        return
    for k in range(i + 1, j):
        for one in every_tree(i, k):
            for other in every_tree(k, j):
                yield one | other | {(i, j)}


@pytest.mark.parametrize("n", range(1, 8))
@pytest.mark.parametrize("voters", [1, 2, 3, 7])
def test_no_binary_tree_has_more_votes_or_a_higher_expected_f1(n, voters):
    generator = random.Random(10 * n + voters)
    trees = list(every_tree(0, n))
    for _ in range(10):
        given = [random_spans(n, generator) for _ in range(voters)]
        votes = Counter(span for tree in given for span in tree)
        found = consensus(given, n)
        assert frozenset(found) in trees
        assert sum(votes[span] for span in found) == max(sum(votes[span] for span in tree) for tree in trees)
        expected = [sum(sentence_f1(tree, voter) for voter in given) for tree in trees]
        assert sum(sentence_f1(found, voter) for voter in given) == pytest.approx(max(expected))


@pytest.mark.parametrize(("first", "second"), [(5, 5), (3, 3), (5, 3), (6, 1), (7, 2)])
def test_fractions_as_weights_count_as_whole_numbers_in_their_proportions(first, second):
    draw = random.Random(first)
    for n in range(3, 16):
        voters = [random_spans(n, draw) for _ in range(first + second)]
        weights = [0.3 / first] * first + [0.3 / second] * second
        expected = consensus(voters, n, [second] * first + [first] * second)
        assert consensus(voters, n, weights) == expected
        assert first != second or consensus(voters, n) == expected
        order = draw.sample(range(len(voters)), len(voters))
        assert consensus([voters[k] for k in order], n, [weights[k] for k in order]) == expected


def test_weights_without_a_common_measure_are_taken_as_they_are():
    voters = [{(0, 3), (0, 2)}, {(0, 3), (1, 3)}]
    assert consensus(voters, 3, [2**0.5, 1.4142135]) == voters[0]
    assert consensus(voters, 3, [1e-300, 1e300]) == voters[1]
    assert consensus(voters, 3, [1e-9, 2e-9]) == voters[1]


def test_one_voter_has_its_way():
    generator = random.Random(1)
    for n in (1, 2, 30, 200):
        tree = random_spans(n, generator)
        assert consensus([tree], n) == tree
    assert consensus([right(9)] * 3 + [random_spans(9, generator)] * 2, 9) == right(9)


@pytest.mark.parametrize(
    ("voters", "n", "told"),
    [
        ([], 3, "at least one tree; got 0"),
        ([{(0, 4)}], 3, r"inside 0…3; got \(0, 4\)"),
        ([set()], 2001, "got 2001"),
        ([set()], 0, "got 0"),
    ],
)
def test_what_cannot_be_is_told(voters, n, told):
    with pytest.raises(ArgumentError, match=told):
        consensus(voters, n)


def test_the_longest_sentence_has_a_consensus_and_a_longer_one_the_first_tree(monkeypatch):
    for function in (consensus, agreed):
        monkeypatch.setitem(function.__globals__, "LONGEST", 4)
    assert consensus([left(4), right(4), right(4)], 4) == agreed([left(4), right(4), right(4)], 4, None) == right(4)
    assert agreed([left(5), right(5), right(5)], 5, None) == left(5)
    with pytest.raises(ArgumentError, match="at most 4 words; got 5"):
        consensus([right(5)], 5)
