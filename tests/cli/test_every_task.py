"""What holds for the training of each task: processes, kill −9, Ctrl-C, NaN."""

import signal
import time

import numpy as np
import pytest
import torch
from programs import start, together
from terminal import call, fails

from gatedrnn.data import write_corpus
from gatedrnn.data.logic import make_pairs, write_pairs
from gatedrnn.data.verb_final import write_parallel
from gatedrnn.training.loop import Loop
from gatedrnn.training.run import checkpoints, read_metrics

COMMON = ["--model.embedding_size", "8", "--model.hidden_sizes", "[8]", "--training.device", "cpu", "--training.batch_size",
          "16"]  # fmt: skip
TASKS = {
    "inference": [*COMMON, "--model.cell", "lstm"],
    "translation": [*COMMON, "--model.decoder_sizes", "[8]", "--data.level", "word"],
    "grammar": [*(f"--model.{name}=4" for name in ("nonterminals", "preterminals", "state_size")), *COMMON[4:]],
}
PLAIN = {  # without dropout, which processes draw by themselves
    "inference": ["--model.input_dropout", "0", "--model.head_dropout", "0"],
    "translation": [f"--model.{name}_dropout=0" for name in ("embedding", "input", "hidden", "output")],
    "grammar": [],
}


@pytest.fixture(scope="module", params=TASKS)
def task(request, tmp_path_factory):
    """Name, and the command that trains it."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "inference":
        for split, seed in (("train", 1), ("dev", 2)):
            write_pairs(folder / f"{split}.tsv", make_pairs(100, seed))
    elif request.param == "grammar":
        write_corpus(folder, 1, train=64, valid=20, test=5)
    else:
        write_parallel(folder, 1, 100, 40, 1)
    return request.param, ["train", "--task", request.param, *TASKS[request.param], "--data", str(folder)]


def test_two_processes_have_the_losses_of_one(task, tmp_path):
    name, command = task
    more = [*PLAIN[name], "--training.epochs", 2, "--out"]
    code, _, err = call(*command, *more, tmp_path / "1")
    assert code == 0, err
    code, _, err = together(2, *command, *more, tmp_path / "2")
    assert code == 0, err[-3000:]
    for one, two in zip(read_metrics(tmp_path / "1"), read_metrics(tmp_path / "2"), strict=True):
        for key in ("train_loss_nats", "valid_loss_nats"):
            assert two[key] == pytest.approx(one[key], abs=2e-5)


def weights(run):
    from safetensors.torch import load_file

    return load_file(run / "model.safetensors")


def test_killed_and_gone_on_with_it_ends_in_the_same_bits(task, tmp_path):
    _, command = task
    more = ["--training.epochs", "20", "--training.checkpoint_minutes", "1e-9"]
    code, _, err = call(*command, *more, "--out", tmp_path / "whole")
    assert code == 0, err
    killed = tmp_path / "killed"
    for wanted in (2, 6):
        process = start(*command, *more, "--out", killed, "--resume")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            log = killed / "metrics.jsonl"
            if log.exists() and len(log.read_text().splitlines()) >= wanted:
                break
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert checkpoints(killed)
    code, _, err = call(*command, *more, "--out", killed, "--resume")
    assert code == 0, err
    expected, found = weights(tmp_path / "whole"), weights(killed)
    assert expected.keys() == found.keys() and all(torch.equal(expected[name], found[name]) for name in expected)
    losses = [[record["train_loss_nats"] for record in read_metrics(run)] for run in (tmp_path / "whole", killed)]
    assert losses[0] == losses[1] and len(losses[0]) == 20


def test_ctrl_c_ends_with_130_and_goes_on(task, tmp_path, monkeypatch):
    _, command = task
    step, steps = Loop._step, iter(range(1000))

    def interrupted(*arguments):
        if next(steps) == 9:
            signal.raise_signal(signal.SIGINT)
        return step(*arguments)

    monkeypatch.setattr(Loop, "_step", interrupted)
    more = ["--training.epochs", "3", "--out", tmp_path / "run"]
    code, out, err = call(*command, *more)
    assert (code, err) == (130, "") and "interrupted: best valid" in out
    code, out, err = call(*command, *more, "--resume")
    assert code == 0 and "all epochs done" in out, err
    assert np.isfinite([record["train_loss_nats"] for record in read_metrics(tmp_path / "run")]).all()


def test_nan_ends_training_with_one_line(task, tmp_path):
    _, command = task
    line = fails(
        *command, "--training.learning_rate", "1e38", "--training.gradient_clip", "0", "--out", tmp_path / "run"
    )
    assert "NaN" in line or "finite" in line or "diverged" in line
