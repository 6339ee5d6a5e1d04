"""`gatedrnn sweep`: rounds, values, refusals; interrupted and resumed."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from programs import start

from gatedrnn import ArgumentError
from gatedrnn.cli.main import main
from gatedrnn.studies.sweep import Round, best_first, combinations, rounds, running
from gatedrnn.studies.sweep.running import Job, run_jobs
from gatedrnn.training.run import locked

CONFIG = """
model: {cell: lstm, embedding_size: 8, hidden_sizes: [8]}
training: {epochs: 100000, device: cpu, batch_size: 20}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "text" / name).write_text("the old pilot sleeps\nmary waits\n" * 200)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path / "c.yaml"


def sweep(config: Path, *over: str, minutes: float = 0.06) -> list[str]:
    given = [part for each in over for part in ("--over", each)]
    data = ["--data", str(config.parent / "text"), "--out", str(config.parent / "out")]
    return ["sweep", str(config), *given, "--minutes", str(minutes), *data]


class TestPlan:
    def test_values_are_yaml_and_every_combination_is_a_trial(self):
        trials = combinations(["model.hidden_sizes=[8],[16, 8]", "training.schedule=cosine,constant"])
        assert [trial.number for trial in trials] == [1, 2, 3, 4]
        assert trials[2].settings == {"model.hidden_sizes": [16, 8], "training.schedule": "cosine"}
        assert trials[2].label == "hidden_sizes=[16, 8], schedule=cosine"

    @pytest.mark.parametrize(
        "over",
        [[], ["seed=1,2"], ["training.seed"], ["training.seed=1"], ["training.seed=1,1"], ["training.seed=[1,2"],
         ["training.seed=1,2", "training.seed=3,4"]],
    )  # fmt: skip
    def test_what_is_no_list_of_values_is_refused(self, over):
        with pytest.raises(ArgumentError, match="--over: must"):
            combinations(over)

    def test_each_round_has_half_the_trials_and_an_equal_share_of_the_minutes(self):
        assert rounds(8, 60, 2) == [Round(8, 5.0), Round(4, 10.0), Round(2, 20.0)]
        assert rounds(5, 60, 2) == [Round(5, 60 / 9), Round(3, 10.0), Round(2, 20.0)]
        assert rounds(2, 60, 1) == [Round(2, 30.0)]

    def test_a_trial_without_a_score_is_the_worst(self):
        scores = {1: 5.0, 2: None, 3: 4.0, 4: 4.5}
        assert best_first(scores, higher=False) == [3, 4, 1, 2]
        assert best_first(scores, higher=True) == [1, 4, 3, 2]


def test_what_is_wrong_is_one_line_and_nothing_is_written(config, capsys):
    for over, told in (
        ("training.lr=1,2", "training.lr: unknown key"),
        ("model.cell=lstm,gruu", "Did you mean 'gru'"),
        ("training.epochs=1,zwei", "training.epochs"),
    ):
        assert main(sweep(config, over)) == 1
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1
    assert not (config.parent / "out").exists()
    (config.parent / "out").mkdir()
    (config.parent / "out" / "mine.txt").write_text("mine")
    assert main(sweep(config, "training.seed=1,2")) == 1
    assert "must be a new folder" in capsys.readouterr().err
    assert [path.name for path in (config.parent / "out").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("translation", [False, True])
def test_options_that_no_layer_can_have_are_refused_before_a_trial_runs(translation, config, capsys):
    head, sizes = ("task: translation\n", "[24], decoder_sizes: [8]") if translation else ("", "[8]")
    config.write_text(
        f"{head}model: {{cell: onlstm, embedding_size: 8, hidden_sizes: {sizes}, options: {{chunk_size: 1}}}}"
    )
    assert main(sweep(config, "model.options.chunk_size=2,3")) == 1
    assert "ONLSTM.chunk_size: must divide hidden_size; got hidden_size=8, chunk_size=3" in capsys.readouterr().err
    assert not (config.parent / "out").exists()


@pytest.mark.parametrize(
    ("text", "over", "told"),
    [
        ("- a", "training.seed=1,2", "c.yaml: must hold keys and values; got ['a']. Change it"),
        ("training: 3", "training.seed=1,2", "must hold keys and values in training; got 3."),
        ("model: [1]", "model.cell=gru,lstm", "must hold keys and values in model; got [1]."),
        ("training: {learning_rate: 0.1}", "training.learning_rate.a=1,2", "in training.learning_rate; got 0.1."),
        ("training:", "training.minutes=1,2", "cannot change training.minutes: each round sets it from --minutes; got"),
        ("model: {options: 3}", "model.cell=gru,lstm", "model.options: must be a mapping of keys to values; got 3."),
        ("training:", "model.vocabulary_size=5,50", "cannot change model.vocabulary_size: the data decide it; got"),
        ("training:", "training.betas=[0.9, 0.999],[0.9, 0.9990]", "must name at least two values, each once"),
        (
            "training:",
            "training.learning_rate=1,2,1.0",
            "must give each trial settings of its own; got trials 1 and 3 alike.",
        ),
        ("data: {folder: text}", "data.folder=a,b", "cannot change data.folder: --data sets it; got data.folder."),
    ],
)
def test_what_cannot_be_changed_is_one_line(text, over, told, config, capsys):
    config.write_text(text)
    assert main(sweep(config, over)) == 1
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1 and not (config.parent / "out").exists()


@pytest.mark.parametrize("turned", [False, True])
def test_a_key_beside_one_that_holds_it_is_refused(turned, config, capsys):
    over = ["model.options={chunk_size: 2},{chunk_size: 4}", "model.options.chunk_size=1,2"]
    assert main(sweep(config, *(over[::-1] if turned else over))) == 1
    error = capsys.readouterr().err
    assert "cannot change model.options.chunk_size: model.options holds it; got" in error and error.count("\n") == 1


def test_trials_are_not_compared_on_different_texts(config, capsys):
    given = sweep(config, "training.seed=1,2")
    data = given.index("--data")
    assert main([*given[:data], *given[data + 2 :]]) == 1
    told = "--over: cannot change training.seed without --data: the built-in text depends on the seed; got seeds 1, 2."
    assert told in capsys.readouterr().err and not (config.parent / "out").exists()


def test_a_training_that_a_killed_sweep_left_is_no_failure(config, monkeypatch, capsys):
    started = []

    def leaving(jobs, processes, ended):
        started.append([job.name for job in jobs])
        raise KeyboardInterrupt  # before a trial has ended

    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", leaving)
    given, out = sweep(config, "training.seed=1,2"), config.parent / "out"
    assert main(given) == 130
    with locked(out / "round-1" / "trial-2"):
        assert main(given) == 1
    assert "round-1/trial-2: must not be in training already" in capsys.readouterr().err
    assert json.loads((out / "sweep.json").read_text())["results"] == {}
    assert main(given) == 130 and started == [["round-1/trial-1", "round-1/trial-2"]] * 2


def test_a_trial_that_a_killed_sweep_began_at_the_same_moment_is_no_failure(config, monkeypatch, capsys):
    """Neither has written anything when the other looks, and one of them finds the folder held."""

    def losing(jobs, processes, ended):
        with locked(config.parent / "out" / jobs[0].name):
            ended(jobs[0], 1)

    def lost(jobs, processes, ended):
        """The other one has ended meanwhile."""
        jobs[0].log.write_text(
            "gatedrnn: run: must not be in training already; got a run that another process trains.\n"
        )
        assert ended(jobs[0], 1).name == jobs[0].name
        raise KeyboardInterrupt

    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", losing)
    assert main(sweep(config, "training.seed=1,2")) == 1
    assert "round-1/trial-1: must not be in training already" in capsys.readouterr().err
    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", lost)
    assert main(sweep(config, "training.seed=1,2")) == 130 and "in use, and continued once" in capsys.readouterr().err
    assert json.loads((config.parent / "out" / "sweep.json").read_text())["results"] == {}


def test_a_trial_that_is_killed_is_continued_once(config, monkeypatch, capsys):
    started = []

    def killing(jobs, processes, ended):
        """Trial 1 is killed once, trial 2 each time."""
        waiting = [*jobs]
        while waiting:
            job = waiting.pop(0)
            started.append(job.name)
            assert "--resume" in job.arguments
            run = config.parent / "out" / job.name
            run.mkdir(exist_ok=True)
            (run / "config.yaml").touch()
            (run / "metrics.jsonl").write_text('{"valid_perplexity": 7.5}')
            again = ended(job, 0 if job.name.endswith("1") and started.count(job.name) == 2 else -9)
            waiting[:0] = [again] if again else []

    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", killing)
    monkeypatch.setattr("gatedrnn.cli.commands.sweep._Sweep.draw", lambda sweep, path, lines: path.touch())
    assert main(sweep(config, "training.seed=1,2")) == 0
    assert started == [f"round-1/trial-{n}" for n in (1, 1, 2, 2)]
    results = json.loads((config.parent / "out" / "sweep.json").read_text())["results"]
    assert {name: each["score"] for name, each in results.items()} == {"round-1/trial-1": 7.5, "round-1/trial-2": None}
    error = capsys.readouterr().err
    assert error.count("killed by signal 9, and continued once") == 2 and "failed: killed by signal 9" in error


def scored(score):
    """Jobs that end with what `score` says of their trial, None for a failure."""

    def run(config, jobs, ended):
        for job in jobs:
            run, number = config.parent / "out" / job.name, int(job.name[-1])
            run.mkdir(exist_ok=True)
            value = score(job.name.partition("/")[0], number)
            (run / "metrics.jsonl").write_text(f'{{"valid_perplexity": {value}}}')
            ended(job, 0 if value else 1)

    return run


@pytest.mark.parametrize(
    ("score", "trained"),
    [(lambda number, trial: {3: 5.0}.get(trial), ["round-1", "round-2/trial-3"]),
     (lambda number, trial: None if number == "round-1" else 5.0, ["round-1"])],
)  # fmt: skip
def test_trials_without_a_score_do_not_go_on(config, monkeypatch, capsys, score, trained):
    run = scored(score)
    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", lambda jobs, processes, ended: run(config, jobs, ended))
    monkeypatch.setattr("gatedrnn.cli.commands.sweep._Sweep.draw", lambda sweep, path, lines: path.touch())
    code = main(sweep(config, "training.seed=1,2,3,4"))
    results = json.loads((config.parent / "out" / "sweep.json").read_text())["results"]
    every = [f"round-1/trial-{n}" for n in (1, 2, 3, 4)]
    assert list(results) == [*every, *trained[1:]]
    error = capsys.readouterr().err
    assert code == (0 if trained[1:] else 1)
    assert trained[1:] or "must have at least one trial with a score in round 1; got none" in error


@pytest.fixture
def brief(monkeypatch):
    """Jobs whose processes end at once, whatever is asked of them."""

    def at_once(job, environment):
        return subprocess.Popen([sys.executable, "-S", "-c", ""], env=environment)

    monkeypatch.setattr(running, "_start", at_once)


def test_a_job_may_be_run_again(brief, tmp_path):
    ended = []

    def again(job, code):
        ended.append((job.name, code))
        return job if len(ended) == 1 else None

    run_jobs([Job("one", ["--version"], tmp_path / "log")], 1, again)
    assert ended == [("one", 0)] * 2


def test_a_training_that_ignores_interrupts_is_terminated(monkeypatch, tmp_path):
    """In a script, jobs in the background are told to ignore SIGINT."""
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    started = []

    def start_one(job, environment):
        code = deaf if job.name == "deaf" else ""
        process = subprocess.Popen([sys.executable, "-S", "-c", code], env=environment, stdout=subprocess.PIPE)
        process.stdout.readline()  # it has told that it is deaf, or has ended
        started.append(process)
        return process

    def interrupt(job, code):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_start", start_one)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([Job(name, ["--version"], tmp_path / name) for name in ("deaf", "brief")], 2, interrupt)
    assert [process.returncode for process in started] == [-signal.SIGTERM, 0]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no terminals that hang up")
@pytest.mark.parametrize("ignored", [False, True])
def test_the_end_of_the_terminal_is_an_interrupt_except_under_nohup(ignored, brief, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    ended = []

    def hang_up(job, code):
        ended.append(code)
        os.kill(os.getpid(), signal.SIGHUP)

    try:
        with nullcontext() if ignored else pytest.raises(KeyboardInterrupt):
            run_jobs([Job("one", ["--version"], tmp_path / "log")], 1, hang_up)
        assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if ignored else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended == [0]


def test_trainings_know_cells_of_one_s_own(config, monkeypatch, capsys):
    asked, own = [], Path("/somewhere/own.py")

    def failing(jobs, processes, ended):
        for job in jobs:
            asked.append(job.arguments)
            ended(job, 1)

    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", failing)
    monkeypatch.setattr("gatedrnn.cli.commands.sweep.imported_files", lambda: [own])
    assert main(sweep(config, "training.seed=1,2")) == 1
    assert "got none. See" in capsys.readouterr().err  # no trial has a score
    assert [given[:3] for given in asked] == [["train", "--import", str(own)]] * 2


def test_paths_of_a_configuration_are_those_of_the_first_sitting(config, monkeypatch, capsys):
    def failing(jobs, processes, ended):
        for job in jobs:
            ended(job, 1)

    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", failing)
    config.write_text(CONFIG + "data: {folder: text}\n")
    out, given = config.parent / "out", sweep(config, "training.learning_rate=0.1,0.2")[:-4]
    given += ["--out", str(out)]
    (config.parent / "other").mkdir()
    monkeypatch.chdir(config.parent / "other")
    assert main(given) == 1 and not out.exists()
    assert f"{Path('text').absolute()}: must exist; got no such file or folder" in capsys.readouterr().err
    monkeypatch.chdir(config.parent)
    assert main(given) == 1 and "at least one trial with a score" in capsys.readouterr().err
    kept = json.loads((out / "sweep.json").read_text())
    assert kept["settings"]["config"]["data"]["folder"] == str(config.parent / "text")
    config.write_text(CONFIG + "data: {folder: ''}\n")
    assert main([*given[:-1], str(out.parent / "new")]) == 1 and "got an empty one" in capsys.readouterr().err
    config.write_text(CONFIG + "data: {level: subword, tokenizer: none.json}\n")
    assert main([*given[:-1], str(out.parent / "new")]) == 1
    assert f"{Path('none.json').absolute()}: must exist" in capsys.readouterr().err
    config.write_text(CONFIG + "data: {folder: text}\n")
    (config.parent / "text").rename(config.parent / "elsewhere")
    assert main(given) == 1 and "at least one trial with a score" in capsys.readouterr().err  # nothing is left to train
    (config.parent / "elsewhere").rename(config.parent / "text")
    kept["settings"]["config"]["data"]["folder"] = "text"  # as an earlier version kept it
    (out / "sweep.json").write_text(json.dumps(kept))
    assert main(given) == 1 and "at least one trial with a score" in capsys.readouterr().err
    (config.parent / "other" / "text").mkdir()
    monkeypatch.chdir(config.parent / "other")
    kept["settings"]["config"]["data"]["folder"] = str(config.parent / "text")
    (out / "sweep.json").write_text(json.dumps(kept))
    assert (
        main(given) == 1 and "must hold a sweep with the same settings" in capsys.readouterr().err
    )  # not of this text


def test_a_lost_or_damaged_log_of_a_trial_costs_its_curve_alone(config, monkeypatch, capsys):
    run = scored(lambda number, trial: 5.0 + trial)
    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", lambda jobs, processes, ended: run(config, jobs, ended))
    given = sweep(config, "training.seed=1,2,3")
    assert main([*given, "--json"]) == 0
    told, errors = capsys.readouterr()
    assert errors.count("has no curve in sweep.png") == 5  # logs without "seconds"
    out = config.parent / "out"
    (out / "round-1" / "trial-1" / "metrics.jsonl").write_text('{"valid_perplexity": 6.0, "seconds": 60}\n')
    (out / "round-1" / "trial-2" / "metrics.jsonl").write_text("}\n")
    (out / "round-2" / "trial-1" / "metrics.jsonl").write_text('{"valid_perplexity": [1, 2], "seconds": 60}\n')
    (out / "round-2" / "trial-2" / "metrics.jsonl").write_text(f'{{"valid_perplexity": 5, "seconds": {10**400}}}\n')
    (out / "round-1" / "trial-3" / "metrics.jsonl").unlink()
    (out / "sweep.png").unlink()
    assert main([*given, "--json"]) == 0
    again, errors = capsys.readouterr()
    assert again == told and (out / "sweep.png").stat().st_size > 5_000
    assert errors.count("has no curve in sweep.png") == 4 and "must be an epoch's record in JSON; got '}'" in errors


def test_interrupted_and_resumed_it_finds_the_best(config, capsys):
    out, given = config.parent / "out", sweep(config, "training.learning_rate=1.0e-6,0.01", minutes=0.03)
    process = start(*given, "--processes", "2")
    begun = [out / "round-1" / f"trial-{n}" / "metrics.jsonl" for n in (1, 2)]
    deadline = time.monotonic() + 120
    while not all(file.exists() for file in begun) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.interrupt()
    _, errors = process.communicate(timeout=120)
    if process.returncode != 0:  # on a fast machine it may have ended
        assert process.returncode == 130 and "the same command resumes the sweep" in errors, errors
    assert main([*given, "--processes", "1"]) == 1  # other settings
    assert "a sweep with the same settings" in capsys.readouterr().err
    assert main([*given, "--processes", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measure"] == "valid_perplexity" and found["best"]["trial"] == 2
    assert [row["trial"] for row in found["trials"]] == [1, 2] and (out / "sweep.png").stat().st_size > 5_000
    assert main(["evaluate", found["best"]["run"], "--data", str(config.parent / "text" / "valid.txt")]) == 0


def test_a_configuration_is_read_from_standard_input(config, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(config.read_bytes())))
    over = ["--over", "training.learning_rate=0.001,x", "--minutes", "1", "--data", str(config.parent / "text")]
    assert main(["sweep", "-", *over, "--out", str(config.parent / "out")]) == 1
    assert "training.learning_rate: must be a number; got 'x'" in capsys.readouterr().err
