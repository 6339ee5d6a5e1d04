"""The layer and gate that make a run's trees: cells without one of the gates, odd values, and what is said of them."""

from dataclasses import replace

import pytest

from gatedrnn.cells import CELLS, Cell, Gate, Spec
from gatedrnn.cli.scores import how
from gatedrnn.core.errors import ArgumentError
from gatedrnn.models import LanguageModelConfig


@pytest.fixture
def forgetful(monkeypatch):
    """The configuration of a cell whose only master gate is the forget gate."""
    known = dict(CELLS.items())
    gates = lambda hidden: (Gate("hidden", hidden, "tanh"), Gate("master_forget", hidden, "cumax"))  # noqa: E731
    known["forgetful"] = Cell("forgetful", "f", lambda hidden: Spec(hidden, gates(hidden), ("h",)), known["rnn"].step)
    monkeypatch.setattr("gatedrnn.models.config.CELLS", known)
    return LanguageModelConfig(9, cell="forgetful", embedding_size=8, hidden_sizes=(8, 8))


def test_a_cell_without_one_master_gate_is_not_read_by_it(forgetful):
    assert replace(forgetful, tree_layer="mean").layer_of_trees == "mean"
    for gate in ("both", "master_input"):
        with pytest.raises(ArgumentError, match=r"model.tree_gate: needs a cell with a master input gate; got"):
            replace(forgetful, tree_gate=gate)


@pytest.mark.parametrize("layer", [2.0, "2", True])
def test_a_layer_is_a_whole_number(layer):
    config = LanguageModelConfig(9, cell="onlstm", embedding_size=8, hidden_sizes=(8, 8))
    with pytest.raises(ArgumentError, match=rf"model.tree_layer: must lie in 1…2, or be mean; got {layer!r}"):
        replace(config, tree_layer=layer)


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("both", "distances from both master gates"),
        (["both", "master_input"], "distances from both master gates and the master input gate"),
    ],
)
def test_the_gates_are_told_in_words(gate, said):
    assert how({"words": "ptb", "mapping": None, "gate": gate}).endswith(said)
