"""The private names of PyTorch that this package uses, each beside a public way that gives the same or is on the safe side.

A name is looked up once, when this module is imported, and is PyTorch's own where that is a function: a small call asks several
of them within microseconds. What the public way costs is said beside it. In a graph of torch.compile, a public way that would
have to try something takes the safe answer instead.

Three kinds of names are used elsewhere. Every pickled module holds `nn.Module._parameters`. PyTorch's documentation lists ATen's
operators, such as `_to_copy`. The protocols `__torch_function__` and `__torch_dispatch__` are public.
"""

import itertools
import logging
import sys
import threading
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, profiler
from torch.fx import Graph
from torch.overrides import has_torch_function


def _private(name: str, otherwise: Any) -> Any:
    """What PyTorch has under a private name, such as "torch._C:_is_tracing"; or `otherwise`."""
    try:
        return resolve_name(name)
    except (ImportError, AttributeError):
        return otherwise


# What PyTorch is doing around a call.

being_traced: Callable[[], bool] = _private("torch._C:_is_tracing", torch.jit.is_tracing)  # type: ignore[reportPrivateImportUsage]
"""Whether torch.jit.trace is at work."""

dispatch_modes: Callable[[], int] = _private("torch._C:_len_torch_dispatch_stack", lambda: 1)
"""How many modes see every operator. Publicly: taken as one, so that all calls run by operators on dense weights, untimed."""

function_modes: Callable[[], bool] = _private(
    "torch._C:_is_torch_function_mode_enabled", lambda: has_torch_function((None,))
)
"""Whether a mode, such as a default device, sees every function of PyTorch."""

_FLAG = _private("torch.autograd.profiler:_is_profiler_enabled", None)
profiled: Callable[[], bool] = (lambda: profiler._is_profiler_enabled) if _FLAG is not None else lambda: True
"""Whether a profile is taken. Publicly: taken as true, so that all calls run by operators on dense weights."""

_ATEN = torch.ops.aten
_PROBE = torch.zeros((), dtype=torch.int64, device="cpu")


def _refuses_requires_grad() -> bool:
    if torch.compiler.is_compiling():
        return True
    try:
        _PROBE.requires_grad_(False)
    except RuntimeError:  # inside of a function being transformed
        return True
    return False


functorch_active: Callable[[], bool] = _private("torch._C:_are_functorch_transforms_active", _refuses_requires_grad)
"""Whether a transform of torch.func is at work. Publicly: tried; true in a compiled graph, which then runs on the reference."""


def _makes_duals() -> bool:
    if torch.compiler.is_compiling():
        return True
    try:
        forward_ad.make_dual(_PROBE, _PROBE)
    except RuntimeError:  # there is no level
        return False
    except ValueError:  # there is one, but whole numbers have no tangents
        pass
    return True


_LEVEL = _private("torch.autograd.forward_ad:_current_level", None)
forward_mode: Callable[[], bool] = (lambda: forward_ad._current_level >= 0) if _LEVEL is not None else _makes_duals
"""Whether forward-mode differentiation is at work. Publicly: as `functorch_active`."""


# What a tensor or an operator is.


def _has_no_address(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.numel() > 0 and tensor.data_ptr() == 0


is_zerotensor: Callable[[Tensor], bool] = _private("torch:Tensor._is_zerotensor", _has_no_address)
"""Whether these are zeros that have no memory, as derivatives make them. Publicly: of a tensor on meta too."""

register_namedtuple: Callable[..., None] = _private(
    "torch.utils._pytree:_register_namedtuple", lambda kind, **name: None
)
"""Let torch.export.save write a program that returns such tuples, under a name. Publicly: it refuses them."""

_VERSION = _private("torch:Tensor._version", None)
_CALLS = itertools.count()
version: Callable[[Tensor], int] = _VERSION.__get__ if _VERSION is not None else lambda tensor: next(_CALLS)
"""A number that changes whenever the tensor is written to. Publicly: at each call, so that nothing made of it is remembered."""


def _expanded(kind: type[Tensor], shape: Sequence[int], **options: Any) -> Tensor:
    return torch.zeros((), **options).expand(shape).as_subclass(kind)


without_storage: Callable[..., Any] = _private("torch:Tensor._make_wrapper_subclass", _expanded)
"""A tensor of a subclass and shape that holds no numbers itself. Publicly: it holds one."""


def _written_by_name(operator: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    name = operator.__name__.partition(".")[0]
    in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
    named = [value for value in kwargs.values() if isinstance(value, Tensor)]  # most are called out, some are not
    return [args[0], *named] if in_place else named


def _written_by_schema(operator: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    found = []
    for place, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return found


_SCHEMA = _private("torch:ops.aten.add.Tensor._schema", None)
written_by: Callable[[Any, Any, dict[str, Any]], list[Any]] = (
    _written_by_schema if _SCHEMA is not None else _written_by_name
)
"""The arguments that a call of an operator writes into.

Publicly: the first one of an operator that is named as one in place, and every tensor given by keyword, some of which are only
read; not the running statistics of a norm.
"""


# What the tracing of a cell needs.

DispatchMode: Any = _private("torch.utils._python_dispatch:TorchDispatchMode", nullcontext)
"""The class of modes that see every operator. Publicly: of modes that see none."""


def _overloads(packet: Any) -> list[Any]:
    return [getattr(packet, name) for name in packet.overloads()]


def writes(tensor: Tensor) -> int | None:
    """How often it was written into; None for a tensor of inference mode, which does not count them."""
    return None if tensor.is_inference() else getattr(tensor, "_version", None)


def of_one_tensor(a: Tensor, b: Tensor) -> bool:
    """Whether both are views of one tensor, so that they count each other's writes. Publicly: not known of."""
    base = getattr(a, "_base", None)
    return base is not None and base is getattr(b, "_base", None)


def decompositions(operators: list[Any]) -> dict[Any, Any]:
    """How PyTorch computes these from simpler operators. Publicly: some of them; a cell with the others runs on the reference.

    It is looked up here, because importing it takes a second.
    """
    found = _private("torch._decomp:get_decompositions", None)
    if found is not None:
        return found(operators)
    table = _private("torch.export:default_decompositions", dict)()
    return {each: table[each] for packet in operators for each in _overloads(packet) if each in table}


def all_decompositions() -> bool:
    """Whether `decompositions` has all of them here."""
    return _private("torch._decomp:get_decompositions", None) is not None


_HAS_KERNEL = _private("torch._C:_dispatch_has_kernel_for_dispatch_key", None)


def fake_tensors() -> Any:
    """A context in which new tensors hold no numbers, to follow a step by `DispatchMode`. Publicly: None, for `make_fx`."""
    kind = _private("torch._subclasses.fake_tensor:FakeTensorMode", None)
    if None in (kind, _HAS_KERNEL) or DispatchMode is nullcontext:
        return None
    found = kind(allow_fallback_kernels=True)
    found._allow_unsafe_data_ptr_access = False  # else other libraries read numbers where there are none
    return found


def composite(operator: Any) -> bool:
    """Whether an operator has no kernel of its own on a CPU, but calls others; asked only in that context."""
    return _HAS_KERNEL(operator.name(), "CompositeImplicitAutograd") and not _HAS_KERNEL(operator.name(), "CPU")


def start_autograd() -> None:
    """Let autograd start its threads now, one a device, before a fake mode does something that makes it count more.

    On a machine without a GPU, a PyTorch that is built for one counts eight GPUs from the first fake mode on. Where autograd then
    starts, no forked child can take gradients.
    """
    with torch.inference_mode(False), torch.enable_grad():
        start = torch.ones((), device="cpu", requires_grad=True)
        torch.autograd.grad(start * 1, start)


@contextmanager
def without_log() -> Iterator[None]:
    """Keeps what PyTorch would log of an operation that fails from the screen: the error says it, and may be expected."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


def without_whole_slices(graph: Graph) -> Graph:
    """The graph without slices of a matrix's whole first dimension, which older versions write beside those of the second."""
    for node in list(graph.nodes):
        backward = node.target is _ATEN.slice_backward.default
        if not backward and node.target is not _ATEN.slice.Tensor:
            continue
        shape = node.args[1] if backward else node.args[0].meta["val"].shape
        dim, first, last, step = (*node.args[2 if backward else 1 :], *(0, None, None, 1)[len(node.args) - 1 :])[:4]
        if dim == 0 < len(shape) - 1 and slice(first, last, step).indices(shape[0]) == (0, shape[0], 1):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return graph


# What keeps calls light.

_MARK = "_dynamo_marked_constant"


def _is_marking() -> bool:
    """Whether torch.compile knows the mark: its source is read, as importing it takes a second."""
    spec = find_spec("torch._dynamo")
    if spec is None or spec.origin is None:
        return False
    try:
        return _MARK in Path(spec.origin).with_name("decorators.py").read_text("utf-8")
    except OSError:
        return False


def _marked(function: Any) -> Any:
    setattr(function, _MARK, True)
    return function


constant_in_graphs: Callable[[Any], Any] = _marked if _is_marking() else torch.compiler.assume_constant_result
"""Decorates a function whose result is a constant to torch.compile. Publicly: that imports torch.compile, a second."""


def start_light(*operators: Any) -> None:
    """Keep an operator's first call from importing torch.compile, a second: PyTorch shields the operator from it, in use or not.

    Where PyTorch does so in another way, nothing is changed, and the first call is slower.
    """
    for shielded in [function for operator in operators for function in getattr(operator, "_backend_fns", {}).values()]:
        function = getattr(shielded, "__wrapped__", None)
        if function is None:
            continue

        def call(*args: Any, function: Any = function, **kwargs: Any) -> Any:
            dynamo = sys.modules.get("torch._dynamo")
            spec = getattr(dynamo, "__spec__", None)
            if dynamo is None or getattr(spec, "_initializing", False):  # none, or another thread is importing it
                return function(*args, **kwargs)
            function.__dynamo_disable = dynamo.disable(function, wrapping=False)
            return function.__dynamo_disable(*args, **kwargs)

        function.__dynamo_disable = call


LIBRARY: str = _private("torch._C:__file__", str(Path(torch.__file__).parent / "lib" / "libtorch_python.so"))
"""The file that links to all that PyTorch computes with."""


# A loop that graphs hold as one operator.

SCAN_SINCE = "2.13"
"""The oldest PyTorch whose scan was tested: that of 2.6 takes other arguments and cannot be written as ONNX."""
scan: Any = None
"""`scan(body, states, inputs, weights)` → [*states, *outputs]; `body(*states, *inputs[t], *weights)` → [*states, *outputs[t]].
Publicly, and before `SCAN_SINCE`: nothing; what needs it says so."""
if torch.__version__ >= SCAN_SINCE:  # compared as versions, not as text
    scan = _private("torch._higher_order_ops.scan:scan_op", None)


# Lists in the signatures of operators: PyTorch 2.6 reads `typing.List` alone.

Ints = typing.List[int]  # noqa: UP006 - see above
Floats = typing.List[float]  # noqa: UP006 - see above
Tensors = typing.List[Tensor]  # noqa: UP006 - see above
