"""The built-in grammar, judged by checks that do not use its sampler."""

from collections import Counter

import pytest
from nltk.tree import Tree

from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import CONSTRUCTIONS, DEEPER, agreement_pairs, read_treebank, sample_trees, write_corpus
from gatedrnn.data.grammar import GRAMMAR, LABELS, LEXICON, MAX_WORDS
from gatedrnn.studies.parsing import evaluate_parsing
from gatedrnn.trees import gold_tree

TREES = list(sample_trees(1500, seed=3))

VERB_TAGS = {"VBZ": "sg", "VBP": "pl"}
NOUN_TAGS = {"NN": "sg", "NNS": "pl", "NNP": "sg"}
SINGULAR_ONLY, PLURAL_ONLY = {"every", "this", "each"}, {"some", "many", "these"}


def label_of(symbol):
    name = symbol.split(".")[0]
    return LEXICON[symbol][0] if symbol in LEXICON else LABELS.get(name, name)


def derives(symbol, tree):
    """Whether `symbol` can expand into exactly `tree`, by a search over every rule."""
    if symbol in LEXICON:
        tag, words = LEXICON[symbol]
        return tree.label() == tag and list(tree) in [[word] for word in words.split()]
    if tree.label() != label_of(symbol) or not all(isinstance(child, Tree) for child in tree):
        return False
    return any(
        len(right) == len(tree) and all(derives(part, child) for part, child in zip(right, tree, strict=True))
        for _, right in GRAMMAR[symbol]
    )


def number_of(node):
    """Number of a noun or verb phrase by its head, found by tags alone."""
    children = list(node)
    if not isinstance(children[0], Tree):
        return VERB_TAGS.get(node.label()) or NOUN_TAGS.get(node.label())
    labels = [child.label() for child in children]
    if node.label() == "NP" and "CC" in labels:
        return "pl"
    heads = NOUN_TAGS if node.label() == "NP" else VERB_TAGS
    return number_of(next(c for c in children if c.label() in (node.label(), *heads)))


def disagreements(tree):
    """Places where a verb's number is not its subject's, or a determiner's not its noun's."""
    found = []
    for node in tree.subtrees():
        labels = [child.label() if isinstance(child, Tree) else None for child in node]
        if node.label() == "S" and "NP" in labels:
            subject, verb = node[labels.index("NP")], node[labels.index("VP")]
            if number_of(subject) != number_of(verb):
                found.append(node)
        if node.label() == "NP" and "SBAR" in labels:
            relative = node[labels.index("SBAR")]
            if relative[0].label() == "WP" and number_of(node[0]) != number_of(relative[1][0]):
                found.append(node)
        if node.label() == "VP" and "CC" in labels and number_of(node[0]) != number_of(node[2]):
            found.append(node)
        if "DT" in labels:
            wrong = PLURAL_ONLY if number_of(node) == "sg" else SINGULAR_ONLY
            if node[0][0] in wrong:
                found.append(node)
    return found


def test_the_same_seed_gives_the_same_trees_and_other_streams_differ():
    again = list(sample_trees(200, seed=3))
    assert again == TREES[:200]
    assert list(sample_trees(200, seed=4)) != again
    assert list(sample_trees(200, seed=3, part="valid")) != again
    with pytest.raises(ArgumentError, match=r"sample_trees\.count: must not be negative; got -1"):
        list(sample_trees(-1, seed=3))


def test_every_tree_is_derived_by_the_rules():
    assert [tree for tree in TREES if not derives("S", tree)] == []
    assert not derives("S", Tree.fromstring("(S (NP (DT the) (NN pilot)) (VP (VBP laugh)))"))


def test_the_text_is_varied_and_short_enough():
    lengths = Counter(len(tree.leaves()) for tree in TREES)
    assert max(lengths) <= MAX_WORDS
    assert min(lengths) <= 3 and len(lengths) >= 15
    assert len({" ".join(tree.leaves()) for tree in TREES}) > 1200
    used = {word for tree in TREES for word in tree.leaves()}
    assert used == {word for _, words in LEXICON.values() for word in words.split()}


def test_numbers_agree_in_every_tree():
    assert [tree for tree in TREES if disagreements(tree)] == []
    wrong = [
        "(S (NP (DT the) (NN pilot)) (VP (VBP laugh)))",
        "(S (NP (NP (DT the) (NN pilot)) (PP (IN near) (NP (DT the) (NNS guards)))) (VP (VBP laugh)))",
        "(S (NP (NP (DT the) (NN nurse)) (SBAR (WP who) (S (VP (VBP laugh))))) (VP (VBZ runs)))",
        "(S (NP (DT every) (NNS pilots)) (VP (VBP laugh)))",
    ]
    assert all(disagreements(Tree.fromstring(text)) for text in wrong)


def test_written_corpus_keeps_held_out_sentences_apart(tmp_path):
    write_corpus(tmp_path, seed=5, train=3000, valid=200, test=200)
    lines = {part: (tmp_path / f"{part}.txt").read_text().splitlines() for part in ("train", "valid", "test")}
    assert {part: len(text) for part, text in lines.items()} == {"train": 3000, "valid": 200, "test": 200}
    assert not set(lines["train"]) & set(lines["valid"])
    assert not (set(lines["train"]) | set(lines["valid"])) & set(lines["test"])
    for part in ("valid", "test"):
        trees = list(read_treebank(tmp_path / f"{part}.trees"))
        assert [" ".join(tree.leaves()) for tree in trees] == lines[part]
        assert all(derives("S", tree) for tree in trees)
    write_corpus(tmp_path / "again", seed=5, train=3000, valid=200, test=200)
    names = ("train.txt", "valid.txt", "test.txt", "valid.trees", "test.trees")
    assert all((tmp_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)


def test_no_trivial_parser_comes_near_the_gold_trees():
    gold = [gold_tree(tree) for tree in TREES]
    assert all(g.words == tuple(tree.leaves()) for g, tree in zip(gold, TREES, strict=True))
    names = ("left", "right", "balanced", "balanced_up", "random", "upper_bound")
    scores = {name: s["B"] for name, s in evaluate_parsing(gold, baselines=names).scores.items()}
    assert scores.pop("upper_bound") > 80
    assert max(scores.values()) <= 45


VERBS = {
    word: symbol for symbol, (_, words) in LEXICON.items() if symbol[:2] in ("VI", "VT", "VC") for word in words.split()
}
TAGS = {
    word: "NN" if tag == "NNS" else "VB" if tag[0] == "V" else tag
    for tag, words in LEXICON.values()
    for word in words.split()
}
NOUNS = {word: s.split(".")[1] for s in ("N.sg", "N.pl") for word in LEXICON[s][1].split()}
SUBJECT = {name: int(name.startswith("in_") and "coordination" not in name) for name in (*CONSTRUCTIONS, *DEEPER)}


@pytest.mark.parametrize("construction", [*CONSTRUCTIONS, *DEEPER])
def test_pairs_differ_in_the_number_of_one_verb(construction):
    pairs = agreement_pairs(construction, 100, seed=2)
    assert len(pairs) == 100
    numbers = Counter()
    for pair in pairs:
        assert pair.construction == construction
        (place,) = [k for k, (g, b) in enumerate(zip(pair.good, pair.bad, strict=True)) if g != b]
        good, bad = VERBS[pair.good[place]].split("."), VERBS[pair.bad[place]].split(".")
        assert good[0] == bad[0] and good[1] != bad[1]
        lemma = [LEXICON[".".join(s)][1].split().index(w[place]) for s, w in ((good, pair.good), (bad, pair.bad))]
        assert lemma[0] == lemma[1]
        nouns = [NOUNS[word] for word in pair.good if word in NOUNS]
        assert nouns[SUBJECT[construction]] == good[1]
        if construction.startswith("across"):
            assert nouns[1] == bad[1], "the attractor has the other number"
        numbers[good[1]] += 1
    assert numbers == {"sg": 50, "pl": 50}
    assert agreement_pairs(construction, 100, seed=2) == pairs
    assert agreement_pairs(construction, 100, seed=3) != pairs


@pytest.mark.parametrize("construction", DEEPER)
def test_no_sentence_of_the_text_nests_like_the_deeper_ones(construction):
    def tags(words):
        return " ".join("the" if TAGS[word] in ("DT", "JJ") else TAGS[word] for word in words).replace("the the", "the")

    beginnings = {tags(pair.good).rsplit(" ", 1)[0] for pair in agreement_pairs(construction, 50, 1)}
    texts = [tags(tree.leaves()) for tree in TREES]
    assert not any(f"{beginning} " in text for beginning in beginnings for text in texts)


def test_an_unknown_construction_is_refused():
    with pytest.raises(ArgumentError, match=r"agreement_pairs\.construction: must be one of simple, .*got 'nope'"):
        agreement_pairs("nope", 1, 1)
