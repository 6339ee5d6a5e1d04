"""Models and layers as ONNX graphs; needs the extra `onnx`, which is imported when something is exported."""

from gatedrnn.export.writing import export_run, onnx

__all__ = ["export_run", "onnx"]
