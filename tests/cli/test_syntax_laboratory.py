"""`parse`, `eval-parsing` and `eval-syntax` through `main`, on tiny runs: trees, scores and judgements."""

import io
import json
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from nltk.tree import Tree
from page import Page
from terminal import by_steps, call, copy_of, fails, record, records, works

from gatedrnn.data import read_sentences, read_treebank
from gatedrnn.training.run import load_run

PROTOCOLS = {"A", "AW", "B", "B_star", "corpus"}
PARSERS = {"model", "left", "right", "balanced", "random", "upper_bound"}

# ---------------------------------------------------------------- parse

SENTENCES = "the pilot laughs\n\nMary thinks that the ( old ) guards sleep\nyes\n"
LINES = [line.split() for line in SENTENCES.splitlines()]
TEXTS = [words for words in LINES if words]


def escaped(words):
    return [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in words]


def is_binary(tree):
    return all(len(node) == 2 for node in tree.subtrees() if len(tree.leaves()) > 1)


@pytest.fixture
def sentences(tmp_path):
    (tmp_path / "a.txt").write_text(SENTENCES)
    return tmp_path / "a.txt"


@pytest.mark.parametrize("source", ["file", "-", "default"])
def test_parse_gives_a_tree_a_line(work, sentences, monkeypatch, source):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SENTENCES.encode())))
    where = {"file": [sentences], "-": ["-"], "default": []}[source]
    lines = works("parse", work / "run", *where).splitlines()
    assert [bool(line) for line in lines] == [bool(words) for words in LINES]
    trees = [Tree.fromstring(line) for line in lines if line]
    assert [tree.leaves() for tree in trees] == [escaped(words) for words in TEXTS]
    assert all(map(is_binary, trees))


def test_parse_json_tells_distances_layer_and_algorithm(work, sentences):
    found = {}
    for layer in (1, 2):
        for algorithm in ("biased", "unbiased"):
            out = works("parse", work / "run", sentences, "--json", "--layer", layer, "--algorithm", algorithm)
            records = [json.loads(line) for line in out.splitlines()]
            assert [r["words"] for r in records] == LINES
            assert all(len(r["distances"]) == len(r["words"]) for r in records)
            assert all((r["layer"], r["algorithm"]) == (layer, algorithm) for r in records)
            plain = works("parse", work / "run", sentences, "--layer", layer, "--algorithm", algorithm)
            assert [r["tree"] for r in records] == plain.splitlines()
            found[layer, algorithm] = records
    assert found[1, "biased"][0]["distances"] == found[1, "unbiased"][0]["distances"]
    assert found[1, "biased"][0]["distances"] != found[2, "biased"][0]["distances"]
    default = json.loads(works("parse", work / "run", sentences, "--json").splitlines()[0])
    assert (default["layer"], default["algorithm"]) == (2, "unbiased")


def test_parse_draws(work, sentences, tmp_path):
    works("parse", work / "run", sentences, "--svg", tmp_path / "pictures")
    names = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert names == [f"{number:05d}.svg" for number, words in enumerate(LINES, 1) if words]
    root = ElementTree.parse(tmp_path / "pictures" / "00001.svg").getroot()
    assert root.tag.endswith("svg") and {"the", "pilot", "laughs"} <= {text.strip() for text in root.itertext()}


@pytest.mark.parametrize("layer", [0, -1, 3])
@pytest.mark.parametrize("command", ["parse", "eval-parsing"])
def test_a_layer_that_does_not_exist_is_refused(work, sentences, command, layer):
    what = [sentences] if command == "parse" else ["--treebank", work / "text" / "test.trees"]
    assert f"got {layer}" in fails(command, work / "run", *what, "--layer", layer)


def test_a_text_to_parse_may_be_long(work, tmp_path):
    (tmp_path / "long.txt").write_text("the pilot laughs\n" * 1100 + "the guards sleep " * 200 + "\n")
    lines = works("parse", work / "run", tmp_path / "long.txt").splitlines()
    assert len(lines) == 1101 and set(lines[:1100]) == {lines[0]}
    assert lines[-1].count("(") == 599
    assert len(list(read_sentences(tmp_path / "long.txt"))) == 1101


@pytest.mark.parametrize("command", ["parse", "eval-parsing"])
def test_a_cell_without_master_gates_cannot_parse(work, sentences, command):
    what = [sentences] if command == "parse" else ["--treebank", work / "text" / "test.trees"]
    line = fails(command, work / "lstm", *what)
    assert "needs a cell with master gates; got cell 'lstm'" in line and "onlstm" in line


def gate_means(folder, words, gate):
    """Mean of a gate at each word, by layer: one plain forward of the whole sentence."""
    run = load_run(folder)
    with torch.no_grad():
        traces = run.model.eval()(torch.tensor([1, *run.vocabulary.encode(words)])[:, None], return_gates=True).gates
    return [trace[gate][1:, 0].double().mean(-1) for trace in traces]


@pytest.mark.parametrize("gate", ["master_forget", "master_input"])
def test_parse_reads_a_gate_of_one_layer_or_the_mean_of_all(work, sentences, gate):
    for layer in (1, 2, "mean"):
        parsed = records("parse", work / "run", sentences, "--layer", layer, "--gate", gate)
        for found, words in zip(parsed, LINES, strict=True):
            if not words:
                assert found["tree"] == "" and found["distances"] == []
                continue
            means = gate_means(work / "run", words, gate)
            each = [1 - mean if gate == "master_forget" else mean for mean in means]
            wanted = sum(each) / 2 if layer == "mean" else each[layer - 1]
            assert found["distances"] == pytest.approx(wanted.tolist(), abs=1e-6)
            assert (found["layer"], found["gate"]) == (layer, gate)


@pytest.mark.parametrize("layer", ["two", "1.5", ""])
@pytest.mark.parametrize("command", ["parse", "eval-parsing"])
def test_a_layer_that_is_no_number_is_refused(work, sentences, command, layer):
    what = [sentences] if command == "parse" else ["--treebank", work / "text" / "test.trees"]
    line = fails(command, work / "run", *what, "--layer", layer)
    assert f"parsing.layer: must be a whole number from 1, or mean; got {layer!r}" in line


def test_a_sentence_of_ten_thousand_words_parses(work, tmp_path):
    (tmp_path / "long.txt").write_text("the old pilot ( laughs " * 2000)
    (line,) = works("parse", work / "run", tmp_path / "long.txt").splitlines()
    open_now = deepest = 0
    for character in line:
        open_now += (character == "(") - (character == ")")
        deepest = max(deepest, open_now)
        assert open_now >= 0
    assert open_now == 0 < deepest and line.count("(") == 9999
    assert line.replace("(X", " ").replace(")", " ").split() == ["the", "old", "pilot", "-LRB-", "laughs"] * 2000


def test_only_sentences_of_two_hundred_words_are_drawn(work, tmp_path):
    (tmp_path / "a.txt").write_text("the " * 200 + "\n" + "the " * 201 + "\n")
    code, out, err = call("parse", work / "run", tmp_path / "a.txt", "--svg", tmp_path / "svg")
    assert code == 0 and len(out.splitlines()) == 2
    assert err == "gatedrnn: 00002.svg: not drawn, 201 words; at most 200 are drawn\n"
    (drawn,) = (tmp_path / "svg").iterdir()
    assert [text for text in ElementTree.parse(drawn).getroot().itertext() if text.strip() == "the"] == ["the"] * 200


# ---------------------------------------------------------------- eval-parsing


@pytest.mark.parametrize("algorithm", ["biased", "unbiased"])
@pytest.mark.parametrize("max_words", [None, 6])
def test_eval_parsing_of_a_run(work, algorithm, max_words):
    treebank = work / "text" / "test.trees"
    limit = [] if max_words is None else ["--max-words", max_words]
    arguments = ["eval-parsing", work / "run", "--treebank", treebank, "--algorithm", algorithm, *limit]
    found = json.loads(works(*arguments, "--json"))
    assert {"sentences", "algorithm", "layer", "max_words", "scores"} <= set(found)
    lengths = [len(tree.leaves()) for tree in read_treebank(treebank)]
    assert found["sentences"] == sum(max_words is None or n <= max_words for n in lengths)
    assert (found["algorithm"], found["layer"], found["max_words"]) == (algorithm, 2, max_words)
    assert set(found["scores"]) == PARSERS
    assert all(set(scores) == PROTOCOLS for scores in found["scores"].values())
    assert all(0 <= value <= 100 for scores in found["scores"].values() for value in scores.values())
    assert found["scores"]["model"]["A"] <= found["scores"]["upper_bound"]["A"]
    table = works(*arguments)
    for name in ("biased", "unbiased", "left", "right", "balanced", "random", "upper bound"):
        assert name in table
    assert f"{found['scores']['model']['B']:.2f}" in table


def test_intervals_lengths_and_depth(work):
    arguments = [
        "eval-parsing",
        work / "run",
        "--treebank",
        work / "text" / "test.trees",
        "--bootstrap",
        50,
        "--by-length",
    ]
    found = json.loads(works(*arguments, "--json"))
    assert set(found["intervals"]) == PARSERS and set(found["depth"]) == PARSERS | {"gold"}
    for name, scores in found["scores"].items():
        for protocol, (low, high) in found["intervals"][name].items():
            assert 0 <= low <= high <= 100.001 and (name == "random" or low - 1e-6 <= scores[protocol] <= high + 1e-6)
    assert sum(part["sentences"] for part in found["by_length"].values()) == found["sentences"]
    assert all(set(part["scores"]) == PARSERS for part in found["by_length"].values())
    table = works(*arguments)
    assert "95 % intervals" in table and "1–10 words" in table and "mean depth of trees (unbiased): gold" in table
    assert "bootstrap" in fails(*arguments[:-3], "--bootstrap", -1)


def test_several_layers_vote(work, tmp_path):
    treebank = ["--treebank", work / "text" / "test.trees"]
    arguments = ["eval-parsing", work / "run", *treebank, "--layer", 1, "--layer", 2]
    found = json.loads(works(*arguments, "--json"))
    assert found["layer"] == [1, 2]
    for voter, layer in zip(found["voters"], (1, 2), strict=True):
        alone = json.loads(works("eval-parsing", work / "run", *treebank, "--layer", layer, "--json"))
        assert voter == {
            "run": str(work / "run"),
            "layer": layer,
            "gate": "master_forget",
            "weight": 1.0,
            "scores": alone["scores"]["model"],
        }
        assert "voters" not in alone
    assert found["scores"]["model"]["A"] <= found["scores"]["upper_bound"]["A"]
    table = works(*arguments)
    assert found["agreement"][0][0] == pytest.approx(100) and found["agreement"][0][1] == found["agreement"][1][0]
    assert "agreement of voter 2 with each" in table
    assert "consensus of 2, unbiased" in table and f"{found['scores']['model']['B']:.2f}" in table
    twin = copy_of(work / "run", tmp_path / "twin")
    twins = json.loads(works("eval-parsing", work / "run", twin, *treebank, "--json"))
    assert twins["layer"] == [2, 2] and twins["scores"]["model"] == twins["voters"][0]["scores"]


def test_eval_parsing_of_baselines_needs_no_run(work):
    chosen = ["--baseline", "left", "--baseline", "balanced_up"]
    found = json.loads(works("eval-parsing", "--treebank", work / "text" / "test.trees", *chosen, "--json"))
    assert list(found["scores"]) == ["left", "balanced_up"]
    assert found["layer"] is None and found["sentences"] == 25
    alone = json.loads(
        works("eval-parsing", "--treebank", work / "text" / "test.trees", "--baseline", "left", "--json")
    )
    assert alone["scores"] == {"left": found["scores"]["left"]}


def test_eval_parsing_keeps_words_by_the_named_rule(tmp_path):
    (tmp_path / "a.trees").write_text("(S (NP (XX een) (XX kat)) (VP (XX ziet) (XX !)))\n")
    arguments = ["eval-parsing", "--treebank", tmp_path / "a.trees", "--baseline", "left", "--json"]
    assert json.loads(works(*arguments, "--words", "alnum"))["scores"]["left"]["B"] == pytest.approx(100)
    assert "must hold a sentence with a word that counts" in fails(*arguments)


# ---------------------------------------------------------------- eval-syntax


def test_eval_syntax_judges_pairs(work, tmp_path):
    found = record("eval-syntax", work / "run", "--pairs", "grammar")
    assert len(found["phenomena"]) == 7
    assert all(judged["pairs"] == 200 and not judged["skipped"] for judged in found["phenomena"].values())
    accuracies = [judged["accuracy"] for judged in found["phenomena"].values()]
    assert found["macro_accuracy"] == pytest.approx(sum(accuracies) / 7)
    assert (found["unknown"], found["method"]) == ("skip", "sentence")
    table = works("eval-syntax", work / "run", "--pairs", "grammar")
    assert "mean of the phenomena" in table and f"{100 * found['macro_accuracy']:.1f}" in table
    (tmp_path / "empty.jsonl").write_text("")
    assert "at least one pair" in fails("eval-syntax", work / "run", "--pairs", tmp_path / "empty.jsonl")
    assert "missing.jsonl" in fails("eval-syntax", work / "run", "--pairs", tmp_path / "missing.jsonl")


PAIRS = [
    ("order", "the pilot laughs", "laughs pilot the"),
    ("order", "the guards sleep", "the zebra sleep"),  # an unknown word
    ("unknown", "the zebra laughs", "the quagga laughs"),  # the same sentence once unknown words are <unk>
    ("unknown", "the zebra", "the pilot"),
]


@pytest.fixture
def pairs(tmp_path):
    lines = [dict(zip(("phenomenon", "good", "bad"), pair, strict=True)) for pair in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path / "pairs.jsonl"


def better(run, good, bad):
    """Whether the good sentence and its end are the more probable ones, word by word."""
    ids = [[*run.vocabulary.encode(text.split()), 1] for text in (good, bad)]
    return float(sum(by_steps(run, ids[0])) > sum(by_steps(run, ids[1])))


def test_unknown_words_are_skipped_or_judged_and_the_same_sentence_is_never_right(work, pairs):
    run = load_run(work / "run")
    wins = [better(run, good, bad) for _, good, bad in PAIRS]
    skipped = record("eval-syntax", work / "run", "--pairs", pairs)
    counts = {"pairs": 1, "skipped": 1, "identical": 0}
    assert skipped["phenomena"]["order"] == {"accuracy": wins[0]} | counts
    assert skipped["phenomena"]["unknown"] == {"accuracy": None, "pairs": 0, "skipped": 2, "identical": 0}
    assert skipped["macro_accuracy"] == wins[0]
    judged = record("eval-syntax", work / "run", "--pairs", pairs, "--unknown", "unk")
    counts = {"skipped": 0, "identical": 0}
    assert judged["phenomena"]["order"] == {"accuracy": (wins[0] + wins[1]) / 2, "pairs": 2} | counts
    counts["identical"] = 1
    assert judged["phenomena"]["unknown"] == {"accuracy": wins[3], "pairs": 1} | counts
    table = works("eval-syntax", work / "run", "--pairs", pairs)
    assert [cell.strip() for cell in table.split("unknown")[-1].split("│")[1:5]] == ["–", "0", "2", "0"]


def test_several_runs_are_judged_side_by_side(work, tmp_path, monkeypatch):
    texts = (work / "text" / "test.txt").read_text().splitlines()
    turned = [
        {"phenomenon": f"part {k % 3}", "good": text, "bad": " ".join(text.split()[::-1])}
        for k, text in enumerate(texts)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, turned)))
    monkeypatch.chdir(work)
    both = ["eval-syntax", "run", "lstm", "--pairs", tmp_path / "pairs.jsonl"]
    found = record(*both, "--out", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
    alone = {name: record("eval-syntax", name, *both[3:]) for name in ("run", "lstm")}
    how = {"unknown": "skip", "method": "sentence", "append": ""}
    assert found.pop("runs") == {name: {k: v for k, v in one.items() if k not in how} for name, one in alone.items()}
    assert found == how
    page, table = Page((tmp_path / "out" / "report.html").read_text()), works(*both)
    assert page.loaded == []
    said = [text for text in page.texts[page.texts.index("All scores") :] if text]
    for name, pairs in (("part 0", "9"), ("part 1", "8"), ("part 2", "8")):
        figures = [f"{100 * one['phenomena'][name]['accuracy']:.1f}" for one in alone.values()] + [pairs, "0", "0"]
        (row,) = [
            [cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if f" {name} " in line
        ]
        assert row == [name, *figures]
        assert said[said.index(name) + 1 :][:5] == figures
    means = [f"{100 * one['macro_accuracy']:.1f}" for one in alone.values()]
    assert [page.texts[page.texts.index(f"mean accuracy in percent, {name}") - 1] for name in alone] == means


def test_the_same_run_twice_is_refused(work):
    line = fails("eval-syntax", work / "run", work / "lstm", f"{work / 'run'}/", "--pairs", "grammar")
    assert f"RUN: must be different folders; got {work / 'run'} {work / 'run'}/." in line
    line = fails("eval-parsing", work / "run", work / "run", "--treebank", work / "text" / "test.trees")
    assert f"RUN: must be different folders; got {work / 'run'} {work / 'run'}." in line


def test_names_that_look_like_markup_are_shown_as_they_are(work, tmp_path):
    pair = {"phenomenon": "[/x] [red]a", "good": "the pilot laughs", "bad": "laughs the pilot"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair))
    assert "[/x] [red]a" in works("eval-syntax", work / "run", "--pairs", tmp_path / "pairs.jsonl")


def test_one_prefix_decides_through_the_command(work, tmp_path):
    keys = ("good", "bad", "one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad")
    asked = [("the old", "pilot", "guards"), ("many", "pilots", "pilot"), ("the pilot", "zebra", "laughs")]
    given = [dict(zip(keys, ("a", "b", *prefix), strict=True)) for prefix in asked] + [{"good": "a", "bad": "b"}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, given)))
    run = load_run(work / "run")
    last = [[by_steps(run, run.vocabulary.encode([*p.split(), w]))[-1] for w in words] for p, *words in asked[:2]]
    (judged,) = record("eval-syntax", work / "run", "--pairs", tmp_path / "p.jsonl", "--method", "prefix")[
        "phenomena"
    ].values()
    wins = [good > bad for good, bad in last]
    assert judged == {"accuracy": sum(wins) / 2, "pairs": 2, "skipped": 2, "identical": 0}


def test_gates_vote_as_layers_do(work):
    treebank = ["--treebank", work / "text" / "test.trees"]
    both = ["--gate", "master_forget", "--gate", "master_input"]
    arguments = ["eval-parsing", work / "run", *treebank, "--layer", 1, "--layer", "mean", *both]
    found = record(*arguments)
    assert found["gate"] == ["master_forget", "master_input"] and found["layer"] == [1, "mean", 1, "mean"]
    for voter in found["voters"]:
        alone = record("eval-parsing", work / "run", *treebank, "--layer", voter["layer"], "--gate", voter["gate"])
        assert voter["scores"] == alone["scores"]["model"] and alone["gate"] == voter["gate"]
    table = works(*arguments)
    assert (
        "model, layer mean, master input, unbiased" in table and "master forget gate and the master input gate" in table
    )
    chosen = record("eval-parsing", work / "run", *treebank, *both, "--select", "layer=auto", "--dev", treebank[1])
    assert len(chosen["voters"]) == 2 and list(chosen["selection"]["runs"]) == [
        f"{work / 'run'}, {gate}" for gate in both[1::2]
    ]
    assert "parsing.gate: must be one of master_forget, master_input" in fails(*arguments[:4], "--gate", "forget")


def test_what_is_appended_is_refused_where_it_is_not_read(work, pairs):
    line = fails("eval-syntax", work / "run", "--pairs", pairs, "--method", "prefix", "--append", ".")
    assert "--append: works only with --method sentence; got --method prefix. Leave --append out." in line


def test_no_sentence_that_counts_is_a_dash(work, tmp_path):
    (tmp_path / "one.trees").write_text("(S (NN pilot))\n(S (NN guards))\n")
    options = ["--treebank", tmp_path / "one.trees", "--bootstrap", 5, "--by-length"]
    both = ["eval-parsing", work / "run", work / "other", *options]
    found = record(*both, "--out", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
    for name, scores in found["scores"].items():
        assert [scores[key] for key in ("B", "B_star", "corpus")] == [None] * 3 and scores["A"] == pytest.approx(100)
        assert found["intervals"][name]["B"] is None is found["by_length"]["1–10"]["scores"][name]["B"]
    assert found["agreement"] == [[None, None], [None, None]] and found["voters"][0]["scores"]["B"] is None
    table = works(*both, "--layer", 1, "--layer", 2)
    (row,) = [line for line in table.splitlines() if line.startswith("│ left ")][:1]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["left", "100.00", "100.00", "–", "–", "–"]
    assert "agreement of voter 1 with each voter (unbiased): F1 –, –" in table
    line = fails(*both[:2], *options[:2], "--select", "layer=auto", "--dev", tmp_path / "one.trees")
    assert "--dev: must have a sentence of two words that count; got none." in line
