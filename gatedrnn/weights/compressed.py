"""A weight matrix held in small forms: a tensor like any other to PyTorch, but the dense matrix is built only when an operator
needs it.

The `cpu` backend's kernels read the small forms. Whatever else meets such a tensor (another backend, a gradient, an exporter,
indexing) gets the dense matrix, made for the occasion.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.torch_internals import version, without_storage, written_by
from gatedrnn.weights import forms
from gatedrnn.weights.forms import Block

_ATEN: Any = torch.ops.aten
_ASK_THE_TYPE = (_ATEN.new_empty.default, _ATEN.new_full.default, _ATEN.new_ones.default, _ATEN.new_zeros.default)
_KEPT_TABLES = 4  # of a weight: as many temperatures and instruction sets as take turns
_PRODUCTS: Callable[..., Tensor | None] | None = None
_SET_DATA: Any = Tensor.data.__set__  # type: ignore[attr-defined]


class _Tables(dict[Hashable, tuple[Tensor, list[Tensor]]]):
    """What kernels made of a weight, and of which parts: it goes into no copy and no file."""

    def __reduce__(self) -> Any:
        return _Tables, ()


@final
class CompressedWeight(Tensor):
    """A float32 matrix [R, C] in blocks of rows, each in its form. It has no gradient and cannot be written to.

    Args: blocks: all rows, in order. columns: C.
    """

    blocks: list[Block]

    @staticmethod
    def __new__(cls, blocks: Sequence[Block], columns: int) -> "CompressedWeight":
        """A tensor without storage, of the shape and type of the matrix."""
        device = next(iter(blocks[0].parts.values())).device
        shape = (blocks[-1].last, columns)
        return without_storage(cls, shape, dtype=torch.float32, device=device, requires_grad=False)

    def __init__(self, blocks: Sequence[Block], columns: int) -> None:
        self.blocks = [Block(b.first, b.last, b.form, {n: p.contiguous() for n, p in b.parts.items()}) for b in blocks]
        self._tables = _Tables()

    def dense(self) -> Tensor:
        """The matrix, float32."""
        return forms.dense(self.blocks, self.shape[1])

    def stored(self, name: str) -> dict[str, Tensor]:
        """The parts under their names in a file, where this weight is `name`."""
        return {
            forms.key(name, block.first, block.last, block.form, part): value
            for block in self.blocks
            for part, value in block.parts.items()
        }

    def remembered(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What `make` makes of the parts as they are now: made once for each of the last few keys."""
        parts = stored_parts(self)
        state = tuple((part.data_ptr(), None if part.is_inference() else version(part)) for part in parts)
        found = self._tables.get((key, state))
        if found is None:
            kept = list(self._tables.items())[1 - _KEPT_TABLES :]
            blocks, found = self.blocks, (make(), parts)  # the parts are held, so that no other has their addresses
            if blocks is self.blocks:  # else another thread has set `.data` meanwhile
                self._tables = _Tables([*kept, ((key, state), found)])
        return found[0]

    def __repr__(self, **_: Any) -> str:
        kinds = ", ".join(f"{block.first}…{block.last - 1} {block.form}" for block in self.blocks)
        return f"CompressedWeight({list(self.shape)}: {kinds})"

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "CompressedWeight":
        blocks = [Block(b.first, b.last, b.form, {n: change(p) for n, p in b.parts.items()}) for b in self.blocks]
        return CompressedWeight(blocks, self.shape[1])

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            found = _PRODUCTS(*args, **kwargs) if _PRODUCTS else None
            if found is not None:
                return found
        if func == _SET_DATA:  # what Module.to does
            if not isinstance(args[1], CompressedWeight):
                got, advice = str(args[1].dtype), "Make it dense first: model.expand()"
                raise ArgumentError("CompressedWeight", "stays float32", got, advice)
            args[0].blocks = args[1].blocks
        if func is Tensor.__setitem__:
            raise _written("w[…] = …")
        if func is Tensor.share_memory_:
            for part in stored_parts(args[0]):
                part.share_memory_()
            return args[0]
        if func is Tensor.__dlpack__:
            return args[0].dense().__dlpack__(*args[1:], **kwargs)
        return Tensor.__torch_function__(func, (), args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, CompressedWeight):
            if func in (_ATEN.detach.default, _ATEN.alias.default):
                return CompressedWeight(first.blocks, first.shape[1])
            if func is _ATEN.clone.default:
                return first._mapped(torch.clone)
            if func is _ATEN._to_copy.default and kwargs.get("dtype") in (None, first.dtype):
                device = kwargs.get("device") or first.device
                return first._mapped(lambda part: part.to(device, copy=True))
            if func in _ASK_THE_TYPE:
                return func(torch.empty(0, dtype=first.dtype, device=first.device), *args[1:], **kwargs)
            if func is _ATEN.embedding.default:
                return forms.rows(first.blocks, first.shape[1], args[1])
        _refuse_writing(func, args, kwargs)
        return func(*_all_dense(args), **_all_dense(kwargs))


def take_products(linear: Callable[..., Tensor | None]) -> None:
    """Let `linear`, called as `torch.nn.functional.linear`, compute products with compressed weights; None leaves them dense."""
    global _PRODUCTS
    _PRODUCTS = linear


def compressed(*weights: Tensor) -> bool:
    """Whether some of these weights are held in small forms."""
    return any(isinstance(weight, CompressedWeight) for weight in weights)


def blocks_of(weight: Tensor) -> list[Block]:
    """A weight's blocks; a dense one is a single block."""
    if isinstance(weight, CompressedWeight):
        return weight.blocks
    return [Block(0, len(weight), "float32", {"values": weight.detach()})]


def as_dense(weight: Tensor) -> Tensor:
    """The matrix, made if need be."""
    return weight.dense() if isinstance(weight, CompressedWeight) else weight


def stored_parts(weight: Tensor) -> list[Tensor]:
    """What is stored of a weight: of a dense one itself."""
    return [part for block in blocks_of(weight) for part in block.parts.values()]


def gather(saved: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """A file's tensors with the parts of each compressed weight made one.

    Args: shapes: of the model's own weights.
    Raises: ArgumentError: a part is unknown, missing or of another size, or rows are missing or there twice.
    """
    dense = {name: value for name, value in saved.items() if not forms.is_small(name)}
    blocks = forms.gather(saved, shapes)
    return dense | {name: CompressedWeight(found, shapes[name][1]) for name, found in blocks.items()}


def _refuse_writing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in written_by(func, args, kwargs):
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, CompressedWeight):
                raise _written(str(func))


def _all_dense(given: Any) -> Any:
    """An operator's arguments, with the matrix of each weight."""
    if isinstance(given, dict):
        return {name: _all_dense(value) for name, value in given.items()}
    if isinstance(given, list | tuple):
        return type(given)(map(_all_dense, given))
    return given.dense() if isinstance(given, CompressedWeight) else given


def _written(how: str) -> ArgumentError:
    advice = "Load the run with dense weights, or compress the result again"
    return ArgumentError("CompressedWeight", "cannot be written to", how, advice)


# a state dict that holds one loads under weights_only=True
torch.serialization.add_safe_globals([Block, CompressedWeight, _Tables])
