"""Loops compiled, or loaded from the cache, as entry points that take addresses and numbers."""

import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from gatedrnn.sequence.backends.cpu.compile import build, records
from gatedrnn.sequence.backends.cpu.runtime import team
from gatedrnn.sequence.backends.cpu.runtime.once import once
from gatedrnn.sequence.backends.cpu.runtime.target import Target


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


@dataclass(frozen=True)
class Linked:
    """What a loop calls by name. Args: name: of its file, which says all; symbol: what it is called by; make: gives its Python
    function, and its Numba types for addresses of this type."""

    name: str
    symbol: str
    make: Callable[[Any], tuple[Any, list[Any]]] = field(compare=False)


@once
def kernel(name: str, direction: str, target: Target, kind: str, loop: str, linked: Linked | None = None) -> Kernel:
    """A loop, compiled now, or loaded from the cache.

    Args:
        name: of its file; the same for the same loop alone.
        direction: its entry in `records.LOOPS`.
        loop: where its Python function is, "module:function"; the module imports Numba.
        linked: what it calls by name, if anything.
        kind: of products: f32, f64, or, all else in float32: bf16, split (nearly float32), small (weights in small forms).

    Raises: ImportError: Numba is missing. BackendError: it would be compiled from other files than this process imported.
    """
    team.link()

    def code(file: str, make: Callable[[], bytes]) -> bytes:
        def made() -> bytes:
            from numba.core.compiler_lock import global_compiler_lock
            from numba.core.registry import cpu_target

            from gatedrnn.sequence.backends.cpu.vector.simd import compiling

            # made under a lock of its own, which other threads take before the next one
            _ = cpu_target.target_context
            with global_compiler_lock, compiling():  # other threads may compile functions of their own
                return make()

        return build.cached(file, target, made)

    codes = [code(f"{name}-{direction}-{kind}", lambda: _compiled(resolve_name(loop), direction, target, kind))]
    if linked is not None:
        own = f"{linked.name}-{direction}-{'f64' if kind == 'f64' else 'f32'}"
        codes.append(code(own, lambda: _linked(linked, target, kind)))
    return Kernel(build.load(codes, "entry", target), records.names(direction))


def _real(target: Target, kind: str) -> Any:
    """Numba's type of addresses of reals."""
    from numba.core import types

    from gatedrnn.sequence.backends.cpu.vector.simd import Ptr

    return Ptr(types.float64, target.lanes // 2) if kind == "f64" else Ptr(types.float32, target.lanes)


def _linked(linked: Linked, target: Target, kind: str) -> bytes:
    function, arguments = linked.make(_real(target, kind))
    return build.compile_named(linked.symbol, function, arguments, target)


def _compiled(loop: Callable[..., None], direction: str, target: Target, kind: str) -> bytes:
    from numba.core import types

    from gatedrnn.sequence.backends.cpu.vector.simd import Ptr
    from gatedrnn.sequence.backends.cpu.vector.tiles import tile_module

    real = _real(target, kind)
    small = {"bf16": types.uint32, "split": types.int32, "small": types.uint8}
    weight = Ptr(types.uint16, target.lanes) if kind == "widened" else real
    packed = Ptr(small[kind], target.lanes) if kind in small else real
    known = {"int": types.intp, "index": Ptr(types.int64, 1), "real": real, "weight": weight, "packed": packed}
    kinds = [known[each] for each in records.kinds(direction)]
    tiles = tile_module(target, "f32" if kind in ("small", "widened") else kind)
    return build.compile_entry(_entry(loop, direction), kinds, target, tiles)


def _entry(loop: Callable[..., None], direction: str) -> Callable[..., None]:
    """A function of all that the loop is called with, which gives it its records."""
    from gatedrnn.sequence.backends.cpu.vector.simd import njit

    given = records.LOOPS[direction]
    space: dict[str, Any] = {f"_{k}": record.made for k, record in enumerate(given)}
    space |= {"__name__": __name__, "loop": njit(loop)}
    passed = ", ".join(f"_{k}({', '.join(record.made._fields)})" for k, record in enumerate(given))
    exec(f"def entry({', '.join(records.names(direction))}):\n    loop({passed})\n", space)
    return space["entry"]
