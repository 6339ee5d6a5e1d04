"""Formulae, the relation of two, pairs that are made and pairs that are read."""

import gzip
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatedrnn.core.errors import DataError
from gatedrnn.data.config import PairDataConfig
from gatedrnn.data.labelled import LabelledPairs, find_pairs, pair_batches
from gatedrnn.data.logic import (
    LABELS,
    FormulaError,
    make_pairs,
    make_splits,
    read_formula,
    read_pairs,
    relation,
    write_pairs,
)
from gatedrnn.data.vocabulary import Vocabulary
from gatedrnn.tasks import Inference

SHARED = Path(__file__).parents[3] / "shared" / "data" / "logical-inference"

formulae = st.recursive(
    st.sampled_from("abcdef"),
    lambda inner: st.one_of(
        inner.map(lambda f: f"( not {f} )"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda p: f"( {p[0]} ( {p[1]} {p[2]} ) )"),
    ),
    max_leaves=8,
)


def worlds(text):
    """Truth in every world, by Python's own operators on a tree of lists."""
    tokens = iter(text.split())

    def tree(token):
        if token != "(":
            return token
        parts = []
        for each in tokens:
            if each == ")":
                return parts
            parts.append(tree(each))
        raise AssertionError

    def truth(node, world):
        if isinstance(node, str):
            return world[node]
        if node[0] == "not":
            return not truth(node[1], world)
        left, (operator, right) = node
        both = truth(left, world), truth(right, world)
        return all(both) if operator == "and" else any(both)

    root = tree(next(tokens))
    return [truth(root, dict(zip("abcdef", values, strict=True))) for values in itertools.product([0, 1], repeat=6)]


@given(formulae, formulae)
def test_a_relation_is_what_holds_in_all_worlds(left, right):
    a, b = worlds(left), worlds(right)
    pairs = list(zip(a, b, strict=True))
    expected = {
        "=": all(x == y for x, y in pairs),
        "^": all(bool(x) != bool(y) for x, y in pairs),
        "<": all(y for x, y in pairs if x),
        ">": all(x for x, y in pairs if y),
        "|": not any(x and y for x, y in pairs),
        "v": all(x or y for x, y in pairs),
        "#": True,
    }
    assert relation(read_formula(left), read_formula(right)) == next(label for label in expected if expected[label])


@given(formulae)
def test_operators_are_counted(text):
    assert read_formula(text).operators == sum(word in ("and", "or", "not") for word in text.split())


@pytest.mark.parametrize(
    ("text", "token", "reason"),
    [
        ("( a ( and ) )", 5, "a bracket must hold"),
        ("( a ( and b )", 6, "1 brackets are open at the end"),
        ("a b", 2, "'b' after the formula's end"),
        ("( a ( xor b ) )", 4, "'xor' is not a bracket, an operator or a variable"),
        ("( a and b )", 3, "'and' must follow an open bracket"),
        ("a )", 2, "')' after the formula's end"),
        (") a", 1, "')' without '('"),
        ("( and a )", 4, "an operator without its left side"),
        ("not", 1, "'not' must follow an open bracket"),
        ("", 1, "'' is not a bracket, an operator or a variable"),
        ("( a )", 3, "a bracket must hold"),
        ("( not a b )", 5, "a bracket must hold"),
        ("( ( and a ) b )", 7, "a bracket must hold"),
    ],
)
def test_what_is_no_formula_is_named_with_its_token(text, token, reason):
    with pytest.raises(FormulaError) as caught:
        read_formula(text)
    assert caught.value.token == token and reason in str(caught.value)


def test_made_pairs_depend_on_the_seed_alone_and_differ():
    pairs = make_pairs(300, 3, operators=range(2, 6), variables=3)
    assert pairs == make_pairs(300, 3, operators=range(2, 6), variables=3) != make_pairs(300, 4, range(2, 6), 3)
    assert len({(p.left, p.right) for p in pairs}) == 300
    for pair in pairs:
        left, right = read_formula(pair.left), read_formula(pair.right)
        assert pair.operators == max(left.operators, right.operators) in range(2, 6)
        names = {word for side in (pair.left, pair.right) for word in side.split() if len(word) == 1 and word.isalpha()}
        assert pair.label == relation(left, right) and len(names) <= 3
    assert len(make_pairs(1000, 1, operators=[0])) == 36  # there are no more


def test_files_of_pairs(tmp_path):
    pairs = make_pairs(50, 1)
    write_pairs(tmp_path / "train.tsv", pairs)
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress((tmp_path / "train.tsv").read_bytes()))
    write_pairs(tmp_path / "test.01.tsv", pairs[:3])
    write_pairs(tmp_path / "test.02.tsv", pairs[3:])
    found = find_pairs(tmp_path)
    read = {split: [pair for path in paths for pair in read_pairs(path)] for split, paths in found.items()}
    assert read == {"train": pairs, "valid": pairs, "test": pairs}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1\t=\ta", "line 2: must have four columns: operators, label, left and right, separated by tabs; got 3"),
        ("1\t?\ta\tb", "line 2: the label must be one of = < > ^ | v #; got '?'"),
        ("1\t=\ta\t( b ( and ) )", "line 2, right side: must be a formula; got token 5: a bracket must hold"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    (tmp_path / "train.tsv").write_text(f"0\t=\ta\ta\n{line}\n")
    with pytest.raises(DataError) as caught:
        list(read_pairs(tmp_path / "train.tsv"))
    assert words in str(caught.value)


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"must be a folder with train\.tsv and valid\.tsv; got no such"):
        find_pairs(tmp_path / "none")
    write_pairs(tmp_path / "train.tsv", make_pairs(2, 1))
    with pytest.raises(DataError, match=r"must hold valid\.tsv; got train\.tsv"):
        find_pairs(tmp_path)
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress(b"0\t=\ta\ta\n")[:-6])
    with pytest.raises(DataError, match=r"dev\.tsv\.gz"):
        list(read_pairs(tmp_path / "dev.tsv.gz"))
    (tmp_path / "dev.tsv").write_bytes(b"0\t=\ta\t\xff\n")
    with pytest.raises(DataError, match="UTF-8"):
        list(read_pairs(tmp_path / "dev.tsv"))


def test_batches_hold_every_pair_once_and_depend_on_seed_and_epoch():
    pairs = make_pairs(101, 2)
    vocabulary = Vocabulary(
        ["<unk>", "<eos>", *["(", ")", "and", "or", "not", "a", "b", "c", "d", "e"]]
    )  # f is unknown
    arrays = LabelledPairs(pairs, vocabulary)

    def read(epoch, parts=1):
        batches = pair_batches(arrays, 16, 1, epoch)
        assert len(batches) == 7
        found = []
        for k in range(len(batches)):
            for index in range(parts):
                batch = batches[k].part(index, parts)
                assert batch.count <= 16 and batch.steps == batches[k].steps
                for b in range(batch.count):
                    sides = [
                        " ".join(vocabulary.words[i] for i in ids[: lengths[b], b])
                        for ids, lengths in ((batch.left_TB, batch.left_B), (batch.right_TB, batch.right_B))
                    ]
                    assert (batch.left_TB[batch.left_B[b] :, b] == 1).all()
                    found.append((LABELS[batch.labels_B[b]], *sides))
        return found

    expected = [(p.label, *(s.replace("f", "<unk>") for s in (p.left, p.right))) for p in pairs]
    assert sorted(read(1)) == sorted(expected)
    assert read(1) == read(1, parts=3) and read(1) != read(2)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data/logical-inference here")
def test_labels_are_those_of_the_published_pairs():
    files = sorted(SHARED.glob("test.*.tsv"))
    pairs = [pair for path in files for pair in read_pairs(path)]
    assert len(pairs) == 37_367
    assert all(relation(read_formula(p.left), read_formula(p.right)) == p.label for p in pairs)
    stated = [int(line.split("\t")[0]) for path in files for line in path.read_text().splitlines()]
    assert [min(p.operators, 12) for p in pairs] == stated


FEW = {"train": (300, range(5)), "valid": (40, range(5)), "test": (60, range(9))}


def test_no_made_pair_is_in_two_splits_and_each_split_has_pairs_without_an_operator():
    made = make_splits(FEW, 1)
    assert {split: len(pairs) for split, pairs in made.items()} == {"train": 300, "valid": 40, "test": 60}
    every = [(pair.left, pair.right) for pairs in made.values() for pair in pairs]
    assert len({*every}) == len(every) == 400
    assert all({0, 1, 4} <= {pair.operators for pair in pairs} for pairs in made.values())
    assert made == make_splits(FEW, 1) != make_splits(FEW, 2)


def test_splits_that_ask_for_more_pairs_than_there_are_share_them():
    made = make_splits({split: (50, [0]) for split in FEW}, 1)
    assert [len(pairs) for pairs in made.values()] == [12, 12, 12]


def test_built_in_pairs_without_an_operator_can_be_trained_on_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("gatedrnn.tasks.inference._MADE", FEW)
    Inference.make(tmp_path, 1, PairDataConfig())
    task = Inference.open(PairDataConfig(operators=0), tmp_path)
    assert min(len(task.pairs["train"]), len(task.pairs["valid"])) > 0 and len(task.pairs["test"]) == 60
