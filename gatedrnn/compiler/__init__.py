"""From a cell's `step` to kernels: traced, differentiated by PyTorch, laid out as loops over a row, written as Numba.

tracing   `step` and its derivative as one graph of PyTorch's operators
graph     that graph as values of units, of chunks and of a row
schedule  which loop computes what, and what must stand in memory between two loops
numba     the loops as text
"""

from gatedrnn.compiler.cell import Compiled, compile_cell
from gatedrnn.compiler.errors import UnsupportedError

__all__ = ["Compiled", "UnsupportedError", "compile_cell"]
