"""Settings of a training that have no effect are refused, and runs that began with one go on."""

from dataclasses import replace

import pytest
import torch
from displays import Quiet
from letters import write_letters
from lightning_fabric.plugins.precision import MixedPrecision

from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import Corpus, DataConfig, find_splits
from gatedrnn.models import LanguageModelConfig
from gatedrnn.tasks import GrammarInduction, Inference, LanguageModelling, Translation
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.task import check_read
from gatedrnn.training.config import RunConfig
from gatedrnn.training.loop import _optimizer, train
from gatedrnn.training.run import continued

WITHOUT = [
    (LanguageModelling, {"optimizer": "sgd", "betas": (0.8, 0.99)}, "betas: has no effect with optimizer: sgd"),
    (LanguageModelling, {"unit": "sentence", "sequence_length": 9}, "sequence_length: has no effect with unit: sent"),
    (Inference, {"schedule": "cosine", "plateau_factor": 0.3}, "plateau_factor: has no effect with schedule: cosine"),
    (Translation, {"schedule": "constant", "plateau_threshold": 0.1}, "plateau_threshold: has no effect with sched"),
]


@pytest.mark.parametrize(("task", "settings", "said"), WITHOUT)
def test_a_setting_without_an_effect_is_refused(task, settings, said):
    with pytest.raises(ArgumentError, match=rf"training\.{said}.*; got .*\. Leave it out"):
        check_read(task, replace(task.training, **settings))


def test_settings_with_an_effect_and_defaults_of_a_task_are_taken():
    check_read(LanguageModelling, TrainingConfig(betas=(0.8, 0.9), sequence_length=9, plateau_factor=0.3))
    check_read(GrammarInduction, replace(GrammarInduction.training, optimizer="sgd"))
    check_read(Translation, replace(Translation.training, schedule="cosine"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": "sgd", "betas": (0.8, 0.99)}, r"training\.betas: has no effect"),
        ({"schedule": "one_cycle", "warmup_steps": 9}, r"training\.warmup_steps: must be 0"),
    ],
)
def test_an_earlier_run_with_such_a_setting_is_resumed(settings, said, tmp_path, monkeypatch):
    task = LanguageModelling(Corpus(find_splits(write_letters(tmp_path / "text", "abc", 20, 5)), min_count=1))
    training = TrainingConfig(epochs=1, batch_size=2, device="cpu", **settings)
    model = LanguageModelConfig(cell="lstm", embedding_size=4, hidden_sizes=(4,))
    config, out = RunConfig(DataConfig(), model, training), tmp_path / "run"
    with pytest.raises(ArgumentError, match=said):
        train(config, task, out, Quiet())
    with monkeypatch.context() as patch:
        patch.setattr("gatedrnn.training.loop.check_read", lambda *_: None)
        train(config, task, out, Quiet())
    again = continued(out, replace(config, training=replace(training, epochs=2)), {"training.epochs"})
    assert train(again, task, out, Quiet(), resume=True).epochs == 2


def test_a_batch_size_of_validation_has_no_effect_for_a_grammar():
    training = replace(GrammarInduction.training, evaluation_batch_size=7)
    with pytest.raises(
        ArgumentError, match=r"training\.evaluation_batch_size: has no effect for grammar; got 7\. Leave it out"
    ):
        check_read(GrammarInduction, training)


def test_a_final_temperature_that_no_gate_can_have_is_refused():
    for value in (1e-42, 1e300):
        with pytest.raises(
            ArgumentError, match=r"training\.final_temperature: must have an inverse that float32 can hold"
        ):
            TrainingConfig(final_temperature=value)


@pytest.mark.parametrize(
    ("values", "given", "left"),
    [
        (
            {"unit": "sentence", "random_lengths": True, "peak_beta": 0.7, "schedule": "one_cycle"},
            "unit",
            {"random_lengths"},
        ),
        ({"schedule": "cosine", "peak_beta": 0.7, "warmup_steps": 5}, "schedule", {"peak_beta"}),
        ({"schedule": "one_cycle", "peak_beta": 0.7, "warmup_steps": 5}, "schedule", {"warmup_steps"}),
        ({"schedule": "one_cycle", "optimizer": "sgd", "peak_beta": 0.7}, "optimizer", {"peak_beta"}),
        ({"schedule": "cosine", "peak_beta": 0.7}, "epochs", set()),
        ({"schedule": "cosine", "peak_beta": 0.7}, "unit", set()),
    ],
)
def test_what_an_option_forbids_of_a_file_is_left_out(values, given, left):
    assert values.keys() - TrainingConfig.without_clashes(values, {f"training.{given}"}).keys() == left
    said = {f"training.{given}", *(f"training.{name}" for name in left)}
    assert TrainingConfig.without_clashes(values, said) == values


def test_gradients_of_16_mixed_can_be_clipped():
    """Fabric does not clip the gradients of a fused optimiser behind a scaler."""
    layer = torch.nn.Linear(2, 2)
    assert _optimizer(layer, TrainingConfig()).defaults["fused"] is True
    precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    optimizer = _optimizer(layer, TrainingConfig(precision="16-mixed"))
    precision.scaler.scale(layer(torch.ones(1, 2)).sum()).backward()
    precision.unscale_gradients(optimizer)
