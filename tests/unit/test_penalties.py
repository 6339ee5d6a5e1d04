"""Penalties on activations against means by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_trainings import MODEL, TRAINING, corpus_in

from gatedrnn.data.batching import Window
from gatedrnn.data.ragged import columns_of
from gatedrnn.models import LanguageModelOutput
from gatedrnn.tasks import LanguageModelling
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.penalties import penalties


def made(lengths, steps=4):
    """A window and a model's output for it [4, 4, 5]."""
    torch.manual_seed(1)
    ids = np.zeros((steps, 4), np.int64)
    window = Window(ids, ids, ids.size, None if lengths is None else np.array(lengths))
    return window, LanguageModelOutput(None, None, [], None, *torch.randn(2, steps, 4, 5))


def penalty(window, output, activation, temporal):
    lengths = None if window.lengths_B is None else torch.tensor(window.lengths_B)
    training = TrainingConfig(activation_penalty=activation, temporal_penalty=temporal)
    return float(penalties(training, output, window, lengths))


@pytest.mark.parametrize(("activation", "temporal"), [(2.0, 0.0), (0.0, 3.0), (2.0, 3.0), (0.0, 0.0)])
@pytest.mark.parametrize("lengths", [None, [4, 1, 2, 3]])
def test_they_are_means_over_the_steps_that_count(activation, temporal, lengths):
    window, output = made(lengths)
    columns = [(output.hidden[:n, b], output.dropped[:n, b]) for b, n in enumerate(lengths or [4] * 4)]
    squares = torch.cat([dropped for _, dropped in columns]).square().mean()
    changes = torch.cat([hidden[1:] - hidden[:-1] for hidden, _ in columns]).square().mean()
    expected = activation * float(squares) + temporal * float(changes)
    assert penalty(window, output, activation, temporal) == pytest.approx(expected)


@pytest.mark.parametrize("lengths", [None, [4, 1, 2, 3]])
def test_those_of_a_batch_are_the_mean_of_those_of_its_parts(lengths):
    window, output = made(lengths)
    found = []
    for k in range(2):
        here = columns_of(k, 4, 2)
        part = output._replace(hidden=output.hidden[:, here], dropped=output.dropped[:, here])
        found.append(penalty(window.part(k, 2), part, 2.0, 3.0))
    assert np.mean(found) == pytest.approx(penalty(window, output, 2.0, 3.0))


def test_a_window_of_one_step_has_no_change():
    assert penalty(*made(None, steps=2), 0.0, 3.0) > 0
    assert penalty(*made(None, steps=1), 0.0, 3.0) == penalty(*made([1] * 4, steps=1), 0.0, 3.0) == 0


@torch.no_grad()
def test_the_loss_of_a_language_model_has_them_beside_it(tmp_path):
    task = LanguageModelling(corpus_in(tmp_path / "text"))
    training = replace(TRAINING, activation_penalty=2.0, temporal_penalty=3.0)
    model, batch = task.network(task.complete(MODEL), "auto").eval(), task.batches(training, 1)[0]
    loss = task.loss(model, training, batch, None, batch.count, torch.device("cpu"))
    expected = penalty(batch, model(torch.from_numpy(batch.inputs_TB)), 2.0, 3.0)
    assert float(loss.penalty) == pytest.approx(expected) and expected > 0
