"""Studies at their edges: what gates keep, ranks of small weights, memory of any layer."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gatedrnn import CELLS, Recurrent
from gatedrnn.cells import Cell, Gate, Spec, own
from gatedrnn.cli.main import main
from gatedrnn.core.errors import ArgumentError, GatedRNNError
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.studies.compression import Projection, Scheme, compressed, published
from gatedrnn.studies.gates import collect, kept_share
from gatedrnn.studies.speed import measure, peak_growth
from gatedrnn.tasks.gates import LayerGates

SIZE = 12


def janet_spec(hidden_size):
    gates = Gate("forget_gate", hidden_size), Gate("cell_candidate", hidden_size, "tanh")
    return Spec(hidden_size, gates, ("h",))


def janet_step(spec, params, x_gates, h_gates, state):
    """h = f∘h' + (1 − f)∘n: the only state is h, and the gate keeps."""
    (h,) = state
    a, b = spec.split(x_gates + h_gates)
    f, n = spec.squash("forget_gate", a), spec.squash("cell_candidate", b)
    return (f * h + (1 - f) * n,), {"forget_gate": f, "cell_candidate": n}


def layers():
    """A layer of every cell."""
    for name, cell in CELLS.items():
        options = {"chunk_size": 4} if "chunk_size" in cell.options else {}
        yield name, Recurrent(name, 8, SIZE, backend="reference", **options)
    yield "gru, reset before", Recurrent("gru", 8, SIZE, backend="reference", reset_after=False)


@torch.no_grad()
def test_the_kept_share_is_how_much_of_the_old_state_remains(monkeypatch):
    """Gates that read neither h' nor c': then the new state moves with the old one by what is kept, and by nothing else."""
    torch.manual_seed(0)
    monkeypatch.setitem(CELLS._entries, "janet", Cell("janet", "JANET", janet_spec, janet_step))
    without = set()
    for name, layer in layers():
        for parameter, value in layer.named_parameters():
            value.zero_() if parameter.startswith(("weight_hh", "weight_ch")) else torch.nn.init.normal_(value)
        layer.eval()  # without noise
        x, states = torch.randn(1, 3, 8), [torch.rand(1, 3, SIZE) + 0.5 for _ in layer.spec.states]
        place = min(1, len(states) - 1)  # c, or h where there is no c

        def after(given, layer=layer, x=x, place=place):
            _, final, trace = layer(x, tuple(given) if len(given) > 1 else given[0], return_gates=True)
            return final[place] if isinstance(final, tuple) else final, trace[0]

        first, trace = after(states)
        moved, _ = after([state + (k == place) for k, state in enumerate(states)])
        kept = kept_share(layer.spec, trace)
        if kept is None:
            without.add(name)
        else:
            torch.testing.assert_close(kept, moved - first, msg=name)
    assert without == {"rnn", "slstm"}


def test_a_cell_with_one_master_gate_has_statistics():
    spec = Spec(4, (Gate("hidden", 4, "tanh"), Gate("master_forget", 4, "cumax")), ("h",))
    trace = {"hidden": torch.zeros(3, 4), "master_forget": torch.full((3, 4), 0.25)}
    (found,) = collect([[LayerGates("1", spec, trace)]])
    assert (found.split_points, found.distance, found.update_frequency) == ({"master_forget": 0.75}, 0.75, [])


@torch.no_grad()
def test_an_exponential_forget_gate_is_no_share_and_counts_as_1_at_most():
    torch.manual_seed(0)
    layer = Recurrent("slstm", 8, SIZE, backend="reference")
    layer.bias_ih_l0[:SIZE] = -60.0  # of the input gate
    trace = layer(torch.randn(5, 1, 8), return_gates=True)[2][0]
    assert trace["forget_gate"][0].min() > 1e9  # it multiplies an empty state
    held = {name: values[:, 0] for name, values in trace.items()}
    (found,) = collect([[LayerGates("1", layer.spec, held)]])
    assert found.update_frequency == []
    assert all(0 <= gate.mean <= 1 for name, gate in found.gates.items() if name != "cell_candidate")


def test_the_mean_of_a_cell_s_own_exponential_gate_is_what_it_is():
    spec = Spec(4, (Gate("hidden", 4, "tanh"), Gate("scale", 4, "exp")), ("h",))
    trace = {"hidden": torch.zeros(3, 4), "scale": torch.full((3, 4), 5.5)}
    (found,) = collect([[LayerGates("1", spec, trace)]])
    assert found.gates["scale"].mean == 5.5


@pytest.mark.parametrize("embedding_size", [1, 2, 4, 30])
def test_the_published_ranks_stay_below_the_sides_of_small_weights(embedding_size):
    config = LanguageModelConfig(9, cell="lstm", embedding_size=embedding_size, hidden_sizes=(48,), tied=False)
    model = LanguageModel(config)
    table = published(48)
    assert table["SVD"].rank == 5
    kept = compressed(model, table["SVD"])
    ranks = {name: kept[f"layers.0.weight_{name}_l0"].blocks[0].parts["left"].shape[1] for name in ("ih", "hh")}
    assert ranks == {"ih": max(1, min(5, embedding_size - 1)), "hh": 5}
    if embedding_size <= 5:
        with pytest.raises(ArgumentError, match=r"compress\.rank: must be below \d; got rank=5"):
            compressed(model, Scheme("svd", rank=5))


def test_a_checkpoint_knows_a_scheme_by_the_name_that_it_had():
    model = LanguageModel(LanguageModelConfig(9, cell="lstm", embedding_size=8, hidden_sizes=(8,)))
    name = "Scheme(method='svd', gates=None, weights=None, step=0.2, clip=0.4, rank=2)"
    assert Projection(model, Scheme("svd", rank=2)).name == name
    assert Projection(model, replace(Scheme("svd", rank=2), capped=True)).name == name


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


def test_memory_of_a_gpu_is_refused_in_one_line(capsys):
    assert main(["bench", "--device", "cuda", "--memory"]) == 1
    told = "gatedrnn: bench.memory: works only with device cpu; got device=cuda. Leave --memory out.\n"
    assert capsys.readouterr().err == told
