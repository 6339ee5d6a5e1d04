"""What an older PyTorch cannot do is refused in one line."""

import pytest
import torch

from gatedrnn import LSTM
from gatedrnn.core.errors import ArgumentError

pytest.importorskip("onnx", reason="needs the extra onnx")
writing = pytest.importorskip("gatedrnn.export.writing")


def test_onnx_needs_scan(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "scan", None)
    expected = (
        rf"^export\.onnx: needs PyTorch 2\.13 or later; got {torch.__version__}. Install it: pip install -U torch\.$"
    )
    with pytest.raises(ArgumentError, match=expected.replace("+", r"\+")):
        writing.onnx(LSTM(2, 2), tmp_path / "graphs")
    assert not (tmp_path / "graphs").exists()
