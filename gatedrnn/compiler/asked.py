"""What a step may ask its arguments for: it is traced once, so what differs between calls must not decide what it does."""

import functools
import operator
from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor
from torch.overrides import TorchFunctionMode

from gatedrnn.cells.spec import Extra, Params
from gatedrnn.compiler.errors import UnsupportedError

_STATE = frozenset((
    "requires_grad", "is_leaf", "grad", "grad_fn", "_version", "is_inference", "is_cuda", "is_cpu", "is_meta", "is_contiguous",
    "stride", "storage_offset", "data_ptr", "untyped_storage", "storage", "retains_grad", "output_nr",
    "get_device", "is_xpu", "is_mps", "is_xla", "is_hpu", "is_mtia", "is_maia", "is_ipu", "is_vulkan",
))  # fmt: skip
"""Attributes and methods of a tensor that tell of a call or of its device, not of values."""
_SIZES = frozenset(("shape", "size", "numel", "nelement"))


class _Size:
    """A size that follows from the batch's: it may be a size of another tensor, and nothing may be decided by it.

    No `int`, so that `10.0 < size` asks it too; PyTorch is given the number.
    """

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    def __neg__(self) -> "_Size":
        return _Size(-self.value)

    def __hash__(self) -> int:
        _refuse()


class _Shape(tuple[Any, ...]):
    """As torch.Size, of such sizes too."""

    def numel(self) -> Any:
        return functools.reduce(operator.mul, self, 1)


def _refuse(*_: Any) -> NoReturn:
    raise UnsupportedError("a number that follows from the batch's size or type")


def _compared(how: Callable[[int, int], bool]) -> Callable[[_Size, object], bool]:
    """Of two sizes of the batch; nothing else may be compared with one."""
    return lambda size, other: how(size.value, other.value) if isinstance(other, _Size) else _refuse()


def _computed(how: Callable[[int, int], int]) -> Callable[[_Size, Any], _Size]:
    def compute(size: _Size, other: Any) -> _Size:
        return _Size(how(size.value, operator.index(other))) if hasattr(other, "__index__") else _refuse()

    return compute


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(_Size, f"__{_name}__", _compared(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "floordiv", "mod"):
    _how = getattr(operator, _name)
    setattr(_Size, f"__{_name}__", _computed(_how))
    setattr(_Size, f"__r{_name}__", _computed(lambda size, other, how=_how: how(other, size)))
_DECISIONS = "bool", "int", "float", "truediv", "rtruediv", "pow", "rpow", "round", "divmod", "and", "rshift", "lshift"
for _name in _DECISIONS:
    setattr(_Size, f"__{_name}__", _refuse)


def _plain(given: Any) -> Any:
    """Arguments with numbers instead of sizes, also in lists and mappings."""
    if isinstance(given, _Size):
        return given.value
    if isinstance(given, dict):
        return {key: _plain(value) for key, value in given.items()}
    return type(given)(map(_plain, given)) if type(given) in (tuple, list, _Shape) else given


class Asked(TorchFunctionMode):
    """Refuses what a step must not ask its tensors for, and marks sizes that are the batch's, or a multiple of it.

    Args: batch: its size, which divides no other size.
    """

    def __init__(self, batch: int) -> None:
        super().__init__()
        self._batch = batch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`. Raises: UnsupportedError: it tells of a call."""
        name = getattr(func, "__name__", "")
        name = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name
        if name in _STATE or (name == "type" and len(args) + len(kwargs or {}) == 1):
            raise UnsupportedError(f"{name}, which may change")
        found = func(*_plain(tuple(args)), **_plain(dict(kwargs or {})))
        if name == "__len__" and self._marked(found) is not found:  # Python makes a plain number of it
            raise UnsupportedError("len(), a number that follows from the batch's size or type")
        if name not in _SIZES or not args or not isinstance(args[0], Tensor):
            return found
        return self._marked(found) if isinstance(found, int) else _Shape(map(self._marked, found))

    def _marked(self, size: int) -> Any:
        return size if size == 0 or size % self._batch else _Size(size)


_OF_SOME_LAYERS = {
    "weight_hr": "params.weight_hr, a parameter that only a layer with a projection has",
    "tensors": "params.tensors(), of which layers have different numbers",
}
_OF_BIASED_LAYERS = {
    name: f"params.{name}, a parameter that a layer with bias=False does not have" for name in ("bias_ih", "bias_hh")
}


class AskedParameters:
    """Parameters that refuse to give those that only some layers have.

    Args: biases: whether they give biases, or None for them.
    """

    def __init__(self, params: Params, biases: bool) -> None:
        self._params, self._refused = params, _OF_SOME_LAYERS | ({} if biases else _OF_BIASED_LAYERS)

    def __getattr__(self, name: str) -> Any:
        if name in self._refused:
            raise UnsupportedError(self._refused[name])
        return getattr(self._params, name)


class AskedExtra(Extra):
    """Refuses what `Spec.text` does not say of it, and comparisons, which read that too."""

    @property
    def start(self) -> Any:
        """None may read it."""
        raise UnsupportedError("the start of an Extra, which kernels do not see")

    def __eq__(self, other: object) -> bool:
        raise UnsupportedError("a comparison of an Extra, of which kernels do not see all")

    __hash__ = None  # type: ignore[assignment]
