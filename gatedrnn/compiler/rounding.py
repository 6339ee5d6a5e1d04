"""Which values of a layer of float64 its step rounds to float32: numbers that it makes tensors of, unless it gives their type."""

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from gatedrnn.compiler.errors import UnsupportedError

_PLACED = frozenset((
    "scalar_tensor", "full", "full_like", "new_full", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones",
    "where", "masked_fill", "slice", "select", "split", "split_with_sizes", "getitem", "view", "alias", "detach", "unsqueeze",
    "squeeze", "expand", "clone", "cat", "permute", "t", "_to_copy", "lift_fresh_copy",
))  # fmt: skip
"""Operations that round nothing but the numbers in them, which kernels round too."""
_OF_WHOLE = frozenset(
    ("add", "sub", "rsub", "mul", "neg", "abs", "sum", "cumsum", "maximum", "minimum", "amax", "amin")
)
"""Operations that round nothing where all is whole."""
_LARGEST = 1 << 24


def mark_rounded(graph: Graph, double: Graph, lines: dict[str, str]) -> None:
    """Mark the nodes of a step's graph that are float32 in its graph for float64, as `meta["rounded"]`.

    Args: lines: where the step's file calls each operation.

    Raises: UnsupportedError: one of them is computed, from other than whole numbers and truth values.
    """
    whole: set[Node] = set()
    for node, other in zip(graph.nodes, double.nodes, strict=True):
        node.meta["rounded"] = node.op == "call_function" and _kind(other) == torch.float32
        if not node.meta["rounded"]:
            continue
        given: list[Node] = []
        map_arg((other.args, other.kwargs), given.append)
        floats = [each for each in given if (kind := _kind(each)) is not None and kind.is_floating_point]
        numbers = [each for each in _flat(other.args) if isinstance(each, float)]
        if whole.issuperset(floats) and all(each.is_integer() and abs(each) <= _LARGEST for each in numbers):
            whole.add(other)
        name = getattr(other.target, "__name__", str(other.target)).split(".")[0]
        if name not in _PLACED and not (name in _OF_WHOLE and other in whole):
            where = f" ({lines[name]})" if name in lines else ""
            raise UnsupportedError(f"the operation {name}{where}, which rounds to float32 in a layer of float64")


def _kind(node: Node) -> torch.dtype | None:
    return getattr(node.meta.get("val"), "dtype", None)


def _flat(arguments: object) -> list[object]:
    if isinstance(arguments, list | tuple):
        return [each for argument in arguments for each in _flat(argument)]
    return [arguments]
