"""Settings of a training, from the command line and from files: unknown, given twice, too large, without effect, or replaced."""

import pytest
from letters import write_letters
from terminal import call, fails, works

from gatedrnn.cli.commands import train
from gatedrnn.core.errors import DataError
from gatedrnn.models import PairClassifierConfig, TranslationConfig
from gatedrnn.training.loop import Loop
from gatedrnn.training.run import load_run


def test_the_command_line_counts_before_a_file_wherever_it_stands(work, tmp_path):
    (tmp_path / "c.yaml").write_text(
        "model: {cell: gru, embedding_size: 8, hidden_sizes: [8]}\ntraining: {epochs: 1}\n"
    )
    own, file = ["--model.cell", "lstm", "--training.seed", 5], ["--config", tmp_path / "c.yaml"]
    for name, given in {"a": [*own, *file], "b": [*file, *own], "c": [*own, f"--config={file[1]}"]}.items():
        works("train", "--data", work / "text", *given, "--out", tmp_path / name)
        config = load_run(tmp_path / name).config
        assert (config.model.cell, config.model.hidden_sizes, config.training.seed) == ("lstm", (8,), 5)


def test_a_setting_without_use_is_refused_before_anything_is_said_or_written(work, tmp_path):
    out = tmp_path / "out"
    given = ("--task", "grammar", "--data", work / "text", "--training.sequence_length", 12, "--out", out)
    code, said, error = call("train", *given)
    assert (code, said) == (1, "") and not out.exists()
    assert "training.sequence_length: has no effect for grammar; got 12" in error


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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--model.embedding_size", 10**18], "model.embedding_size: must be at most 4294967295"),
        (["--training.batch_size", 10**20], "training.batch_size: must be at most"),
        (
            ["--model.cell", "gru", "--model.tied", "false", "--model.hidden_sizes", "[4000000000]"],
            "memory: must hold the model",
        ),
    ],
)
def test_a_size_that_no_machine_has_is_one_line(work, tmp_path, options, told):
    assert told in fails("train", "--data", work / "text", *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["epochs", "seed", "learning_rate"])
def test_a_number_too_long_to_print_is_named_with_its_line(work, tmp_path, key):
    (tmp_path / "c.yaml").write_text(f"training:\n  {key}: 0x{'F' * 4000}\n")
    given = "train", "--config", tmp_path / "c.yaml", "--data", work / "text", "--out", tmp_path / "run"
    assert "c.yaml:2: must be YAML; got a value that is not int" in fails(*given)


PLATEAU = """
model: {cell: gru}
training: {device: cpu, epochs: 2, betas: [0.0, 0.999], sequence_length: 60, plateau_factor: 0.3}
"""


@pytest.mark.parametrize("replaced", ["optimizer=sgd", "schedule=cosine", "unit=sentence"])
def test_what_a_file_gives_for_a_setting_that_is_replaced_may_stand(work, tmp_path, monkeypatch, replaced):
    (tmp_path / "c.yaml").write_text(PLATEAU)
    seen = []

    def stop(config, *_):
        seen.append(config.training)
        raise DataError("text", "must be long", "a short one", "Write more")

    monkeypatch.setattr("gatedrnn.cli.commands.train._train", stop)
    name, value = replaced.split("=")
    given = "train", "--config", tmp_path / "c.yaml", "--data", work / "text", "--out", tmp_path / "run"
    fails(*given, f"--training.{name}", value)
    (training,) = seen
    assert getattr(training, name) == value
    assert (training.betas == (0.0, 0.999)) == (name != "optimizer")
    assert (training.sequence_length == 60) == (name != "unit")
    assert (training.plateau_factor == 0.3) == (name != "schedule")


class Killed(BaseException):
    """What nothing catches, as nothing catches SIGKILL."""


def killed(*_):
    raise Killed


def test_a_run_that_began_with_a_setting_without_effect_goes_on(work, tmp_path, monkeypatch):
    out = tmp_path / "run"
    begin = "train", "--data", work / "text", "--out", out, "--training.optimizer", "sgd", "--training.device", "cpu"
    small = "--model.cell", "gru", "--model.embedding_size", 8, "--model.hidden_sizes", "[8]", "--training.epochs", 1
    with monkeypatch.context() as earlier:
        for place in ("gatedrnn.training.loop", "gatedrnn.cli.commands.train"):
            earlier.setattr(f"{place}.check_read", lambda *_: None)
        earlier.setattr(Loop, "_step", killed)
        with pytest.raises(Killed):
            call(*begin, *small, "--training.betas", "[0.0, 0.999]")
    assert (out / "config.yaml").is_file() and not list((out / "checkpoint").glob("step*"))
    works("train", "--out", out, "--resume")


SMALL = [
    "--training.epochs",
    "1",
    "--training.device",
    "cpu",
    "--model.embedding_size",
    "6",
    "--model.hidden_sizes",
    "[6,6]",
]


def test_a_file_is_a_part_that_the_command_line_completes(work, tmp_path):
    (tmp_path / "sizes.yaml").write_text("model: {cell: lstm, hidden_sizes: [8, 8]}\ntraining: {peak_beta: 0.7}\n")
    given = ["--model.embedding_size", 8, "--training.schedule", "one_cycle", "--training.epochs", 1]
    works("train", "--config", tmp_path / "sizes.yaml", *given, "--data", work / "text", "--out", tmp_path / "out")
    config = load_run(tmp_path / "out").config
    assert (config.model.cell, config.model.hidden_sizes, config.training.peak_beta) == ("lstm", (8, 8), 0.7)
    for text, said in [
        ("model: {hiden_sizes: [8]}", "model.hiden_sizes: unknown key. Did you mean 'hidden_sizes'?"),
        ("model: {gates: {temprature: 3}}", "model.gates.temprature: unknown key. Did you mean 'temperature'?"),
        ("training: {epochs: many}", "training.epochs: must be an integer; got 'many'"),
        ("training: {betas: [0.9, 0.9, 0.9]}", "training.betas: must have 2 values; got [0.9, 0.9, 0.9]"),
        ("training: {epochs: -1}", "training.epochs: must be a positive integer; got -1"),
        ("training: 3", "training: must be a mapping of keys to values; got 3"),
        ("- 3", "must hold the sections data, model and training; got [3]"),
    ]:
        (tmp_path / "wrong.yaml").write_text(text)
        assert said in fails("train", "--config", tmp_path / "wrong.yaml", "--out", tmp_path / "wrong")


@pytest.mark.parametrize(
    ("file", "option"),
    [
        ("model: {cell: onlstm, master_bias: 3, tree_layer: 1}", ("--model.cell", "lstm")),
        ("model: {cell: lstm, forget_bias: 1.0, gates: {temperature: 0.9}}", ("--model.cell", "rnn")),
        ("training: {schedule: one_cycle, peak_beta: 0.7}", ("--training.schedule", "cosine")),
        ("training: {warmup_steps: 9}", ("--training.schedule", "one_cycle")),
        ("training: {random_lengths: true, partial_shuffle: true, reset_probability: 0.1}", ("--training.unit", "sentence")),
    ],
)  # fmt: skip
def test_an_option_leaves_out_what_it_forbids_of_a_file(work, tmp_path, file, option):
    (tmp_path / "c.yaml").write_text(file)
    chunk = [] if "--model.cell" in option else ["--model.options.chunk_size", 3]
    given = ("--config", tmp_path / "c.yaml", *SMALL, *chunk, *option)
    works("train", *given, "--data", work / "text", "--out", tmp_path / "out")
    key = option[0].split(".")[1]
    config = load_run(tmp_path / "out").config
    assert getattr(config.model if "model" in option[0] else config.training, key) == option[1]


def test_the_configuration_of_a_run_on_another_text_goes_on_with_the_same_command(work, tmp_path):
    write_letters(tmp_path / "text", "abcdefg", 60, 20)
    given = ("--config", work / "lstm" / "config.yaml", "--data", tmp_path / "text", "--out", tmp_path / "out")
    works("train", *given, "--resume", "--training.epochs", 1)
    works("train", *given, "--resume", "--training.epochs", 1)
    told = "model.vocabulary_size: must be as in the run; got 99, and 9 in the run"
    assert told in fails("train", *given, "--resume", "--model.vocabulary_size", 99)


def test_a_task_begins_with_resume_and_a_bare_folder_must_hold_a_run(tmp_path):
    out = tmp_path / "out"
    assert f"{out}: must hold a run to continue; got no config.yaml" in fails("train", "--out", out, "--resume")
    error = fails("train", "--task", "translation", "--out", out, "--resume", "--data", tmp_path / "none")
    assert "must hold a run" not in error and "none" in error
    assert "unrecognized arguments: --print_config" in fails("train", "--print_config", code=2)


def test_a_cell_s_own_options_are_the_layer_s_in_translation():
    assert TranslationConfig(cell="onlstm").options["chunk_size"] == 1
    assert PairClassifierConfig(cell="onlstm").options["chunk_size"] == 10


def test_help_shows_numbers_as_they_are_written():
    helps = {name: " ".join(works(name, "--help").split()) for name in ("eval-parsing", "serve")}
    assert "95 % intervals" in helps["eval-parsing"] and "[1000000]" in helps["serve"]


def test_what_continues_a_run_knows_cells_of_one_s_own(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "imported_files", lambda: [tmp_path / "my cells.py"])
    told = train._go_on(tmp_path / "run", train.Options(out=None))
    assert told == f"`gatedrnn train --out {tmp_path}/run --resume --import '{tmp_path}/my cells.py'` continues it"


def test_a_file_may_stand_behind_an_option(work, tmp_path):
    (tmp_path / "text").write_text("a b c\n")
    run, text = work / "run", tmp_path / "text"
    said = works("surprisal", run, text, "--tokens", "--json")
    assert (
        said
        == works("surprisal", run, "--tokens", text, "--json")
        == works("surprisal", "--tokens", run, text, "--json")
    )
    assert said == works("surprisal", "--json", "--tokens", run, "--mapping", "number", text)
    assert works("surprisal", run, "--mapping=number", text, "--tokens", "--json") == said
    assert "parsing.layer: must lie in" in fails("parse", run, "--layer", 9, text)


@pytest.mark.parametrize(
    ("arguments", "missing", "command"),
    [
        (["parse"], "RUN", "parse"),
        (["surprisal"], "RUN", "surprisal"),
        (["eval-parsing", "run"], "--treebank FILE", "eval-parsing"),
        (["export", "run", "--to", "onnx"], "--out DIR", "export"),
        (["export"], "RUN, --to", "export"),
    ],
)
def test_what_is_missing_is_named_as_it_is_typed(arguments, missing, command):
    told = fails(*arguments, code=2)
    assert f"are required: {missing}" in told and told.endswith(f"(see gatedrnn {command} --help)\n")


def test_a_file_is_read_for_the_task_that_is_asked_for(work, tmp_path):
    for text, told in (
        ("model: {hidden_sizes: [4]}", "model.hidden_sizes: unknown key. Known: nonterminals"),
        ("task: inference\nmodel: {cel: lstm}", "model.cel: unknown key. Known: nonterminals"),
    ):
        (tmp_path / "a.yaml").write_text(text)
        given = (
            "--config",
            tmp_path / "a.yaml",
            "--data",
            work / "text",
            "--task",
            "grammar",
            "--out",
            tmp_path / "out",
        )
        assert told in fails("train", *given)
    for task in ("null", "poetry"):
        (tmp_path / "a.yaml").write_text(f"task: {task}")
        assert "task: unknown name" in fails("train", "--config", tmp_path / "a.yaml", "--task", "grammar")
        assert "task: unknown name" in fails("train", "--config", tmp_path / "a.yaml")


def test_a_text_in_place_of_a_configuration_is_not_printed_again(tmp_path):
    (tmp_path / "a.yaml").write_text("word " * 1000)
    told = fails("train", "--config", tmp_path / "a.yaml")
    assert "must hold the sections data, model and training; got 'word word" in told and len(told) < 300
