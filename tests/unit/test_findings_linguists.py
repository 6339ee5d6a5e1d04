"""Words in their place: pairs, prefixes, surprisals, gold trees and brackets where a token is not a word between spaces."""

import math

import pytest
import torch
from nltk.tree import Tree

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, Corpus, DataConfig, MinimalPair, Vocabulary, read_treebank
from gatedrnn.data.characters import character_words
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.studies.parsing import agreements, align_lines, evaluate_parsing, surprisal_records
from gatedrnn.studies.syntax import continuation_ids, evaluate_pairs, log_probabilities, read_regions, sentence_ids
from gatedrnn.tasks.perplexity import evaluate
from gatedrnn.trees import bootstrap, brackets, gold_tree, score

TEXT = [
    "the old pilot walks",
    "the old pilots walk to the garden .",
    "a guard sees the pilot",
    "guards see a pilot",
] * 3
LEVELS = {
    "char": {"level": "char", "min_count": 1},
    "subword": {"level": "subword", "vocabulary_size": 290},
    "characters": {"tokenize": "characters", "min_count": 1},
    "word": {"min_count": 1},
}


def of_level(name):
    vocabulary = Vocabulary.learn([TEXT], DataConfig(**LEVELS[name]))
    torch.manual_seed(1)
    config = LanguageModelConfig(len(vocabulary), embedding_size=8, hidden_sizes=(12, 8), options={"chunk_size": 4})
    model = LanguageModel(config).double().eval()
    with torch.no_grad():  # so that verdicts differ
        model.embedding.weight.mul_(8)
    return model, vocabulary


def by_steps(model, ids):
    """log P of each id after `<eos>` and those before it."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([1, *ids[:-1]])[:, None]).logits[:, 0].log_softmax(-1)
    return logits_TV.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


SUBJECTS = ["the pilot", "the old pilots", "a guard", "guards", "the old guard"]
VERBS = [
    ("walks", "see the pilots"),
    ("sees", "walk to a garden"),
    ("pilot", "walks"),
    ("old", "garden"),
    ("to", "the"),
    ("walks to", "a"),
    ("pilots see", "to"),
]
PAIRS = [(s, *v) for s in SUBJECTS for v in VERBS]


def verdicts(model, vocabulary, pairs, **how):
    found = evaluate_pairs(model, vocabulary, pairs, unknown="unk", **how).phenomena.values()
    return [one.accuracy for one in found]


@pytest.mark.parametrize("append", ["", "."])
@pytest.mark.parametrize("level", LEVELS)
def test_pairs_are_read_as_written_and_as_suites_are(level, append, monkeypatch):
    model, vocabulary = of_level(level)
    read = []
    spy = lambda model, sentences, eos: read.extend(sentences) or log_probabilities(model, sentences, eos)  # noqa: E731
    monkeypatch.setattr("gatedrnn.studies.syntax.evaluation.log_probabilities", spy)
    given = [MinimalPair(str(k), f"{s} {a}", f"{s} {b}") for k, (s, a, b) in enumerate(PAIRS)]
    end = f" {append}" if append else ""
    wanted = []
    for pair in given:
        ids = [[*vocabulary.encode(vocabulary.tokens(text + end)), 1] for text in (pair.good, pair.bad)]
        wanted.append(float(sum(by_steps(model, ids[0])) > sum(by_steps(model, ids[1]))))
    assert verdicts(model, vocabulary, given, append=append) == wanted
    texts = [text + end for pair in given for text in (pair.good, pair.bad)]
    assert read == [vocabulary.encode(vocabulary.tokens(text)) for text in texts]
    nats = log_probabilities(model, [sentence_ids(vocabulary, text) for text in texts], 1)
    regions = [[*text.rsplit(" ", 1)] for text in texts]
    bits = [sum(map(sum, one.bits)) for one in read_regions(model, vocabulary, regions)]
    assert nats == pytest.approx([-one * math.log(2) for one in bits], abs=1e-9)


@pytest.mark.parametrize("level", LEVELS)
def test_a_prefix_is_followed_by_the_whole_word(level):
    model, vocabulary = of_level(level)
    given = [MinimalPair(str(k), "x", "x", one) for k, one in enumerate(PAIRS)]
    wanted = []
    for prefix, *words in PAIRS:
        start = len(vocabulary.tokens(prefix))
        ids = [vocabulary.encode(vocabulary.tokens(f"{prefix} {word}")) for word in words]
        assert all(each[:start] == vocabulary.encode(vocabulary.tokens(prefix)) for each in ids)
        good, bad = (sum(by_steps(model, each)[start:]) for each in ids)
        wanted.append(float(good > bad))
    assert verdicts(model, vocabulary, given, method="prefix") == wanted
    assert 0 < sum(wanted) < len(wanted)


@pytest.mark.parametrize("tokenize", ["none", "penn"])
@pytest.mark.parametrize(
    ("before", "text", "sentence", "words"),
    [
        ("shares of Mr. ", "Vinken", "shares of Mr. Vinken fell .", ["shares of Mr.", "Vinken"]),
        ("shares of Mr. ", "Vinken", "", ["shares of Mr.", "Vinken"]),
        ("in the ", "U.S.", "in the U.S. fell shares", ["in the", "U.S."]),
        ("in the ", "U.S.", "in the U.S.", ["in the", "U.S ."]),
        ("in the U.S. ", "shares", "in the U.S. shares fell", ["in the U.S.", "shares"]),
        ("in the ", "shares", "in the shares.", ["in the", "shares"]),
        ("they ", "ca", "they can't", ["they", "ca"]),
        ("they ", "can't", "they can't fell", ["they", "ca n't"]),
        ("they ", "was", "they wasn't", ["they", "was"]),
        ("the shares", " fell", "", ["the shares", "fell"]),
    ],
)
def test_a_prefix_is_cut_as_it_stands_in_its_sentence(tokenize, before, text, sentence, words):
    every = "shares of Mr. Vinken fell in the U.S. U.S . they ca n't was"
    vocabulary = Vocabulary.learn([[every + " x"]], DataConfig(tokenize=tokenize, min_count=1))
    found = continuation_ids(vocabulary, before, text, sentence=sentence)
    assert [" ".join(vocabulary.decode(ids)) for ids in found] == words


def test_a_word_that_joins_its_prefix_is_skipped():
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers, of the extra hf")
    from gatedrnn.data.subwords import Subwords

    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "a b": 2, "c": 3}, unk_token="<unk>"))
    vocabulary = Vocabulary.of(Subwords(whole))
    assert continuation_ids(vocabulary, "a ", "b")[1] == []
    model = LanguageModel(LanguageModelConfig(len(vocabulary), embedding_size=4, hidden_sizes=(4,), cell="lstm"))
    given = [MinimalPair("p", "a b", "a c", ("a", "b", "c"))]
    assert evaluate_pairs(model, vocabulary, given, method="prefix").phenomena["p"].skipped == 1


def test_nothing_is_appended_to_a_prefix():
    model, vocabulary = of_level("word")
    given = [MinimalPair("p", "the pilot", "the old", ("the", "pilot", "old"))]
    with pytest.raises(ArgumentError, match=r"append: works only with the method sentence; got '\.' with the method"):
        evaluate_pairs(model, vocabulary, given, method="prefix", append=".")


# ---------------------------------------------------------------- bits of a text

ODD = "the old pilot\n\u200b\nthe <eos> pilot walks <eos>\n<eos>\n \u200b\ufeff \n<eos> <eos> a\n\n"


@pytest.mark.parametrize("empty_lines", ["skip", "eos"])
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_bits_add_up_to_evaluate_also_for_odd_lines(tmp_path, level, carried, empty_lines):
    model, vocabulary = of_level(level)
    (tmp_path / "a.txt").write_text(ODD)
    tokens = Corpus({"test": tmp_path / "a.txt"}, vocabulary, empty_lines=empty_lines)["test"]
    found = evaluate(model, tokens, vocabulary, reset=not carried)
    lines = align_lines(vocabulary, ODD.splitlines(), "exact", empty_lines)
    records = list(surprisal_records(model, vocabulary, lines, carried=carried))
    assert sum(len(each) for one in records for each in one["tokens"]) == found.tokens
    bits = sum(sum(one["surprisal_bits"]) for one in records)
    assert bits == pytest.approx(found.tokens * found.loss_nats / math.log(2), rel=1e-9)


def test_a_line_of_invisible_characters_is_no_sentence(tmp_path):
    (tmp_path / "train.txt").write_text("老人\n\u200b\n\n看\u200b报\n")
    corpus = Corpus({"train": tmp_path / "train.txt"}, tokenize="characters", min_count=1)
    eos = corpus.vocabulary.ids[EOS]
    assert (corpus.lines["train"], int((corpus["train"] == eos).sum()), corpus.vocabulary.counts[eos]) == (2, 2, 2)
    (tmp_path / "none.txt").write_text("\u200b\n")
    with pytest.raises(DataError, match="must hold at least one sentence"):
        Corpus({"test": tmp_path / "none.txt"}, corpus.vocabulary)
    plain = Corpus({"train": tmp_path / "train.txt"}, min_count=1)
    assert plain.lines["train"] == 3  # between white space it is a word


# ---------------------------------------------------------------- trees


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


def test_no_score_where_no_sentence_counts():
    one, two = (gold_tree(Tree.fromstring(text)) for text in ("(S (NN a))", "(S (NN a) (NN b))"))
    found = score([set()], [one])
    assert found.as_dict() == {
        "A": pytest.approx(100),
        "AW": pytest.approx(100),
        "B": None,
        "B_star": None,
        "corpus": None,
    }
    assert score([set()], [two]).as_dict()["corpus"] == pytest.approx(100)
    assert bootstrap([set()], [one], samples=3)["B"] is None
    low, high = bootstrap([set(), set()], [one, two], samples=30)["B"]
    assert low == high == pytest.approx(100)
    result = evaluate_parsing([one], [set()], samples=2)
    assert result.scores["random"]["B"] is None is result.intervals["model"]["corpus"]
    assert agreements([[set()], [set()]], [one]) == [[None, None], [None, None]]


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


def test_a_line_of_which_a_given_tokenizer_makes_nothing_is_no_sentence(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    given = tokenizers.Tokenizer(tokenizers.models.BPE({letter: k for k, letter in enumerate("thedog")}, []))
    given.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    given.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "train.txt").write_text("the\n中文\n!!\ndog\n")
    corpus = Corpus({"train": tmp_path / "train.txt"}, level="subword", tokenizer=str(tmp_path / "tokenizer.json"))
    assert corpus.lines["train"] == 2 == int((corpus["train"] == 1).sum())
