"""Graphs with int8 weights, by onnxruntime's dynamic quantisation."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

OPERATORS = ("LSTM",)
"""Operators of cells that have an int8 form; the other cells run as a Scan, whose products have one."""


def quantised(model: Any) -> Any:
    """A copy of a float32 graph whose embeddings, products and LSTMs have int8 weights; biases stay float32.

    Weights take 7 of the 8 bits: sums of 16-bit pairs overflow on CPUs without VNNI otherwise.
    """
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    with TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(
            model, path, op_types_to_quantize=["LSTM", "MatMul", "Gather"], reduce_range=True,
            extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
        )  # fmt: skip
        return onnx.load(path)
