"""How fast and how large the layers are: cells, backends, torch.nn peers and the bound of their products, side by side."""

from gatedrnn.studies.speed.measure import check_memory, measure
from gatedrnn.studies.speed.memory import peak_growth
from gatedrnn.studies.speed.shapes import GPU_GRID, SHAPES, Shape
from gatedrnn.studies.speed.table import markdown

__all__ = ["GPU_GRID", "SHAPES", "Shape", "check_memory", "markdown", "measure", "peak_growth"]
