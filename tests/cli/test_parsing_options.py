"""`eval-parsing` through `main`: a layer chosen by gold trees, bad and long trees skipped, and the pages it writes."""

import json

import pytest
import torch
from nltk.tree import Tree
from page import Page
from terminal import fails, record, records, works

from gatedrnn.data import DataConfig, Vocabulary, read_treebank
from gatedrnn.data.sentences import GrammarDataConfig
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.models.grammar import Grammar, GrammarConfig
from gatedrnn.tasks import GrammarInduction
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.training.config import RunConfig
from gatedrnn.training.run import write_trained
from gatedrnn.trees import gold_tree

# ---------------------------------------------------------------- the layer of a run


def test_a_run_says_which_layer_is_read(work, tmp_path):
    small = ["--model.hidden_sizes", "[8, 8]", "--model.embedding_size", 8, "--model.options.chunk_size", 2]
    data = ["--data", work / "text", "--training.device", "cpu", "--training.epochs", 1]
    works("train", *data, *small, "--model.tree_layer", "mean", "--model.tree_gate", "both", "--out", tmp_path / "run")
    lines, treebank = work / "text" / "test.txt", ["--treebank", work / "text" / "test.trees"]
    trees = {
        name: works("parse", tmp_path / "run", lines, *("--layer", name)[: 2 * bool(name)]) for name in ("", *LAYERS)
    }
    assert trees[""] == trees["mean"]
    assert trees["mean"] not in (trees["1"], trees["2"])
    found = record("eval-parsing", tmp_path / "run", *treebank)
    assert (found["layer"], found["gate"]) == ("mean", "both")
    assert found == record("eval-parsing", tmp_path / "run", *treebank, "--layer", "mean", "--gate", "both")
    vote = record("eval-parsing", tmp_path / "run", work / "run", *treebank)
    each = [(voter["layer"], voter["gate"]) for voter in vote["voters"]]
    assert each == [("mean", "both"), (2, "master_forget")] and vote["gate"] == ["both", "master_forget"]
    assert {parsed["gate"] for parsed in records("parse", tmp_path / "run", lines)} == {"both"}
    assert trees[""] != works("parse", tmp_path / "run", lines, "--gate", "master_forget")
    said = "model.tree_layer: must lie in 1…2, or be mean; got 3"
    assert said in fails("train", *data, *small, "--model.tree_layer", 3, "--out", tmp_path / "other")


# ---------------------------------------------------------------- --select

LAYERS = {"1": 1, "2": 2, "mean": "mean"}


@pytest.mark.parametrize("options", [[], ["--algorithm", "biased"], ["--gate", "master_input"]])
def test_the_layer_with_the_best_f1_on_dev_is_chosen(work, options):
    dev, arguments = work / "text" / "valid.trees", ["--treebank", work / "text" / "test.trees", *options]
    alone = {
        run: {name: record("eval-parsing", run, "--treebank", dev, "--layer", name, *options) for name in LAYERS}
        for run in (work / "run", work / "other")
    }
    by_run = {run: {name: found["scores"]["model"]["B"] for name, found in each.items()} for run, each in alone.items()}
    select = ["--select", "layer=auto", "--dev", dev]
    for runs in ([work / "run"], [work / "other"], [work / "run", work / "other"]):
        found = record("eval-parsing", *runs, *arguments, *select)
        best = {run: max(by_run[run], key=by_run[run].get) for run in runs}
        each = {str(run): {"layer": LAYERS[best[run]], "B": pytest.approx(by_run[run])} for run in runs}
        assert found.pop("selection") == {"treebank": str(dev), "gold_trees_used": True, "runs": each}
        if len(runs) == 1:
            assert found == record("eval-parsing", *runs, *arguments, "--layer", best[runs[0]])
        else:
            assert [voter["layer"] for voter in found["voters"]] == [LAYERS[name] for name in best.values()]


def test_a_layer_is_chosen_on_sentences_of_the_lengths_that_are_scored(work, tmp_path):
    dev = work / "text" / "valid.trees"
    given = ["eval-parsing", work / "run", "--treebank", dev, "--select", "layer=auto", "--dev"]
    short = [tree for tree in read_treebank(dev) if len(gold_tree(tree, "ptb")) <= 6]
    (tmp_path / "short.trees").write_text("\n".join(" ".join(str(tree).split()) for tree in short))
    few, same = record(*given, dev, "--max-words", 6), record(*given, tmp_path / "short.trees")
    (found,), (expected,) = few["selection"]["runs"].values(), same["selection"]["runs"].values()
    assert short and found == expected
    assert "must hold a tree of at most 1 words" in fails(*given, dev, "--max-words", 1)


def test_gold_trees_that_were_used_are_told(work):
    dev = work / "text" / "valid.trees"
    arguments = ["eval-parsing", work / "run", "--treebank", work / "text" / "test.trees"]
    found = record(*arguments, "--select", "layer=auto", "--dev", dev)["selection"]["runs"][str(work / "run")]
    table = works(*arguments, "--select", "layer=auto", "--dev", dev)
    each = ", ".join(f"{layer} {value:.1f}" for layer, value in found["B"].items())
    assert f"; gold trees of {dev} were used to choose layer {found['layer']} of {work / 'run'} (B: {each})" in table
    assert list(found["B"].values()) == sorted(found["B"].values(), reverse=True)
    assert "gold trees" not in works(*arguments) and "selection" not in record(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dev", "DEV"], "--dev: needs --select; got none. Add --select layer=auto"),
        (["--select", "layer=best", "--dev", "DEV"], "--select: must be layer=auto; got layer=best"),
        (["--select", "layer=auto"], "and no --layer; got no --dev"),
        (["--select", "layer=auto", "--dev", "DEV", "--layer", "1"], "and no --layer; got --layer too"),
        (["--select", "layer=auto", "--dev", "none.trees"], "none.trees: must be a readable file"),
    ],
)
def test_a_selection_that_cannot_be_made_is_refused(work, options, message):
    given = [work / "text" / "valid.trees" if option == "DEV" else option for option in options]
    treebank = ["--treebank", work / "text" / "test.trees"]
    assert message in fails("eval-parsing", work / "run", *treebank, *given)


def test_a_selection_needs_a_run(work):
    treebank = work / "text" / "test.trees"
    given = ["--baseline", "left", "--select", "layer=auto", "--dev", treebank]
    assert "and no --layer; got no RUN" in fails("eval-parsing", "--treebank", treebank, *given)


# ---------------------------------------------------------------- --skip-bad

BAD = {
    "too many": ("(S (NN a)))", "brackets must balance; got one ')' too many"),
    "too few": ("(S (NN a)", "brackets must balance; got 1 '(' left open"),
    "text": ("the cat", "must hold brackets only; got 'the cat'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_trees_are_named_and_the_others_scored(work, tmp_path, kind):
    good = (work / "text" / "test.trees").read_text().splitlines()
    line, message = BAD[kind]
    (tmp_path / "bad.trees").write_text("\n".join([*good[:9], line, *good[9:], ""]))
    arguments = ["eval-parsing", work / "run", "--treebank"]
    found = record(*arguments, tmp_path / "bad.trees", "--skip-bad")
    (told,) = found.pop("skipped")
    assert told.startswith(f"{tmp_path / 'bad.trees'}:10: {message}")
    assert found == record(*arguments, work / "text" / "test.trees") and found["sentences"] == len(good)
    assert f"\nskipped: {told}\n" in works(*arguments, tmp_path / "bad.trees", "--skip-bad")
    assert f"bad.trees:10: {message}" in fails(*arguments, tmp_path / "bad.trees")
    assert f"bad.trees:10: {message}" in fails(
        *arguments[:1], *arguments[2:], tmp_path / "bad.trees", "--baseline", "left"
    )


def test_nothing_skipped_is_an_empty_list(work):
    arguments = ["eval-parsing", work / "run", "--treebank", work / "text" / "test.trees"]
    assert record(*arguments, "--skip-bad") == record(*arguments) | {"skipped": []}
    assert "skipped" not in works(*arguments, "--skip-bad")


# ---------------------------------------------------------------- --out


@pytest.fixture(scope="module")
def few(work, tmp_path_factory):
    """Four short trees and three of at least eight words, which alone a report draws."""
    trees = list(read_treebank(work / "text" / "test.trees"))
    short, long = [[tree for tree in trees if (len(tree.leaves()) >= 8) == is_long] for is_long in (False, True)]
    path = tmp_path_factory.mktemp("few") / "few.trees"
    path.write_text("\n".join(map(str, [*short[:4], *long[:3]])))
    return path


def spans_of(tree):
    """Spans of width ≥ 2 but the whole sentence, from the places of the leaves."""
    places = tree.treepositions("leaves")
    each = [[k for k, place in enumerate(places) if place[: len(node)] == node] for node in tree.treepositions()]
    return {(held[0], held[-1] + 1) for held in each if 1 < len(held) < len(places)}


def rows_of(table, *names):
    """Cells of the rows of a printed table, by name."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    return [row for row in rows if row and row[0] in names]


def written(folder, *arguments):
    """The page that a command writes, once its files are checked, and the command's record."""
    found = record("eval-parsing", *arguments, "--out", folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert json.loads(files.pop("results.json")) == found
    page = Page(files.pop("report.html").decode())
    assert page.loaded == [] and page.tags[0] == "html"
    assert all(name.endswith(".pdf") and raw.startswith(b"%PDF") for name, raw in files.items())
    assert page.tags.count("svg") == len(files) and "f1-by-length.pdf" in files
    assert set(files) == {"f1-by-length.pdf", *(f"sentence-{k}.pdf" for k in range(1, len(files)))}
    for scores in found["scores"].values():
        assert {f"{scores['B']:.1f}", *(f"{value:.2f}" for value in scores.values())} <= set(page.texts)
    return page, found


def test_a_run_has_a_page(work, few, tmp_path):
    page, found = written(tmp_path / "out", work / "run", "--treebank", few, "--bootstrap", 20, "--layer", "mean")
    assert page.tags.count("svg") == 1 + 3 and f"Trees of {few.name}" in page.texts
    plain = record("eval-parsing", work / "run", "--treebank", few, "--bootstrap", 20, "--layer", "mean", "--by-length")
    assert found == plain and found["sentences"] == 7
    intervals = [f"{low:.1f}–{high:.1f}" for low, high in found["intervals"]["model"].values()]
    assert set(intervals) <= set(page.texts)
    assert any(
        "rule ptb; words looked up by rule number; distances from the master forget gate" in text for text in page.texts
    )
    (few.parent / "few.txt").write_text("\n".join(" ".join(tree.leaves()) for tree in read_treebank(few)))
    parsed = records("parse", work / "run", few.parent / "few.txt", "--layer", "mean")
    said, shares = [text for text in page.texts if text], []
    for one, gold in list(zip(parsed, read_treebank(few), strict=True))[4:]:
        own, theirs = spans_of(Tree.fromstring(one["tree"])), spans_of(gold)
        shares.append(f"F1 {200 * len(own & theirs) / (len(own) + len(theirs)):.0f}")
        assert any(said[k : k + len(one["words"])] == gold.leaves() for k in range(len(said)))
    assert [text for text in said if text[:3] == "F1 " and text[3:].isdigit()] == shares


def test_a_page_that_draws_fewer_sentences_leaves_no_other(few, tmp_path):
    (tmp_path / "out").mkdir()
    names = {"sentence-1.pdf", "sentence-2.pdf", "sentence-1-run.pdf", "sentence-of-mine.pdf"}
    for name in names:
        (tmp_path / "out" / name).write_text("mine")
    for left in (names, {"sentence-1-run.pdf", "sentence-of-mine.pdf"}):  # no page was there, and one that drew two
        works("eval-parsing", "--baseline", "right", "--treebank", few, "--out", tmp_path / "out")
        assert {path.name for path in (tmp_path / "out").glob("sent*")} == left


def test_a_drawing_is_xml_whatever_stands_in_the_words(work, tmp_path, monkeypatch):
    from xml.etree import ElementTree

    (tmp_path / "text.txt").write_text("a \x01 \x1b[31m <b> \ufffe 🙂\n")
    works("parse", work / "run", tmp_path / "text.txt", "--svg", tmp_path / "trees")
    drawn = ElementTree.fromstring((tmp_path / "trees" / "00001.svg").read_text())
    assert {"a", "\ufffd", "\ufffd[31m", "<b>", "🙂"} <= {(each.text or "").strip() for each in drawn.iter()}
    monkeypatch.setattr("gatedrnn.plots.trees.KINDS", ("svg",))
    works("gates", work / "run", "--sentence", "a \x01 b", "--out", tmp_path / "gates")
    assert "\ufffd" in {each.text for each in ElementTree.parse(tmp_path / "gates" / "sentence-1.svg").iter()}
    (tmp_path / "a.trees").write_text("(S (NN a) (VP (VB \x01b) (NN c)))")
    works("eval-parsing", work / "run", "--treebank", tmp_path / "a.trees", "--out", tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "\ufffdb" in page and "\x01" not in page


def test_a_consensus_has_a_page(work, few, tmp_path):
    runs = [work / "run", work / "other"]
    page, found = written(tmp_path / "out", *runs, "--treebank", few, "--max-words", 9)
    assert {
        "Agreement of the voters",
        f"2: {runs[1]}, layer 2, master forget",
        f"{found['agreement'][0][1]:.1f}",
    } <= set(page.texts)
    assert {"consensus of 2, biased", "consensus of 2, unbiased"} <= set(page.texts)
    for run in runs:
        (cells,) = rows_of(works("eval-parsing", run, "--treebank", few, "--max-words", 9), "model, layer 2, unbiased")
        place = page.texts.index(f"{run}, layer 2, unbiased")
        assert [text for text in page.texts[place:] if text][1:6] == cells[1:]


def test_baselines_alone_have_a_page(few, tmp_path):
    given = ["--treebank", few, "--baseline", "balanced", "--baseline", "upper_bound"]
    page, found = written(tmp_path / "out", *given)
    assert page.tags.count("svg") == 1 and list(found["scores"]) == ["balanced", "upper_bound"]
    assert any(text.startswith("trivial parsers alone; words counted by rule ptb") for text in page.texts)
    assert f"open {tmp_path / 'out' / 'report.html'}\n" in works("eval-parsing", *given, "--out", tmp_path / "out")
    (tmp_path / "file").write_text("mine")
    assert "--out: must be a folder or a new path; got" in fails("eval-parsing", *given, "--out", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


# ---------------------------------------------------------------- sentences that count

LETTERS = Vocabulary(["<unk>", "<eos>", *"abcdefghij"])
SHORT = "(S (NN a) (NP (NN b) (NN c)))\n"
LONG = f"(S {'(NN a) ' * 301})\n"


@pytest.fixture
def place(tmp_path):
    """A folder with two runs that were never trained, `grammar` and `onlstm`, and gold trees, one of them too long."""
    torch.manual_seed(1)
    sizes = GrammarConfig(12, nonterminals=3, preterminals=4, state_size=5)
    config = RunConfig(GrammarDataConfig(), sizes, GrammarInduction.training, GrammarInduction.name)
    write_trained(tmp_path / "grammar", config, Grammar(sizes), LETTERS)
    own = LanguageModelConfig(
        cell="onlstm", vocabulary_size=12, embedding_size=8, hidden_sizes=(8,), options={"chunk_size": 2}
    )
    training = TrainingConfig(device="cpu", backend="reference")
    write_trained(tmp_path / "onlstm", RunConfig(DataConfig(), own, training), LanguageModel(own), LETTERS)
    (tmp_path / "gold.trees").write_text(SHORT + LONG + SHORT * 2)
    (tmp_path / "short.trees").write_text(SHORT * 3)
    return tmp_path


def test_sentences_that_are_not_scored_are_not_parsed(place):
    found = record("eval-parsing", place / "grammar", "--treebank", place / "gold.trees", "--max-words", 40)
    alone = record("eval-parsing", place / "grammar", "--treebank", place / "short.trees", "--max-words", 40)
    assert found["sentences"] == 3 and found["scores"]["model"] == alone["scores"]["model"]
    runs = (place / "grammar", place / "onlstm")
    both = record("eval-parsing", *runs, "--treebank", place / "gold.trees", "--max-words", 40)
    assert both["agreement"] == record("eval-parsing", *runs, "--treebank", place / "short.trees")["agreement"]
    rest = ("--max-words", 3, "--by-length", "--out", place / "report")
    assert set(record("eval-parsing", *runs, "--treebank", place / "gold.trees", *rest)["by_length"]) == {"1–10"}


def test_the_random_baseline_is_the_same_beside_a_model_and_alone(place):
    how = ("--treebank", place / "gold.trees", "--max-words", 40, "--baseline", "random")
    with_model, alone = record("eval-parsing", place / "grammar", *how), record("eval-parsing", *how)
    assert with_model["scores"]["random"] == alone["scores"]["random"]


def test_a_tree_that_is_too_long_for_a_grammar_is_named_or_left_out(place):
    command = ("eval-parsing", place / "grammar", "--treebank", place / "gold.trees")
    rule = "gold.trees, tree of 'a a a a a' …: must have at most 300 words for a grammar; got 301."
    assert f"{rule} Add --skip-bad, or --max-words 300." in fails(*command)
    found = record(*command, "--skip-bad")
    assert found["sentences"] == 3 and len(found["skipped"]) == 1 and rule in found["skipped"][0]
    other = record("eval-parsing", place / "onlstm", "--treebank", place / "gold.trees", "--skip-bad")
    assert (other["sentences"], other["skipped"]) == (4, [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-words", "0"], "max_words: must be a positive integer; got 0"),
        (["--bootstrap", "-1"], "bootstrap: must be an integer of at least 0; got -1"),
        (["--baseline", "rigth"], "upper_bound; got 'rigth'. Did you mean 'right'?"),
        (["--weight", "grammar=0"], "--weight: must be FAMILY=NUMBER"),
        (["--weight", "language_modelling=1"], "weight: must name a family among the voters: grammar, right"),
    ],
)
def test_a_mistake_in_the_options_is_found_before_anything_is_read(place, monkeypatch, options, said):
    monkeypatch.setattr("gatedrnn.cli.commands.eval_parsing.read_treebank", lambda *_: pytest.fail("it was read"))
    line = fails("eval-parsing", place / "grammar", "--treebank", place / "gold.trees", *options)
    assert said in line
