"""A graph of the PyTorch operators that a function calls, recorded while it runs on tensors without numbers."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph
from torch.fx import Node as FxNode
from torch.fx.node import map_aggregate
from torch.utils.weak import WeakTensorKeyDictionary

from gatedrnn.core.torch_internals import DispatchMode, composite, fake_tensors, without_whole_slices

_ATEN = torch.ops.aten
_each: Any = map_aggregate  # annotated for arguments of nodes alone


def recorded(function: Callable[..., Any], inputs: Callable[[], list[Tensor]], decomposed: dict[Any, Any]) -> Graph:
    """The graph that `make_fx` makes, in less than half of its time; each node has tensors of what it gives as `meta["val"]`.

    Raises: what the function raises, and PyTorch's error where it makes a number or a size of a tensor's values.

    Args:
        function: gives tensors, or None, in lists or tuples.
        inputs: makes its arguments.
        decomposed: by operator, what computes it from simpler ones.
    """
    fake = fake_tensors()
    if fake is None:
        from torch.fx.experimental.proxy_tensor import make_fx  # whose imports take seconds

        return without_whole_slices(make_fx(function, decomposed, "fake")(*inputs()).graph)
    with fake:
        given = inputs()
        recorder = _Recorder(given, decomposed)
        with recorder:
            found = function(*given)
        recorder.graph.output(_each(found, recorder.node))
    for node, value in recorder.values.items():
        node.meta["val"] = _each(value, lambda make: make and make())
    return without_whole_slices(recorder.graph)


class _Recorder(DispatchMode):
    """Adds each call of an operator to a graph.

    It holds none of the tensors: of one that somebody else holds, PyTorch makes another one, by an operation of its own.
    """

    def __init__(self, inputs: list[Tensor], decomposed: dict[Any, Any]) -> None:
        super().__init__()
        self.graph, self.values, self._decomposed, self._nodes = Graph(), {}, decomposed, WeakTensorKeyDictionary()
        for number, value in enumerate(inputs):
            self._give(self.graph.placeholder(f"given_{number}"), value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return func(*args)
        simpler = self._decomposed.get(func) or (func.decompose if composite(func) else None)
        if simpler is not None:
            with self:
                found = simpler(*args, **kwargs)
            if found is not NotImplemented:
                return found
        given = _each((args, kwargs), self.node)
        found = func(*args, **kwargs)
        target = _ATEN.lift_fresh_copy.default if func is _ATEN.lift_fresh.default else func
        self._give(self.graph.call_function(target, *given), found)
        return found

    def _give(self, node: FxNode, value: Any) -> None:
        if isinstance(value, tuple | list):
            for place, part in enumerate(value):
                self._give(self.graph.call_function(operator.getitem, (node, place)), part)
        if isinstance(value, Tensor):
            self._nodes[value] = node
        self.values[node] = _each(value, _like)

    def node(self, value: Any) -> Any:
        """The one that gave a tensor, which is a constant where none did; other values stay as they are."""
        if not isinstance(value, Tensor):
            return value
        if value not in self._nodes:
            self._give(self.graph.create_node("get_attr", "constant"), value)
        return self._nodes[value]


def _like(value: Any) -> Callable[[], Tensor] | None:
    """What makes a tensor of its shape and type, without numbers: later, where no mode is in the way."""
    return partial(torch.empty, value.shape, dtype=value.dtype, device="meta") if isinstance(value, Tensor) else None
