"""Faults that a hostile reading of the export found."""

import json
import os
import threading
from types import SimpleNamespace

import pytest
import torch
from quicker import quicken_onnx
from torch.nn.utils import prune

from gatedrnn import LSTM, ONLSTM, Recurrent
from gatedrnn.cells import CELLS, Cell, lstm
from gatedrnn.core.errors import ArgumentError, GatedRNNError
from gatedrnn.core.torch_internals import SCAN_SINCE, scan
from gatedrnn.export import onnx, web, writing
from gatedrnn.training.run import METRICS_FILE

for library in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(library, reason="needs the extra onnx")

pytestmark = pytest.mark.skipif(scan is None, reason=f"needs PyTorch {SCAN_SINCE} or later")

quicken_onnx()


@pytest.mark.parametrize("only", [["steps"], ["step", "sequences"], "sequences"])
def test_a_graph_that_the_module_does_not_have_is_refused(tmp_path, only):
    with pytest.raises(ArgumentError, match=r"must name graphs of the module: sequence, step; got '(steps|sequences)'"):
        onnx(LSTM(2, 2), tmp_path / "graphs", only=only)
    with pytest.raises(ArgumentError, match="must name graphs of the module: sequence; got 'step'"):
        onnx(LSTM(2, 2, bidirectional=True), tmp_path / "graphs", only="step")
    assert not (tmp_path / "graphs").exists()


@pytest.fixture
def own_cell():
    """`own_cell(change)`: the name of an LSTM whose x W is changed; what is registered is taken back."""

    def register(change):
        def step(spec, params, x_gates, h_gates, state):
            return lstm.step(spec, params, change(x_gates), h_gates, state)

        CELLS.register("odd", Cell("odd", "odd LSTM", lstm.make_spec, step))
        return "odd"

    yield register
    CELLS._entries.pop("odd", None)


def test_an_operation_that_onnx_lacks_is_named_in_one_line(tmp_path, own_cell):
    cell = own_cell(lambda x: x.cummax(-1).values)
    with pytest.raises(ArgumentError, match=r"needs operations that ONNX has; got .*cummax") as raised:
        onnx(Recurrent(cell, 2, 2), tmp_path / "graphs", only="step")
    assert "\n" not in str(raised.value) and not (tmp_path / "graphs").exists()


def test_a_step_that_draws_random_numbers_is_refused(tmp_path, own_cell):
    cell = own_cell(lambda x: torch.dropout(x, 0.5, True))
    with pytest.raises(GatedRNNError, match=r"must compute what the module does; got .* off by"):
        onnx(Recurrent(cell, 2, 20), tmp_path / "graphs", only="step")


def test_a_pruned_layer_is_refused(tmp_path):
    layer = LSTM(2, 3)
    prune.l1_unstructured(layer, "weight_hh_l0", 0.5)
    layer(torch.randn(2, 1, 2))
    with pytest.raises(ArgumentError, match=r"got a computed weight_hh_l0\. .*prune\.remove"):
        onnx(layer, tmp_path / "graphs", only="step")
    assert not (tmp_path / "graphs").exists()


def test_settings_of_pytorch_do_not_matter(tmp_path):
    layer = ONLSTM(2, 4)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            assert onnx(layer, tmp_path / "graphs", only="sequence")["sequence"].is_file()
    finally:
        torch.set_default_dtype(torch.float32)


def test_threads_take_turns(tmp_path):
    found = []

    def export(k):
        found.append(onnx(LSTM(2, 3), tmp_path / str(k), only="step"))

    threads = [threading.Thread(target=export, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2


def test_a_child_forked_in_the_middle_of_an_export_may_export():
    with writing._ONE_EXPORT:
        child = os.fork()
        if not child:
            os._exit(0 if writing._ONE_EXPORT.acquire(timeout=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("values", "best"), [("[Infinity]", None), ("[Infinity, 9.5, NaN, null]", 9.5)])
def test_a_perplexity_that_is_not_finite_is_not_shown(tmp_path, values, best):
    lines = [json.dumps({"epoch": k, "valid_perplexity": value}) for k, value in enumerate(json.loads(values), 1)]
    (tmp_path / METRICS_FILE).write_text("\n".join(lines) + "\n")
    assert web._perplexity(SimpleNamespace(folder=tmp_path)) == (best, "validation text" if best else "")  # type: ignore[arg-type]
