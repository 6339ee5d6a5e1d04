"""`gates` and `compress`, through `main`, on the tiny runs."""

import json

import pytest
from terminal import fails, record, works

from gatedrnn.models.saving import WEIGHTS_FILE
from gatedrnn.studies.compression import METHODS


def text(work):
    return work / "text" / "test.txt"


def test_gates_writes_figures_and_figures_in_json(work, tmp_path):
    out = tmp_path / "gates"
    arguments = [
        "gates",
        work / "run",
        work / "lstm",
        "--data",
        text(work),
        "--sentence",
        "the pilot laughs",
        "--out",
        out,
    ]
    found = record(*arguments)
    assert json.loads((out / "gates.json").read_text()) == found and list(found) == ["run", "lstm"]
    names = {"histograms", "update-frequency", "sentence-1-run", "sentence-1-lstm"}
    assert {path.name for path in out.iterdir()} == {"gates.json"} | {
        f"{n}.{k}" for n in names for k in ("pdf", "png", "svg")
    }
    layer = found["run"]["layers"][0]
    assert set(layer["gates"]) >= {"input_gate", "master_forget"} and 0 < layer["distance"] < 1
    assert layer["split_points"]["master_forget"] == pytest.approx(layer["distance"])
    table = works(*arguments)
    assert (
        "master_forget" in table
        and "cell_candidate" not in table
        and f"{layer['gates']['input_gate']['mean']:.3f}" in table
    )
    alone = record("gates", work / "lstm", "--sentence", "the pilot laughs", "--out", tmp_path / "one")
    assert alone["lstm"]["layers"] == [] and alone["lstm"]["sentences"] == found["lstm"]["sentences"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "gates: needs --data FILE or --sentence TEXT; got neither"),
        (["--sentence", " "], "--sentence: must have at least one word; got ' '"),
        (["--data", "none.txt"], "none.txt: must be a readable file"),
        (["--data", "{text}", "--batch-size", "0"], "gates.batch_size: must be a positive integer; got 0"),
    ],
)
def test_gates_refuses(work, tmp_path, arguments, message):
    given = [argument.format(text=text(work)) for argument in arguments]
    assert message in fails("gates", work / "run", *given, "--out", tmp_path / "out")


@pytest.mark.parametrize("method", METHODS)
def test_a_compressed_run_goes_through_every_command(work, tmp_path, method):
    out, trees = tmp_path / "small", work / "text" / "test.trees"
    found = record("compress", work / "run", "--method", method, "--data", text(work), "--out", out)
    names = ("bytes", "perplexity", "tokens_per_second")
    assert list(found) == [f"{name}_{when}" for name in names for when in ("before", "after")]
    assert found["bytes_after"] == (out / WEIGHTS_FILE).stat().st_size
    assert found["bytes_before"] == (work / "run" / WEIGHTS_FILE).stat().st_size
    again = record("evaluate", out, "--data", text(work), "--batch-size", 20)
    assert again["perplexity"] == pytest.approx(found["perplexity_after"], rel=1e-5)
    assert json.loads((out / "compression.json").read_text())["method"] == method
    assert works("parse", out, text(work)).count("\n") == 25
    assert 0 <= record("eval-parsing", out, "--treebank", trees)["scores"]["model"]["B"] <= 100
    assert record("eval-syntax", out, "--pairs", "grammar")["macro_accuracy"] > 0
    assert works("generate", out, "--words", 3)
    assert "must not hold a run yet" in fails("compress", work / "run", "--method", method, "--out", out)


def test_the_table_has_every_scheme_of_every_run(work, tmp_path):
    arguments = ["compress", work / "run", work / "lstm", "--table", "--data", text(work), "--out", tmp_path]
    rows = record(*arguments)
    schemes = ["original", "round", "round & clip", "SVD (rank 2)", "SVD+ (rank 1)"]
    assert [row["scheme"] for row in rows] == schemes * 2 and [row["run"] for row in rows] == ["run"] * 5 + ["lstm"] * 5
    assert rows == json.loads((tmp_path / "table.json").read_text())
    assert rows[0]["change_percent"] == 0 and all(row["bytes"] < rows[0]["bytes"] * 1.05 for row in rows[:5])
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert len(lines) == 12 and f"{rows[3]['perplexity']:.2f}" in lines[5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x"], "compress: needs one RUN, --method and --out, or --table"),
        (["--method", "int8"], "compress: needs one RUN, --method and --out, or --table"),
        (["--method", "int8", "--table"], "compress: takes --method or --table; got --method int8"),
        (["--method", "svd", "--rank", "16", "--out", "{new}"], "compress.rank: must be below 16; got rank=16"),
        (["--method", "round", "--gates", "input,reset", "--out", "{new}"], "must be gates of the cell: input_gate, "),
        (["--method", "int8", "--data", "none.txt", "--out", "{new}"], "none.txt: must be a readable file"),
    ],
)
def test_compress_refuses_and_leaves_nothing(work, tmp_path, arguments, message):
    new = tmp_path / "new"
    assert message in fails("compress", work / "run", *(argument.format(new=new) for argument in arguments))
    assert not new.exists() or not list(new.iterdir())
