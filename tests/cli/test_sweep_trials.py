"""Trials of `gatedrnn sweep`: what each one's configuration says, what no trial can train, and what is told when all fail."""

import json
import os

import pytest
from terminal import call, fails

from gatedrnn.training.run import METRICS_FILE


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """`sweep(*more, minutes)`: the arguments of a sweep of four trials, all of which fail in the second round."""
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "text" / name).write_text("the old pilot sleeps\n" * 9)
    (tmp_path / "c.yaml").write_text("model: {cell: lstm, embedding_size: 8, hidden_sizes: [8]}\n")

    def run_jobs(jobs, processes, ended):
        for job in jobs:
            run = tmp_path / "out" / job.name
            run.mkdir(exist_ok=True)
            (run / METRICS_FILE).write_text('{"valid_perplexity": 7.5}\n')
            ended(job, int(job.name.startswith("round-2")))

    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", run_jobs)
    how = ("--data", tmp_path / "text", "--out", tmp_path / "out")

    def arguments(*more, minutes=4):
        return ("sweep", tmp_path / "c.yaml", "--over", "training.seed=1,2,3,4", "--minutes", minutes, *how, *more)

    return arguments


def test_a_sweep_whose_last_round_failed_names_its_log(sweep, tmp_path):
    code, _, error = call(*sweep("--processes", 2))
    out = tmp_path / "out"
    line = error.splitlines()[-1]
    assert code == 1 and "must have at least one trial with a score in round 2; got none. See" in line
    assert f"See {out}/round-2/trial-" in line and f"delete {out} or choose another --out" in line
    assert fails(*sweep("--processes", 2)) == line + "\n"


def test_a_sweep_of_other_settings_says_which(sweep, tmp_path):
    call(*sweep("--processes", 2))
    (tmp_path / "c.yaml").write_text("model: {cell: gru, embedding_size: 8, hidden_sizes: [8]}\n")
    line = fails(*sweep("--processes", 3, minutes=5))
    told = "model.cell gru, and lstm before"
    assert f"same settings; got --minutes 5.0, and 4.0 before; --processes 3, and 2 before; {told}. Give" in line
    (tmp_path / "out" / "sweep.json").write_text("[]")
    assert "sweep.json: must be what a sweep wrote; got other JSON" in fails(*sweep())


SWEPT = "model: {cell: lstm, embedding_size: 8, hidden_sizes: [8]}\ntraining: {device: cpu, batch_size: 20}\n"


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


PLATEAU = """
model: {cell: gru}
training: {device: cpu, epochs: 2, betas: [0.0, 0.999], sequence_length: 60, plateau_factor: 0.3}
"""


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
