"""Which values of a layer of float64 its step rounds to float32: numbers that it makes tensors of, unless it gives their type."""

import math
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from gatedrnn.compiler.errors import UnsupportedError

Bits = tuple[int, int]
"""Of values that are multiples of 2⁻ᵃ and at most 2ᵇ: (a, b). Those of float32 are exact where a + b is at most 24."""

_MADE = frozenset(("scalar_tensor", "full", "full_like", "new_full"))
_WHOLE = frozenset(("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "lift_fresh_copy"))
_MOVED = frozenset((
    "where", "masked_fill", "slice", "select", "split", "split_with_sizes", "getitem", "view", "_unsafe_view", "alias", "detach",
    "unsqueeze", "squeeze", "expand", "clone", "cat", "permute", "t", "flip", "_to_copy", "neg", "abs", "maximum", "minimum",
    "amax", "amin", "relu",
))  # fmt: skip
_PLACED = (_MADE | _WHOLE | _MOVED) - {"_to_copy"}
"""Operations that round nothing but the numbers in them, which kernels round too."""
_LARGEST = 12
"""Rows are taken to have at most 2¹² elements that differ from 0, whose sum is exact."""


def mark_rounded(graph: Graph, double: Graph, lines: dict[str, str]) -> None:
    """Mark the nodes of a step's graph that are float32 in its graph for float64, as `meta["rounded"]`.

    Args: lines: where the step's file calls each operation.

    Raises: UnsupportedError: one of them is computed, and may be rounded by that.
    """
    known: dict[Node, Bits | None] = {}
    for node, other in zip(graph.nodes, double.nodes, strict=True):
        kind = _kind(other)
        node.meta["rounded"] = node.op == "call_function" and kind == torch.float32
        if node.op != "call_function" or kind in (None, torch.float64):
            continue
        name = getattr(other.target, "__name__", str(other.target)).split(".")[0]
        known[other] = _bits(other, name, known)
        if kind == torch.float32 and other.users and name not in _PLACED and known[other] is None:
            where = f" ({lines[name]})" if name in lines else ""
            raise UnsupportedError(f"the operation {name}{where}, which rounds to float32 in a layer of float64")


def _bits(node: Node, name: str, known: dict[Node, Bits | None]) -> Bits | None:
    """Of a node's values; None where they may be rounded, or that is not known."""
    if _kind(node) == torch.bool or name in _WHOLE:
        return 0, 0
    if name in _MADE:
        return _of_number(node.args[0] if name == "scalar_tensor" else node.args[-1])
    given: list[Node] = []
    map_arg(node.args, given.append)
    numbers = () if name in _MOVED - {"masked_fill"} or name in ("sum", "cumsum") else node.args
    found = [known.get(each) for each in given] + [
        _of_number(each) for each in numbers if isinstance(each, int | float)
    ]
    if None in found or node.kwargs.keys() & {"alpha"} or not found:
        return None
    parts: Any = found
    digits, bounds = zip(*parts, strict=True)
    a, b = max(digits), max(bounds)
    if name in ("add", "sub", "rsub"):
        b += 1
    elif name == "pow" and node.args[1:] == (2,):
        a, b = 2 * digits[0], 2 * bounds[0]
    elif name == "mul":
        a, b = sum(digits), sum(bounds)
    elif name == "div" and numbers[-1:] in ((2,), (4,), (8,)):
        a += bounds[-1]
    elif name in ("sum", "cumsum"):
        b += _LARGEST
    elif name not in _MOVED:
        return None
    return (a, b) if a + b <= 24 else None


def _of_number(number: Any) -> Bits | None:
    if not math.isfinite(number):
        return None
    a = next((a for a in range(25) if float(number * 2**a).is_integer()), None)
    return None if a is None else (a, max(0, math.ceil(math.log2(abs(number) or 1))))


def _kind(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return getattr(value[0] if isinstance(value, tuple | list) and value else value, "dtype", None)
