"""Trainings at their edges: another precision, another device, the stage after the main one, processes, messages."""

from dataclasses import replace

import pytest
import torch
from letters import write_letters

from gatedrnn.core.config import from_dict
from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import Corpus, DataConfig, find_splits
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.studies.compression import Projection, Scheme
from gatedrnn.tasks import GrammarInduction, LanguageModelling
from gatedrnn.tasks.task import check_read
from gatedrnn.training import checkpoint, loop
from gatedrnn.training.config import RunConfig, TrainingConfig
from gatedrnn.training.loop import train
from gatedrnn.training.run import read_metrics

MODEL = LanguageModelConfig(cell="lstm", embedding_size=8, hidden_sizes=(8,))
TRAINING = TrainingConfig(
    epochs=2, batch_size=4, sequence_length=10, learning_rate=0.05, device="cpu", checkpoint_minutes=1e-9
)


class CutError(Exception):
    """What stops a training without warning."""


class Quiet:
    """A display that says nothing, and can cut off after some steps."""

    def __init__(self, at=None):
        self.at, self.steps = at, 0

    def start_epoch(self, epoch, steps):
        pass

    def step(self, done, loss_nats, per_second):
        self.steps += 1
        if self.steps == self.at:
            raise CutError

    def end_epoch(self, record):
        pass


@pytest.fixture
def corpus(tmp_path):
    return Corpus(find_splits(write_letters(tmp_path / "text", "abcdefg", 40, 20)), min_count=1)


def run(corpus, folder, display=None, *, resume=False, project=None, **training):
    config = RunConfig(DataConfig(), MODEL, replace(TRAINING, **training))
    return train(config, LanguageModelling(corpus), folder, display or Quiet(), resume=resume, project=project)


def svd(corpus):
    """A projection onto low ranks, which remembers row spaces."""
    return Projection(LanguageModel(LanguageModelling(corpus).complete(MODEL)), Scheme("svd", rank=2))


@pytest.mark.parametrize("at", [1, 2, 9])
def test_low_ranks_are_trained_and_resumed_in_float64(corpus, tmp_path, at):
    for folder, cuts in (("whole", []), ("cut", [at])):
        for cut in cuts:
            with pytest.raises(CutError):
                run(corpus, tmp_path / folder, Quiet(cut), project=svd(corpus), precision="64-true")
        project = svd(corpus)
        run(corpus, tmp_path / folder, resume=bool(cuts), project=project, precision="64-true")
        assert project.memory and all(space.dtype == torch.float64 for space in project.memory.values())
    whole, cut = (tmp_path / folder / "model.safetensors" for folder in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


def test_a_projection_of_float64_is_that_of_float32():
    torch.manual_seed(0)
    model = LanguageModel(replace(MODEL, vocabulary_size=9))
    projects = [Projection(model, Scheme("svd", rank=3)) for _ in range(2)]
    for _ in range(3):
        weights = {name: value.detach() for name, value in model.named_parameters()}
        plain, double = projects[0](weights), projects[1]({name: value.double() for name, value in weights.items()})
        for name, value in plain.items():
            assert double[name].dtype == torch.float64
            torch.testing.assert_close(double[name].float(), value, atol=1e-5, rtol=1e-4)


def test_a_checkpoint_holds_the_state_of_a_stream_and_none_of_sentences(corpus, tmp_path):
    for unit, length, held in (("stream", 10, True), ("sentence", 35, False)):
        with pytest.raises(CutError):
            run(corpus, tmp_path / unit, Quiet(3), unit=unit, sequence_length=length)
        tensors, _ = checkpoint.load(tmp_path / unit)
        assert any(".states." in name for name in tensors) == held


@pytest.mark.parametrize("scaler", [{}, {"scale": 65536.0}])
def test_a_run_of_16_mixed_that_a_gpu_began_is_not_resumed_on_a_cpu(corpus, tmp_path, monkeypatch, scaler):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "check_precision", lambda *_: None)  # as in versions that took bfloat16 in silence
        run(corpus, tmp_path / "run", precision="16-mixed", epochs=1)
    tensors, values = checkpoint.load(tmp_path / "run")
    assert values["precision"] == {}
    checkpoint.save(tmp_path / "run", values["step"], tensors, values | {"precision": scaler})
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    if not scaler:
        run(corpus, tmp_path / "run", resume=True, precision="16-mixed")
        return
    rule = (
        r"training\.precision: needs a GPU with 16-mixed; got 16-mixed on the CPU\. Resume the run on a GPU, or start"
    )
    with pytest.raises(ArgumentError, match=rule):
        run(corpus, tmp_path / "run", resume=True, precision="16-mixed")
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_finetuning_keeps_its_learning_rate(corpus, tmp_path):
    run(corpus, tmp_path / "run", epochs=3, finetune_epochs=3, plateau_threshold=0.9)
    rates = [record["learning_rate"] for record in read_metrics(tmp_path / "run")]
    assert rates == pytest.approx([0.05, 0.05, 0.025, 0.05, 0.05, 0.05])


def test_a_loss_that_explodes_is_told_with_its_bound(corpus, tmp_path):
    rule = r"^training: the loss must be finite and below 100 nats \(epoch 1, step \d+\); got \d"
    with pytest.raises(ArgumentError, match=rule):
        run(corpus, tmp_path / "run", optimizer="sgd", learning_rate=1e4, gradient_clip=0.0)


def test_a_batch_size_of_validation_has_no_effect_for_a_grammar():
    training = replace(GrammarInduction.training, evaluation_batch_size=7)
    with pytest.raises(
        ArgumentError, match=r"training\.evaluation_batch_size: has no effect for grammar; got 7\. Leave it out"
    ):
        check_read(GrammarInduction, training)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"task": ["translation"]}, r"^task: unknown name; got \['translation'\]\. Did you mean 'translation'\?"),
        ({"task": {"a": 1}}, r"^task: unknown name; got \{'a': 1\}\. Known: "),
        ({"data": {"folder": 2024}}, r"^data\.folder: must be text; got 2024\. Put it in quotes\.$"),
        ({"data": {"level": ["word"]}}, r"^data\.level: must be text; got \['word'\]\. Change the value\.$"),
        (
            {"task": "translation", "data": {"columns": "de"}},
            r"columns: must be a list; got 'de'\. Write \[name, name\]",
        ),
        ({"model": {"hidden_sizes": 8}}, r"^model\.hidden_sizes: must be a list; got 8\. Write \[300, 300\]\.$"),
        ({"training": {"betas": 1}}, r"^training\.betas: must be a list; got 1\. Write \[0\.9, 0\.99\]\.$"),
    ],
)
def test_a_value_of_another_type_is_told_with_what_to_write(values, message):
    with pytest.raises(ArgumentError, match=message):
        from_dict(RunConfig, values, "")
