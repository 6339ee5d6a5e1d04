"""A training that is cut off anywhere goes on as if nothing had happened: the same bits in the end."""

import errno
import json
import os
import signal
import zlib
from dataclasses import replace
from pathlib import Path

import filelock
import pytest
import torch
from displays import CutError, Quiet
from letters import write_letters
from safetensors import safe_open
from safetensors.torch import save_file

from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.data import Corpus, DataConfig, find_splits
from gatedrnn.gates import Gates
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.models.saving import holds_trained
from gatedrnn.tasks import LanguageModelling
from gatedrnn.tasks.task import Score
from gatedrnn.training import checkpoint
from gatedrnn.training.averaging import Average
from gatedrnn.training.config import RunConfig, TrainingConfig
from gatedrnn.training.loop import Loop, train
from gatedrnn.training.run import checkpoints, continued, locked, read_metrics
from gatedrnn.training.schedule import no_longer_better, rate, starts_averaging

MODEL = LanguageModelConfig(
    cell="onlstm", embedding_size=8, hidden_sizes=(12, 8), options={"chunk_size": 2}, weight_dropout=0.2
)
NOISY = replace(
    MODEL, cell="g2lstm", options={}, embedding_dropout=0.1, gates=Gates(temperature=0.9, noise_probability=0.5)
)
TRAINING = TrainingConfig(
    epochs=3, batch_size=4, sequence_length=10, learning_rate=0.02, device="cpu", checkpoint_minutes=1e-9
)
AWD = {
    "optimizer": "sgd",
    "learning_rate": 2.0,
    "random_lengths": True,
    "activation_penalty": 2.0,
    "temporal_penalty": 1.0,
    "weight_decay": 1e-4,
    "gradient_clip": 0.25,
    "schedule": "constant",
    "average_epoch": 1,
    "average_interval": 1,
    "finetune_epochs": 2,
}
PENALTIES = {"activation_penalty": 1.0, "temporal_penalty": 1.0}
CYCLE = {
    "schedule": "one_cycle",
    "betas": (0.8, 0.99),
    "peak_beta": 0.7,
    "partial_shuffle": True,
    "reset_probability": 0.3,
    "average_decay": 0.9,
}
SETTINGS = {
    "adam": (MODEL, {}),
    "adamw, cosine": (MODEL, {"optimizer": "adamw", "schedule": "cosine", "warmup_steps": 5, "weight_decay": 0.1}),
    "sentences": (MODEL, {"unit": "sentence", "sequence_length": 35, "batch_size": 3, **PENALTIES}),
    "awd": (NOISY, AWD),
    "gru": (replace(MODEL, cell="gru", options={}), {"epochs": 2}),
    "one cycle": (replace(MODEL, hidden_sizes=(8, 8), skip_connections=True, forget_bias=1.0), CYCLE),
}
TIMES = ("seconds", "tokens_per_second")


@pytest.fixture
def corpus(tmp_path):
    return Corpus(find_splits(write_letters(tmp_path / "text", "abcdefg", 60, 20)), min_count=1)


def run(corpus, folder, display, **training):
    """Train an LSTM."""
    model = LanguageModelConfig(cell="lstm", embedding_size=8, hidden_sizes=(8,))
    return train(
        RunConfig(DataConfig(), model, replace(TRAINING, **training)), LanguageModelling(corpus), folder, display
    )


def config_for(case, **training):
    model, settings = SETTINGS[case]
    return RunConfig(DataConfig(), model, replace(TRAINING, **{**settings, **training}))


def metrics(folder):
    return [{k: v for k, v in record.items() if k not in TIMES} for record in read_metrics(folder)]


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def same_end(one, two):
    assert weights(one) == weights(two)
    assert metrics(one) == metrics(two)
    (tensors, values), (others, other_values) = checkpoint.load(one), checkpoint.load(two)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    for times in (values, other_values):
        times.pop("seconds"), times.pop("validation_seconds"), times.pop("metrics")  # compared above
    assert values == other_values


@pytest.mark.parametrize("case", SETTINGS)
def test_a_training_cut_off_again_and_again_ends_in_the_same_bits(case, corpus, tmp_path):
    config = config_for(case)
    outcome = train(config, LanguageModelling(corpus), tmp_path / "whole", Quiet())
    cuts = 0
    for at in (1, 7, 12, 30, 3, 45):
        torch.rand(at)  # another state of the generator
        try:
            again = train(config, LanguageModelling(corpus), tmp_path / "cut", Quiet(at), resume=True)
            break
        except CutError:
            cuts += 1
    else:
        again = train(config, LanguageModelling(corpus), tmp_path / "cut", Quiet(), resume=True)
    assert cuts >= 3
    assert again == outcome
    same_end(tmp_path / "whole", tmp_path / "cut")
    assert len(list((tmp_path / "cut" / "checkpoint").glob("*.safetensors"))) == 2


def test_checkpoints_at_epochs_alone_do_as_well(corpus, tmp_path):
    config = config_for("awd", checkpoint_minutes=60.0)
    train(config, LanguageModelling(corpus), tmp_path / "whole", Quiet())
    for at in (20, 25):
        with pytest.raises(CutError):
            train(config, LanguageModelling(corpus), tmp_path / "cut", Quiet(at), resume=True)
    assert 0 < len(metrics(tmp_path / "cut")) < len(metrics(tmp_path / "whole"))
    train(config, LanguageModelling(corpus), tmp_path / "cut", Quiet(), resume=True)
    same_end(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_stays_as_it_is(corpus, tmp_path):
    config = config_for("adam")
    train(config, LanguageModelling(corpus), tmp_path / "run", Quiet())
    before = weights(tmp_path / "run")
    display = Quiet()
    train(config, LanguageModelling(corpus), tmp_path / "run", display, resume=True)
    assert weights(tmp_path / "run") == before and display.steps == 0


def test_more_epochs_go_on_where_fewer_ended(corpus, tmp_path):
    train(config_for("adam", epochs=4), LanguageModelling(corpus), tmp_path / "four", Quiet())
    train(config_for("adam", epochs=2), LanguageModelling(corpus), tmp_path / "two", Quiet())
    train(config_for("adam", epochs=4), LanguageModelling(corpus), tmp_path / "two", Quiet(), resume=True)
    same_end(tmp_path / "four", tmp_path / "two")


def test_a_spent_budget_is_not_spent_again(corpus, tmp_path):
    config = config_for("adam", minutes=1e-6)
    train(config, LanguageModelling(corpus), tmp_path / "run", Quiet())
    display = Quiet()
    assert "budget" in train(config, LanguageModelling(corpus), tmp_path / "run", display, resume=True).stopped
    assert display.steps == 0


@pytest.mark.parametrize("at", [3, 14])
@pytest.mark.parametrize("case", ["adam", "awd", "one cycle"])
def test_what_a_spent_budget_leaves_of_an_epoch_is_trained_when_there_is_more(case, at, corpus, tmp_path, monkeypatch):
    config, display = config_for(case), Quiet()
    train(config, LanguageModelling(corpus), tmp_path / "whole", Quiet())
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_out_of_time", lambda _: display.steps >= at)
        patch.setattr(Loop, "_budget", lambda _: "the budget is spent")
        outcome = train(config, LanguageModelling(corpus), tmp_path / "cut", display)
    *ended, cut = metrics(tmp_path / "cut")
    assert outcome.stopped == "the budget is spent" and outcome.epochs == len(ended) == cut["epoch"] - 1
    assert cut["step"] == display.steps == at + 1
    train(config, LanguageModelling(corpus), tmp_path / "cut", Quiet(), resume=True)
    whole, resumed = metrics(tmp_path / "whole"), metrics(tmp_path / "cut")
    assert resumed.pop(len(ended)) == cut
    for record in (*whole, *resumed):
        del record["best"]  # the weights within an epoch may have been better
    assert resumed == whole
    (tensors, values), (others, other_values) = (checkpoint.load(tmp_path / name) for name in ("whole", "cut"))
    assert (
        all(torch.equal(tensor, others[name]) for name, tensor in tensors.items()) and tensors.keys() == others.keys()
    )
    for name in ("step", "epoch", "losses", "base_rate", "averaged", "smooth_nats", "stage"):
        assert values[name] == other_values[name]


def test_a_score_within_an_epoch_is_no_epoch_without_a_better_one(corpus, tmp_path, monkeypatch):
    scores, display = iter([5.0, 1.0, 4.0, 3.0, 2.0]), Quiet()  # the second one is of a budget that ends within epoch 2
    monkeypatch.setattr(LanguageModelling, "score", lambda *_: Score(next(scores), {"perplexity": 1.0}))
    config = config_for("adam", epochs=4, patience=1)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_out_of_time", lambda _: display.steps >= 14)
        patch.setattr(Loop, "_budget", lambda _: "the budget is spent")
        train(config, LanguageModelling(corpus), tmp_path / "run", display)
    outcome = train(config, LanguageModelling(corpus), tmp_path / "run", Quiet(), resume=True)
    assert (outcome.epochs, outcome.stopped) == (4, "all epochs done")
    assert [record["best"] for record in metrics(tmp_path / "run")] == [True, True, False, False, False]


def test_damaged_checkpoints(corpus, tmp_path):
    config = config_for("adam")
    with pytest.raises(CutError):
        train(config, LanguageModelling(corpus), tmp_path / "run", Quiet(9))
    newest, older = sorted((tmp_path / "run" / "checkpoint").glob("*.safetensors"), reverse=True)
    content = newest.read_bytes()
    newest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # one bit of the last tensor
    tensors, values = checkpoint.load(tmp_path / "run")
    assert f"{values['step']:09d}" in older.name and tensors
    older.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"checkpoint: must hold a complete checkpoint; got .*another checksum"):
        train(config, LanguageModelling(corpus), tmp_path / "run", Quiet(), resume=True)


@pytest.mark.parametrize(
    ("old", "new"), [(b'\\"step\\": 9', b'\\"step\\": 8'), (b'"I64"', b'"U64"'), (b"[12,8]", b"[8,12]")]
)
def test_a_checkpoint_whose_values_types_or_shapes_changed_is_damaged(old, new, tmp_path):
    tensors = {"rank.0.count": torch.arange(3), "square": torch.zeros(12, 8)}
    checkpoint.save(tmp_path, 9, tensors, {"step": 9})
    (own,) = (tmp_path / "checkpoint").glob("step-*")
    content = own.read_bytes()
    assert old in content and checkpoint.load(tmp_path)[1] == {"step": 9}
    own.write_bytes(content.replace(old, new, 1))
    with pytest.raises(CheckpointError, match=r"is damaged; got another checksum"):
        checkpoint.load(tmp_path)


def test_a_checkpoint_of_another_version_is_named_in_one_sentence(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    path = tmp_path / "checkpoint" / "step-000000001.safetensors"
    save_file({"a": torch.zeros(2)}, path, {"values": "{}", "version": "3"})
    with pytest.raises(CheckpointError, match=r"of another version; got 3\. Use the version .*\. Start") as told:
        checkpoint.load(tmp_path)
    assert ".." not in str(told.value)


def as_version_1(run):
    """Rewrite a run's checkpoints as the first version wrote them."""
    for path in checkpoints(run):
        with safe_open(path, "pt") as file:
            values = json.loads(file.metadata()["values"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        del values["project"]
        values["metrics"], total = len(values["metrics"]), 0
        for name in sorted(tensors):
            content = tensors[name].reshape(-1).view(torch.uint8).numpy()
            total = zlib.crc32(content, zlib.crc32(name.encode(), total))
        save_file(tensors, path, {"values": json.dumps(values), "checksum": str(total)})


@pytest.mark.parametrize("at", [9, 30])
def test_a_run_whose_checkpoints_are_of_the_first_version_goes_on(at, corpus, tmp_path):
    config = config_for("adam")
    train(config, LanguageModelling(corpus), tmp_path / "whole", Quiet())
    with pytest.raises(CutError):
        train(config, LanguageModelling(corpus), tmp_path / "run", Quiet(at))
    as_version_1(tmp_path / "run")
    (tmp_path / "run" / "checksums.json").unlink()
    train(config, LanguageModelling(corpus), tmp_path / "run", Quiet(), resume=True)
    same_end(tmp_path / "whole", tmp_path / "run")


def test_a_first_version_s_run_without_its_metrics_or_with_damage_is_refused(corpus, tmp_path):
    config, run = config_for("adam", epochs=1), tmp_path / "run"
    train(config, LanguageModelling(corpus), run, Quiet())
    as_version_1(run)
    kept = (run / "metrics.jsonl").read_bytes()
    for content in (b"", b"{"):
        (run / "metrics.jsonl").write_bytes(content)
        with pytest.raises(CheckpointError, match="must hold the epochs of its checkpoint, which is of version 1"):
            checkpoint._read(checkpoints(run)[0])
    (run / "metrics.jsonl").write_bytes(kept)
    newest = checkpoints(run)[0]
    content = newest.read_bytes()
    newest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="another checksum"):
        checkpoint._read(newest)


@pytest.mark.parametrize("memory", [{}, {"a": torch.zeros(2)}])
def test_a_first_version_s_run_of_projected_weights_is_refused(memory, corpus, tmp_path):
    class Halves:
        name = "halves"

        def __init__(self):
            self.memory = memory

        def __call__(self, weights):
            return {}

    config, run = config_for("adam", epochs=1), tmp_path / "run"
    train(config, LanguageModelling(corpus), run, Quiet(), project=Halves())
    as_version_1(run)
    before = weights(run)
    rule = (
        r"^--resume: needs a checkpoint that says how the weights are projected; got one of version 1, .*another --out"
    )
    for project in (Halves(), None) if memory else (Halves(),):  # that it was projected shows in its memory alone
        with pytest.raises(ArgumentError, match=rule):
            train(config_for("adam"), LanguageModelling(corpus), run, Quiet(), resume=True, project=project)
    assert weights(run) == before


def test_the_last_two_whole_checkpoints_are_kept(tmp_path):
    for step in (1, 2, 9):
        checkpoint.save(tmp_path, step, {"a": torch.zeros(2)}, {"step": step})
    newest = tmp_path / "checkpoint" / "step-000000009.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert checkpoint.load(tmp_path)[1] == {"step": 2}
    checkpoint.save(tmp_path, 3, {"a": torch.zeros(2)}, {"step": 3})
    assert [path.stem for path in checkpoints(tmp_path)] == ["step-000000003", "step-000000002"]


def test_a_run_of_another_configuration_or_projection_is_refused(corpus, tmp_path):
    class Halves:
        name, memory = "halves", {}

        def __call__(self, weights):
            return {}

    config = config_for("adam", epochs=1)
    train(config, LanguageModelling(corpus), tmp_path / "run", Quiet())
    before = weights(tmp_path / "run")
    with pytest.raises(ArgumentError, match=r"model\.cell: must be as in the run; got 'lstm', and 'onlstm' in the run"):
        other = replace(config.model, cell="lstm", options={})
        train(replace(config, model=other), LanguageModelling(corpus), tmp_path / "run", Quiet(), resume=True)
    with pytest.raises(
        ArgumentError,
        match=r"must project the weights as at the start of the run, and begin with the same; got halves, and none before",
    ):
        train(config_for("adam"), LanguageModelling(corpus), tmp_path / "run", Quiet(), resume=True, project=Halves())
    assert weights(tmp_path / "run") == before


@pytest.mark.parametrize(("split", "named"), [("train", "training"), ("valid", "validation")])
def test_another_text_or_a_run_is_refused(corpus, tmp_path, split, named):
    config = config_for("adam")
    train(
        replace(config, training=replace(config.training, epochs=1)),
        LanguageModelling(corpus),
        tmp_path / "run",
        Quiet(),
    )
    with pytest.raises(DataError, match="Continue it with --resume"):
        train(config, LanguageModelling(corpus), tmp_path / "run", Quiet())
    with (tmp_path / "text" / f"{split}.txt").open("a") as file:
        file.write("\na b c\n")
    longer, before = Corpus(find_splits(tmp_path / "text"), corpus.vocabulary), weights(tmp_path / "run")
    rule = rf"data\.folder: must hold the text that the run started with; got another {named} text"
    with pytest.raises(ArgumentError, match=rule):
        train(config, LanguageModelling(longer), tmp_path / "run", Quiet(), resume=True)
    assert weights(tmp_path / "run") == before


def test_epochs_are_no_longer_read_once_finetuning_has_begun(corpus, tmp_path):
    config = config_for("awd")
    few = replace(config, training=replace(config.training, epochs=1, finetune_epochs=1))
    train(few, LanguageModelling(corpus), tmp_path / "run", Quiet())
    more = replace(few, training=replace(few.training, epochs=4))
    with pytest.raises(
        ArgumentError, match=r"training\.epochs: must be as in the run once finetuning has begun; got 4, and 1"
    ):
        train(more, LanguageModelling(corpus), tmp_path / "run", Quiet(), resume=True)


def test_fewer_epochs_than_are_trained_are_refused(corpus, tmp_path):
    config, out = config_for("awd"), tmp_path / "run"
    train(
        replace(config, training=replace(config.training, epochs=2, finetune_epochs=0)),
        LanguageModelling(corpus),
        out,
        Quiet(),
    )
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}

    def again(**epochs):
        training = replace(config.training, **{"epochs": 2, "finetune_epochs": 0, **epochs})
        return train(replace(config, training=training), LanguageModelling(corpus), out, Quiet(), resume=True)

    with pytest.raises(
        ArgumentError, match=r"training\.epochs: must be at least 2, which are trained; got 1\. Give more"
    ):
        again(epochs=1)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert again(finetune_epochs=2).epochs > 2
    with pytest.raises(
        ArgumentError, match=r"training\.finetune_epochs: must be at least \d, which are trained; got 0"
    ):
        again(finetune_epochs=0)
    again(finetune_epochs=2)


def test_a_live_run_is_refused(corpus, tmp_path):
    with (
        locked(tmp_path / "run"),
        pytest.raises(DataError, match="must not be in training already; got a run that another process trains"),
    ):
        train(config_for("adam"), LanguageModelling(corpus), tmp_path / "run", Quiet(), resume=True)


@pytest.mark.skipif(
    int(filelock.__version__.split(".")[0]) < 4, reason="older ones of filelock wait for a lock that never comes"
)
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(code, tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(DataError, match="must be on a file system with locks"), locked(tmp_path / "run"):
        pass


def test_what_may_change_in_a_run(corpus, tmp_path):
    config = config_for("adam", epochs=1)
    train(config, LanguageModelling(corpus), tmp_path / "run", Quiet())
    other = replace(config, training=replace(config.training, epochs=9, seed=5, learning_rate=0.5))
    given = {"training.epochs", "training.learning_rate"}
    merged = continued(tmp_path / "run", other, given)
    assert (merged.training.epochs, merged.training.learning_rate, merged.training.seed) == (9, 0.5, 1)
    with pytest.raises(ArgumentError, match=r"training\.seed: must be as in the run; got 5, and 1 in the run"):
        continued(tmp_path / "run", other, {*given, "training.seed"})


def test_a_lowered_rate_scales_what_the_schedule_had_reached(corpus, tmp_path):
    train(config_for("adam", epochs=1), LanguageModelling(corpus), tmp_path / "run", Quiet())
    train(
        config_for("adam", epochs=2, learning_rate=0.002),
        LanguageModelling(corpus),
        tmp_path / "run",
        Quiet(),
        resume=True,
    )
    assert [r["learning_rate"] for r in read_metrics(tmp_path / "run")] == pytest.approx([0.02, 0.002])


def test_an_interrupt_keeps_a_checkpoint_of_the_last_step(corpus, tmp_path):
    class Interrupting(Quiet):
        def step(self, done, loss_nats, tokens_per_second):
            self.steps += 1
            if self.steps == 5:
                os.kill(os.getpid(), signal.SIGINT)

    config = config_for("adam", checkpoint_minutes=60.0)
    train(config, LanguageModelling(corpus), tmp_path / "whole", Quiet())
    assert train(config, LanguageModelling(corpus), tmp_path / "cut", Interrupting()).stopped == "interrupted"
    assert checkpoint.load(tmp_path / "cut")[1]["step"] in (5, 6)
    train(config, LanguageModelling(corpus), tmp_path / "cut", Quiet(), resume=True)
    same_end(tmp_path / "whole", tmp_path / "cut")


class CutInValidation(Quiet):
    def end_epoch(self, record):
        raise CutError


def test_a_training_killed_in_its_first_validation_goes_on(corpus, tmp_path):
    config = config_for("adam", checkpoint_minutes=TrainingConfig().checkpoint_minutes)
    train(config, LanguageModelling(corpus), tmp_path / "whole", Quiet())
    with pytest.raises(CutError):
        train(config, LanguageModelling(corpus), tmp_path / "cut", CutInValidation())
    assert holds_trained(tmp_path / "cut")
    train(config, LanguageModelling(corpus), tmp_path / "cut", Quiet(), resume=True)
    same_end(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("minutes", [TrainingConfig().checkpoint_minutes, 1e-9])
def test_ctrl_c_twice_in_the_first_epoch_goes_on(minutes, corpus, tmp_path):
    class Twice(Quiet):
        def step(self, done, loss_nats, tokens_per_second):
            self.steps += 1
            if self.steps == 5:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    config = config_for("adam", checkpoint_minutes=minutes)
    train(config, LanguageModelling(corpus), tmp_path / "whole", Quiet())
    assert train(config, LanguageModelling(corpus), tmp_path / "cut", Twice()).stopped == "interrupted"
    train(config, LanguageModelling(corpus), tmp_path / "cut", Quiet(), resume=True)
    same_end(tmp_path / "whole", tmp_path / "cut")


def test_a_budget_spent_before_the_first_validation_leaves_a_validated_run(corpus, tmp_path):
    config = config_for("adam", minutes=1e-6)
    with pytest.raises(CutError):
        train(config, LanguageModelling(corpus), tmp_path / "run", CutInValidation())
    outcome = train(config, LanguageModelling(corpus), tmp_path / "run", Quiet(), resume=True)
    assert "budget" in outcome.stopped and outcome.best and len(metrics(tmp_path / "run")) == 1


def test_a_checkpoint_holds_the_state_of_a_stream_and_none_of_sentences(corpus, tmp_path):
    for unit, length, held in (("stream", 10, True), ("sentence", 35, False)):
        with pytest.raises(CutError):
            run(corpus, tmp_path / unit, Quiet(3), unit=unit, sequence_length=length)
        tensors, _ = checkpoint.load(tmp_path / unit)
        assert any(".states." in name for name in tensors) == held


# The parts.


def test_the_average_is_that_of_torch_s_averaged_sgd():
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    sgd = torch.optim.SGD(ours.parameters(), lr=0.1, weight_decay=0.01)
    asgd = torch.optim.ASGD(theirs.parameters(), lr=0.1, t0=0, lambd=0.0, weight_decay=0.01)
    average = Average(ours)
    for step in range(7):
        x = torch.randn(4, 5)
        for model, optimizer in ((ours, sgd), (theirs, asgd)):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        if step:  # torch's leaves out the first
            average.update()
    last = [parameter.detach().clone() for parameter in ours.parameters()]
    average.swap()
    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), asgd.state[other]["ax"])
    average.swap()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), last, strict=True))


def test_the_trigger_of_averaging():
    assert not no_longer_better([3.0, 2.0, 1.0], None)
    falling = [10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0]
    assert not no_longer_better(falling, 5)
    assert not no_longer_better([4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 5)  # there must be one before the last five
    assert no_longer_better([4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 4.5], 5)
    assert not no_longer_better([4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 3.5], 5)
    fixed = replace(TRAINING, average_epoch=3)
    assert [starts_averaging(fixed, falling[:n]) for n in (1, 2, 3, 4)] == [False, False, True, True]


def test_the_learning_rate_over_steps():
    cosine = replace(TRAINING, schedule="cosine", warmup_steps=4)
    rates = [rate(cosine, 1.0, step, 24, 10) for step in range(24)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[14] == pytest.approx(0.5) and 0 < rates[-1] < 0.01
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rate(cosine, 1.0, 14, 24, 10, spent=0.75) == pytest.approx(0.1464, abs=1e-4)
    assert rate(cosine, 1.0, 14, 24, 10, spent=1.2) == 0
    random_lengths = replace(TRAINING, random_lengths=True, schedule="constant")
    assert rate(random_lengths, 30.0, 99, 100, 35) == pytest.approx(30.0 * 35 / 10)


def test_a_checkpoint_is_tensors_and_text_alone(corpus, tmp_path):
    with pytest.raises(CutError):
        train(config_for("awd"), LanguageModelling(corpus), tmp_path / "run", Quiet(12))
    tensors, values = checkpoint.load(tmp_path / "run")
    json.dumps(values)
    model = LanguageModel(replace(NOISY, vocabulary_size=len(corpus.vocabulary)))
    names = {f"model.{name}" for name in model.state_dict()} - {"model.decoder.weight"}
    assert names <= tensors.keys() and {"rank.0.rng", "rank.0.states.1.1"} <= tensors.keys()


def test_a_checkpoint_of_before_does_not_say_which_text_validated(corpus, tmp_path, monkeypatch):
    config = config_for("adam")
    one = replace(config, training=replace(config.training, epochs=1))
    with monkeypatch.context() as patched:
        written = checkpoint.save
        leave = lambda values: {name: value for name, value in values.items() if name != "valid_text"}  # noqa: E731
        patched.setattr(
            checkpoint, "save", lambda run, step, tensors, values: written(run, step, tensors, leave(values))
        )
        train(one, LanguageModelling(corpus), tmp_path / "run", Quiet())
    assert "valid_text" not in checkpoint.load(tmp_path / "run")[1]
    assert train(config, LanguageModelling(corpus), tmp_path / "run", Quiet(), resume=True).epochs == 3
    assert checkpoint.load(tmp_path / "run")[1]["valid_text"] == LanguageModelling(corpus).checksum("valid")


def test_finetuning_reads_all_of_its_first_epoch_where_the_last_one_was_cut_off(corpus, tmp_path):
    display, config = Quiet(), config_for("adam", epochs=1)
    train(config, LanguageModelling(corpus), tmp_path / "one", display)
    with pytest.raises(CutError):
        many = replace(config, training=replace(config.training, epochs=5, finetune_epochs=1))
        train(many, LanguageModelling(corpus), tmp_path / "run", Quiet(2 * display.steps + 2))
    few, last = replace(many, training=replace(many.training, epochs=2)), Quiet()
    train(few, LanguageModelling(corpus), tmp_path / "run", last, resume=True)
    assert last.steps == display.steps
    assert metrics(tmp_path / "run")[-1]["train_loss_nats"] < 10


def test_a_checkpoint_that_cannot_be_written_whole_leaves_nothing(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"a": torch.zeros(2)}, {"step": 1})

    def half(tensors, path, text):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", half)
    for step in (1, 2):
        with pytest.raises(DataError, match="No space left on device"):
            checkpoint.save(tmp_path, step, {"a": torch.ones(2)}, {"step": step})
        assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["step-000000001.safetensors"]
        assert checkpoint.load(tmp_path)[1] == {"step": 1}
