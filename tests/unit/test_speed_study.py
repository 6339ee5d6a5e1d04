"""Memory that `bench` measures, of any layer and backend."""

from pathlib import Path

import pytest

from gatedrnn import CELLS
from gatedrnn.cells import own
from gatedrnn.cli.main import main
from gatedrnn.core.errors import ArgumentError, GatedRNNError
from gatedrnn.studies.speed import measure, peak_growth
from gatedrnn.studies.speed.shapes import shape_named

OWN = """from gatedrnn.cells import CELLS
from dataclasses import replace

CELLS.register("like_rnn", replace(CELLS["rnn"], name="like_rnn"))
"""


@pytest.fixture
def imported(tmp_path):
    """A cell of one's own, as `--import` makes it known."""
    path = tmp_path / "like.py"
    path.write_text(OWN + "\nprint('imported')\n")
    own.import_cells(path)
    yield "like_rnn"
    CELLS._entries.pop("like_rnn")
    own._RUN.clear()


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the system does not tell a process's peak memory"
)
def test_memory_of_one_layer_of_an_own_cell_on_a_backend(imported):
    assert peak_growth(imported, "H16-B2-T3", 1, "reference") >= 0
    with pytest.raises(GatedRNNError, match=r"bench rnn: its memory could not be measured; got .*nonsense"):
        peak_growth("rnn", "H16-B2-T3", 1, "nonsense")


def test_memory_is_measured_on_the_backend_of_the_row(monkeypatch):
    asked = []
    monkeypatch.setitem(measure.__globals__, "peak_growth", lambda *given: asked.append(given) or 5)
    found = measure("H8-B2-T2", ["rnn"], runs=1, backends=("torch", "reference"), memory=True)
    assert [given[:2] + given[3:] for given in asked] == [
        ("torch.nn.RNN", "H8-B2-T2", "torch"), ("torch.nn.LSTM", "H8-B2-T2", "torch"), ("rnn", "H8-B2-T2", "torch"),
    ]  # fmt: skip
    assert sum(row.get("peak_bytes") == 5 for row in found["rows"]) == 3


def test_memory_of_inference_is_refused():
    with pytest.raises(ArgumentError, match=r"bench\.memory: works only with shapes of training; got S4"):
        measure("S4", ["lstm"], memory=True)


def test_shapes_are_checked_before_the_first_is_measured(monkeypatch, capsys):
    monkeypatch.setattr("gatedrnn.cli.commands.bench.measure", None)
    assert main(["bench", "--shape", "S3", "--shape", "S4", "--memory"]) == 1
    assert "works only with shapes of training; got S4" in capsys.readouterr().err


def test_memory_of_a_gpu_is_refused_in_one_line(capsys):
    assert main(["bench", "--device", "cuda", "--memory"]) == 1
    told = "gatedrnn: bench.memory: works only with device cpu; got device=cuda. Leave --memory out.\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("name", ["H0-B1-T1", "H16-B0-T5", "H16-B1-T0", "H99999999999999999999-B1-T1"])
def test_sizes_of_a_shape_are_positive(name):
    with pytest.raises(ArgumentError, match=rf"^bench\.shape {name}: must be "):
        shape_named(name)
