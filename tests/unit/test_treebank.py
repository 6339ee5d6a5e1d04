"""Reading bracketed treebanks, and which of their words count."""

import gzip

import pytest
from nltk.tree import Tree

from gatedrnn.core.errors import DataError
from gatedrnn.data import read_treebank
from gatedrnn.data.characters import character_words
from gatedrnn.trees import brackets, gold_tree


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
        (f"{CAT}\n\n(S (NN x)))\n{DOG}", r"a\.trees:3: brackets must balance; got one '\)' too many"),
        (f"{CAT}\n)", r"a\.trees:2: brackets must balance"),
        (f"{CAT}\n\n(S (NN x)\n\n", r"a\.trees:3: brackets must balance; got 1 '\(' left open"),
        (f"(S (NP (NN x)\n{CAT}\n", r"a\.trees:1: brackets must balance; got 2 '\(' left open"),
        ("(S (NN x)\n(NN y)) (S (NN z)\n", r"a\.trees:2: brackets must balance; got 1 '\(' left open"),
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
    reason = "one of too many levels|maximum recursion depth exceeded"  # the latter before nltk 3.10
    with pytest.raises(DataError, match=rf"a\.trees:2: must be a bracketed tree; got ({reason})\. Fix this tree\.$"):
        list(read_treebank(tmp_path / "a.trees"))


def test_brackets_are_no_words_in_any_form():
    names = ("-LRB-", "-RRB-", "-LSB-", "-RCB-", "(", "]")
    tree = Tree(
        "S", [Tree("NP", [Tree("NN", ["老人"]), *(Tree(name, [name]) for name in names)]), Tree("X", ["a-LRB-1"])]
    )
    assert gold_tree(tree, "alnum").words == ("老人", "a-LRB-1")
    assert gold_tree(tree, "alnum", character_words).words == ("老", "人", "a", "(", "1")
    assert gold_tree(Tree("S", ["[-RSB-", "a-LSB-"]), "alnum", character_words).words == ("a", "[")


@pytest.mark.parametrize("word", ["10 000", "10\u00a0000", "10 \t000", "10\u2009000"])
def test_a_word_with_a_space_is_one_leaf(word):
    assert brackets({(0, 2)}, [word, "people", "came"]) == "(X (X 10_000 people) came)"
    assert Tree.fromstring(brackets(set(), ["a", "", " "])).leaves() == ["a", "_", "_"]


@pytest.mark.parametrize(
    "word",
    [
        "10\u00a0000",
        "1\u202f000\u202f000",
        "a\u3000b",
        "a\u2028b",
        "\\",
        "a\\",
        "1\\/2",
        "\\*\\*",
        "\u00a0",
        "\U000f0001\u00a0\U000f0000\\",
    ],
)
def test_other_white_space_and_backslashes_are_of_their_word(tmp_path, word):
    text = f"(S (NP (DT the) (CD {word})) (VP (VBZ sleeps)\u00a0(RB {word} )))"
    (tmp_path / "a.trees").write_text(text)
    (tree,) = read_treebank(tmp_path / "a.trees")
    assert tree.leaves() == ["the", word, "sleeps", word]
    assert [each.label() for each in tree.subtrees()] == ["S", "NP", "DT", "CD", "VP", "VBZ", "RB"]
    assert gold_tree(tree, "alnum").words == tuple(each for each in tree.leaves() if any(map(str.isalnum, each)))


def test_words_beside_brackets_keep_their_odd_spaces(tmp_path):
    (tmp_path / "a.trees").write_text("(S 1\u00a0000 (NP c\u2009d) e\u00a0f\u00a0(N g) \u00a0 (X\u00a0y)\u00a0)")
    (tree,) = read_treebank(tmp_path / "a.trees")
    assert tree.leaves() == ["1\u00a0000", "c\u2009d", "e\u00a0f", "g", "y"]
    (tmp_path / "b.trees").write_text("(S (NP 1\u00a0000) (-LRB- \\() (X b d\u00a0) (-RRB- \\)))")
    (tree,) = read_treebank(tmp_path / "b.trees")
    assert tree.leaves() == ["1\u00a0000", "\\(", "b", "d", "\\)"]


def test_labels_keep_their_backslashes(tmp_path):
    (tmp_path / "a.trees").write_text("(S (S\\NP (D the) (N pilot)) (V\\x y\\))")
    (tree,) = read_treebank(tmp_path / "a.trees")
    assert [each.label() for each in tree.subtrees()] == ["S", "S\\NP", "D", "N", "V\\x"]
    assert tree.leaves() == ["the", "pilot", "y\\"]


def test_escaped_brackets_and_labels_before_odd_spaces_are_read_as_nltk_does(tmp_path):
    (tmp_path / "a.trees").write_text(
        "(S (NN a) (-LRB- \\() (X b) (-RRB- \\)) (. .))\n(S ( NN\u00a0x) (B c))\n(S (NN\u00a0x) (B c))\n"
    )
    given = [Tree.fromstring(line) for line in (tmp_path / "a.trees").read_text().splitlines()]
    assert list(read_treebank(tmp_path / "a.trees")) == given


def test_a_flat_tree_of_many_words_takes_no_time(tmp_path):
    (tmp_path / "a.trees").write_text("(S " + "a " * 200_000 + "\u00a0 (X b\u00a0c))")
    (tree,) = read_treebank(tmp_path / "a.trees")
    assert len(tree.leaves()) == 200_001 and tree.leaves()[-1] == "b\u00a0c"


# ---------------------------------------------------------------- bad trees among good ones

WORDS = ("anna", "bert", "carl", "dora", "emil", "fred")


def tree_with(word, indented):
    if indented:
        return f"(S\n  (NP (DT the)\n      (NN {word}))\n  (VP (VBZ sleeps)))"
    return f"(S (NP (DT the) (NN {word})) (VP (VBZ sleeps)))"


BAD = {
    "too many": (lambda tree: tree + ")", -1, "brackets must balance; got one ')' too many"),
    "too few": (lambda tree: tree[:-1], 0, "brackets must balance; got 1 '(' left open"),
    "far too few": (lambda tree: tree[:-3], 0, "brackets must balance; got 3 '(' left open"),
    "text behind": (lambda tree: tree + " word", -1, "must hold brackets only; got 'word'"),
    "text before": (lambda tree: "word " + tree, 0, "must hold brackets only; got 'word'"),
    "text alone": (lambda tree: "the cat sleeps", 0, "must hold brackets only; got 'the cat sleeps'"),
    "no word": (lambda tree: "(S (NP) (VP))", 0, "a tree must have at least one word; got (S (NP) (VP))"),
    "nothing": (lambda tree: "()", 0, "a tree must have at least one word; got ()"),
    "two on a line": (lambda tree: f"{CAT} {CAT})", 0, "brackets must balance; got one ')' too many"),
    "closed first": (lambda tree: ")", 0, "brackets must balance; got one ')' too many"),
}


def skipping(path):
    skipped = []
    return [tree.leaves()[1] for tree in read_treebank(path, skipped)], [str(error) for error in skipped]


@pytest.mark.parametrize("indented", [False, True], ids=["lines", "indented"])
@pytest.mark.parametrize("places", [[0], [2], [5], [2, 3], [0, 5], [1, 2, 3, 4]], ids=str)
@pytest.mark.parametrize("kind", BAD)
def test_bad_trees_are_named_by_line_and_all_others_read(tmp_path, kind, places, indented):
    damage, where, message = BAD[kind]
    blocks, lines, number = [], [], 1
    for k, word in enumerate(WORDS):
        block = damage(tree_with(word, indented)) if k in places else tree_with(word, indented)
        if k in places:
            lines.append(number + (block.count("\n") if where < 0 else 0))
        blocks.append(block)
        number += block.count("\n") + 1
    path = tmp_path / "a.trees"
    path.write_text("\n".join(blocks))
    found, errors = skipping(path)
    assert found == [word for k, word in enumerate(WORDS) if k not in places]
    assert [error[: error.index(" ")] for error in errors] == [f"{path}:{line}:" for line in lines]
    assert all(message in error for error in errors)
    with pytest.raises(DataError, match=rf"a\.trees:{lines[0]}: "):
        list(read_treebank(path))


UNINDENTED = "(S\n(NP (DT the) (NN pilot))\n(VP (VBZ laughs)))\n"


@pytest.mark.parametrize(
    ("text", "found", "lines"),
    [
        (UNINDENTED + "(S (NN a) (NN b))", ["pilot", "b"], []),
        (UNINDENTED * 2 + "(S\n(NN x)\n" + UNINDENTED, ["pilot", "pilot"], [7]),
        ("(S\n  (NP (DT the) (NN pilot)))\n  (VP (VBZ laughs)))\n(S (NN a) (NN b))", ["b"], [3]),
        (" (S (NN a)\n   (NN b))\n (S (NN c)\n (S (NN e) (NN f))", ["b", "f"], [3]),
    ],
)
def test_fragments_of_a_tree_are_no_trees(tmp_path, text, found, lines):
    (tmp_path / "a.trees").write_text(text)
    words, errors = skipping(tmp_path / "a.trees")
    assert words == found and [int(error.split("a.trees:")[1].split(":")[0]) for error in errors] == lines


def test_a_treebank_without_a_bad_tree_skips_none(tmp_path):
    for indented in (False, True):
        (tmp_path / "a.trees").write_text("\n\n".join(tree_with(word, indented) for word in WORDS) + "\n")
        assert skipping(tmp_path / "a.trees") == (list(WORDS), [])


def test_a_treebank_of_bad_trees_alone_is_refused(tmp_path):
    (tmp_path / "a.trees").write_text("the cat\n(S (NN x)\n(S)\n")
    skipped = []
    with pytest.raises(
        DataError, match=r"must hold at least one tree; got 3 bad ones\. The first: .*a\.trees:1: must hold"
    ):
        list(read_treebank(tmp_path / "a.trees", skipped))
    assert len(skipped) == 3
    (tmp_path / "a.trees").write_text("\n")
    with pytest.raises(DataError, match="got an empty treebank"):
        list(read_treebank(tmp_path / "a.trees", []))


@pytest.mark.parametrize("first", ["# sent_id = 1", "1\tthe\tthe\tDET", "1-2\tdon't\t_\t_", "#\n1\tthe"])
@pytest.mark.parametrize("before", ["", "\n\n", "\ufeff"], ids=["at once", "after blank lines", "after a mark"])
@pytest.mark.parametrize("skipped", [None, []], ids=["", "skipping"])
def test_dependencies_are_refused_as_such(tmp_path, first, before, skipped):
    text = f"{before}{first}\n2\tcat\tcat\tNOUN\n"
    (tmp_path / "a.conllu").write_text(text)
    lines = enumerate(text.replace("\ufeff", "").split("\n"), 1)
    number, line = next((number, line) for number, line in lines if line[:1].isdigit())  # the first that is no comment
    shown = repr(line).replace("\\", "\\\\")
    told = (
        rf"a\.conllu:{number}: must hold brackets only; got {shown}, as in CoNLL-U\. Dependencies are not constituents"
    )
    with pytest.raises(DataError, match=told):
        list(read_treebank(tmp_path / "a.conllu", skipped))
    assert not skipped


@pytest.mark.parametrize("outside", ["# comment", "# one\n# two", "; note", "#"])
def test_what_stands_before_the_first_tree_is_skipped_as_elsewhere(tmp_path, outside):
    (tmp_path / "a.trees").write_text(f"{outside}\n{CAT}\n{outside}\n{CAT}\n")
    skipped = []
    assert len(list(read_treebank(tmp_path / "a.trees", skipped))) == 2
    assert len(skipped) == 1 + len(outside.split("\n"))  # together before the first tree, each by itself behind it
    with pytest.raises(DataError, match=r"a\.trees:1: must hold brackets only; got '[#;]"):
        list(read_treebank(tmp_path / "a.trees"))


GOOD = "(S (NP (DT the) (NN {0})) (VP (VBZ runs)))"
OPEN = "(S (NP (DT the) (NN {0}) (VP (VBZ runs)))"
FLAT = "({1}\n(NP (DT the) (NN {0}))\n(VP (VBZ runs)))"


@pytest.mark.parametrize(
    ("lines", "found", "lost"),
    [
        ([GOOD, OPEN, GOOD, "junk", GOOD], "ace", ["2", "4"]),
        ([OPEN, "junk", GOOD, "junk", "(S)", GOOD], "cf", ["1: Lines 1–2", "4", "5"]),
        ([OPEN, GOOD + "\n" + GOOD.replace("{0}", "x"), "junk\n more"], "bx", ["1", "4: Lines 4–5"]),
        (["(S\n  (NN {0})\n", GOOD, GOOD], "bc", ["1: Lines 1–2"]),
    ],
)
def test_good_trees_after_a_bad_one_are_read_and_all_lost_lines_are_named(tmp_path, lines, found, lost):
    check_skipped(tmp_path, lines, found, lost)


def test_roots_begin_trees_where_lines_inside_trees_do_not(tmp_path):
    flat, broken = FLAT.replace("{1}", "ROOT"), FLAT.replace("{1}", "ROOT")[:-1]
    check_skipped(tmp_path, [flat, broken, flat, flat], "acd", ["4: Lines 4–6"])
    flat, broken = FLAT.replace("{1}", "S"), FLAT.replace("{1}", "S")[:-1]
    check_skipped(tmp_path, [flat, broken, flat], "a", ["4: Lines 4–9"])


def check_skipped(folder, lines, found, lost):
    (folder / "a.trees").write_text(
        "\n".join(line.replace("{0}", name) for name, line in zip("abcdef", lines, strict=False))
    )
    errors = []
    nouns = [tree.leaves()[1] for tree in read_treebank(folder / "a.trees", errors)]
    assert "".join(nouns) == found
    for error, said in zip(errors, lost, strict=True):
        number, _, range_ = said.partition(": ")
        assert f"a.trees:{number}: " in str(error) and "\n" not in str(error)
        assert str(error).endswith(f"{range_} are left out.") if range_ else "are left out" not in str(error)


def test_the_first_tree_of_a_file_may_be_the_bad_one(tmp_path):
    whole = "(ROOT (S\n(NP (DT a) (NN cat))\n(VP (VBZ sits))))\n"
    (tmp_path / "trees").write_text(whole.replace("))))", ")") + whole + whole)
    skipped = []
    assert [tree.label() for tree in read_treebank(tmp_path / "trees", skipped)] == ["ROOT", "ROOT"]
    assert "Lines 1–3 are left out" in str(skipped[0])


def test_a_tree_may_begin_on_the_line_where_another_one_ends(tmp_path):
    (tmp_path / "a.trees").write_text("(S (NN a)\n   (NN b)) (S\n   (NN c)) (S (NN d))\n(S (NN e))\n")
    assert [tree.leaves() for tree in read_treebank(tmp_path / "a.trees")] == [["a", "b"], ["c"], ["d"], ["e"]]


def test_a_line_may_end_between_a_label_and_its_word(tmp_path):
    (tmp_path / "a.trees").write_text("(S (NN\na) (VP (VB\nb\nc) (NN\nd)))\n")
    (tree,) = read_treebank(tmp_path / "a.trees")
    assert tree.leaves() == ["a", "b", "c", "d"] and [part.label() for part in tree.subtrees()] == [
        "S",
        "NN",
        "VP",
        "VB",
        "NN",
    ]
