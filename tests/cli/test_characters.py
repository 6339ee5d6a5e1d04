"""Runs of `data.tokenize: characters`: every visible character is a word, so that text without spaces has trees."""

import json

import pytest
import yaml
from nltk.tree import Tree
from terminal import fails, works

import gatedrnn
from gatedrnn.data import DataConfig, Vocabulary, align_words
from gatedrnn.data.characters import character_words
from gatedrnn.studies.syntax.evaluation import sentence_ids
from gatedrnn.trees import gold_tree

TEXT = ["老人坐在公园里看报纸。", "两个孩子在花园里玩。", "ภาษาไทยไม่มีช่องว่าง", "हिन्दी में लिखो (5)"]
GOLD = "(S (NP (NN 老人)) (VP (VV 坐) (PP (P 在) (NP (NN 公园)))) (PU 。))\n(NN 孩子)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with text, a run of each family on it, and gold trees of words."""
    folder = tmp_path_factory.mktemp("characters")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("\n".join(TEXT * 8) + "\n")
    model = {"embedding_size": 8, "hidden_sizes": [8, 8], "options": {"chunk_size": 4}}
    training = {"epochs": 1, "batch_size": 2, "device": "cpu"}
    config = {"data": {"tokenize": "characters", "min_count": 1}, "model": model, "training": training}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    (folder / "gold.trees").write_text(GOLD)
    works("train", "--config", folder / "run.yaml", "--data", folder, "--out", folder / "run")
    grammar = ("--model.nonterminals", 4, "--model.preterminals", 8, "--training.epochs", 1)
    how = ("--data.tokenize", "characters", "--data.min_count", 1, "--data", folder, "--out", folder / "grammar")
    works("train", "--task", "grammar", *how, *grammar)
    return folder


def test_marks_belong_to_their_character_and_spaces_to_none():
    assert character_words(" 日本\t語 が ") == ["日", "本", "語", "が"]
    assert character_words("ไม่มี") == ["ไ", "ม่", "มี"]
    assert character_words("e\u0301a \u0301x") == ["e\u0301", "a", "\u0301", "x"]
    assert character_words("🙂\ufe0fa") == ["🙂\ufe0f", "a"]
    assert character_words(" \u3000\x1c") == character_words("\u200b\ufeff\u200d") == character_words("") == []
    assert character_words("\ufeffกข\u200bคง") == ["ก", "ข", "ค", "ง"]
    assert character_words("老<unk>人 <eos><u") == ["老", "<unk>", "人", "<eos>", "<", "u"]


def test_text_in_bulk_is_the_text_line_by_line():
    lines = [*TEXT, "", " ", "a b", "\u0301"]
    vocabulary = Vocabulary.learn([lines], DataConfig(tokenize="characters", min_count=1))
    each = [i for line in lines for i in [*vocabulary.encode(vocabulary.tokens(line)), 1]]
    assert vocabulary.line_encoder()(lines).tolist() == each and 0 not in each
    assert vocabulary.text(vocabulary.tokens("日本 語")) == "日本語"
    assert vocabulary.counts[1] == len(lines)


def test_the_setting_is_kept_and_decides_the_fingerprint(folder):
    run = gatedrnn.load_run(folder / "run")
    assert run.vocabulary.tokenize == "characters" and "老" in run.vocabulary.ids and "老人" not in run.vocabulary.ids
    plain = Vocabulary(run.vocabulary.words)
    assert plain.fingerprint() != run.vocabulary.fingerprint()


@pytest.mark.parametrize("run", ["run", "grammar"])
def test_parse_has_the_characters_as_leaves(folder, run, tmp_path):
    (tmp_path / "text").write_text("老人 坐在公园\n\n(玩\n")
    trees = works("parse", folder / run, tmp_path / "text").split("\n")
    assert Tree.fromstring(trees[0]).leaves() == list("老人坐在公园")
    assert trees[1] == "" and Tree.fromstring(trees[2]).leaves() == ["-LRB-", "玩"]


def test_runs_vote_and_their_trees_are_scored_on_trees_of_words(folder):
    how = ("--treebank", folder / "gold.trees", "--words", "alnum", "--json")
    found = json.loads(works("eval-parsing", folder / "run", folder / "grammar", *how))
    assert found["sentences"] == 2 and len(found["voters"]) == 2
    assert found["label_recall"]["NN"]["count"] == 2  # 老人 and 公园; 孩子 is a whole sentence


def test_a_word_of_several_characters_is_a_constituent_of_them():
    tree = Tree.fromstring("(S (NP (NN 老人)) (VP (VV 坐) (NN-X 报纸)) (PU 。))")
    gold = gold_tree(tree, "alnum", character_words)
    assert gold.words == ("老", "人", "坐", "报", "纸") and gold.tags == ("NN", "NN", "VV", "NN-X", "NN-X")
    assert gold.spans == {(0, 2), (2, 5), (3, 5), (0, 5)}
    assert gold.labelled == (("S", (0, 5)), ("NP", (0, 2)), ("NN", (0, 2)), ("VP", (2, 5)), ("NN", (3, 5)))
    assert gold_tree(tree, "alnum").words == ("老人", "坐", "报纸")


def test_parentheses_of_a_treebank_are_those_of_the_text():
    tree = Tree.fromstring("(S (NP (-LRB- -LRB-) (NN 老人) (-RRB- -RRB-)) (VP (VV 坐) 公园 (X a-LRB-b)))")
    gold = gold_tree(tree, "alnum", character_words)
    assert gold.words == ("老", "人", "坐", "公", "园", "a", "(", "b")
    assert [label for label, _ in gold.labelled] == ["S", "NP", "NN", "VP", "word", "X"]
    assert gold_tree(Tree.fromstring("(TOP 孩子)"), "alnum", character_words).whole_below_root == 0


def test_words_are_looked_up_alike_wherever_they_come_from():
    vocabulary = Vocabulary.learn([["Nb老人" * 3]], DataConfig(tokenize="characters", min_count=1))
    assert vocabulary.encode_foreign(list("7٣B"), "number") == [0, 0, vocabulary.ids["b"]]
    assert align_words(vocabulary, ["B7"], [False], "number").ids == [vocabulary.ids["b"], 0]
    assert sentence_ids(vocabulary, "B 7", "number") == [vocabulary.ids["b"], 0]
    assert sentence_ids(vocabulary, "B 7", "exact") == [0, 0]


def test_runs_that_read_otherwise_are_not_scored_together(folder):
    (folder / "spaced.yaml").write_text((folder / "run.yaml").read_text().replace("characters", "none"))
    works("train", "--config", folder / "spaced.yaml", "--data", folder, "--out", folder / "spaced")
    line = fails("eval-parsing", folder / "run", folder / "spaced", "--treebank", folder / "gold.trees")
    assert "needs runs that all read characters, or none" in line
    assert "read the same words" in fails("parse", folder / "run", folder / "spaced", folder / "test.txt")


def test_words_of_a_treebank_are_refused_where_they_cannot_be_read(folder, tmp_path):
    (tmp_path / "a.conllu").write_text("1\t老人\t_\t_\t_\t_\t_\t_\t_\t_\n\n")
    line = fails("parse", folder / "run", tmp_path / "a.conllu")
    assert "must be single characters" in line and "老人" in line
    rows = works("surprisal", folder / "run", tmp_path / "a.conllu", "--conllu").splitlines()
    assert len([row for row in rows if row.startswith("1\t老人")]) == 1


def test_given_words_have_the_characters_in_them():
    vocabulary = Vocabulary.learn([TEXT], DataConfig(tokenize="characters", min_count=1))
    found = align_words(vocabulary, ["老人", "看 报", "。"], [False, True, False])
    assert found.owners == [0, 0, 1, 1, 2] and 0 not in found.ids


def test_surprisal_gates_generation_and_minimal_pairs(folder, tmp_path):
    (tmp_path / "text").write_text("老人看 报\n")
    record = json.loads(works("surprisal", folder / "run", tmp_path / "text", "--json"))
    assert record["words"] == [*"老人看报", "<eos>"] and not any(record["unknown"])
    text = works("generate", folder / "run", "--prompt", "老人 看", "--words", 20, "--no-unk", "--seed", 1)
    assert text.startswith("老人看") and " " not in text.strip()
    works("gates", folder / "run", "--sentence", "老人看报", "--out", tmp_path)
    (tmp_path / "pairs.jsonl").write_text(
        json.dumps({"sentence_good": "老人看报。", "sentence_bad": "人老看报。", "field": "x", "UID": "y"}) + "\n"
    )
    found = json.loads(works("eval-syntax", folder / "run", "--pairs", tmp_path / "pairs.jsonl", "--json"))
    assert "老" not in json.dumps(found.get("skipped", ""), ensure_ascii=False)


def test_a_transformers_tokenizer_cuts_likewise_and_comes_back(folder, tmp_path):
    pytest.importorskip("transformers", reason="needs transformers, of the extra hf")
    from gatedrnn.hf import tokenizer_of

    run = gatedrnn.load_run(folder / "run")
    tokenizer = tokenizer_of(run.vocabulary)
    for line in [*TEXT, "老人 \u0301坐", "🙂\u200d在", "\ufeff老\u200b人\u200d", "\u200d老<unk>人", ""]:
        expected = [1, *run.vocabulary.encode(run.vocabulary.tokens(line))]
        assert tokenizer(line)["input_ids"] == expected, line
        known = [i for i in expected[1:] if i]
        assert tokenizer.decode(known) == run.vocabulary.text(run.vocabulary.decode(known))
    works("export", folder / "run", "--to", "hf", "--out", tmp_path / "hf")
    works("import", tmp_path / "hf", "--out", tmp_path / "back")
    back = gatedrnn.load_run(tmp_path / "back").vocabulary
    assert back.fingerprint() == run.vocabulary.fingerprint()
