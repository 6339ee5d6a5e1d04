"""PyTorch's private names: used in one module, each with a public way that is right or on the safe side."""

import ast
import importlib.util
import subprocess
import sys
import types
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gatedrnn
from gatedrnn.core import torch_internals

PACKAGE = Path(gatedrnn.__file__).parent
ATEN = torch.ops.aten
OTHERS = {
    # Numba's and llvmlite's, all in compile/build.py, which without them lets Numba compile as it does for others
    "_OptLevel", "_dynfunc", "_engine", "_ensure_finalized", "_final_module",
    # Python's and jsonargparse's
    "_exit", "_get_value", "_getframe", "_option_string_actions", "_replace",
}  # fmt: skip

# Imports `gatedrnn` as on a PyTorch that has none of the private names.
WITHOUT = """
import pkgutil
def refuse(name):
    raise AttributeError(name)
found, pkgutil.resolve_name = pkgutil.resolve_name, refuse
from gatedrnn.core import torch_internals
pkgutil.resolve_name = found
"""


@pytest.fixture(scope="module")
def public():
    """The module as it is on a PyTorch that has none of the private names."""
    import pkgutil

    def refuse(name):
        raise AttributeError(name)

    spec = importlib.util.spec_from_file_location("public_ways", torch_internals.__file__)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pkgutil, "resolve_name", refuse)
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["private", "public"])
def module(request, public):
    return torch_internals if request.param == "private" else public


def test_private_names_stand_in_that_module_only():
    ours, foreign = set(), []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                ours.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                ours.add(node.id if isinstance(node, ast.Name) else node.attr)
            names = [node.attr] if isinstance(node, ast.Attribute) else []
            if isinstance(node, ast.Import | ast.ImportFrom):
                names += [part for alias in node.names for part in alias.name.split(".")]
                names += (getattr(node, "module", None) or "").split(".")
            foreign += [(path, name) for name in names if name.startswith("_") and not name.endswith("__")]
    there = Path(torch_internals.__file__)
    wrong = [f"{path}: {name}" for path, name in foreign if name not in ours | OTHERS and path != there]
    assert not wrong, wrong
    used = {name for path, name in foreign}
    assert used >= OTHERS, "a name that is no longer used"


def test_no_other_module_has_a_private_name_as_text():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        for mark in ("torch._C", "torch._dynamo", "_dynamo_marked", "_is_zerotensor", "_make_wrapper_subclass"):
            assert mark not in text or path == Path(torch_internals.__file__), f"{path}: {mark}"


def test_a_trace_is_seen(module):
    seen = []

    def function(x):
        seen.append(module.being_traced())
        return x + 1

    torch.jit.trace(function, torch.ones(2), check_trace=False)
    assert seen == [True] and not module.being_traced()


def test_modes_that_see_operators_are_seen(module, public):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **kwargs or {})

    with Mode():
        assert module.dispatch_modes()
    assert bool(module.dispatch_modes()) == (module is public)  # publicly, there may always be one


def test_modes_that_see_functions_are_seen(module):
    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **kwargs or {})

    assert not module.function_modes()
    with Mode():
        assert module.function_modes()
    with torch.device("cpu"):
        assert module.function_modes()
    assert not module.function_modes()


def test_a_profile_is_seen(module, public):
    with torch.profiler.profile():
        assert module.profiled()
    assert module.profiled() == (module is public)


def test_graphs_that_return_a_named_tuple_are_saved_or_refused(module, public, tmp_path):
    kind = namedtuple("Two" if module is public else "One", ["value"])
    module.register_namedtuple(kind, serialized_type_name=f"tests.{kind.__name__}")

    class Wrapped(torch.nn.Module):
        def forward(self, x):
            return kind(x + 1)

    program = torch.export.export(Wrapped(), (torch.ones(2),))
    with pytest.raises(NotImplementedError) if module is public else nullcontext():
        torch.export.save(program, tmp_path / "a.pt2")


def test_transforms_are_seen(module):
    seen = []

    def function(x):
        seen.append(module.functorch_active())
        return x.sum()

    assert not module.functorch_active()
    torch.func.grad(function)(torch.ones(2))
    torch.vmap(function)(torch.ones(2, 2))
    with torch.no_grad():
        torch.func.jacrev(function)(torch.ones(2))
    assert seen == [True] * 3 and not module.functorch_active()


def test_forward_mode_is_seen(module):
    assert not module.forward_mode()
    with forward_ad.dual_level():
        assert module.forward_mode()
    with torch.no_grad(), forward_ad.dual_level():
        assert module.forward_mode()
    assert not module.forward_mode()


def test_zeros_without_memory_are_seen(module):
    assert module.is_zerotensor(torch._efficientzerotensor(3))
    for tensor in (torch.zeros(3), torch.ones(2, 0), torch.ones(4)[1:], torch.nn.Parameter(torch.zeros(2))):
        assert not module.is_zerotensor(tensor)


def test_a_write_changes_the_version(module):
    tensor = torch.ones(3)
    before = module.version(tensor)
    tensor.add_(1)
    assert module.version(tensor) != before


def test_a_version_stays_while_nothing_is_written(public):
    tensor = torch.ones(3)
    assert torch_internals.version(tensor) == torch_internals.version(tensor)
    assert public.version(tensor) != public.version(tensor)


def test_a_tensor_without_storage(module):
    class Own(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise AssertionError(function)

    tensor = module.without_storage(Own, (3, 5), dtype=torch.float32, device=torch.device("cpu"), requires_grad=False)
    assert type(tensor) is Own and tensor.shape == (3, 5) and tensor.dtype == torch.float32


WRITING = [
    (ATEN.add_.Tensor, (0, 1), {}, [0]),
    (ATEN.copy_.default, (0, 1), {}, [0]),
    (ATEN.add.out, (0, 1), {"out": 2}, [2]),
    (ATEN.zero_.default, (0,), {}, [0]),
    (ATEN.__ior__.Tensor, (0, 1), {}, [0]),
    (ATEN.add.Tensor, (0, 1), {}, []),
    (ATEN.__or__.Tensor, (0, 1), {}, []),
    (ATEN.mm.default, (0, 1), {}, []),
]


@pytest.mark.parametrize(("operator", "args", "kwargs", "written"), WRITING, ids=lambda value: str(value))
def test_what_an_operator_writes_into(module, operator, args, kwargs, written):
    tensors = [torch.ones(2, dtype=torch.int64) for _ in range(3)]
    given = [tensors[place] for place in args], {name: tensors[place] for name, place in kwargs.items()}
    found = module.written_by(operator, *given)
    assert len(found) == len(written)
    assert all(each is tensors[place] for each, place in zip(found, written, strict=True))


def test_a_mode_of_the_class_for_modes(module):
    class Mode(module.DispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(function.__name__)
            return function(*args, **kwargs or {})

    mode = Mode()
    with mode:
        torch.ones(2) + 1
    assert mode.seen == ([] if module is not torch_internals else ["ones.default", "add.Tensor"])


def test_decompositions(module):
    wanted = [ATEN.silu, ATEN.hardtanh]
    table = module.decompositions(wanted)
    assert table.keys() <= {ATEN.silu.default, ATEN.silu.out, ATEN.hardtanh.default, ATEN.hardtanh.out}
    assert module is not torch_internals or ATEN.silu.default in table
    x = torch.linspace(-2, 2, 9)
    for operator in table.keys() & {ATEN.silu.default, ATEN.hardtanh.default}:
        torch.testing.assert_close(table[operator](x), operator(x))


def test_slices_of_a_whole_first_dimension_are_left_out(module):

    def cut(x, y):
        kept = ATEN.slice(ATEN.slice(x, 0, 0, sys.maxsize), 1, 2, 4), ATEN.slice(x, 0, 1), ATEN.slice(y, 0)
        back = ATEN.slice_backward(ATEN.slice_backward(kept[0], [3, 5], 1, 2, 4, 1), [3, 5], 0, 0, sys.maxsize, 1)
        return *kept, back, ATEN.slice(x)

    given = torch.randn(3, 5), torch.randn(3)
    made = make_fx(cut, {}, "fake")(*given)
    before = made(*given)
    graph = module.without_whole_slices(made.graph)
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    assert targets == [ATEN.slice.Tensor] * 3 + [ATEN.slice_backward.default]  # of y, the first dimension is the row
    made.recompile()
    for one, other in zip(made(*given), before, strict=True):
        assert torch.equal(one, other)


def test_a_constant_in_graphs(module):
    calls = []

    def value():
        calls.append(1)
        return 3

    marked = module.constant_in_graphs(value)
    assert marked() == 3
    compiled = torch.compile(lambda x: x * marked(), backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    before = len(calls)
    compiled(torch.ones(2))
    assert len(calls) == before


def test_an_operator_without_the_shield_is_left_as_it_is(module):
    module.start_light(object())

    module.start_light(types.SimpleNamespace(_backend_fns={None: print}))


def test_an_operator_is_shielded_once_torch_compile_is_loaded(module, monkeypatch):
    def negative(x):
        return -x

    dynamo = types.SimpleNamespace(disable=lambda function, wrapping: function)
    monkeypatch.setitem(sys.modules, "torch._dynamo", dynamo)
    module.start_light(types.SimpleNamespace(_backend_fns={None: types.SimpleNamespace(__wrapped__=negative)}))
    assert negative.__dynamo_disable(3) == -3  # as PyTorch calls it


def test_the_library_is_a_file(module):
    assert Path(module.LIBRARY).is_file()


RUN = (
    WITHOUT
    + """
import torch
import gatedrnn
from gatedrnn.core import torch_internals
assert torch_internals.dispatch_modes() == 1, "the private names are there"
# PyTorch's public list of decompositions has none of a norm: LayerNormLSTM's step then has no kernel
torch.manual_seed(1)
found = {}
for name in ("LSTM", "GRU", "ONLSTM", "MGU", "LayerNormLSTM"):
    layer, x = getattr(gatedrnn, name)(8, 16), torch.randn(5, 3, 8)
    for backend in ("reference", "auto" if name == "LayerNormLSTM" else "cpu"):
        layer.backend = backend
        output, _ = layer(x)
        found[name, backend] = [output, *torch.autograd.grad(output.sum(), list(layer.parameters()))]
    for ours, expected in zip(found[name, backend], found[name, "reference"]):
        torch.testing.assert_close(ours, expected)
    with torch.no_grad():
        torch.testing.assert_close(layer(x)[0], found[name, backend][0])
    layer.backend = "auto"
    one = torch.vmap(lambda row: layer(row[:, None])[0][:, 0], in_dims=1, out_dims=1)(x)
    torch.testing.assert_close(one, found[name, backend][0])
from gatedrnn.weights.compressed import CompressedWeight
from gatedrnn.weights.forms import SMALL, Block
values, x = torch.randn(16, 8), torch.randn(3, 8)
weight = CompressedWeight([Block(0, 16, "int8", SMALL["int8"](values))], 8)
torch.testing.assert_close(torch.nn.functional.linear(x, weight), x @ weight.dense().T)
try:
    weight.add_(1)
except gatedrnn.ArgumentError:
    print("right")
"""
)


def test_layers_are_right_without_any_private_name(tmp_path):
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=300)
    assert done.stdout == "right\n", done.stderr[-2000:]


def test_an_operator_runs_while_another_thread_imports_torch_compile(monkeypatch):
    class Shielded:
        def __init__(self, function):
            self.__wrapped__ = function

    half = types.ModuleType("torch._dynamo")  # as other threads see it meanwhile: without what it will have
    vars(half)["__spec__"] = types.SimpleNamespace(_initializing=True)
    function = lambda value: value + 1  # noqa: E731 - it is given attributes
    torch_internals.start_light(types.SimpleNamespace(_backend_fns={"cpu": Shielded(function)}))
    monkeypatch.setitem(sys.modules, "torch._dynamo", half)
    assert function.__dynamo_disable(2) == 3
