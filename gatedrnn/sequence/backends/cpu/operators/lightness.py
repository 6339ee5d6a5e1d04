"""Keeping a first call light."""

import sys
from typing import Any


def start_light(*operators: Any) -> None:
    """Keep the first call from importing the compiler, a second: torch shields operators from it even where it is not in use."""
    for shielded in [function for operator in operators for function in getattr(operator, "_backend_fns", {}).values()]:
        function = getattr(shielded, "__wrapped__", None)
        if function is None:  # another torch: the first call is slower
            continue

        def call(*args: Any, function: Any = function, **kwargs: Any) -> Any:
            dynamo = sys.modules.get("torch._dynamo")
            if dynamo is None:
                return function(*args, **kwargs)
            function.__dynamo_disable = dynamo.disable(function, wrapping=False)
            return function.__dynamo_disable(*args, **kwargs)

        function.__dynamo_disable = call
