"""Which loop a cell runs on: its rows, its columns of gates, and the compiled entry points."""

import array
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gatedrnn.sequence.backends.cpu import build, team
from gatedrnn.sequence.backends.cpu.once import once
from gatedrnn.sequence.backends.cpu.target import Target

_PACKED = ("PW", "PU", "QW", "QU", "P", "shared", "left")  # in the precision of the products
_POINTERS_TO_INT = ("offsets", "prev", "starts", "targets")
_INTEGERS = (
    "T", "B", "D", "H", "K", "C", "N", "R", "V", "reverse", "columns_x", "first_1", "columns_1", "columns_2",
    "columns", "shift", "ldg", "panel", "tall", "direct_w", "direct_u", "two_biases", "noisy", "scaled", "cells",
    "carries", "need_dx", "need_dw", "need_du", "parts", "differentiate", "blocks", "seed", "grad_h_stride",
    "grad_g_stride", "extra_size", "scratch_size", "left_size",
)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """A compiled loop for one cell, precision and target; called with the names of the loop's arguments."""

    address: int
    names: tuple[str, ...]

    def __call__(self, threads: int, values: dict[str, int | Tensor | None]) -> None:
        """Run it: tensors by address, None as address 0."""
        arguments = []
        for name in self.names:
            value = values[name]
            arguments.append(value.data_ptr() if isinstance(value, Tensor) else int(value or 0))
        team.run(self.address, array.array("q", arguments), threads)


def _loop(kernel: str, direction: str) -> Callable[..., None]:
    """The kernel's Python function; imports Numba."""
    if kernel == "products":
        from gatedrnn.sequence.backends.cpu.bound import products

        return products
    if kernel == "linear":
        from gatedrnn.sequence.backends.cpu.small import linear

        return linear
    if kernel == "cross_entropy":
        from gatedrnn.sequence.backends.cpu.likelihood import cross_entropy

        return cross_entropy
    if kernel == "noise":
        from gatedrnn.sequence.backends.cpu.drawing import draw

        return draw
    from gatedrnn.sequence.backends.cpu import compiled, loops

    both = compiled.rows(kernel, direction)
    return loops.forward_loop(*both) if direction == "forward" else loops.backward_loop(*both)


_NAMES = {
    "products": (
        "T B D H columns ldg panel tall parts prev x PW PU QW QU G out h0 dh dx dW dU db shared scratch scratch_size "
        "left left_size"
    ),
    "linear": "N K columns ldg panel tall x PW bias G scratch scratch_size left left_size",
    "cross_entropy": "N V differentiate logits bias targets weights losses sums",
    "draw": "N R blocks seed starts chance out",
    "forward": (
        "T D H K C reverse columns_x first_1 columns_1 columns_2 columns shift ldg panel tall direct_w direct_u "
        "noisy blocks seed scaled cells offsets prev x W U PW PU scale bias bias_h two_biases noise starts chance extra G out "
        "cs h0 c0 hn cn scratch scratch_size left left_size"
    ),
    "backward": (
        "T D H K C reverse columns_x first_1 columns_1 columns_2 shift ldg panel tall cells carries need_dx need_dw "
        "need_du scaled offsets prev x W U P scale extra G out cs h0 c0 grad_h grad_h_stride grad_g grad_g_stride dh dc "
        "dG dx dW dU db_x db_h d_extra extra_size shared scratch scratch_size left left_size"
    ),
}


@once
def kernel(name: str, direction: str, target: Target, kind: str) -> Kernel:
    """The loop `direction` of cell kernel `name`, compiled now, or loaded from the cache.

    Args: kind: of products: f32, f64, or, all else in float32: bf16, split (nearly float32), small (weights in small forms).
    Raises: ImportError: Numba is missing. BackendError: it would be compiled from other files than this process imported.
    """
    team.link()

    def make() -> bytes:
        from numba.core.compiler_lock import global_compiler_lock
        from numba.core.registry import cpu_target

        _ = cpu_target.target_context  # made under a lock of its own, which other threads take before the next line's
        with global_compiler_lock:  # other threads may compile functions of their own
            return _compiled(name, direction, target, kind)

    code = build.cached(f"{_short(name)}-{direction}-{kind}", target, make)
    return Kernel(build.load(code, "entry", target), tuple(_NAMES[direction].split()))


def _short(name: str) -> str:
    """A kernel's name, of a cell's that of its text, which cells of other sizes may share."""
    from gatedrnn.sequence.backends.cpu import compiled

    return compiled.of(name).name if ":" in name else name


def _compiled(name: str, direction: str, target: Target, kind: str) -> bytes:
    from numba.core import types

    from gatedrnn.sequence.backends.cpu.simd import Ptr
    from gatedrnn.sequence.backends.cpu.tiles import tile_module

    function = _loop(name, direction)
    names = list(inspect.signature(function).parameters)
    if names != _NAMES[direction].split():  # which is what later processes call it with
        raise TypeError(f"{direction}: its loop takes {' '.join(names)}, called with {_NAMES[direction]}")
    real = Ptr(types.float64, target.lanes // 2) if kind == "f64" else Ptr(types.float32, target.lanes)
    small = {"bf16": types.uint32, "split": types.int32, "small": types.uint8}
    packed = Ptr(small[kind], target.lanes) if kind in small else real

    def of(argument: str) -> Any:
        if argument in _INTEGERS:
            return types.intp
        return Ptr(types.int64, 1) if argument in _POINTERS_TO_INT else packed if argument in _PACKED else real

    kinds = [of(argument) for argument in names]
    return build.compile_entry(function, kinds, target, tile_module(target, "f32" if kind == "small" else kind))
