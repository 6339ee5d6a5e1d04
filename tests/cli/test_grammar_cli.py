"""A run of a grammar through the commands: what reads it, what refuses it, and a vote beside an ON-LSTM."""

import json
import math

import pytest
from terminal import call, fails, record, records, works

from gatedrnn.data import write_corpus

SIZES = [f"--model.{name}={size}" for name, size in (("nonterminals", 6), ("preterminals", 10), ("state_size", 12))]
TRAIN = ["train", "--task", "grammar", *SIZES, "--training.device", "cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text, five gold trees, and two runs: `grammar` and `onlstm`."""
    folder = tmp_path_factory.mktemp("grammar")
    write_corpus(folder / "text", 1, train=300, valid=40, test=40)
    lines = (folder / "text" / "test.trees").read_text().splitlines(keepends=True)
    (folder / "gold.trees").write_text("".join(lines[:5]))
    data = ("--data", folder / "text")
    told = works(*TRAIN, *data, "--training.epochs", 2, "--out", folder / "grammar")
    assert "training grammar into" in told and "trained on 300 of 300 sentences, of 2 to 40 words" in told
    onlstm = ["--model.embedding_size", 8, "--model.hidden_sizes", "[8]", "--model.options.chunk_size", 4]
    how = ("--training.epochs", 1, "--training.device", "cpu", "--training.backend", "reference")
    works("train", *data, *onlstm, *how, "--out", folder / "onlstm")
    return folder


def test_evaluate_says_perplexity_and_log_likelihood(place):
    found = record("evaluate", place / "grammar")
    assert found["perplexity"] == pytest.approx(math.exp(found["loss_nats"]))
    total = found["log_likelihood_nats"] * found["sentences"]
    assert found["loss_nats"] == pytest.approx(-total / found["words"]) and found["sentences"] == 40
    told = works("evaluate", place / "grammar")
    assert f"perplexity {found['perplexity']:.4f}" in told and "nats a sentence" in told
    metrics = [json.loads(line) for line in (place / "grammar" / "metrics.jsonl").read_text().splitlines()]
    valid = record("evaluate", place / "grammar", "--data", place / "text" / "valid.txt")
    assert valid["loss_nats"] == pytest.approx(metrics[-1]["valid_loss_nats"])


def test_sentences_without_a_tree_are_left_out_and_counted(place, tmp_path):
    (tmp_path / "odd.txt").write_text("the\n\nzebra the old\n" + "the " * 301 + "\n", encoding="utf-8")
    found = record("evaluate", place / "grammar", "--data", tmp_path / "odd.txt")
    assert (found["sentences"], found["words"], found["left_out"]) == (1, 3, 2)
    (tmp_path / "one.txt").write_text("the\n")
    assert "must hold a sentence of 2 to 300 words" in fails(
        "evaluate", place / "grammar", "--data", tmp_path / "one.txt"
    )


def test_parse_gives_a_tree_a_line(place, tmp_path):
    text = tmp_path / "lines.txt"
    text.write_text("the old pilot sleeps\n\nthe\nzebras ( 3 ) laugh\n", encoding="utf-8")
    out = works("parse", place / "grammar", text).splitlines()
    assert out[1:3] == ["", "(X the)"] and out[0].count("(X") == 3 and "-LRB-" in out[3]
    found = records("parse", place / "grammar", text)
    assert [one["tree"] for one in found] == out and found[2]["log_likelihood_nats"] is None
    assert found[0]["log_likelihood_nats"] < 0 and found[0]["words"] == ["the", "old", "pilot", "sleeps"]
    conllu = works("parse", place / "grammar", text, "--conllu")
    assert f"# parse = {out[0]}" in conllu and "Distance" not in conllu
    works("parse", place / "grammar", text, "--svg", tmp_path / "svg")
    assert sorted(path.name for path in (tmp_path / "svg").iterdir()) == ["00001.svg", "00003.svg", "00004.svg"]


def test_eval_parsing_scores_a_grammar_alone(place, tmp_path):
    trees = place / "gold.trees"
    found = record("eval-parsing", place / "grammar", "--treebank", trees, "--out", tmp_path)
    assert (found["layer"], found["gate"], found["mapping"]) == (None, None, "number") and found["sentences"] == 5
    out = works("eval-parsing", place / "grammar", "--treebank", trees)
    assert "model, grammar" in out and "gate" not in out
    page = (tmp_path / "report.html").read_text()
    assert "induced tree below." in page and "model, grammar" in page


def test_each_family_has_the_same_weight_in_a_vote(place, tmp_path):
    other = tmp_path / "other"
    data = ("--data", place / "text", "--training.epochs", 1, "--training.seed", 2, "--out", other)
    works(*TRAIN, *data)
    runs = [place / "grammar", other, place / "onlstm"]
    found = record("eval-parsing", *runs, "--treebank", place / "gold.trees")
    assert [voter["weight"] for voter in found["voters"]] == [0.5, 0.5, 1.0]
    assert [voter["gate"] for voter in found["voters"]] == [None, None, "master_forget"]
    assert [len(row) for row in found["agreement"]] == [3, 3, 3]
    out = works("eval-parsing", *runs, "--treebank", place / "gold.trees")
    assert "consensus of 3, each family with the same weight" in out
    one = record("eval-parsing", *runs[:2], "--treebank", place / "gold.trees")
    assert [voter["weight"] for voter in one["voters"]] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["generate"], "must be a run of language_modelling; got a run of grammar"),
        (["surprisal"], "must be a run of language_modelling; got a run of grammar"),
        (["gates", "--sentence", "the old pilot"], "needs a model with gates; got a run of grammar"),
        (["compress", "--method", "int8", "--out", "DIR"], "compress: needs a model with recurrent layers"),
        (["compress", "--table"], "compress: needs a model with recurrent layers"),
        (["export", "--to", "onnx", "--out", "DIR"], "export: needs a model with recurrent layers"),
        (["evaluate", "--cache"], "--cache"),
        (["parse", "--layer", "2"], "--layer"),
        (["parse", "--algorithm", "biased"], "--algorithm"),
        (["eval-parsing", "--treebank", "TREES", "--gate", "master_input"], "--gate"),
        (["eval-parsing", "--treebank", "TREES", "--select", "layer=auto", "--dev", "TREES"], "--select"),
        (["translate"], "must be a run of translation; got a run of grammar"),
    ],
)
def test_what_makes_no_sense_for_a_grammar_is_refused_in_a_line(place, tmp_path, command, said):
    places = {"DIR": tmp_path / "out", "TREES": place / "gold.trees"}
    line = fails(command[0], place / "grammar", *(places.get(word, word) for word in command[1:]))
    assert said in line and "grammar" in line


def test_a_damaged_run_and_an_unknown_key_are_named(place, tmp_path):
    assert "nonterminals" in fails(*TRAIN[:3], "--data", place / "text", "--model.nonterminals", 0, "--out", tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text("task: grammar\nmodel: {nonterminal: 3}\n")
    assert "Did you mean 'nonterminals'" in fails("train", "--config", config, "--out", tmp_path / "run")
    code, _, err = call(*TRAIN, "--model.cell", "lstm", "--out", tmp_path / "run")
    assert code == 2 and "--model.cell" in err
