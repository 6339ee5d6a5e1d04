"""The graph of a step: recorded as `make_fx` traces it."""

import pytest
import torch
from torch.fx.node import map_arg

from gatedrnn.cells import CELLS
from gatedrnn.compiler import recorded as module
from gatedrnn.compiler.recorded import recorded
from gatedrnn.compiler.tracing import trace
from gatedrnn.core.torch_internals import decompositions, dispatch_modes

ATEN = torch.ops.aten


def shown(nodes):
    """What a graph says, its names aside."""
    places, found = {}, []
    for node in nodes:
        args = map_arg((node.args, node.kwargs), lambda each: f"%{places[each]}")
        value = node.meta.get("val")
        values = value if isinstance(value, tuple | list) else [value]
        kinds = [(tuple(each.shape), each.dtype) for each in values if isinstance(each, torch.Tensor)]
        places[node] = len(found)
        found.append((node.op, str(node.target) * (node.op == "call_function"), str(args), kinds))
    return found


def both(make, monkeypatch):
    """As it is, and where PyTorch has no private names."""
    first = make()
    with monkeypatch.context() as patch:
        patch.setattr(module, "fake_tensors", lambda: None)
        return first, make()


def operations(x, y):
    """Operators of several results, one of them unused, decomposed ones, a constant, an input handed on, and nothing at all."""
    first, second = (x + y).chunk(2, -1)
    values, _ = first.max(-1, keepdim=True)
    normal = torch.nn.functional.layer_norm(first, first.shape[-1:]) * torch.tensor([0.5])
    zeros = x.new_zeros(x.shape[0], 1) + torch.full((), 2.0)
    cut = torch.where(normal > 0, torch.nn.functional.elu(normal), zeros)
    (grad,) = torch.autograd.grad([cut, values], [y], [torch.ones_like(cut), values])
    return cut, [torch.cat([second.detach(), normal], -1), y], grad, None


@pytest.mark.parametrize("decomposed", [[], [ATEN.elu, ATEN.elu_backward, ATEN.native_layer_norm]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_function_is_recorded_as_make_fx_traces_it(decomposed, dtype, monkeypatch):
    def inputs():
        return [torch.empty(13, 6, dtype=dtype, requires_grad=needed) for needed in (False, True)]

    def graph():
        return list(recorded(operations, inputs, decompositions(decomposed)).nodes)

    found, expected = both(graph, monkeypatch)
    assert len(found) > 15
    assert shown(found) == shown(expected)


@pytest.mark.parametrize("name", CELLS)
def test_a_step_is_recorded_as_make_fx_traces_it(name, monkeypatch):
    found, expected = both(lambda: trace(CELLS[name].step, CELLS[name].make_spec(12)), monkeypatch)
    assert shown(found.nodes) == shown(expected.nodes)
    assert [node.name for node in found.x] == [f"given_{place}" for place in range(len(found.x))]


def test_what_a_function_raises_is_raised_and_nothing_stays_recorded():
    def fails(x):
        raise ZeroDivisionError(x.shape[0])

    with pytest.raises(ZeroDivisionError, match="13"):
        recorded(fails, lambda: [torch.empty(13)], {})
    graph = recorded(lambda x: x * 2, lambda: [torch.empty(13)], {})
    assert [node.op for node in graph.nodes] == ["placeholder", "call_function", "output"]
    assert not dispatch_modes() and type(torch.ones(2) + 1) is torch.Tensor, "a mode stayed on"


def test_where_a_decomposition_gives_up_the_operator_stays():
    graph = recorded(lambda x: x * 2, lambda: [torch.empty(13)], {ATEN.mul.Tensor: lambda *given: NotImplemented})
    assert [node.target for node in graph.nodes][1] is ATEN.mul.Tensor
