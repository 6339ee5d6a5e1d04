"""Trainings in float64, with projections onto low ranks, and in 16-mixed on a machine without a GPU."""

from dataclasses import replace

import pytest
import torch
from displays import CutError, Quiet
from small_trainings import MODEL, TRAINING, corpus_in, run

from gatedrnn.core.errors import ArgumentError
from gatedrnn.data.logic import make_pairs
from gatedrnn.models import LanguageModel, PairClassifierConfig
from gatedrnn.studies.compression import Projection, Scheme
from gatedrnn.tasks import Inference, LanguageModelling
from gatedrnn.training import checkpoint, loop
from gatedrnn.training.distribution import make_fabric


@pytest.fixture
def corpus(tmp_path):
    return corpus_in(tmp_path / "text")


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


@pytest.mark.parametrize("kind", [LanguageModelling, Inference])
def test_losses_of_float64_are_not_rounded(corpus, tmp_path, kind):
    settings = {"precision": "64-true"}
    if kind is LanguageModelling:
        task, config, settings = (
            LanguageModelling(corpus),
            MODEL,
            settings | {"activation_penalty": 2.0, "temporal_penalty": 1.0},
        )
    else:
        task, config = Inference({"train": make_pairs(9, 1)}), PairClassifierConfig(hidden_sizes=(10,))
    training = replace(TRAINING, **settings)
    model = task.network(task.complete(config), "auto")
    wrapped, _ = make_fabric(training, tmp_path).setup(model, torch.optim.SGD(model.parameters()))
    found = []
    for each in (wrapped, model):  # the second is plain PyTorch
        torch.manual_seed(1)
        batch = task.batches(training, 1)[0]
        loss = task.loss(each, training, batch, None, batch.count, torch.device("cpu"))
        total = loss.nats + loss.penalty
        found.append([total, *torch.autograd.grad(total, list(model.parameters()))])
    assert all(value.dtype == torch.float64 for value in found[0])
    for own, plain in zip(*found, strict=True):
        torch.testing.assert_close(own, plain, rtol=0, atol=0)


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
