"""Reading bracketed treebanks."""

import gzip

import pytest

from gatedrnn.core.errors import DataError
from gatedrnn.data import read_treebank
from gatedrnn.trees import gold_tree


def read(tmp_path, text):
    (tmp_path / "a.trees").write_text(text)
    return [" ".join(str(tree).split()) for tree in read_treebank(tmp_path / "a.trees")]


CAT = "(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))"
DOG = "(S (NP (DT a) (NN dog)) (VP (VBZ barks)))"


@pytest.mark.parametrize(
    "text",
    [
        f"{CAT}\n{DOG}\n",
        f"{CAT}\n{DOG}",
        f"\n\n{CAT}\n\n  {DOG}  \n\n",
        f"{CAT} {DOG}\n",
        f"{CAT}{DOG}",
        "(S\n  (NP (DT the)\n      (NN cat))\n  (VP (VBZ\n sleeps)))\n" + DOG,
        f"{CAT} (S (NP (DT a)\n (NN dog)) (VP (VBZ barks)))",
        CAT.replace(" (", "\n\n(") + "\r\n" + DOG + "\r\n",
        "\ufeff" + CAT + "\n" + DOG,
    ],
)
def test_trees_are_found_however_lines_are_broken(tmp_path, text):
    assert read(tmp_path, text) == [CAT, DOG]


def test_gzip_is_read(tmp_path):
    (tmp_path / "a.trees.gz").write_bytes(gzip.compress(CAT.encode()))
    assert [tree.leaves() for tree in read_treebank(tmp_path / "a.trees.gz")] == [["the", "cat", "sleeps"]]


def test_an_empty_root_label_is_kept(tmp_path):
    (tmp_path / "a.trees").write_text(f"( {CAT} )\n({DOG})")
    trees = list(read_treebank(tmp_path / "a.trees"))
    assert [tree.label() for tree in trees] == ["", ""]
    assert [tree[0].label() for tree in trees] == ["S", "S"]
    assert [gold_tree(tree).whole_below_root for tree in trees] == [1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{CAT}\n\n(S (NN x)))\n{DOG}", r"a\.trees:3: brackets must balance; got a '\)' too many"),
        (f"{CAT}\n)", r"a\.trees:2: brackets must balance"),
        (f"{CAT}\n\n(S (NN x)\n\n", r"a\.trees:3: brackets must balance; got 1 '\(' left open"),
        (f"(S (NP (NN x)\n{CAT}\n", r"a\.trees:1: brackets must balance; got 2 '\(' left open"),
        (f"{CAT}\nthe cat sleeps\n", r"a\.trees:2: must hold brackets only; got 'the cat sleeps'"),
        (f"{CAT} word\n", r"a\.trees:1: must hold brackets only; got 'word'"),
        (f"word {CAT}\n", r"a\.trees:1: must hold brackets only; got 'word'"),
        ("1\tthe\tthe\tDET\n", r"a\.trees:1: must hold brackets only"),
        (f"{CAT}\n()\n", r"a\.trees:2: a tree must have at least one word"),
        ("(S (NP) (VP))", r"a\.trees:1: a tree must have at least one word"),
        ("", r"a\.trees: must hold at least one tree"),
        ("\n  \n", r"a\.trees: must hold at least one tree"),
    ],
)
def test_what_is_no_treebank_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, text)


def test_trees_before_a_damaged_line_are_still_given(tmp_path):
    (tmp_path / "a.trees").write_text(f"{CAT}\n{DOG}\n)")
    trees = read_treebank(tmp_path / "a.trees")
    assert [next(trees).leaves()[1], next(trees).leaves()[1]] == ["cat", "dog"]
    with pytest.raises(DataError, match=r":3:"):
        next(trees)


def deep(depth):
    return "(X (NN w) " * depth + "(NN w)" + ")" * depth + "\n"


def test_a_deep_tree_is_read(tmp_path):
    (tmp_path / "a.trees").write_text(deep(400))
    (tree,) = read_treebank(tmp_path / "a.trees")
    assert len(gold_tree(tree)) == 401


def test_a_tree_too_deep_for_nltk_is_refused_with_its_line(tmp_path):
    (tmp_path / "a.trees").write_text(CAT + "\n" + deep(5000))
    with pytest.raises(DataError, match=r"a\.trees:2: must be a bracketed tree; got .*depth"):
        list(read_treebank(tmp_path / "a.trees"))
