"""Trees, spans and scores against direct recursive implementations and enumeration."""

import random
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.tree import Tree

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.trees import (
    ALGORITHMS,
    BASELINES,
    PROTOCOLS,
    agreement,
    bootstrap,
    brackets,
    depth,
    distances_to_spans,
    gold_tree,
    label_recall,
    random_spans,
    score,
    spans_to_tree,
    upper_bound,
)
from gatedrnn.trees.gold import WORD_TAGS

LONG = 20_000

# ---------------------------------------------------------------- distances → trees


def published(depth, sentence):
    """Binary tree as nested lists, word by word as in the released code of ON-LSTM and PRPN."""
    if len(depth) == 1:
        return sentence[0]
    k = max(range(len(depth)), key=lambda i: (depth[i], -i))
    tree = [sentence[k], published(depth[k + 1 :], sentence[k + 1 :])] if sentence[k + 1 :] else sentence[k]
    return [published(depth[:k], sentence[:k]), tree] if k else tree


def between(depth, sentence):
    """Split before the largest distance of words 2…n, and recurse."""
    if len(depth) == 1:
        return sentence[0]
    k = max(range(1, len(depth)), key=lambda i: (depth[i], -i))
    return [between(depth[:k], sentence[:k]), between(depth[k:], sentence[k:])]


DIRECT = {"biased": published, "unbiased": between}


def nested_spans(tree, start=0):
    """(number of words, spans of width ≥ 2) of nested lists or Trees, by recursion."""
    if not isinstance(tree, list):
        return 1, set()
    width, spans = 0, set()
    for child in tree:
        n, inner = nested_spans(child, start + width)
        width, spans = width + n, spans | inner
    return width, spans | ({(start, start + width)} if width >= 2 else set())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(distances=st.lists(st.integers(0, 5) | st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_distances_give_the_tree_of_the_direct_recursion(algorithm, distances):
    tree = DIRECT[algorithm](distances, list(range(len(distances))))
    assert distances_to_spans(distances, algorithm) == nested_spans(tree)[1]


@pytest.mark.parametrize(("algorithm", "reached"), [("biased", [1, 1, 2, 5, 13]), ("unbiased", [1, 1, 2, 5, 14])])
def test_which_binary_trees_can_be_reached(algorithm, reached):
    found = [{frozenset(distances_to_spans(p, algorithm)) for p in permutations(range(n))} for n in range(1, 6)]
    assert [len(trees) for trees in found] == reached
    assert found[4] <= set(map(frozenset, binary_trees(0, 5)))


@pytest.mark.parametrize(
    ("distances", "algorithm", "message"),
    [
        ([], "biased", "must have one distance per word"),
        ([0.1, float("nan")], "unbiased", "must be finite; got .*nan"),
        ([float("inf")], "biased", "must be finite"),
        ([0.1], "best", "must be one of biased, unbiased; got 'best'"),
    ],
)
def test_distances_that_make_no_tree_are_refused(distances, algorithm, message):
    with pytest.raises(ArgumentError, match=message):
        distances_to_spans(distances, algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("order", ["up", "down", "flat", "random"])
def test_very_long_sentences_parse(algorithm, order):
    values = {"up": range(LONG), "down": range(LONG, 0, -1), "flat": [0.5] * LONG}
    distances = values.get(order) or random.Random(1).sample(range(LONG), LONG)
    words = [f"w{k}" for k in range(LONG)]
    spans = distances_to_spans(distances, algorithm)
    assert len(spans) == LONG - 1 and (0, LONG) in spans
    line = brackets(spans, words)
    assert line.count("(") == line.count(")") == LONG - 1
    gold = gold_tree(spans_to_tree(spans, words), words="alnum")
    assert gold.words == tuple(words)
    assert gold.spans == spans
    assert pytest.approx(100.0, abs=1e-4) == score([spans], [gold]).B


def test_trivial_parsers_take_very_long_sentences():
    for parse in BASELINES.values():
        assert len(parse(LONG)) == LONG - 1
    assert len(random_spans(LONG, random.Random(1))) == LONG - 1
    assert upper_bound(LONG // 10, BASELINES["left"](LONG // 10)) == BASELINES["left"](LONG // 10)


# ---------------------------------------------------------------- spans ↔ trees


def binary_trees(i, j):
    """Every binary tree over words i…j − 1, as a set of spans."""
    if j - i < 2:
        return [set()]
    splits = ((a, b) for k in range(i + 1, j) for a in binary_trees(i, k) for b in binary_trees(k, j))
    return [a | b | {(i, j)} for a, b in splits]


def random_nested(n, rng, share=0.6):
    """Spans of a random tree, not binary in general, the whole sentence among them or not."""
    return {span for span in random_spans(n, rng) if rng.random() < share}


WORDS = st.text(st.sampled_from("ab()é'\"-"), min_size=1, max_size=4)


@given(words=st.lists(WORDS, min_size=1, max_size=9), seed=st.integers(0, 10**6))
def test_brackets_read_back_as_the_same_tree(words, seed):
    spans = random_nested(len(words), random.Random(seed))
    line = brackets(spans, words)
    assert "\n" not in line
    tree = Tree.fromstring(line)
    assert tree.leaves() == [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in words]
    whole = {(0, len(words))} if len(words) >= 2 else set()
    assert nested_spans(tree)[1] == spans | whole
    other = spans_to_tree(spans, words)
    assert other.leaves() == words
    assert nested_spans(other)[1] == spans | whole
    assert {node.label() for node in other.subtrees()} == {"X"}


@pytest.mark.parametrize("word", ["\\", "a\\", "\\(", "1\\/2"])
def test_a_backslash_does_not_swallow_a_bracket(word):
    tree = Tree.fromstring(brackets({(0, 2)}, ["a", word, "b"]))
    assert nested_spans(tree)[1] == {(0, 2), (0, 3)}


def test_brackets_by_hand():
    assert brackets({(0, 2)}, ["the", "cat", "sleeps"]) == "(X (X the cat) sleeps)"
    assert brackets(set(), ["yes"], label="S") == "(S yes)"
    for build in (brackets, spans_to_tree):
        with pytest.raises(ArgumentError, match=r"must have at least one word; got 0"):
            build(set(), [])


# ---------------------------------------------------------------- gold trees

TAGS = ("NN", "VBZ", "PRP$", ",", ".", "$", "-NONE-", "HYPH", "-LRB-")
leaf = st.builds(lambda tag, word: Tree(tag, [word]), st.sampled_from(TAGS), st.sampled_from(["a", "1", "*", "é"]))
inner = st.recursive(
    leaf,
    lambda child: st.builds(
        Tree, st.sampled_from(["NP", "S", "VP-PRD=2", "NP-SBJ-1", "-LRB-"]), st.lists(child, min_size=1, max_size=4)
    ),
    max_leaves=12,
)
gold_trees = st.builds(Tree, st.sampled_from(["ROOT", "TOP", "", "S"]), st.lists(inner, min_size=1, max_size=3))


def walk(node, keep, start):
    """(kept terminals, constituents in pre-order as (label, start, end)) below `node`, by recursion."""
    if isinstance(node[0], str):
        return ([(node[0], node.label())] if keep(node[0], node.label()) else []), []
    kept, below = [], []
    for child in node:
        terminals, constituents = walk(child, keep, start + len(kept))
        kept, below = kept + terminals, below + constituents
    return kept, [(node.label(), start, start + len(kept)), *below]


RULES = {
    "ptb": lambda word, tag: tag in WORD_TAGS,
    "alnum": lambda word, tag: tag != "-NONE-" and any(c.isalnum() for c in word),
}
PLAIN = {"VP-PRD=2": "VP", "NP-SBJ-1": "NP"}


@pytest.mark.parametrize("words", ["ptb", "alnum"])
@given(tree=gold_trees)
def test_gold_spans_are_those_of_the_direct_recursion(words, tree):
    kept, constituents = walk(tree, RULES[words], 0)
    gold = gold_tree(tree, words)
    wide = [(label, (i, j)) for label, i, j in constituents if j - i >= 2]
    assert list(zip(gold.words, gold.tags, strict=True)) == kept
    assert gold.labelled == tuple((PLAIN.get(label, label), span) for label, span in wide)
    assert gold.spans == {span for _, span in wide}
    assert gold.whole == (0, len(kept)) and len(gold) == len(kept)
    counted = wide[tree.label() in ("ROOT", "TOP", "") and constituents[0][2] >= 2 :]
    assert gold.whole_below_root == sum(span == (0, len(kept)) for _, span in counted)


def test_gold_tree_by_hand():
    text = """( (S (NP-SBJ (-NONE- *)) (`` ``) (NP-TPC-1 (DT the) (NN cat)) (, ,)
               (VP (VP (VBZ sees) (NP (-NONE- *T*-1)) (S (NP (PRP it)) (ADVP (RB now))))) (. .)) )"""
    gold = gold_tree(Tree.fromstring(text))
    assert gold.words == ("the", "cat", "sees", "it", "now")
    assert gold.tags == ("DT", "NN", "VBZ", "PRP", "RB")
    assert gold.spans == {(0, 5), (0, 2), (2, 5), (3, 5)}
    labels = [("", (0, 5)), ("S", (0, 5)), ("NP", (0, 2)), ("VP", (2, 5)), ("VP", (2, 5)), ("S", (3, 5))]
    assert gold.labelled == tuple(labels)
    assert gold.whole_below_root == 1
    with pytest.raises(ArgumentError, match=r"words: must be one of ptb, alnum; got 'all'"):
        gold_tree(Tree.fromstring(text), "all")


def test_a_word_that_is_cut_is_a_constituent_in_pre_order():
    tree = Tree("S", [Tree("VB", ["go"]), Tree("NP", [Tree("DT", ["a"]), "cat"])])
    gold = gold_tree(tree, "alnum", list)
    assert "".join(gold.words) == "goacat" and gold.tags == ("VB", "VB", "DT", "", "", "")
    labelled = [("S", (0, 6)), ("VB", (0, 2)), ("NP", (2, 6)), ("word", (3, 6))]
    assert gold.labelled == tuple(labelled)


def test_the_word_tags_are_the_36_of_the_penn_treebank(shared_file):
    text = shared_file("data/PROTOCOLS.md").read_text()
    listed = text.split("36 PTB word tags ")[1].split(" (so")[0].split()
    assert len(listed) == 36 and set(listed) == WORD_TAGS


# ---------------------------------------------------------------- scores


def f1(p, g):
    """PROTOCOLS.md, sentence F1."""
    hits = len([span for span in p if span in g])
    precision, recall = hits / (len(p) + 1e-8), hits / (len(g) + 1e-8)
    if len(g) == 0:
        recall = 1.0
        if len(p) == 0:
            precision = 1.0
    return 2 * precision * recall / (precision + recall + 1e-8)


def by_protocols(trees, predictions):
    """{A, AW, B, B_star, corpus} of PROTOCOLS.md, from trees and predicted spans, keeping the 36 word tags."""
    kept_scores = {"A": [], "AW": [], "B": [], "B_star": []}
    tp = fp = fn = 0
    for tree, predicted in zip(trees, predictions, strict=True):
        kept, constituents = walk(tree, RULES["ptb"], 0)
        n = len(kept)
        if n == 0:
            continue
        listed = [(i, j) for label, i, j in constituents if j - i >= 2]
        p = [span for span in predicted if span != (0, n)]
        g = set(listed) - {(0, n)}
        kept_scores["A"].append(f1(p, g))
        kept_scores["AW"].append(f1([*p, (0, n)], {*g, (0, n)}) if n >= 2 else f1(p, g))
        if n == 1:
            continue
        kept_scores["B"].append(f1(p, g))
        if tree.label() in ("ROOT", "TOP", ""):
            listed = listed[1:]
        if (0, n) in listed:
            del listed[len(listed) - 1 - listed[::-1].index((0, n))]
        kept_scores["B_star"].append(f1(p, set(listed)))
        hits = len(set(p) & g)
        tp, fp, fn = tp + hits, fp + len(p) - hits, fn + len(g) - hits
    means = {name: 100 * sum(v) / len(v) if v else None for name, v in kept_scores.items()}
    corpus = 200 * tp / (2 * tp + fp + fn) if tp + fp + fn else 100.0
    return means | {"corpus": corpus if kept_scores["B"] else None}


@given(trees=st.lists(gold_trees, min_size=1, max_size=6), seed=st.integers(0, 10**6), with_whole=st.booleans())
def test_scores_are_those_of_the_written_protocols(trees, seed, with_whole):
    gold = [gold_tree(tree) for tree in trees]
    rng = random.Random(seed)
    predicted = [random_nested(len(g), rng, 0.8) | ({g.whole} if with_whole and len(g) > 1 else set()) for g in gold]
    if not any(map(len, gold)):
        with pytest.raises(DataError, match="must have a sentence with a word that counts"):
            score(predicted, gold)
        return
    found = score(predicted, gold)
    assert found.as_dict() == pytest.approx(by_protocols(trees, predicted), abs=1e-9)
    assert found.sentences_A == sum(len(g) >= 1 for g in gold)
    assert found.sentences_B == sum(len(g) >= 2 for g in gold)


def test_protocols_differ_where_they_should():
    one, chain = "(ROOT (NN a))", "(ROOT (S (VP (VB go) (NP (NN home) (RB now)))))"
    gold = [gold_tree(Tree.fromstring(text)) for text in (one, chain)]
    found = score([set(), {(0, 3), (0, 2)}], gold).as_dict()
    assert found == pytest.approx({"A": 50, "AW": 75, "B": 0, "B_star": 0, "corpus": 0}, abs=1e-4)
    found = score([set(), {(0, 3), (1, 3)}], gold).as_dict()
    assert found == pytest.approx({"A": 100, "AW": 100, "B": 100, "B_star": 200 / 3, "corpus": 100}, abs=1e-4)
    with pytest.raises(ArgumentError, match="one predicted tree per gold tree; got 1 and 2"):
        score([set()], gold)


def test_recall_by_label_by_hand():
    text = (
        "(S (NP-SBJ (DT the) (JJ old) (NN cat)) (VP (VBZ sees) (NP (DT a) (NN dog)) (PP (IN at) (NP (NN x) (NN y)))))"
    )
    gold = [gold_tree(Tree.fromstring(text))]
    found = label_recall([{(0, 3), (4, 6), (3, 9), (0, 9)}], gold)
    assert {label: (round(r["recall"], 3), r["count"]) for label, r in found.items()} == {
        "NP": (66.667, 3),
        "VP": (100, 1),
        "PP": (0, 1),
    }
    assert next(iter(found)) == "NP"


@pytest.mark.parametrize("n", range(1, 7))
def test_upper_bound_is_the_best_of_all_binary_trees(n):
    trees = binary_trees(0, n)
    assert len(trees) == [1, 1, 2, 5, 14, 42][n - 1]
    for seed in range(60):
        wanted = random_nested(n, random.Random(seed), 0.5)
        bound = upper_bound(n, wanted)
        assert bound in trees
        gold = gold_tree(spans_to_tree(wanted, ["w"] * n), words="alnum")
        best = max(score([tree], [gold]).A for tree in trees)
        assert best == score([bound], [gold]).A
        assert wanted <= bound


@pytest.mark.parametrize("n", range(1, 7))
def test_trivial_parsers_give_binary_trees(n):
    trees = binary_trees(0, n)
    for name, parse in BASELINES.items():
        assert parse(n) in trees, name
    drawn = {frozenset(random_spans(n, random.Random(seed))) for seed in range(3000)}
    assert drawn == set(map(frozenset, trees))
    assert BASELINES["balanced"](5) == {(0, 5), (0, 2), (2, 5), (3, 5)}
    assert BASELINES["balanced_up"](5) == {(0, 5), (0, 3), (0, 2), (3, 5)}
    assert BASELINES["left"](3) == {(0, 3), (0, 2)} and BASELINES["right"](3) == {(0, 3), (1, 3)}


# ---------------------------------------------------------------- intervals, agreement, depth


def test_the_interval_is_that_of_sentences_drawn_again():
    generator = random.Random(3)
    gold = [
        gold_tree(Tree.fromstring(line))
        for line in ("(S (NP (DT a) (NN b)) (VP (VB c) (NP (NN d) (NN e))))",) * 5 + ("(S (NN a) (VB b))",)
    ]
    trees = [random_spans(len(tree), generator) for tree in gold]
    found = bootstrap(trees, gold, samples=400, seed=7)
    drawn = []
    for _ in range(400):
        chosen = [generator.randrange(len(gold)) for _ in gold]
        drawn.append(score([trees[k] for k in chosen], [gold[k] for k in chosen]).as_dict())
    for name in PROTOCOLS:
        values = sorted(sample[name] for sample in drawn)
        low, high = found[name]
        assert low <= score(trees, gold).as_dict()[name] <= high
        assert abs(low - values[10]) < 6 and abs(high - values[-11]) < 6
    assert bootstrap(trees, gold, samples=150, seed=7) == bootstrap(trees, gold, samples=150, seed=7)
    whole = [{tree.whole} | set(tree.spans) for tree in gold]
    assert all(
        interval == (100.0, 100.0) or interval[0] > 99.9 for interval in bootstrap(whole, gold, samples=20).values()
    )


def test_agreement_is_the_f1_of_one_against_the_other():
    generator = random.Random(4)
    one, other = ([random_spans(n, generator) for n in (1, 2, 6, 9)] for _ in range(2))
    mean = [
        2 * len(a & b - {(0, n)}) / (2 * (n - 2)) for a, b, n in zip(one, other, (1, 2, 6, 9), strict=True) if n > 2
    ]
    assert agreement(one, other, (1, 2, 6, 9)) == pytest.approx(100 * (1 + sum(mean)) / 3)
    assert agreement(one, one, (1, 2, 6, 9)) == pytest.approx(100)


def test_depth_counts_spans_over_a_word():
    generator = random.Random(5)
    for n in (1, 2, 3, 8, 15):
        spans = random_spans(n, generator)
        assert depth(spans, n) == max(sum(i <= k < j for i, j in spans) for k in range(n))
    assert depth(set(), 4) == 1 and depth(BASELINES["right"](9), 9) == 8
