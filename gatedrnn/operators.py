"""The operators that compiled, exported and traced graphs hold: import this module before such a file is loaded.

`torch.export.load` and `torch.jit.load` know an operator once it is registered, which the layers do when they first run.
"""

from contextlib import suppress
from importlib import import_module

for _name in ("cpu.operators.pointwise", "cpu.recurrence.operator", "triton.drawing", "triton.operators"):
    with suppress(ImportError, OSError):  # Numba or Triton is missing, or a library does not load here
        import_module(f"gatedrnn.sequence.backends.{_name}")
