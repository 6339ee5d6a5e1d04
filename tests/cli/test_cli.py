"""Every command through `main`, on one tiny run; and that a bad input gives one line and an exit code."""

import contextlib
import gzip
import io
import json
import math
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import yaml
from nltk.tree import Tree

from gatedrnn.cells import CELLS
from gatedrnn.cli.main import main
from gatedrnn.data import read_sentences, read_treebank, write_corpus
from gatedrnn.training.run import read_metrics

PROTOCOLS = {"A", "AW", "B", "B_star", "corpus"}
PARSERS = {"model", "left", "right", "balanced", "random", "upper_bound"}


def call(*arguments):
    """(exit code, stdout, stderr) of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def works(*arguments):
    code, out, err = call(*arguments)
    assert code == 0, err
    return out


def fails(*arguments, code=1):
    """The one line on standard error of a command that must fail."""
    found, out, err = call(*arguments)
    assert found == code, (found, out, err)
    assert "Traceback" not in err
    assert err.endswith("\n") and err.count("\n") == 1, err
    assert err.startswith("gatedrnn: ")
    return err


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """A folder with a corpus, a configuration and two runs: `run` of an ON-LSTM, `lstm` of an LSTM."""
    folder = tmp_path_factory.mktemp("cli")
    write_corpus(folder / "text", seed=1, train=150, valid=25, test=25)
    sections = {
        "data": {"min_count": 1},
        "model": {"cell": "onlstm", "embedding_size": 16, "hidden_sizes": [20, 16], "chunk_size": 4},
        "training": {"epochs": 7, "batch_size": 8, "sequence_length": 20, "learning_rate": 0.01, "device": "cpu"},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(sections))
    common = ("train", "--config", folder / "run.yaml", "--data", folder / "text", "--training.epochs", 1)
    (folder / "trained.json").write_text(works(*common, "--out", folder / "run", "--json"))
    works(*common, "--out", folder / "lstm", "--model.cell", "lstm", "--model.hidden_sizes", "[16]")
    return folder


def copy_of(work, tmp_path):
    shutil.copytree(work / "run", tmp_path / "run", ignore=shutil.ignore_patterns("tokens"))
    return tmp_path / "run"


# ---------------------------------------------------------------- train and evaluate


def test_train_composes_yaml_and_overrides(work):
    config = yaml.safe_load((work / "run" / "config.yaml").read_text())
    assert config["training"]["epochs"] == 1
    assert config["training"]["learning_rate"] == 0.01
    assert config["model"]["hidden_sizes"] == [20, 16]
    assert config["data"]["folder"] == str(work / "text")
    assert yaml.safe_load((work / "lstm" / "config.yaml").read_text())["model"]["cell"] == "lstm"
    trained = json.loads((work / "trained.json").read_text())
    assert trained["run"] == str(work / "run") and trained["epochs"] == 1
    (record,) = read_metrics(work / "run")
    assert trained["best_valid_perplexity"] == pytest.approx(record["valid_perplexity"])
    assert trained["test_perplexity"] > 1


def test_train_prints_its_progress_and_a_config_names_its_own_data(work, tmp_path):
    sections = yaml.safe_load((work / "run.yaml").read_text())
    sections["data"]["folder"] = str(work / "text")
    sections["training"] |= {"epochs": 2, "minutes": 1e-5}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(sections))
    out = works("train", "--config", tmp_path / "a.yaml", "--out", tmp_path / "run")
    assert "training onlstm into" in out and "epoch   1" in out and "epoch   2" not in out
    assert "the budget of 1e-05 minutes is spent: best valid perplexity" in out


def test_evaluate(work):
    found = json.loads(works("evaluate", work / "run", "--data", work / "text" / "test.txt", "--json"))
    assert list(found)[:3] == ["loss_nats", "perplexity", "tokens"]
    assert found["perplexity"] == pytest.approx(math.exp(found["loss_nats"]))
    text = (work / "text" / "test.txt").read_text()
    assert found["tokens"] == len(text.split()) + text.count("\n")
    table = works("evaluate", work / "run", "--data", work / "text" / "test.txt")
    assert f"perplexity {found['perplexity']:.4f}" in table and f"{found['tokens']} tokens" in table


def test_evaluate_reads_gzip_and_agrees_with_training(work, tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress((work / "text" / "test.txt").read_bytes()))
    size = yaml.safe_load((work / "run" / "config.yaml").read_text())["training"]["evaluation_batch_size"]
    found = json.loads(works("evaluate", work / "run", "--data", tmp_path / "a.txt.gz", "--batch-size", size, "--json"))
    trained = json.loads((work / "trained.json").read_text())
    assert found["perplexity"] == pytest.approx(trained["test_perplexity"], rel=1e-5)


# ---------------------------------------------------------------- parse

SENTENCES = "the pilot laughs\n\nMary thinks that the ( old ) guards sleep\nyes\n"
TEXTS = [line.split() for line in SENTENCES.splitlines() if line]


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
    trees = [Tree.fromstring(line) for line in works("parse", work / "run", *where).splitlines()]
    assert [tree.leaves() for tree in trees] == [escaped(words) for words in TEXTS]
    assert all(map(is_binary, trees))


def test_parse_json_tells_distances_layer_and_algorithm(work, sentences):
    found = {}
    for layer in (1, 2):
        for algorithm in ("biased", "unbiased"):
            out = works("parse", work / "run", sentences, "--json", "--layer", layer, "--algorithm", algorithm)
            records = [json.loads(line) for line in out.splitlines()]
            assert [r["words"] for r in records] == TEXTS
            assert all(len(r["distances"]) == len(r["words"]) for r in records)
            assert all((r["layer"], r["algorithm"]) == (layer, algorithm) for r in records)
            plain = works("parse", work / "run", sentences, "--layer", layer, "--algorithm", algorithm)
            assert [r["tree"] for r in records] == plain.splitlines()
            found[layer, algorithm] = records
    assert found[1, "biased"][1]["distances"] == found[1, "unbiased"][1]["distances"]
    assert found[1, "biased"][1]["distances"] != found[2, "biased"][1]["distances"]
    default = json.loads(works("parse", work / "run", sentences, "--json").splitlines()[0])
    assert (default["layer"], default["algorithm"]) == (2, "unbiased")


def test_parse_draws(work, sentences, tmp_path):
    works("parse", work / "run", sentences, "--svg", tmp_path / "pictures")
    names = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert names == ["00001.svg", "00002.svg", "00003.svg"]
    root = ElementTree.parse(tmp_path / "pictures" / "00001.svg").getroot()
    assert root.tag.endswith("svg") and {"the", "pilot", "laughs"} <= {text.strip() for text in root.itertext()}


@pytest.mark.parametrize("layer", [0, -1, 3])
@pytest.mark.parametrize("command", ["parse", "eval-parsing"])
def test_a_layer_that_does_not_exist_is_refused(work, sentences, command, layer):
    what = [sentences] if command == "parse" else ["--treebank", work / "text" / "test.trees"]
    assert f"got {layer}" in fails(command, work / "run", *what, "--layer", layer)


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


def test_several_layers_vote(work):
    treebank = ["--treebank", work / "text" / "test.trees"]
    arguments = ["eval-parsing", work / "run", *treebank, "--layer", 1, "--layer", 2]
    found = json.loads(works(*arguments, "--json"))
    assert found["layer"] == [1, 2]
    for voter, layer in zip(found["voters"], (1, 2), strict=True):
        alone = json.loads(works("eval-parsing", work / "run", *treebank, "--layer", layer, "--json"))
        assert voter == {"run": str(work / "run"), "layer": layer, "scores": alone["scores"]["model"]}
        assert "voters" not in alone
    assert found["scores"]["model"]["A"] <= found["scores"]["upper_bound"]["A"]
    table = works(*arguments)
    assert found["agreement"][0][0] == pytest.approx(100) and found["agreement"][0][1] == found["agreement"][1][0]
    assert "agreement of voter 2 with each" in table
    assert "consensus of 2, unbiased" in table and f"{found['scores']['model']['B']:.2f}" in table
    shutil.copytree(work / "run", work / "twin")
    twins = json.loads(works("eval-parsing", work / "run", work / "twin", *treebank, "--json"))
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
    found = json.loads(works("eval-syntax", work / "run", "--pairs", "grammar", "--json"))
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


# ---------------------------------------------------------------- generate and explain


def test_generate_is_reproducible_by_seed(work):
    def words(*more):
        return json.loads(works("generate", work / "run", "--words", 30, "--json", *more))

    one = words("--seed", 5, "--prompt", "the pilot")
    assert one == words("--seed", 5, "--prompt", "the pilot")
    assert one["text"] != words("--seed", 6, "--prompt", "the pilot")["text"]
    assert len(one["text"]) == 32 and one["text"][:2] == ["the", "pilot"] and one["prompt_words"] == 2
    known = json.loads((work / "run" / "vocabulary.json").read_text())["words"]
    assert set(one["text"]) <= set(known)
    assert works("generate", work / "run", "--words", 30).split() == [w for w in words()["text"] if w != "<eos>"]
    greedy = [words("--seed", seed, "--temperature", 1e-6)["text"] for seed in (1, 2)]
    assert greedy[0] == greedy[1]


@pytest.mark.parametrize("cell", CELLS)
def test_explain(cell):
    found = json.loads(works("explain", cell, "--json"))
    assert found["cell"] == cell and found["title"] == CELLS[cell].title
    where = [hop["where"] for hop in found["hops"] if hop["what"] == "step"]
    assert where and all(text.startswith("gatedrnn/cells/") and text.split(":")[1].isdigit() for text in where)
    table = works("explain", cell)
    assert CELLS[cell].title in table and where[0].split("/")[-1].split(":")[0] in table


# ---------------------------------------------------------------- whatever is wrong gives one line


@pytest.mark.parametrize("command", ["parse", "eval-parsing"])
def test_a_cell_without_master_gates_cannot_parse(work, sentences, command):
    what = [sentences] if command == "parse" else ["--treebank", work / "text" / "test.trees"]
    line = fails(command, work / "lstm", *what)
    assert "needs a cell with master gates; got cell 'lstm'" in line and "onlstm" in line


def commands_on(run, work):
    return {
        "evaluate": ["evaluate", run, "--data", work / "text" / "test.txt"],
        "generate": ["generate", run, "--words", 3],
        "parse": ["parse", run, work / "text" / "test.txt"],
        "eval-parsing": ["eval-parsing", run, "--treebank", work / "text" / "test.trees"],
    }


@pytest.mark.parametrize("command", ["evaluate", "generate", "parse", "eval-parsing"])
def test_a_missing_run_is_one_line(work, tmp_path, command):
    assert "must be a run's folder" in fails(*commands_on(tmp_path / "none", work)[command])
    (tmp_path / "empty").mkdir()
    assert "config.yaml" in fails(*commands_on(tmp_path / "empty", work)[command])


DAMAGE = {
    "corrupt weights": ("model.safetensors", lambda raw: b"\xff" * len(raw), "is damaged"),
    "truncated weights": ("model.safetensors", lambda raw: raw[: len(raw) // 2], "is damaged"),
    "empty weights": ("model.safetensors", lambda raw: b"", "is damaged"),
    "weights of another run": ("model.safetensors", "lstm", "must hold the weights that config.yaml describes"),
    "no weights": ("model.safetensors", None, "must exist"),
    "another vocabulary": (
        "vocabulary.json",
        lambda raw: json.dumps({"words": ["<unk>", "<eos>", "a"]}).encode(),
        "must be of the model's size; got 3 words",
    ),
    "damaged vocabulary": ("vocabulary.json", lambda raw: raw[:-20], "is not a vocabulary"),
    "no vocabulary": ("vocabulary.json", None, "must be a readable vocabulary"),
    "unknown key": ("config.yaml", lambda raw: raw + b"optimiser: {}\n", "unknown key"),
    "no YAML": ("config.yaml", lambda raw: b"a: [", "must be YAML"),
    "binary configuration": ("config.yaml", lambda raw: b"\xff\xfe\x00", "must be UTF-8"),
    "wrong type": ("config.yaml", lambda raw: b"model: 5\n", "model: must be a mapping"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_one_line_naming_the_file(work, tmp_path, damage):
    name, change, message = DAMAGE[damage]
    path = copy_of(work, tmp_path) / name
    if change is None:
        path.unlink()
    elif isinstance(change, str):
        shutil.copy(work / change / name, path)
    else:
        path.write_bytes(change(path.read_bytes()))
    line = fails(*commands_on(tmp_path / "run", work)["evaluate"])
    assert message in line
    assert name in line or damage in ("unknown key", "wrong type")


BAD_TEXTS = {
    "missing": (None, "must be a readable file; got No such file"),
    "folder": ("folder", "Is a directory"),
    "empty": (b"", "must hold at least one sentence"),
    "blank": (b"\n \n", "must hold at least one sentence"),
    "binary": (b"ok\n\x00\x01\x02", "bad.txt:2: must be text"),
    "latin-1": (b"ok\nok\ncaf\xe9\n", "bad.txt:3: must be UTF-8 text"),
}


@pytest.fixture
def bad_text(tmp_path, request):
    path = tmp_path / "bad.txt"
    raw = BAD_TEXTS[request.param][0]
    if raw == "folder":
        path.mkdir()
    elif raw is not None:
        path.write_bytes(raw)
    return path, BAD_TEXTS[request.param][1]


@pytest.mark.parametrize("bad_text", BAD_TEXTS, indirect=True)
@pytest.mark.parametrize("command", ["evaluate", "parse"])
def test_a_bad_text_is_one_line(work, bad_text, command):
    path, message = bad_text
    arguments = ["evaluate", work / "run", "--data", path] if command == "evaluate" else ["parse", work / "run", path]
    assert message in fails(*arguments)


BAD_TREEBANKS = {
    "open": ("(S (NN a))\n\n(S (NN a)\n", "bad.trees:3: brackets must balance"),
    "closed": ("(S (NN a)))\n", "bad.trees:1: brackets must balance"),
    "plain": ("the cat\n", "bad.trees:1: must hold brackets only"),
    "no word": ("(S (NN a))\n(S)\n", "bad.trees:2: a tree must have at least one word"),
    "empty": ("", "must hold at least one tree"),
    "binary": ("(S (NN a))\n\x00\n", "bad.trees:2: must be text"),
}


@pytest.mark.parametrize("kind", BAD_TREEBANKS)
def test_a_bad_treebank_is_one_line(work, tmp_path, kind):
    text, message = BAD_TREEBANKS[kind]
    (tmp_path / "bad.trees").write_text(text)
    assert message in fails("eval-parsing", work / "run", "--treebank", tmp_path / "bad.trees")
    assert message in fails("eval-parsing", "--baseline", "left", "--treebank", tmp_path / "bad.trees", "--json")


def corpus_folder(work, tmp_path, **files):
    shutil.copytree(work / "text", tmp_path / "text")
    for name, raw in files.items():
        path = tmp_path / "text" / f"{name}.txt"
        path.unlink() if raw is None else path.write_bytes(raw)
    return tmp_path / "text"


BAD_CORPORA = {
    "no training text": ({"train": None}, "must hold train.txt"),
    "no validation text": ({"valid": None}, "must hold valid.txt"),
    "empty training text": ({"train": b""}, "train.txt: must hold at least one sentence"),
    "empty validation text": ({"valid": b"\n"}, "valid.txt: must hold at least one sentence"),
    "empty test text": ({"test": b""}, "test.txt: must hold at least one sentence"),
    "binary training text": ({"train": b"a b\n\x00"}, "train.txt:2: must be text"),
    "latin-1 test text": ({"test": b"caf\xe9\n"}, "test.txt:1: must be UTF-8 text"),
}


@pytest.mark.parametrize("kind", BAD_CORPORA)
def test_a_bad_corpus_is_one_line_and_leaves_no_run(work, tmp_path, kind):
    files, message = BAD_CORPORA[kind]
    folder = corpus_folder(work, tmp_path, **files)
    line = fails("train", "--config", work / "run.yaml", "--data", folder, "--out", tmp_path / "out")
    assert message in line
    assert not (tmp_path / "out").exists()


def test_a_missing_corpus_is_one_line_and_leaves_no_run(work, tmp_path):
    line = fails("train", "--data", tmp_path / "none", "--out", tmp_path / "out")
    assert "must be a folder with train.txt and valid.txt" in line
    assert not (tmp_path / "out").exists()


BAD_OPTIONS = {
    "chunk": (["--model.chunk_size", "7"], "chunk_size: must divide"),
    "device": (["--training.device", "toaster"], "training.device: must be a device"),
    "tied": (["--model.embedding_size", "8"], "model.tied: the last hidden size must equal"),
    "cell": (["--model.cell", "onlsmt"], "onlstm"),
    "epochs": (["--training.epochs", "0"], "training.epochs: must be a positive integer"),
}


@pytest.mark.parametrize("text", ["given", "built-in grammar"])
@pytest.mark.parametrize("kind", BAD_OPTIONS)
def test_a_setting_that_cannot_work_is_one_line_and_leaves_no_run(work, tmp_path, monkeypatch, kind, text):
    monkeypatch.setattr(
        "gatedrnn.cli.commands.write_corpus", lambda folder, seed: write_corpus(folder, seed, 60, 10, 10), raising=False
    )
    options, message = BAD_OPTIONS[kind]
    data = ["--data", work / "text"] if text == "given" else []
    line = fails("train", "--config", work / "run.yaml", *data, "--out", tmp_path / "out", *options)
    assert message in line
    assert not (tmp_path / "out").exists()


BAD_CONFIGS = {
    "unknown section": ("modle: {cell: gru}\n", "modle"),
    "unknown key": ("model: {hiden_sizes: [8]}\n", "hiden_sizes"),
    "wrong type": ("training: {epochs: many}\n", "epochs"),
    "a list": ("[1, 2]\n", ""),
    "no YAML": ("model: [\n", ""),
}


@pytest.mark.parametrize("kind", BAD_CONFIGS)
def test_a_bad_configuration_file_is_one_line_and_leaves_no_run(work, tmp_path, kind):
    text, message = BAD_CONFIGS[kind]
    (tmp_path / "bad.yaml").write_text(text)
    arguments = ["train", "--config", tmp_path / "bad.yaml", "--data", work / "text", "--out", tmp_path / "out"]
    code = call(*arguments)[0]
    assert code in (1, 2)
    assert message in fails(*arguments, code=code)
    assert not (tmp_path / "out").exists()


def test_a_missing_configuration_file_is_one_line(work, tmp_path):
    arguments = ["train", "--config", tmp_path / "none.yaml", "--data", work / "text", "--out", tmp_path / "out"]
    assert "none.yaml" in fails(*arguments, code=call(*arguments)[0] or 1)
    assert not (tmp_path / "out").exists()


def test_an_existing_run_is_never_touched(work, tmp_path):
    run = copy_of(work, tmp_path)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    line = fails("train", "--config", work / "run.yaml", "--data", work / "text", "--out", run)
    assert "must not hold a run yet" in line and "--out" in line
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["parse"],
        ["evaluate", "RUN"],
        ["train", "--no-such-option", "1"],
        ["train", "--model.no_such_option", "1"],
        ["generate", "RUN", "--words", "many"],
        ["parse", "RUN", "--algorithm", "best"],
        ["eval-parsing", "--treebank", "x", "--words", "all"],
        ["explain"],
    ],
)
def test_wrong_usage_exits_with_two(arguments):
    assert "usage" in fails(*arguments, code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "onlsmt"], "Did you mean 'onlstm'?"),
        (["eval-parsing", "--treebank", "x"], "needs a RUN or --baseline"),
        (["eval-parsing", "--treebank", "x", "--baseline", "left"], "x: must be a readable file"),
        (["eval-parsing", "--treebank", "{trees}", "--baseline", "middle"], "baseline: must be one of left, right, "),
        (["evaluate", "{run}", "--data", "{text}", "--batch-size", "0"], "--batch-size: must be a positive integer"),
        (["generate", "{run}", "--words", "0"], "--words: must be a positive integer; got 0"),
        (["generate", "{run}", "--temperature", "0"], "temperature: must be a finite number above 0; got 0"),
        (["eval-parsing", "{run}", "--treebank", "{trees}", "--max-words", "0"], "max_words: must be a positive"),
        (["eval-parsing", "{run}", "--treebank", "{trees}", "--max-words", "1"], "a sentence with a word that counts"),
        (["parse", "{run}", "{text}", "--svg", "{text}"], "must be writable"),
    ],
)
def test_wrong_values_exit_with_one(work, arguments, message):
    places = {"run": work / "run", "text": work / "text" / "test.txt", "trees": work / "text" / "test.trees"}
    code, _, err = call(*(argument.format(**places) for argument in arguments))
    assert code == 1 and message in err
    assert err.count("\n") == 1 and "Traceback" not in err


# ---------------------------------------------------------------- as a program


@pytest.mark.parametrize(
    "command", [[], ["train"], ["evaluate"], ["surprisal"], ["generate"], ["parse"], ["eval-parsing"], ["explain"]]
)
def test_every_command_has_help(command):
    out = works(*command, "--help")
    assert "usage: gatedrnn" in out and "--help" in out
    assert not command or "--json" in out


def test_help_as_a_program():
    program = [sys.executable, "-m", "gatedrnn.cli.main", "--help"]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert all(f"\n    {name}" in result.stdout for name in ("demo", "train", "parse", "eval-parsing", "explain"))


def test_an_error_as_a_program(tmp_path):
    program = [sys.executable, "-m", "gatedrnn.cli.main", "generate", str(tmp_path / "none")]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("gatedrnn: ")


def test_a_text_to_parse_may_be_long(work, tmp_path):
    (tmp_path / "long.txt").write_text("the pilot laughs\n" * 1100 + "the guards sleep " * 200 + "\n")
    lines = works("parse", work / "run", tmp_path / "long.txt").splitlines()
    assert len(lines) == 1101 and set(lines[:1100]) == {lines[0]}
    assert lines[-1].count("(") == 599
    assert len(list(read_sentences(tmp_path / "long.txt"))) == 1101
