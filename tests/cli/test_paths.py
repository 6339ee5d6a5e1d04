"""Paths as people give them: empty or odd ones, how they are printed, and the names that runs have by them."""

import json
import os
import shutil
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table
from terminal import fails, record, works

from gatedrnn.cli import output
from gatedrnn.cli.commands import compress
from gatedrnn.cli.text import run_names

ODD = "a[lr=1] [/b] :cat:"
"""Part of a path that is a tag, an end of one, and an emoji code."""


def test_runs_are_named_by_their_folders_or_by_their_paths(tmp_path, monkeypatch):
    (tmp_path / "one" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "one")
    assert run_names(["a/x", "b/y"]) == ["x", "y"] and run_names(["a/x", "b/x", "c/y"]) == ["a/x", "b/x", "y"]
    assert run_names([".", "run"]) == ["one", "run"] and run_names(["/"]) == ["/"]
    (tmp_path / "one" / "best").symlink_to(tmp_path / "z" / "y")
    assert run_names(["best", "q/y"]) == ["best", "y"]  # as they are called
    assert run_names(["run/..", "q/run"]) == ["one", "run"]
    places = ["x/..", "q/x", "c/x"]
    assert len({*run_names(places)}) == 3


def test_the_table_has_a_row_for_each_of_two_runs_of_one_name(work, tmp_path, monkeypatch):
    monkeypatch.setattr(compress, "published", lambda *_: {})
    monkeypatch.setattr(compress, "_WHOLE", ("int8",))
    places = [shutil.copytree(work / name, tmp_path / name / "run") for name in ("run", "lstm")]
    how = ("--table", "--data", work / "text" / "test.txt")
    rows = record("compress", *places, *how, "--out", tmp_path / "out")
    assert [row["run"] for row in rows] == [str(place) for place in places for _ in range(2)]
    scores = (tmp_path / "out" / "table.md").read_text().split("\n\n")[0].splitlines()[2:]
    assert [line.split(" | ")[0] for line in scores] == [f"| {place}" for place in places]
    monkeypatch.chdir(places[1])
    assert {row["run"] for row in record("compress", ".", *how)} == {"run"}


def test_the_run_in_the_current_folder_has_a_name(work, tmp_path, monkeypatch):
    monkeypatch.setattr("gatedrnn.cli.commands.gates._figures", lambda _: ())
    monkeypatch.chdir(work / "lstm")
    assert list(record("gates", ".", "--sentence", "the pilot", "--out", tmp_path / "out")) == ["lstm"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "RUN", "--data", ""], "--data: must name a file"),
        (["gates", "RUN", "--sentence", "the", "--data", ""], "--data: must name a file"),
        (["compress", "RUN", "--table", "--data", ""], "--data: must name a file"),
        (["eval-parsing", "RUN", "--treebank", ""], "--treebank: must name a file"),
        (["eval-parsing", "--baseline", "left", "--treebank", "x", "--dev="], "--dev: must name a file"),
        (["eval-syntax", "RUN", "--pairs", ""], "--pairs: must name a file"),
        (["eval-syntax", "RUN", "--suite", ""], "--suite: must name a file"),
        (["sweep", "c", "--over", "training.seed=1,2", "--minutes", 1, "--out", "x", "--data", ""], "--data: must name a folder"),
        (["sweep", "", "--over", "training.seed=1,2", "--minutes", 1, "--out", "x"], "CONFIG: must name a file"),
        (["export", "RUN", "--to", "web", "--out", "x", "--runtime", ""], "--runtime: must name a file or folder"),
        (["surprisal", "RUN", ""], "FILE: must name a file"),
        (["translate", "RUN", ""], "FILE: must name a file"),
        (["generate", ""], "RUN: must name a folder"),
        (["parse", "RUN", ""], "RUN: must name a folder"),
        (["distil", "RUN", "--out", ""], "--out: must name a folder"),
        (["train", "--out", ""], "--out: must name a folder"),
        (["train", "--data", ""], "data.folder: must be a path; got an empty one"),
    ],
)  # fmt: skip
def test_an_empty_path_is_no_path(work, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    line = fails(*[{"RUN": work / "run"}.get(each, each) for each in arguments])
    assert said in line and "got an empty" in line and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "#none"], "#none: must be"),
        (["--data=null"], "null: must be"),
        (["--data", "[" * 3_000], "[: "),
        (["--data.folder=~ # x"], "~ # x: must be"),
        (["--data.level", "subword", "--data.tokenizer", "# none"], "# none: must be"),
    ],
)
def test_a_path_that_yaml_would_not_read_is_a_path(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert said in fails("train", "--out", "run", *arguments) and not (tmp_path / "run").exists()


def test_a_folder_whose_name_is_not_utf8_is_trained_on(work, tmp_path):
    place = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"this file system refuses such a name: {error}")
    for name in ("train", "valid"):
        (place / f"{name}.txt").write_text("the old pilot\nthe old pilot sleeps\n")
    (tmp_path / "link").symlink_to(place)
    tiny = ["--model.embedding_size", 4, "--model.hidden_sizes", "[4]", "--model.options.chunk_size", 2]
    run = ["train", "--data", tmp_path / "link", "--out", tmp_path / "run", *tiny]
    works(*run, "--training.epochs", 1)
    works(*run, "--training.epochs", 2, "--resume")


def test_a_path_is_printed_as_it_is(work, tmp_path, capsys):
    place = tmp_path / ODD
    run = shutil.copytree(work / "run", place / "run")
    output.say(str(place))
    with output.status(f"reading {place}"):
        pass
    output.show_table(Table(title="x"), 20)
    assert capsys.readouterr().out.startswith(f"{place}\n")
    stream = StringIO()
    output.say(str(place), Console(file=stream, force_terminal=True, width=10))
    assert stream.getvalue() == f"{place}\n"
    text, trees = work / "text" / "test.txt", work / "text" / "test.trees"
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"good": "the pilot laughs", "bad": "the pilot laugh", "phenomenon": "x"}) + "\n")
    assert "perplexity" in works("evaluate", run, "--data", text)
    out = ("--out", place / "out")
    assert f"open {place / 'out' / 'report.html'}\n" in works("eval-syntax", run, "--pairs", pairs, *out)
    assert f"open {place / 'out' / 'report.html'}\n" in works("eval-parsing", run, "--treebank", trees, *out)
    assert f"are in {place / 'g'}\n" in works("gates", run, "--data", text, "--out", place / "g")
    assert f"is in {place / 'small'}\n" in works("compress", run, "--method", "int8", "--out", place / "small")
    told = works(
        "train", "--config", work / "run.yaml", "--data", work / "text", "--out", place / "t", "--training.epochs", 1
    )
    assert f"training onlstm into {place / 't'}\n" in told and f"the run is in {place / 't'}\n" in told


def test_a_path_with_a_nul_is_one_line(tmp_path):
    (tmp_path / "c.yaml").write_text('data: {folder: "\\0"}')
    assert "data.folder: must be a path; got one with a NUL" in fails("train", "--config", tmp_path / "c.yaml")
