"""What the CPU offers: vector width, registers, and the tile of a product that fits them."""

import ctypes
import functools
import os
import platform
from dataclasses import dataclass, replace
from typing import Any

import llvmlite.binding as llvm

from gatedrnn.core.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Target:
    """An instruction set to compile for.

    Args:
        name: "amx", "avx512_bf16", "avx512", "avx2" or "portable".
        lanes: float32 in a vector.
        rows, vectors: a tile is rows × (vectors · lanes).
        cpu, features: as LLVM names them.
        assembly: whether it has x86's fused multiply-add.
        half: how bfloat16 is multiplied: "amx" in matrix registers, "dot" by pairs, "wide" as float32.
        quick: whether products of bfloat16 take less time than those of float32.
        looks_ahead: whether each tile fetches its part of what the next ones read, or only its own. Measured on AMD's CPUs
            (AVX2, AVX-512); Intel's keep their way.
    """

    name: str
    lanes: int
    rows: int
    vectors: int
    cpu: str
    features: str
    assembly: bool = False
    half: str = "wide"
    quick: bool = False
    looks_ahead: bool = False

    @property
    def panel(self) -> int:
        """NR, columns of a packed float32 panel."""
        return self.lanes * self.vectors


_X86 = platform.machine().lower() in ("x86_64", "amd64")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma")


@functools.cache
def targets() -> dict[str, Target]:
    """The targets this CPU can run, the best first; the last, "portable", runs everywhere."""
    has = llvm.get_host_cpu_features() if _X86 else {}
    found = []
    if all(has.get(feature) for feature in _AVX512):
        amd = llvm.get_host_cpu_name().startswith("znver")
        # LLVM would prefer half registers
        wide = Target("avx512", 16, 12, 2, "x86-64-v4", "-prefer-256-bit", True, looks_ahead=amd)
        whole = ",+avx512vnni" if has.get("avx512vnni") else ""
        if has.get("amx-bf16") and has.get("amx-tile") and _allow_amx():
            features = f"{wide.features},+amx-tile,+amx-bf16{whole}"
            found.append(replace(wide, name="amx", features=features, half="amx", quick=True))
        if has.get("avx512bf16"):
            features = f"{wide.features},+avx512bf16{whole}"
            # on Intel's CPUs these products take longer than float32's
            found.append(replace(wide, name="avx512_bf16", features=features, half="dot", quick=amd))
        found.append(wide)
    if has.get("avx2") and has.get("fma"):
        found.append(Target("avx2", 8, 6, 2, "x86-64-v3", "", True, looks_ahead=True))
    found.append(Target("portable", 4, 6, 2, "x86-64" if _X86 else "generic", ""))
    return {target.name: target for target in found}


def _allow_amx() -> bool:
    """Ask Linux for the matrix registers' state; once a process."""
    if platform.system() != "Linux":
        return False
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0


@functools.cache
def _widest() -> Target:
    return next(iter(targets().values()))


_ENVIRONMENT: Any = getattr(os.environ, "_data", os.environ)
"""What os.environ holds, where it can be asked without an exception, which takes longer than all else here."""
_KEY: Any = "GATEDRNN_CPU" if _ENVIRONMENT is os.environ else os.environ.encodekey("GATEDRNN_CPU")


def best() -> Target:
    """The target of `GATEDRNN_CPU` if set (for tests and measurements), else the widest.

    Raises: ArgumentError: no such target on this CPU.
    """
    name = os.environ["GATEDRNN_CPU"] if _KEY in _ENVIRONMENT else ""
    if not name:
        return _widest()
    if name not in targets():
        raise ArgumentError(
            "GATEDRNN_CPU", "must name a target of this CPU", repr(name), f"Use {' or '.join(targets())}"
        )
    return _named(name)


@functools.cache
def _named(name: str) -> Target:
    """A target that was asked for: its products of bfloat16 are asked for too, quick or not."""
    target = targets()[name]
    return target if target.half == "wide" else replace(target, quick=True)
