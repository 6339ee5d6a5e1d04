"""A run of a grammar through the commands: what reads it, what refuses it, and a vote beside an ON-LSTM."""

import io
import json
import math
import shutil

import pytest
from nltk.tree import Tree
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
    assert found["weights"] == {"grammar": 1.0, "language_modelling": 1.0}
    assert all(set(voter["without"]) == set(voter["scores"]) for voter in found["voters"])
    pair = record("eval-parsing", *runs[1:], "--treebank", place / "gold.trees")
    assert found["voters"][0]["without"] == pair["scores"]["model"]
    assert "without" not in pair["voters"][0] and "it adds to B" in out and "without voter 3, " in out
    one = record("eval-parsing", *runs[:2], "--treebank", place / "gold.trees")
    assert [voter["weight"] for voter in one["voters"]] == [1.0, 1.0]


def test_weights_of_families_and_a_prior_are_told(place):
    trees = ("--treebank", place / "gold.trees")
    runs = [place / "grammar", place / "onlstm"]
    heavy = record("eval-parsing", *runs, *trees, "--weight", "grammar=9")
    assert heavy["scores"]["model"] == record("eval-parsing", runs[0], *trees)["scores"]["model"]
    assert heavy["weights"] == {"grammar": 9.0, "language_modelling": 1.0}
    prior = record("eval-parsing", runs[0], *trees, "--weight", "right=2")
    assert prior["scores"]["model"] == prior["scores"]["right"] and prior["weights"] == {"grammar": 1.0, "right": 2.0}
    out = works("eval-parsing", *runs, *trees, "--weight", "right=0.5")
    assert "weights of families in the vote: grammar 1, language_modelling 1, right-branching prior 0.5" in out
    assert "consensus of 2 and a right-branching prior, weights below" in " ".join(out.split())


def test_parse_by_a_vote(place, tmp_path, monkeypatch):
    text = tmp_path / "lines.txt"
    text.write_text("the old pilot sleeps\n\nthe\nthe pilot saw the old zebra today\n", encoding="utf-8")
    runs = [place / "grammar", place / "onlstm"]
    found = records("parse", *runs, text)
    assert [one["words"] for one in found] == [line.split() for line in text.read_text().splitlines()]
    alone = [records("parse", run, text) for run in runs]
    assert [one["voters"] for one in found] == [[a["tree"], b["tree"]] for a, b in zip(*alone, strict=True)]
    assert [(each["run"], each.get("layer")) for each in found[0]["runs"]] == [(str(runs[0]), None), (str(runs[1]), 1)]
    heavy = records("parse", *runs, text, "--weight", "language_modelling=9")
    assert [one["tree"] for one in heavy] == [one["tree"] for one in alone[1]]
    prior = works("parse", runs[0], text, "--weight", "right=5").splitlines()
    assert prior[0] == "(X the (X old (X pilot sleeps)))" and prior[1:3] == ["", "(X the)"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the old pilot sleeps\n")))
    assert works("parse", *runs) == found[0]["tree"] + "\n"
    conllu = works("parse", *runs, text, "--conllu")
    assert f"# parse = {found[3]['tree']}" in conllu and "Distance" not in conllu


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        ("grammar", "must be FAMILY=NUMBER"),
        ("grammar=0", "a number above 0"),
        ("grammar=nan", "a number above 0"),
        ("grammer=1", "language_modelling, grammar, right"),
        ("language_modelling=1", "must name a family among the voters: grammar, right; got language_modelling"),
    ],
)
def test_a_weight_that_does_not_fit_is_one_line(place, weight, said):
    trees = place / "gold.trees"
    assert said in fails("eval-parsing", place / "grammar", "--treebank", trees, "--weight", weight)
    assert said in fails("parse", place / "grammar", place / "text" / "test.txt", "--weight", weight)
    assert "needs a RUN" in fails("eval-parsing", "--baseline", "left", "--treebank", trees, "--weight", "right=1")


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


def test_a_run_with_a_setting_that_earlier_versions_accepted_is_resumed(place, tmp_path):
    run = shutil.copytree(place / "grammar", tmp_path / "run")
    text = (run / "config.yaml").read_text()
    assert "evaluation_batch_size: 32" in text
    (run / "config.yaml").write_text(text.replace("evaluation_batch_size: 32", "evaluation_batch_size: 20"))
    works("accept", run)
    assert record("train", "--out", run, "--resume", "--training.epochs", 3)["epochs"] == 3
    said = fails(*TRAIN, "--data", place / "text", "--training.evaluation_batch_size", 20, "--out", tmp_path / "new")
    assert "has no effect for grammar; got 20" in said


def test_distances_of_an_earlier_run_do_not_stay_beside_a_new_tree(place, tmp_path):
    rows = [
        f"{k}\t{word}" + "\t_" * 7 + f"\tGloss=x|Distance=0.{k}" for k, word in enumerate(("the", "old", "pilot"), 1)
    ]
    (tmp_path / "a.conllu").write_text("\n".join(["# parse = (X old)", *rows, "", ""]))
    for runs in (["grammar"], ["grammar", "onlstm"]):
        out = works("parse", *(place / run for run in runs), tmp_path / "a.conllu", "--conllu")
        assert "Distance" not in out and out.count("Gloss=x") == 3 and out.count("# parse = (X ") == 1
        assert "(X old)" not in out
    assert "Gloss=x|Distance=0." in works("parse", place / "onlstm", tmp_path / "a.conllu", "--conllu")


def test_a_form_with_a_space_is_one_leaf_in_every_tree(place, tmp_path):
    rows = [f"{k}\t{word}" + "\t_" * 8 for k, word in enumerate(("the", "10 000", "pilots"), 1)]
    (tmp_path / "a.conllu").write_text("\n".join([*rows, "", ""]))
    for runs in (["grammar"], ["onlstm"], ["grammar", "onlstm"]):
        (found,) = records("parse", *(place / run for run in runs), tmp_path / "a.conllu")
        assert found["words"] == ["the", "10 000", "pilots"]
        for tree in (found["tree"], *found.get("voters", ())):
            assert Tree.fromstring(tree).leaves() == ["the", "10_000", "pilots"]
