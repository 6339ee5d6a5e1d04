"""The tiny runs on which every command is tried, trained once a session."""

import pytest
import yaml
from terminal import works

from gatedrnn.cli.commands import compress
from gatedrnn.data import write_corpus

LEVELS = {"char": {"level": "char", "min_count": 1}, "subword": {"level": "subword", "vocabulary_size": 300}}


def _trained(folder, name, data, *options):
    sections = {
        "data": data,
        "model": {"cell": "onlstm", "embedding_size": 16, "hidden_sizes": [20, 16], "options": {"chunk_size": 4}},
        "training": {"epochs": 7, "batch_size": 8, "sequence_length": 20, "learning_rate": 0.01, "device": "cpu"},
    }
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(sections))
    where = ("--data", folder / "text", "--out", folder / name)
    return works("train", "--config", config, *where, "--training.epochs", 1, "--json", *options)


@pytest.fixture(scope="session", autouse=True)
def briefly_timed():
    """Speeds that `compress` tells are those of fewer tokens."""
    compress._TIMED_TOKENS = {1: 100, 64: 2_000}


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """A folder with a corpus, a configuration and three runs: `run` and `other` of an ON-LSTM, `lstm` of an LSTM."""
    folder = tmp_path_factory.mktemp("cli")
    write_corpus(folder / "text", seed=1, train=150, valid=25, test=25)
    (folder / "trained.json").write_text(_trained(folder, "run", {"min_count": 1}))
    _trained(folder, "other", {"min_count": 1}, "--training.seed", 2)
    lstm = ["--model.cell", "lstm", "--model.hidden_sizes", "[16]", "--model.options.chunk_size", 10]
    _trained(folder, "lstm", {"min_count": 1}, *lstm)
    return folder


@pytest.fixture(scope="session")
def levels(work):
    """The folder of `work` with two more runs: `char` and `subword`."""
    for name, data in LEVELS.items():
        _trained(work, name, data)
    return work
