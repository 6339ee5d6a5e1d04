"""What commands say at the edges."""

from dataclasses import replace

import pytest
from terminal import call, fails, works

from gatedrnn.training.run import load_run


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("input_cap", "true", "model.options.input_cap: must be as in the run; got True, and False in the run"),
        ("chunk_size", 3, "model.options.chunk_size: applies only to onlstm; got 3 with cell=lstm"),
    ],
)
def test_an_option_is_read_by_the_cell_of_the_run_that_goes_on(work, option, value, said):
    assert said in fails("train", "--out", work / "lstm", "--resume", f"--model.options.{option}", value)


def test_a_setting_without_use_is_refused_before_anything_is_said_or_written(work, tmp_path):
    out = tmp_path / "out"
    given = ("--task", "grammar", "--data", work / "text", "--training.sequence_length", 12, "--out", out)
    code, said, error = call("train", *given)
    assert (code, said) == (1, "") and not out.exists()
    assert "training.sequence_length: has no effect for grammar; got 12" in error


@pytest.mark.parametrize("empty_lines", ["skip", "eos"])
def test_an_empty_line_counts_against_the_limits_of_a_server(work, empty_lines):
    pytest.importorskip("fastapi")
    from gatedrnn.serve.http import RefusedError
    from gatedrnn.serve.limits import Limits
    from gatedrnn.serve.readings import parsing, reading
    from gatedrnn.serve.schema import ParseBody, SurprisalBody

    run = load_run(work / "run")
    run = replace(run, config=replace(run.config, data=replace(run.config.data, empty_lines=empty_lines)))
    text, limits = "the pilot\n" + "\n" * 20, Limits(prompt_tokens=20)
    assert len(list(parsing(run, ParseBody(text=text), Limits())())) == 21
    with pytest.raises(RefusedError, match="must be at most 20 tokens in one request; got 22 or more"):
        parsing(run, ParseBody(text=text), limits)
    if empty_lines == "skip":
        assert len(list(reading(run, SurprisalBody(text=text), limits)())) == 1
        return
    with pytest.raises(RefusedError, match="must be at most 20 tokens in one request; got 21 or more"):
        reading(run, SurprisalBody(text=text), limits)


@pytest.mark.parametrize(
    "given", [("--data.anything", "x"), ("--temperature.foo", "0.9"), ("--batch-size.x", "5"), ("--json.x",)]
)
def test_an_option_with_a_key_that_it_does_not_have_is_unknown(work, given):
    code, said, error = call("evaluate", work / "run", *given)
    assert (code, said) == (2, "") and f"unrecognized arguments: {given[0]}. " in error


def test_an_unknown_key_of_a_section_is_unknown(work, tmp_path):
    for name in ("--training.epochs.x", "--out.x", "--model.cell.x", "--data.x"):
        code, _, error = call("train", "--out", tmp_path / "out", name, "3")
        assert code == 2 and name in error and not (tmp_path / "out").exists(), error


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("training.minutes", "inf", "--training.minutes: must be a number; got inf"),
        ("training.epochs", "two", "--training.epochs: must be an integer; got two"),
        ("training.seed", "4294967296", "training.seed: must be at most 4294967295; got 4294967296"),
        ("training.precision", "16-mixed", "training.precision: needs a GPU with 16-mixed; got 16-mixed on the CPU"),
        ("training.final_temperature", "0.1", "training.final_temperature: needs a cell with gates to perturb; got 0.1"),
    ],
)  # fmt: skip
def test_a_value_that_a_training_cannot_use(work, tmp_path, name, value, said):
    out = tmp_path / "out"
    small = ("--model.cell", "rnn", "--model.tied", "false", "--model.hidden_sizes", "[4]", "--training.device", "cpu")
    _, _, error = call("train", "--data", work / "text", "--out", out, *small, f"--{name}", value)
    assert said in error and len(error.splitlines()) == 1 and not out.exists(), error


def test_a_key_twice_in_yaml(work, tmp_path):
    (tmp_path / "twice.yaml").write_text("training: {epochs: 1, epochs: 2}\n")
    error = fails("train", "--config", tmp_path / "twice.yaml", "--out", tmp_path / "out")
    assert "twice.yaml:1: must be YAML; got the key epochs twice" in error


def test_values_of_the_run_itself_may_be_given_when_it_goes_on(work, tmp_path):
    out = tmp_path / "run"
    small = (
        "--model.cell",
        "lstm",
        "--model.embedding_size",
        6,
        "--model.hidden_sizes",
        "[6, 6]",
        "--model.tied",
        "true",
    )
    cycle = ("--training.schedule", "one_cycle", "--training.peak_beta", 0.7, "--training.epochs", 1)
    works("train", "--data", work / "text", "--out", out, *small, *cycle, "--training.device", "cpu")
    same = ("--model.cell", "lstm", "--model.hidden_sizes", "[6, 6]")
    for given in (same, same[2:], ("--training.peak_beta", 0.7)):
        assert "all epochs done" in works("train", "--out", out, "--resume", *given)
    error = fails("train", "--out", out, "--resume", "--training.peak_beta", 0.8)
    assert "training.peak_beta: must be as in the run; got 0.8, and 0.7 in the run" in error


def test_an_explosion_before_anything_is_learned(work, tmp_path):
    wild = ("--training.learning_rate", 1e6, "--training.optimizer", "sgd", "--training.gradient_clip", 0)
    small = (
        "--model.cell",
        "lstm",
        "--model.embedding_size",
        6,
        "--model.hidden_sizes",
        "[6]",
        "--training.device",
        "cpu",
    )
    error = fails("train", "--data", work / "text", "--out", tmp_path / "run", *small, *wild)
    assert (
        "Nothing is learned yet; start another run with a lower --training.learning_rate or --training.gradient_clip 1"
        in error
    )


def test_a_temperature_of_one_is_none(work):
    assert works("evaluate", work / "run", "--reset", "--temperature", "1.00", "--json")
