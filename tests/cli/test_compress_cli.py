"""`compress` of runs of a built-in text: where the copy's text is, and which settings retraining reads."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from terminal import call, record, works

from gatedrnn.cli.commands import compress
from gatedrnn.data import write_corpus
from gatedrnn.data.verb_final import write_parallel
from gatedrnn.studies.compression import Scheme
from gatedrnn.training.run import load_run

SMALL = [
    "--model.embedding_size",
    "8",
    "--model.hidden_sizes",
    "[8]",
    "--training.epochs",
    "1",
    "--training.device",
    "cpu",
]


@pytest.fixture
def built_in(tmp_path, monkeypatch):
    """Trains on a small built-in text of a task, in the folder `a` of the current one."""
    few = {"train": 60, "valid": 20, "test": 20}
    monkeypatch.setattr("gatedrnn.tasks.of_corpus.write_corpus", lambda *given: write_corpus(*given, **few))
    monkeypatch.setattr("gatedrnn.tasks.translation.write_parallel", lambda *given: write_parallel(*given, **few))
    monkeypatch.setattr("gatedrnn.tasks.inference._MADE", {split: (count, range(3)) for split, count in few.items()})
    monkeypatch.chdir(tmp_path)

    def train(task, *more, decoder="[8]"):
        sides = ["--model.decoder_sizes", decoder] if task == "translation" else []
        works("train", "--task", task, *SMALL, *sides, "--model.cell", "lstm", *more, "--out", "a")
        return tmp_path / "a"

    return train


def test_the_published_rank_is_a_share_of_the_larger_side_of_a_translation(built_in):
    built_in("translation", decoder="[32]")
    schemes = [row["scheme"] for row in record("compress", "a", "--table")]
    assert "SVD (rank 4)" in schemes and "SVD+ (rank 2)" in schemes


def data_of(run):
    return yaml.safe_load((Path(run) / "config.yaml").read_text())["data"]


@pytest.mark.parametrize("retrain", [[], ["--retrain", "1"]], ids=["at once", "retrained"])
@pytest.mark.parametrize("task", ["language_modelling", "inference", "translation"])
def test_a_compressed_run_of_a_built_in_text_is_evaluated_as_the_run_is(built_in, task, retrain):
    run = built_in(task)
    assert data_of(run)["folder"] is None
    works("compress", "a", "--method", "svd", "--rank", 4, *retrain, "--out", "b")
    data = data_of("b")
    level = {"level": "word"} if task == "translation" else {}  # with a folder, its default is subword
    assert data == data_of(run) | {"folder": str(run / "text")} | level
    counted = {"language_modelling": "tokens", "inference": "pairs", "translation": "sentences"}[task]
    assert record("evaluate", "b")[counted] == record("evaluate", "a")[counted]
    works("compress", "b", "--method", "int8", "--out", "c")
    assert data_of("c") == data


def test_a_compressed_run_whose_text_is_gone_names_none(built_in):
    run = built_in("language_modelling")
    shutil.rmtree(run / "text")
    works("compress", "a", "--method", "int8", "--out", "b")
    assert data_of("b") == data_of(run)


def test_settings_that_retraining_does_not_read_do_not_stop_it(built_in, monkeypatch):
    built_in("language_modelling", "--training.plateau_factor", "0.3", "--training.plateau_threshold", "0.2")
    command = ["compress", "a", "--method", "svd", "--rank", "4", "--retrain", "2", "--out", "b"]
    with monkeypatch.context() as patch:  # as an earlier version began, until it was interrupted
        patch.setattr("gatedrnn.cli.commands.compress.unread", lambda *_: {})
        patch.setattr("gatedrnn.cli.commands.compress.with_text", lambda run: run.config)
        patch.setattr("gatedrnn.training.loop.check_read", lambda *_: None)
        patch.setattr("gatedrnn.training.loop.Loop._budget", lambda _: "interrupted")
        patch.setattr("gatedrnn.training.loop.Loop._out_of_time", lambda _: True)
        assert call(*command)[0] == 130
    works(*command, "--resume")
    training = yaml.safe_load(Path("b/config.yaml").read_text())["training"]
    assert training["plateau_factor"] == 0.3 and training["schedule"] == "cosine"
    command[-1] = "c"
    works(*command)
    training = yaml.safe_load(Path("c/config.yaml").read_text())["training"]
    assert (training["plateau_factor"], training["plateau_threshold"]) == (0.5, 0.01)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (("--training.learning_rate", "0.01"), "and begin with the same"),
        (("--model.cell", "gru"), "must continue what it began; got b, of"),
    ],
)
def test_retraining_is_continued_from_the_weights_it_began_with_alone(built_in, monkeypatch, other, told):
    built_in("language_modelling")
    given = ["--method", "int4", "--retrain", "2", "--out", "b"]
    with monkeypatch.context() as patch:
        patch.setattr("gatedrnn.training.loop.Loop._budget", lambda _: "interrupted")
        patch.setattr("gatedrnn.training.loop.Loop._out_of_time", lambda _: True)
        assert call("compress", "a", *given)[0] == 130
    works("train", *SMALL, "--model.cell", "lstm", *other, "--data", "a/text", "--out", "c")
    code, _, error = call("compress", "c", *given, "--resume")
    assert (code, error.count("\n")) == (1, 1) and told in error, error
    works("compress", "a", *given, "--resume")
    assert json.loads(Path("b/compression.json").read_text())["from"] == "a"


def test_retraining_is_not_continued_in_a_run_of_another_task(built_in):
    built_in("language_modelling")
    works(
        "train",
        "--task",
        "grammar",
        "--model.state_size",
        "8",
        "--model.nonterminals",
        "2",
        "--model.preterminals",
        "3",
        "--training.epochs",
        "1",
        "--data",
        "a/text",
        "--out",
        "g",
    )
    told = call("compress", "a", "--method", "int4", "--retrain", "2", "--out", "g", "--resume")[2]
    assert told.startswith("gatedrnn: compress --resume: must continue what it began; got g, of another model.")


def test_weights_that_explode_while_retrained_name_an_option_of_compress(built_in):
    built_in("language_modelling")
    given = ["compress", "a", "--method", "int8", "--retrain", "1", "--learning-rate", "1e9", "--out", "b"]
    assert "a lower --learning-rate." in call(*given)[2]


@pytest.mark.parametrize("gates", [(), ("--model.gates.temperature", "2")], ids=["the cell's own", "given"])
def test_retraining_goes_on_with_the_gates_that_training_ended_with(built_in, gates):
    given = ("--training.final_temperature", "0.3", "--training.final_noise_probability", "0.7")
    built_in("language_modelling", "--model.cell", "g2lstm", *gates, *given)
    works("compress", "a", "--method", "round", "--retrain", 1, "--out", "b")
    config = yaml.safe_load(Path("b/config.yaml").read_text())
    assert (config["model"]["gates"]["temperature"], config["model"]["gates"]["noise_probability"]) == (0.3, 0.7)
    assert config["training"]["final_temperature"] is None
    config["model"]["gates"] = None  # as an earlier version began it, which is continued
    Path("d").mkdir()
    Path("d/config.yaml").write_text(yaml.safe_dump(config))
    options = compress.Options(runs=("a",), scheme=Scheme("round"), out="d", retrain=1, resume=True)
    assert compress._config(load_run("a", None), options, Path("d")).model.gates is None
    works("compress", "a", "--method", "round", "--out", "c")
    assert yaml.safe_load(Path("c/config.yaml").read_text()) == yaml.safe_load(Path("a/config.yaml").read_text()) | {
        "data": data_of("c")
    }
