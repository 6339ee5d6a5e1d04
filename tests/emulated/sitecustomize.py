"""Python begins by importing this where it lies on PYTHONPATH: LLVM then tells of Intel's CPU with matrix registers.

`registers.c` carries their instructions out.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any


class _Finder(importlib.abc.MetaPathFinder):
    """Finds llvmlite as usual, and changes what it says of the CPU once it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == "llvmlite.binding" else None
        if spec is not None:
            loader: Any = spec.loader
            imports = loader.exec_module
            loader.exec_module = lambda module: (imports(module), _change(module))
        return spec


def _change(module: ModuleType) -> None:
    features = module.get_host_cpu_features
    module.get_host_cpu_name = lambda: "sapphirerapids"
    module.get_host_cpu_features = lambda: type(features())({**features(), "amx-tile": True, "amx-bf16": True})


sys.meta_path.insert(0, _Finder())
