"""Commands that start twice, are cut short, read a pipe, or get numbers and files that nothing can use."""

import json
import os
from contextlib import ExitStack

import pytest
from safetensors import SafetensorError
from terminal import call, fails, works

from gatedrnn.cli.commands import demo
from gatedrnn.core.errors import DataError
from gatedrnn.core.files import write_folder, write_with
from gatedrnn.training.loop import Loop
from gatedrnn.training.run import held, locked

SWEPT = "model: {cell: lstm, embedding_size: 8, hidden_sizes: [8]}\ntraining: {device: cpu, batch_size: 20}\n"


# ---------------------------------------------------------------- twice at once


def test_the_second_of_two_trainings_leaves_what_the_first_has_begun(work, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with ExitStack() as first:

        def second(*_):
            out.mkdir()
            first.enter_context(locked(out))
            (out / "config.yaml").write_text("the first one's")
            raise DataError(str(out), "must not be in training already", "a run that another process trains", "Wait")

        monkeypatch.setattr("gatedrnn.cli.commands.train._train", second)
        assert "must not be in training already" in fails("train", "--data", work / "text", "--out", out)
        assert (out / "config.yaml").read_text() == "the first one's"


def test_a_training_that_fails_alone_leaves_no_folder(work, tmp_path, monkeypatch):
    def failing(config, out, *_):
        (out / "text").mkdir(parents=True)
        raise DataError("text", "must be long", "a short one", "Write more")

    monkeypatch.setattr("gatedrnn.cli.commands.train._train", failing)
    fails("train", "--data", work / "text", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- sweeps


@pytest.fixture
def swept(work, tmp_path, monkeypatch):
    """A function that sweeps over these values of a configuration, as far as the first training."""

    def stop(jobs, processes, ended):
        raise KeyboardInterrupt

    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", stop)

    def sweep(config, *over):
        given = [part for each in over for part in ("--over", each)]
        return "sweep", config, *given, "--minutes", 1, "--data", work / "text", "--out", tmp_path / "out"

    return sweep


def test_a_configuration_from_a_pipe_is_read_once_for_all_trials(swept, tmp_path):
    reading, writing = os.pipe()
    os.write(writing, SWEPT.encode())
    os.close(writing)
    assert call(*swept(f"/dev/fd/{reading}", "training.seed=1,2,3"))[0] == 130
    os.close(reading)
    trials = [(tmp_path / "out" / f"trial-{n}.yaml").read_text() for n in (1, 2, 3)]
    assert all("embedding_size: 8" in trial for trial in trials) and len(set(trials)) == 3


@pytest.mark.parametrize(
    ("text", "over", "told"),
    [
        (SWEPT, "model.options.chunk_size=5,10", "model.options.chunk_size"),
        ("task: inference\n" + SWEPT, "training.sequence_length=35,70", "training.sequence_length: has no effect"),
        (SWEPT, "data.min_count=2,20", "cannot change data.min_count: scores on other texts or units cannot be compared"),
        (SWEPT, "data.level=word,character", "cannot change data.level"),
    ],
)  # fmt: skip
def test_what_no_trial_can_train_or_compare_is_one_line_before_anything_is_written(swept, tmp_path, text, over, told):
    (tmp_path / "c.yaml").write_text(text)
    assert told in fails(*swept(tmp_path / "c.yaml", over))
    assert not (tmp_path / "out").exists()


def test_cells_are_compared_each_with_its_own_options(swept, tmp_path):
    (tmp_path / "c.yaml").write_text(SWEPT.replace("cell: lstm", "cell: onlstm, options: {chunk_size: 4}"))
    assert call(*swept(tmp_path / "c.yaml", "model.cell=lstm,onlstm"))[0] == 130
    lstm, onlstm = ((tmp_path / "out" / f"trial-{n}.yaml").read_text() for n in (1, 2))
    assert "chunk_size" not in lstm and "chunk_size: 4" in onlstm


@pytest.mark.parametrize(
    "damage", ["[" * 100_000, {"round-1/trial-1": {}}, {"round-1/trial-1": 1},
               {"round-1/trial-1": {"round": "1", "trial": 1, "minutes": 1.0, "score": None}}],
)  # fmt: skip
def test_results_that_no_sweep_wrote_are_refused(swept, tmp_path, damage):
    (tmp_path / "c.yaml").write_text(SWEPT)
    given, file = swept(tmp_path / "c.yaml", "training.seed=1,2"), tmp_path / "out" / "sweep.json"
    assert call(*given)[0] == 130
    before = json.loads(file.read_text())
    file.write_text(damage if isinstance(damage, str) else json.dumps(before | {"results": damage}))
    assert f"{file}: must be" in fails(*given)


# ---------------------------------------------------------------- the demo


def test_a_demo_with_a_seed_that_is_none_leaves_the_one_before(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "unfinished").touch()
    assert "seed" in fails("demo", "--out", tmp_path, "--seed", -1)
    assert (tmp_path / "run").is_dir()


def test_a_demo_that_was_interrupted_starts_again(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SENTENCES", {"train": 30, "valid": 10, "test": 10})

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "_step", stop)
    out = tmp_path / "demo"
    for _ in range(2):
        assert "interrupted: the same command starts again" in fails("demo", "--out", out, code=130)
        assert (out / "unfinished").exists() and (out / "run" / "text").is_dir()


# ---------------------------------------------------------------- numbers and paths


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


def test_a_path_with_a_nul_is_one_line(tmp_path):
    (tmp_path / "c.yaml").write_text('data: {folder: "\\0"}')
    assert "data.folder: must be a path; got one with a NUL" in fails("train", "--config", tmp_path / "c.yaml")


@pytest.mark.parametrize("kind", [SafetensorError, Exception])
def test_a_disk_that_is_full_for_a_library_in_rust_is_one_line(tmp_path, kind):
    def fill(place):
        raise kind("I/O error: No space left on device (os error 28)")

    for write in (write_with, write_folder):
        with pytest.raises(DataError, match="must be writable; got No space left on device"):
            write(tmp_path / "new", fill)
    assert not any(tmp_path.iterdir())


def test_an_error_of_another_kind_is_no_full_disk(tmp_path):
    def fill(place):
        raise ValueError("of the writer")

    for write in (write_with, write_folder):
        with pytest.raises(ValueError, match="of the writer"):
            write(tmp_path / "new", fill)


def test_a_run_is_evaluated_with_a_window_that_fits(work):
    assert "cache.window: must be at most" in fails("evaluate", work / "run", "--cache", "--cache-window", 10**20)
    assert "perplexity" in works("evaluate", work / "run", "--data", work / "text" / "valid.txt", "--json")


# ---------------------------------------------------------------- settings that another one replaces

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


@pytest.mark.parametrize(
    ("over", "left"),
    [("training.optimizer=adam,sgd", "betas"), ("training.schedule=plateau,cosine", "plateau_factor"),
     ("training.unit=stream,sentence", "sequence_length")],
)  # fmt: skip
def test_a_sweep_leaves_out_what_a_trial_s_own_setting_does_not_read(swept, tmp_path, over, left):
    (tmp_path / "c.yaml").write_text(PLATEAU)
    assert call(*swept(tmp_path / "c.yaml", over))[0] == 130
    one, two = ((tmp_path / "out" / f"trial-{n}.yaml").read_text() for n in (1, 2))
    assert f"{left}:" in one and f"{left}:" not in two


def test_a_sweep_never_drops_what_a_trial_says(swept, tmp_path):
    (tmp_path / "c.yaml").write_text(SWEPT)
    told = fails(*swept(tmp_path / "c.yaml", "model.cell=onlstm,rnn", "model.options={chunk_size: 4},{chunk_size: 8}"))
    assert "chunk_size" in told and not (tmp_path / "out").exists()


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


# ---------------------------------------------------------------- what is left behind


def test_a_training_that_fails_makes_no_folder_above(tmp_path):
    fails("train", "--data", tmp_path / "none", "--out", tmp_path / "x" / "y" / "z")
    assert not (tmp_path / "x").exists()


def test_a_demo_in_progress_is_not_removed_by_another(tmp_path):
    (tmp_path / "run").mkdir()
    with held(tmp_path, "unfinished", "a demo"):
        assert "must not be in use; got a demo that another process runs" in fails("demo", "--out", tmp_path)
    assert (tmp_path / "run").is_dir()


def test_a_demo_that_was_killed_while_it_wrote_starts_again(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SENTENCES", {"train": 30, "valid": 10, "test": 10})
    monkeypatch.setattr(Loop, "_step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    for name in (".page.abcdefgh.writing", "run"):
        (tmp_path / name).mkdir()
    for name in ("unfinished", "report.html"):
        (tmp_path / name).touch()
    assert "the same command starts again" in fails("demo", "--out", tmp_path, code=130)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "unfinished"]
