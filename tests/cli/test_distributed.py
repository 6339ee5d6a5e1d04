"""Two processes on one machine, by gloo, and once by torchrun: the losses of one, exact resume, what both decide alike."""

import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from letters import write_letters
from programs import IMPORTED, together
from terminal import call

from gatedrnn.training.run import read_metrics

SMALL = ["--model.embedding_size", "16", "--model.hidden_sizes", "[16]", "--model.options.chunk_size", "4"]
PLAIN = [f"--model.{name}_dropout={0}" for name in ("input", "hidden", "output")]


@pytest.fixture
def text(tmp_path):
    """The last stretch is short: a process has less to predict."""
    return write_letters(tmp_path / "text", "abcdefgh", 210, 30)


def train(text, out, processes, *options, torchrun=False):
    """Exit code, standard output and standard error of a training in so many processes."""
    given = ["train", "--data", str(text), "--out", str(out), *SMALL, *("--training.batch_size", "6"), *options]
    given += ["--training.device", "cpu"]
    if not torchrun:
        return together(processes, *given) if processes > 1 else call(*given)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *launcher, "-m", "gatedrnn.cli.main", *given]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("unit", ["stream", "sentence"])
def test_two_processes_have_the_losses_of_one(text, tmp_path, unit):
    records = []
    for processes in (1, 2):
        folder, torchrun = tmp_path / str(processes), processes > 1 and unit == "stream"
        options = [*PLAIN, "--training.epochs", "2", "--training.unit", unit]
        options += ["--training.activation_penalty", "20", "--training.temporal_penalty", "5"]
        code, out, err = train(text, folder, processes, *options, torchrun=torchrun)
        assert code == 0, err[-3000:]
        assert out.count("all epochs done") == 1
        records.append(read_metrics(folder))
    for one, two in zip(*records, strict=True):
        for key in ("train_loss_nats", "valid_loss_nats"):
            assert two[key] == pytest.approx(one[key], abs=2e-5)


def test_two_processes_resume_exactly(text, tmp_path):
    assert train(text, tmp_path / "whole", 2, "--training.epochs", "2")[0] == 0
    assert train(text, tmp_path / "cut", 2, "--training.epochs", "1")[0] == 0
    code, _, err = train(text, tmp_path / "cut", 2, "--training.epochs", "2", "--resume")
    assert code == 0, err[-3000:]
    name = Path("model.safetensors")
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    code, _, err = train(text, tmp_path / "cut", 1, "--training.epochs", "3", "--resume")
    assert code == 1 and "as many processes as before" in err


def test_a_batch_that_cannot_be_shared_is_refused(text, tmp_path):
    code, _, err = train(text, tmp_path / "run", 2, "--training.batch_size", "5")
    assert code == 1
    assert "training.batch_size: must be a multiple of the 2 processes; got 5" in err


@pytest.mark.parametrize("out", [False, True])
def test_several_processes_need_one_folder_and_one_text(work, tmp_path, out):
    given = ("--out", tmp_path / "run") if out else ("--data", work / "text")
    code, said, error = together(2, "train", *given)
    option, why = ("data", ": only one can write the built-in text") if out else ("out", "")
    line = f"gatedrnn: train --{option}: must be given where several processes train{why}; got 2 processes. "
    assert (code, said) == (1, "") and error.count(line) == error.count("\n") == 2
    assert not (tmp_path / "run").exists()


RATE = 0.01


def write_text(folder, sentences):
    folder.mkdir()
    generator = random.Random(0)
    lines = [" ".join(generator.choices("abcd", k=generator.randint(1, 9))) for _ in range(sentences)]
    for name in ("train", "valid"):
        (folder / f"{name}.txt").write_text("\n".join([*lines, ""]))
    return folder


def rank_trains(rank, port, folder, losses, signalled):
    """One process's training, its validation losses given; a process of a number is told to end while it validates."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    shared |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "tests", "OMP_NUM_THREADS": "1"}
    os.environ.update(shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})

    from gatedrnn.data import Corpus, DataConfig, find_splits
    from gatedrnn.models import LanguageModelConfig
    from gatedrnn.tasks import LanguageModelling
    from gatedrnn.tasks.config import TrainingConfig
    from gatedrnn.tasks.task import Score
    from gatedrnn.training.config import RunConfig
    from gatedrnn.training.loop import train

    class Display:
        def __init__(self):
            self.seen = []

        def start_epoch(self, epoch, steps):
            pass

        def step(self, done, loss_nats, per_second):
            pass

        def end_epoch(self, record):
            self.seen.append([record["best"], record["learning_rate"]])
            if rank == signalled:
                os.kill(os.getpid(), signal.SIGTERM)

    task, display, given = LanguageModelling(Corpus(find_splits(folder / "text"), min_count=1)), Display(), iter(losses)
    task.score = lambda *_: Score(loss := next(given), {"loss_nats": loss, "perplexity": loss})
    model = LanguageModelConfig(cell="lstm", embedding_size=4, hidden_sizes=(4,))
    training = TrainingConfig(
        epochs=3, batch_size=4, sequence_length=50, learning_rate=RATE, plateau_threshold=0.0, device="cpu"
    )
    outcome = train(RunConfig(DataConfig(), model, training), task, folder / "run", display)
    (folder / f"{rank}.json").write_text(json.dumps([outcome.stopped, outcome.epochs, display.seen]))


def both(folder, losses, signalled=None):
    """What each of two processes says of its training."""
    write_text(folder / "text", 40)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    given = [(rank, port, folder, losses[rank], signalled) for rank in (0, 1)]
    running = [context.Process(target=rank_trains, args=each, daemon=True) for each in given]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
        process.kill()
    files = [folder / f"{rank}.json" for rank in (0, 1)]
    assert all(file.exists() for file in files), [process.exitcode for process in running]
    return [json.loads(file.read_text()) for file in files]


def test_what_is_best_and_the_rate_are_decided_by_the_mean_score(tmp_path):
    one, other = both(tmp_path, [[1.0, 0.9, 0.5], [1.0, 1.2, 0.5]])
    assert one == other == ["all epochs done", 3, [[True, RATE], [False, RATE], [True, RATE / 2]]]
    assert [record["best"] for record in read_metrics(tmp_path / "run")] == [True, False, True]


@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_process_while_it_validates_ends_both(tmp_path, signalled):
    one, other = both(tmp_path, [[1.0, 0.9, 0.8]] * 2, signalled)
    assert one == other == ["interrupted", 1, [[True, RATE]]]


@pytest.mark.parametrize("sentences", [3, 5])
def test_a_batch_of_sentences_that_two_processes_share_unevenly_is_checkpointed(tmp_path, sentences):
    text, out = write_text(tmp_path / "text", sentences), tmp_path / "run"
    small = ["--model.embedding_size", "8", "--model.hidden_sizes", "[8]", "--model.options.chunk_size", "4"]
    small += ["--training.batch_size", "4", "--training.unit", "sentence", "--training.device", "cpu"]
    given = ["train", "--data", text, "--out", out, *small, "--training.epochs"]
    code, _, err = together(2, *given, "1")
    assert code == 0, err[-3000:]
    code, _, err = together(2, *given, "2", "--resume")
    assert code == 0 and len(read_metrics(out)) == 2, err[-3000:]
