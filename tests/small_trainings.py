"""Trainings of a small LSTM on a text of letters, of some seconds at most."""

from dataclasses import replace

from displays import Quiet
from letters import write_letters

from gatedrnn.data import Corpus, DataConfig, find_splits
from gatedrnn.models import LanguageModelConfig
from gatedrnn.tasks import LanguageModelling
from gatedrnn.training.config import RunConfig, TrainingConfig
from gatedrnn.training.loop import train

MODEL = LanguageModelConfig(cell="lstm", embedding_size=8, hidden_sizes=(8,))
TRAINING = TrainingConfig(
    epochs=2, batch_size=4, sequence_length=10, learning_rate=0.05, device="cpu", checkpoint_minutes=1e-9
)


def corpus_in(folder):
    """A corpus of letters that is written there."""
    return Corpus(find_splits(write_letters(folder, "abcdefg", 40, 20)), min_count=1)


def run(corpus, folder, display=None, *, resume=False, project=None, **training):
    """Train into `folder`. Args: training: settings that differ from TRAINING."""
    config = RunConfig(DataConfig(), MODEL, replace(TRAINING, **training))
    return train(config, LanguageModelling(corpus), folder, display or Quiet(), resume=resume, project=project)
