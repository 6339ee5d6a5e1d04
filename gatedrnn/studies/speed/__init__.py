"""How fast and how large the layers are: cells, backends, torch.nn peers and the bound of their products, side by side."""

from gatedrnn.studies.speed.measure import SHAPES, Shape, measure
from gatedrnn.studies.speed.memory import peak_growth
from gatedrnn.studies.speed.table import markdown

__all__ = ["SHAPES", "Shape", "markdown", "measure", "peak_growth"]
