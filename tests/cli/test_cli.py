"""Every command through `main`, on one tiny run; and that a bad input gives one line and an exit code."""

import gzip
import json
import math
import shutil
import subprocess
import sys

import pytest
import yaml
from terminal import call, copy_of, fails, works

from gatedrnn.cells import CELLS
from gatedrnn.data import write_corpus
from gatedrnn.training.run import read_metrics

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


@pytest.mark.parametrize("by", ["file", "option", "mapping"])
def test_a_setting_of_the_gates_leaves_the_others_to_the_cell(work, tmp_path, by):
    sections = yaml.safe_load((work / "run.yaml").read_text())
    del sections["model"]["options"]
    sections["model"] |= {"cell": "g2lstm"} | ({"gates": {"noise_probability": 0.7}} if by == "file" else {})
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(sections))
    option = {
        "option": ["--model.gates.noise_probability", "0.7"],
        "mapping": ["--model.gates={noise_probability: 0.7}"],
    }
    short = ["--data", work / "text", "--training.minutes", "1e-5", "--out", tmp_path / "run"]
    works("train", "--config", tmp_path / "a.yaml", *option.get(by, []), *short)
    found = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"]["gates"]
    assert (found["temperature"], found["noise_probability"]) == (0.9, 0.7)
    assert found["names"] == ["input_gate", "forget_gate"]


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


def test_explain_names_the_instructions_that_are_used(monkeypatch):
    monkeypatch.setenv("GATEDRNN_CPU", "portable")
    told = {hop["what"]: hop["how"] for hop in json.loads(works("explain", "lstm", "--json"))["hops"]}
    assert told["CPU's instructions"].startswith("portable; this CPU has ")
    monkeypatch.setenv("GATEDRNN_CPU", "avx3")
    assert call("explain", "lstm")[2].startswith("gatedrnn: GATEDRNN_CPU: must name a target of this CPU; got 'avx3'.")


def test_explain_without_a_compiler():
    run = "import sys; sys.modules |= dict.fromkeys(('numba', 'llvmlite')); from gatedrnn.cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", run, "explain", "lstm", "--json"], capture_output=True, text=True)
    told = {hop["what"]: hop["how"] for hop in json.loads(done.stdout)["hops"]}
    assert told["CPU's instructions"] == "numba is not installed", done.stderr


# ---------------------------------------------------------------- whatever is wrong gives one line


def commands_on(run, work):
    return {
        "evaluate": ["evaluate", run, "--data", work / "text" / "test.txt"],
        "generate": ["generate", run, "--words", 3],
        "parse": ["parse", run, work / "text" / "test.txt"],
        "eval-parsing": ["eval-parsing", run, "--treebank", work / "text" / "test.trees"],
        "eval-syntax": ["eval-syntax", run, "--pairs", "grammar"],
        "surprisal": ["surprisal", run, work / "text" / "test.txt"],
    }


@pytest.mark.parametrize("command", ["evaluate", "generate", "parse", "eval-parsing", "eval-syntax", "surprisal"])
def test_a_missing_run_is_one_line(work, tmp_path, command):
    assert "must be a run's folder" in fails(*commands_on(tmp_path / "none", work)[command])
    (tmp_path / "empty").mkdir()
    assert "config.yaml" in fails(*commands_on(tmp_path / "empty", work)[command])


DAMAGE = {
    "corrupt weights": ("model.safetensors", lambda raw: b"\xff" * len(raw), "is damaged"),
    "truncated weights": ("model.safetensors", lambda raw: raw[: len(raw) // 2], "is damaged"),
    "empty weights": ("model.safetensors", lambda raw: b"", "is damaged"),
    "weights of another run": ("model.safetensors", "lstm", "must hold the weights that the configuration describes"),
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
    path = copy_of(work / "run", tmp_path / "run") / name
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
    "chunk": (["--model.options.chunk_size", "7"], "chunk_size: must divide"),
    "device": (["--training.device", "toaster"], "training.device: must be a device"),
    "tied": (["--model.embedding_size", "8"], "model.tied: the last hidden size must equal"),
    "cell": (["--model.cell", "onlsmt"], "onlstm"),
    "epochs": (["--training.epochs", "0"], "training.epochs: must be a positive integer"),
}


@pytest.mark.parametrize("text", ["given", "built-in grammar"])
@pytest.mark.parametrize("kind", BAD_OPTIONS)
def test_a_setting_that_cannot_work_is_one_line_and_leaves_no_run(work, tmp_path, monkeypatch, kind, text):
    monkeypatch.setattr(
        "gatedrnn.tasks.of_corpus.write_corpus", lambda folder, seed: write_corpus(folder, seed, 60, 10, 10)
    )
    options, message = BAD_OPTIONS[kind]
    data = ["--data", work / "text"] if text == "given" else []
    line = fails("train", "--config", work / "run.yaml", *data, "--out", tmp_path / "out", *options)
    assert message in line
    assert not (tmp_path / "out").exists()


BAD_CONFIGS = {
    "unknown section": ("modle: {cell: gru}\n", "modle: unknown key. Did you mean 'model'?"),
    "unknown key": ("model: {hiden_sizes: [8]}\n", "model.hiden_sizes: unknown key"),
    "wrong type": ("training: {epochs: many}\n", "training.epochs: must be an integer; got 'many'"),
    "a list": ("[1, 2]\n", "bad.yaml: must hold the sections data, model and training; got [1, 2]"),
    "no YAML": ("model: [\n", "bad.yaml:2: must be YAML"),
}


@pytest.mark.parametrize("kind", BAD_CONFIGS)
def test_a_bad_configuration_file_is_one_line_and_leaves_no_run(work, tmp_path, kind):
    text, message = BAD_CONFIGS[kind]
    (tmp_path / "bad.yaml").write_text(text)
    arguments = ["train", "--config", tmp_path / "bad.yaml", "--data", work / "text", "--out", tmp_path / "out"]
    assert message in fails(*arguments)
    assert not (tmp_path / "out").exists()


def test_a_missing_configuration_file_is_one_line(work, tmp_path):
    arguments = ["train", "--config", tmp_path / "none.yaml", "--data", work / "text", "--out", tmp_path / "out"]
    assert "none.yaml: must be a readable file; got No such file" in fails(*arguments)
    assert not (tmp_path / "out").exists()


def test_an_existing_run_is_never_touched(work, tmp_path):
    run = copy_of(work / "run", tmp_path / "run")
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
        ["evaluate"],
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
        (["parse", "{run}", "{text}", "--svg", "{text}"], "--svg: must be a folder or a new path; got"),
    ],
)
def test_wrong_values_exit_with_one(work, arguments, message):
    places = {"run": work / "run", "text": work / "text" / "test.txt", "trees": work / "text" / "test.trees"}
    code, _, err = call(*(argument.format(**places) for argument in arguments))
    assert code == 1 and message in err
    assert err.count("\n") == 1 and "Traceback" not in err


# ---------------------------------------------------------------- as a program


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["train"],
        ["evaluate"],
        ["surprisal"],
        ["generate"],
        ["parse"],
        ["eval-parsing"],
        ["eval-syntax"],
        ["explain"],
    ],
)
def test_every_command_has_help(command):
    out = works(*command, "--help")
    assert "usage: gatedrnn" in out and "--help" in out
    assert not command or "--json" in out


def test_help_as_a_program():
    program = [sys.executable, "-m", "gatedrnn", "--help"]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert all(f"\n    {name}" in result.stdout for name in ("demo", "train", "parse", "eval-parsing", "explain"))


def test_an_error_as_a_program(tmp_path):
    program = [sys.executable, "-m", "gatedrnn.cli.main", "generate", str(tmp_path / "none")]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("gatedrnn: ")
