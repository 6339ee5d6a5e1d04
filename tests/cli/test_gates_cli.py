"""`gates` and `compress`, through `main`, on the tiny runs."""

import json

import pytest
from safetensors.torch import load_file
from terminal import call, fails, record, works

from gatedrnn.models.saving import WEIGHTS_FILE
from gatedrnn.plots.gates import histograms, update_frequencies
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
    kept = json.loads((out / "compression.json").read_text())
    assert (kept["method"], kept["data"]) == (method, str(text(work)))
    assert works("parse", out, text(work)).count("\n") == 25
    assert 0 <= record("eval-parsing", out, "--treebank", trees)["scores"]["model"]["B"] <= 100
    assert record("eval-syntax", out, "--pairs", "grammar")["macro_accuracy"] > 0
    assert works("generate", out, "--words", 3)
    assert "must not hold a run yet" in fails("compress", work / "run", "--method", method, "--out", out)


def test_the_table_has_every_scheme_of_every_run(work, tmp_path):
    arguments = ["compress", work / "run", work / "lstm", "--table", "--data", text(work), "--out", tmp_path]
    rows = record(*arguments)
    schemes = ["original", "round", "round & clip", "SVD (rank 2)", "SVD+ (rank 1)", "bf16", "int8", "int4"]
    assert [row["scheme"] for row in rows] == schemes * 2 and [row["run"] for row in rows] == ["run"] * 8 + ["lstm"] * 8
    assert rows == json.loads((tmp_path / "table.json").read_text())
    assert rows[0]["change_percent"] == 0 and all(row["bytes"] < rows[0]["bytes"] * 1.05 for row in rows[:5])
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert lines[0] == "| perplexity | original | round | round & clip | SVD | SVD+ | bf16 | int8 | int4 |"
    assert (
        lines[2].startswith("| run |")
        and f"{rows[3]['perplexity']:.2f} ({rows[3]['change_percent']:+.2f} %)" in lines[2]
    )
    assert len(lines) == 23 and f"{rows[3]['perplexity']:.2f}" in lines[10]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"table.{kind}" for kind in ("json", "md", "pdf", "png", "svg")
    }


def test_the_table_of_a_cell_without_the_published_gates(work, tmp_path):
    sizes = ["--model.cell", "gru", "--model.embedding_size", 8, "--model.hidden_sizes", "[8]", "--training.epochs", 1]
    works("train", "--data", work / "text", "--out", tmp_path / "gru", *sizes)
    given = ["--table", "--data", text(work), "--out", tmp_path]
    code, _, err = call("compress", tmp_path / "gru", work / "lstm", *given)
    assert code == 0 and err.count("left out: they change input and forget gates") == 1
    first, _, gru, lstm, *_ = (tmp_path / "table.md").read_text().splitlines()
    assert first == "| perplexity | original | bf16 | int8 | int4 | round | round & clip | SVD | SVD+ |"
    assert gru.endswith("| – | – | – | – |") and "–" not in lstm


@pytest.mark.parametrize("method", ["svd --rank 1", "round --step 0.5", "int4"])
def test_retraining_brings_perplexity_back_and_stays_in_the_scheme(work, tmp_path, method):
    options = [
        "--method",
        *method.split(),
        "--gates",
        "input,forget,output",
        "--data",
        text(work),
    ]
    alone = record("compress", work / "run", *options, "--out", tmp_path / "alone")
    trained = record("compress", work / "run", *options, "--retrain", "2", "--out", tmp_path / "trained")
    assert trained["perplexity_after"] < alone["perplexity_after"]
    assert trained["bytes_after"] == pytest.approx(alone["bytes_after"], rel=0.02)
    again = record("evaluate", tmp_path / "trained", "--data", text(work), "--batch-size", 20)
    assert again["perplexity"] == pytest.approx(trained["perplexity_after"], rel=1e-5)
    lines = (tmp_path / "trained" / "metrics.jsonl").read_text().splitlines()
    best = min(json.loads(line)["valid_perplexity"] for line in lines)
    found = record("evaluate", tmp_path / "trained", "--data", work / "text" / "valid.txt", "--batch-size", 32)
    assert len(lines) == 2 and found["perplexity"] == pytest.approx(best, rel=1e-3)
    assert not (tmp_path / "trained" / "checkpoint").exists()
    kept = (tmp_path / "trained" / WEIGHTS_FILE).read_bytes()
    retrain = ["compress", work / "run", *options, "--out", tmp_path / "trained", "--resume", "--retrain"]
    assert record(*retrain, "2") == trained  # it is finished
    for command in (
        [*retrain, "3"],
        *(["train", "--out", tmp_path / name, "--resume"] for name in ("trained", "alone")),
    ):
        assert "must have a checkpoint to continue from; got a trained model without one" in fails(*command)
    assert (tmp_path / "trained" / WEIGHTS_FILE).read_bytes() == kept


def test_a_gate_may_have_its_own_rank(work, tmp_path):
    found = record(
        "compress", work / "lstm", "--method", "svd", "--gates", "input=1,forget=3", "--out", tmp_path / "out"
    )
    names = load_file(tmp_path / "out" / WEIGHTS_FILE)
    ranks = [value.shape[0] for name, value in names.items() if name.endswith("/right")]
    assert sorted(set(ranks)) == [1, 3] and found["bytes_after"] < found["bytes_before"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x"], "compress: needs one RUN, --method and --out, or --table"),
        (["--method", "int8"], "compress: needs one RUN, --method and --out, or --table"),
        (["--method", "int8", "--table"], "compress: takes either --table or the options of one method; got --method"),
        (["--method", "svd", "--rank", "16", "--out", "{new}"], "compress.rank: must be below 16; got rank=16"),
        (
            ["--method", "round", "--gates", "input,reset", "--out", "{new}"],
            "must name gates of the cell: input_gate, ",
        ),
        (["--method", "svd", "--rank", "16", "--retrain", "1", "--out", "{new}"], "compress.rank: must be below 16"),
        (["--method", "int8", "--gates", "input=4", "--out", "{new}"], "int8 has no setting for a gate; got 'input=4'"),
        (["--method", "svd", "--gates", "input=x", "--out", "{new}"], "a gate its rank as a number; got 'input=x'"),
        (
            ["--method", "svd", "--retrain", "-1", "--out", "{new}"],
            "compress.retrain: must be ",
        ),
        (
            ["--method", "svd", "--retrain", "1", "--learning-rate", "0", "--out", "{new}"],
            "compress.learning_rate: must be ",
        ),
        (["--method", "int8", "--data", "none.txt", "--out", "{new}"], "none.txt: must be a readable file"),
    ],
)
def test_compress_refuses_and_leaves_nothing(work, tmp_path, arguments, message):
    new = tmp_path / "new"
    assert message in fails("compress", work / "run", *(argument.format(new=new) for argument in arguments))
    assert not new.exists() or not list(new.iterdir())


def test_figures_of_an_earlier_call_do_not_stay(work, tmp_path, monkeypatch):
    monkeypatch.setattr("gatedrnn.plots.trees.KINDS", ("svg",))
    two = ("--sentence", "the pilot", "--sentence", "the old pilot")
    works("gates", work / "run", work / "lstm", *two, "--out", tmp_path)
    (tmp_path / "sentence-2-mine.svg").write_text("mine")
    assert len(list(tmp_path.iterdir())) == 6
    works("gates", work / "run", *two[:2], "--out", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"gates.json", "sentence-1.svg", "sentence-2-mine.svg"}
    (tmp_path / "gates.json").write_text("[1")
    works("gates", work / "run", *two[:2], "--out", tmp_path)
    monkeypatch.setattr("gatedrnn.plots.trees.save_all", lambda *_: (_ for _ in ()).throw(OSError(5, "no")))
    fails("gates", work / "run", *two[:2], "--out", tmp_path)
    assert (tmp_path / "sentence-1.svg").exists()  # what a failed call would have replaced stays


@pytest.mark.parametrize(("first", "second"), [("forget_gate", "update_gate"), ("update_gate", "forget_gate")])
def test_the_legend_names_every_model_whatever_gates_it_has(first, second):
    def layers(name, frequency):
        gate = {"counts": [1, 2, 3], "start": 0, "low": 0.1, "high": 0.2}
        return [{"gates": {name: gate}, "update_frequency": frequency}]

    for runs in (
        {"a": layers(first, [0.1, 0.2]), "b": layers(second, [0.3, 0.4])},
        {"a": layers(first, []) * 2, "b": layers(first, [0.1]) * 2},
        {"_a": layers(first, []), "_b": layers(second, [0.1])},
    ):
        (legend,) = histograms(runs).legends
        assert [text.get_text() for text in legend.get_texts()] == list(runs)
    deep = {"a": [*layers(first, []), *layers(first, [0.5])], "b": layers(first, [0.1])}
    (legend,) = update_frequencies(deep).legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


def test_a_very_long_sentence_is_not_drawn_but_recorded(work, tmp_path):
    code, _, error = call("gates", work / "lstm", "--sentence", "the " * 401, "--out", tmp_path / "out")
    assert code == 0 and "sentence 1 has 401 tokens, and is not drawn: 400 at most are" in error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["gates.json"]
