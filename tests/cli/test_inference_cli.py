"""`gatedrnn train --task inference` and what works on such a run."""

import json

import pytest
from terminal import fails, record, works

from gatedrnn.data.logic import make_pairs, write_pairs
from gatedrnn.training.run import read_metrics

SMALL = [
    "--model.embedding_size",
    "8",
    "--model.hidden_sizes",
    "[8]",
    "--model.cell",
    "lstm",
    "--training.device",
    "cpu",
]
TRAIN = ["train", "--task", "inference", *SMALL, "--training.epochs", "1", "--training.batch_size", "16"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    for split, seed in (("train", 1), ("dev", 2), ("test", 3)):
        write_pairs(folder / f"{split}.tsv", make_pairs(100, seed))
    return folder


@pytest.fixture(scope="module")
def run(pairs, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    scores = record(*TRAIN, "--data", pairs, "--out", out)
    assert 0 < scores["best_valid_accuracy"] < 100 and 0 < scores["test_accuracy"] < 100
    return out


def test_evaluate_scores_by_the_run_s_own_task(run, pairs):
    found = record("evaluate", run)
    assert found == record("evaluate", run, "--data", pairs / "test.tsv") and found["pairs"] == 100
    assert set(found) == {"accuracy", "loss_nats", "pairs", "majority", "by_operators"}
    shown = works("evaluate", run)
    assert f"accuracy {found['accuracy']:.2f} %" in shown and "operators" in shown


def test_runs_are_evaluated_side_by_side_with_their_curve(run, pairs, tmp_path):
    works(*TRAIN, "--data", pairs, "--training.seed", "2", "--out", tmp_path / "other")
    found = record("evaluate", run, tmp_path / "other", "--out", tmp_path / "out")
    assert found["runs"][str(run)] == record("evaluate", run) and len(found["runs"]) == 2
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
    assert {path.name for path in (tmp_path / "out").glob("accuracy.*")} == {
        f"accuracy.{k}" for k in ("pdf", "png", "svg")
    }
    shown = works("evaluate", run, tmp_path / "other")
    assert shown.count("always the most frequent label") == 2 and f"\n{tmp_path / 'other'}\n" in shown


def test_gates_and_compression_of_a_classifier(run, pairs, tmp_path):
    found = record("gates", run, "--data", pairs / "test.tsv", "--sentence", "( not a )", "--out", tmp_path / "gates")
    (one,) = found.values()
    assert [layer["name"] for layer in one["layers"]] == ["1"] and one["sentences"][0]["words"] == [
        "(",
        "not",
        "a",
        ")",
    ]
    tokens = sum(
        len(side.split(" ")) for line in (pairs / "test.tsv").read_text().splitlines() for side in line.split("\t")[2:4]
    )
    assert sum(one["layers"][0]["gates"]["forget_gate"]["counts"]) == 8 * tokens
    small = record("compress", run, "--method", "bf16", "--out", tmp_path / "small")
    assert small["accuracy_before"] == pytest.approx(small["accuracy_after"], abs=3)
    assert record("evaluate", tmp_path / "small")["pairs"] == 100
    works("compress", run, "--method", "svd", "--rank", "2", "--retrain", "1", "--out", tmp_path / "retrained")
    rows = record("compress", run, "--table")
    assert [set(row) for row in rows] == 8 * [
        {"run", "scheme", "accuracy", "change_percent", "bytes", "tokens_per_second_1", "tokens_per_second_64"}]  # fmt: skip


def test_without_data_it_trains_on_formulae_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("gatedrnn.tasks.inference._MADE", {s: (60, range(3)) for s in ("train", "valid", "test")})
    works(*TRAIN, "--out", tmp_path / "run")
    assert record("evaluate", tmp_path / "run")["pairs"] == 60
    works("train", "--out", tmp_path / "run", "--resume", "--training.epochs", "2")  # which task, the run says
    assert len(read_metrics(tmp_path / "run")) == 2


def test_a_configuration_names_its_task(run, pairs, tmp_path):
    works("train", "--config", run / "config.yaml", "--data", pairs, "--out", tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["parse", "RUN", "-"], "must be a run of language_modelling or grammar; got a run of inference"),
        (["generate", "RUN"], "must be a run of language_modelling; got a run of inference"),
        (["evaluate", "RUN", "--cache"], "--cache: applies only to runs of the task language_modelling"),
        (["evaluate", "RUN", "--data", "nothing.tsv"], "nothing.tsv"),
        (["train", "--task", "inferense"], "Did you mean 'inference'"),
        (["train", "--resume", "--out", "RUN", "--task", "language_modelling"], "task: must be as in the run"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(run, arguments, words):
    assert words in fails(*(run if each == "RUN" else each for each in arguments))


def test_malformed_pairs_are_named(pairs, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for name in ("train", "dev"):
        (text / f"{name}.tsv").write_text((pairs / f"{name}.tsv").read_text())
    with (text / "train.tsv").open("a") as stream:
        stream.write("1\t=\t( not a\ta\n")
    line = fails(*TRAIN, "--data", text, "--out", tmp_path / "run")
    assert "train.tsv, line 101, left side: must be a formula; got token 3: 1 brackets are open at the end" in line
    assert not (tmp_path / "run").exists()


def test_evaluate_takes_the_run_s_own_test_text_for_language_models_too(work, tmp_path):
    found = json.loads(works("evaluate", work / "run", "--json"))
    assert found == record("evaluate", work / "run", "--data", work / "text" / "test.txt")
