"""`evaluate`, `surprisal` and `generate` with all their options, through `main`, on one tiny run."""

import contextlib
import io
import json
import math
import shutil
import sys

import pytest
import yaml

from gatedrnn.cli.main import main
from gatedrnn.data import write_corpus

WINDOWED = ["--cache", "--cache-window", "50", "--cache-theta", "0.3", "--cache-lambda", "0.2"]
LEARNING = ["--dynamic", "--dynamic-rate", "0.001", "--dynamic-decay", "0.01", "--dynamic-segment", "7"]
SENTENCES = "the pilot laughs\n\nMary thinks that the zebra sleeps\nyes\n"


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
    assert err.endswith("\n") and err.count("\n") == 1 and err.startswith("gatedrnn: "), err
    return err


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a corpus and a run, `run`."""
    folder = tmp_path_factory.mktemp("evaluation")
    write_corpus(folder / "text", seed=1, train=150, valid=25, test=25)
    sections = {
        "data": {"min_count": 1},
        "model": {"cell": "lstm", "embedding_size": 16, "hidden_sizes": [16]},
        "training": {"epochs": 1, "batch_size": 8, "sequence_length": 20, "learning_rate": 0.01, "device": "cpu"},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(sections))
    works("train", "--config", folder / "run.yaml", "--data", folder / "text", "--out", folder / "run")
    return folder


@pytest.fixture
def sentences(tmp_path):
    (tmp_path / "a.txt").write_text(SENTENCES)
    return tmp_path / "a.txt"


def evaluated(work, *options):
    return json.loads(works("evaluate", work / "run", "--data", work / "text" / "test.txt", "--json", *options))


# ---------------------------------------------------------------- evaluate


def test_evaluate_says_how(work):
    plain = evaluated(work)
    assert list(plain) == ["loss_nats", "perplexity", "tokens"]
    reset = evaluated(work, "--reset")
    assert reset["state"] == "reset" and reset["tokens"] == plain["tokens"]
    assert reset["perplexity"] != pytest.approx(plain["perplexity"], rel=1e-6)
    cached = evaluated(work, *WINDOWED)
    assert cached["cache"] == {"window": 50, "theta": 0.3, "lambda": 0.2} and "dynamic" not in cached
    learning = evaluated(work, *LEARNING)
    assert learning["dynamic"] == {"rate": 0.001, "decay": 0.01, "segment": 7} and "cache" not in learning
    both = evaluated(work, *WINDOWED, *LEARNING)
    assert both["cache"] == cached["cache"] and both["dynamic"] == learning["dynamic"]
    found = [what["perplexity"] for what in (plain, reset, cached, learning, both)]
    assert len(set(found)) == 5 and both["perplexity"] < plain["perplexity"]


def test_evaluate_tells_it_in_words_too(work):
    text = ["evaluate", work / "run", "--data", work / "text" / "test.txt"]
    assert "\nstate carried, batch size 1; 0 tokens" in works(*text)
    assert "\nstate reset at each sentence; 0 tokens" in works(*text, "--reset")
    out = works(*text, "--batch-size", 2, *WINDOWED, *LEARNING)
    assert (
        "state carried, batch size 2; continuous cache (window 50, theta 0.3, lambda 0.2); dynamic evaluation (" in out
    )
    assert "(rate 0.001, decay 0.01, segment 7); 0 tokens" in out


def test_the_defaults_are_those_of_the_help(work):
    found = evaluated(work, "--cache", "--dynamic")
    out = " ".join(works("evaluate", "--help").split())
    for name in ("cache", "dynamic"):
        for key, value in found[name].items():
            line = out[out.rindex(f"--{name}-{key} ") :]
            assert line[line.index("[") + 1 : line.index("]")] == f"{value:g}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reset", "--cache"], "evaluate.reset: excludes a cache and dynamic evaluation"),
        (["--reset", "--dynamic"], "evaluate.reset: excludes a cache and dynamic evaluation"),
        (["--cache-window", "5"], "--cache-window: needs --cache; got none. Add --cache"),
        (["--cache", "--dynamic-rate", "5"], "--dynamic-rate: needs --dynamic; got none. Add --dynamic"),
        (["--cache", "--cache-window", "0"], "cache.window: must be a positive integer; got 0"),
        (["--cache", "--cache-lambda", "1"], "cache.lambda: must lie in [0, 1); got 1"),
        (["--dynamic", "--dynamic-rate", "-1"], "dynamic.rate: must lie in [0, 1]; got -1"),
        (["--dynamic", "--dynamic-decay", "2"], "dynamic.decay: must be a probability between 0 and 1; got 2"),
        (["--dynamic", "--dynamic-segment", "0"], "dynamic.segment: must be a positive integer; got 0"),
    ],
)
def test_evaluate_refuses(work, options, message):
    assert message in fails("evaluate", work / "run", "--data", work / "text" / "test.txt", *options)


# ---------------------------------------------------------------- surprisal


@pytest.mark.parametrize("source", ["file", "-", "default"])
def test_surprisal_gives_a_row_a_word(work, sentences, monkeypatch, source):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SENTENCES.encode())))
    where = {"file": [sentences], "-": ["-"], "default": []}[source]
    code, out, err = call("surprisal", work / "run", *where)
    assert (code, err) == (0, "gatedrnn: state reset at each sentence\n")
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert header == ["sentence", "position", "word", "surprisal_bits", "known"]
    texts = [[*line.split(), "<eos>"] for line in SENTENCES.splitlines() if line]
    places = [(str(s), str(p), word) for s, text in enumerate(texts, 1) for p, word in enumerate(text, 1)]
    assert [(s, p, word) for s, p, word, _, _ in rows] == places
    assert {word for _, _, word, _, known in rows if known == "0"} == {"zebra", "yes"}
    assert {known for *_, known in rows} == {"0", "1"}
    assert all(float(bits) > 0 for *_, bits, _ in rows)


@pytest.mark.parametrize(("carried", "state"), [([], "reset"), (["--carried"], "carried")])
def test_surprisal_adds_up_to_evaluate(work, carried, state):
    out = works("surprisal", work / "run", work / "text" / "test.txt", "--json", *carried)
    records = [json.loads(line) for line in out.splitlines()]
    assert all(list(r) == ["words", "surprisal_bits", "unknown", "state"] for r in records)
    assert {r["state"] for r in records} == {state}
    assert all(len(r["words"]) == len(r["surprisal_bits"]) == len(r["unknown"]) for r in records)
    assert all(r["words"][-1] == "<eos>" and r["unknown"][-1] is False for r in records)
    evaluation = evaluated(work, *([] if carried else ["--reset"]))
    bits = sum(sum(r["surprisal_bits"]) for r in records)
    assert bits == pytest.approx(evaluation["tokens"] * evaluation["loss_nats"] / math.log(2), rel=1e-5)
    table = works("surprisal", work / "run", work / "text" / "test.txt", *carried)
    assert sum(float(line.split("\t")[3]) for line in table.splitlines()[1:]) == pytest.approx(bits, rel=1e-5)


def test_surprisal_counts_empty_lines_as_evaluate_does(work, sentences, tmp_path):
    shutil.copytree(work / "run", tmp_path / "run")
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    config["data"]["empty_lines"] = "eos"
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    records = [json.loads(line) for line in works("surprisal", tmp_path / "run", sentences, "--json").splitlines()]
    assert [len(r["words"]) for r in records] == [4, 1, 7, 2]
    found = json.loads(works("evaluate", tmp_path / "run", "--data", sentences, "--reset", "--json"))
    bits = sum(sum(r["surprisal_bits"]) for r in records)
    assert found["tokens"] == 14 and bits == pytest.approx(14 * found["loss_nats"] / math.log(2), rel=1e-5)


def test_surprisal_numbers_sentences_on_over_batches(work, tmp_path):
    (tmp_path / "long.txt").write_text("the pilot laughs\n" * 1100 + "the guards sleep " * 200 + "\n")
    rows = [line.split("\t") for line in works("surprisal", work / "run", tmp_path / "long.txt").splitlines()[1:]]
    assert len(rows) == 4 * 1100 + 601 and rows[-1][:2] == ["1101", "601"]
    assert len({row[3] for row in rows[: 4 * 1100]}) == 4


def test_surprisal_of_nothing_is_one_line(work, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    assert "must hold at least one sentence" in fails("surprisal", work / "run", tmp_path / "empty.txt")
    assert "must be a readable file" in fails("surprisal", work / "run", tmp_path / "none.txt", "--json")
    assert "must be a run's folder" in fails("surprisal", tmp_path / "none", tmp_path / "empty.txt")


# ---------------------------------------------------------------- generate


def test_generate_with_filters(work):
    def words(*options):
        return json.loads(works("generate", work / "run", "--words", 30, "--json", *options))["text"]

    assert words("--top-k", 1, "--seed", 1) == words("--top-k", 1, "--seed", 2) == words("--top-p", 1e-9)
    assert words("--top-k", 1) == words("--temperature", 1e-9)
    assert words("--top-p", 1.0) == words() != words("--top-k", 2)
    both = ["--top-k", 5, "--top-p", 0.9, "--temperature", 0.8, "--prompt", "the pilot"]
    assert words(*both) == words(*both) != words(*both, "--seed", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top-k", "0"], "generate.top_k: must be a positive integer; got 0"),
        (["--top-p", "0"], "generate.top_p: must lie in (0, 1]; got 0"),
        (["--top-p", "1.1"], "generate.top_p: must lie in (0, 1]; got 1.1"),
        (["--seed", "-1"], "--seed: must lie in 0…2^63 − 1; got -1"),
        (["--seed", str(1 << 63)], "--seed: must lie in"),
    ],
)
def test_generate_refuses(work, options, message):
    assert message in fails("generate", work / "run", *options)
