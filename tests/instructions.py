"""The tests that depend on the CPU's instructions, under every other set that this machine can pretend to have, and on one core.

`make test` has run them as the machine is. Matrix registers (AMX) are emulated where a CPU with AVX-512 lacks them and a C
compiler is there. Run it as `python tests/instructions.py [set…]`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gatedrnn.sequence.backends.cpu.runtime.target import targets

LIBRARIES = {
    "avx512_bf16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    "avx512": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "ATEN_CPU_CAPABILITY": "avx512",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
    },
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "portable": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}
"""PyTorch's, oneDNN's and MKL's own switches for the instructions of each of our targets (MKL heeds its own on Intel's CPUs)."""

BF16 = [
    "test_cpu_care.py",
    "test_cpu_nearly_float32.py",
    "test_cpu_operators.py",
    "test_cpu_small.py",
]
THREADS = [
    "parity/test_cpu_care.py",
    "parity/test_cpu_products.py::test_two_threads_share_a_product",
    "unit/test_cpu_service.py",
    "unit/test_resume.py",
]


EMULATED = Path(__file__).parent / "emulated"


def registers(folder: str) -> dict[str, str] | None:
    """What is set to emulate matrix registers, by a library made in the folder; None where they are, or cannot be."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux" or "amx" in targets() or "avx512" not in targets():
        return None
    library = Path(folder, "registers.so")
    options = ["-O2", "-mavx512f", "-mfma", "-shared", "-fPIC", "-ftls-model=initial-exec"]
    subprocess.run([compiler, *options, EMULATED / "registers.c", "-o", library, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "PYTHONPATH": str(EMULATED)}


def sets(emulated: dict[str, str] | None) -> dict[str, tuple[dict[str, str], list[str]]]:
    """What is set for each, and what pytest runs, by name."""
    (_, best), *lower = targets().items()
    found, lanes = {}, best.lanes
    for name, target in lower:
        alike, lanes = target.lanes == lanes, target.lanes  # but for products of bfloat16
        chosen = [f"tests/parity/{file}" for file in BF16] if alike else []
        found[name] = {"GATEDRNN_CPU": name, **LIBRARIES[name]}, ["-m", "instructions", *chosen]
    if emulated:
        files = [*BF16, "test_cpu_products.py"]
        found["amx"] = emulated, ["-m", "not alike", *(f"tests/parity/{file}" for file in files)]
    found["one core"] = {"OMP_NUM_THREADS": "1"}, [f"tests/{file}" for file in THREADS]
    return found


def passes(name: str, switches: dict[str, str], chosen: list[str]) -> bool:
    """Run the tests of one set."""
    print(f"\n=== {name}: {' '.join(f'{key}={value}' for key, value in switches.items())}", flush=True)
    began, cores = time.monotonic(), os.sched_getaffinity(0)
    command = [sys.executable, "-m", "pytest", *chosen]
    if name == "one core":
        os.sched_setaffinity(0, {min(cores)})  # inherited
    else:
        command += ["-n", "auto", "--dist", "loadfile"]
    try:
        status = subprocess.run(command, cwd=Path(__file__).parents[1], env=os.environ | switches).returncode
    finally:
        os.sched_setaffinity(0, cores)
    print(f"=== {name}: {'passed' if status == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return status == 0


def main() -> int:
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        found = {name: how for name, how in sets(registers(folder)).items() if not wanted or name in wanted}
        failed = [name for name, how in found.items() if not passes(name, *how)]
    print(f"\n{len(found) - len(failed)} of {len(found)} sets passed" + "".join(f"; {name} failed" for name in failed))
    return 1 if failed or not found else 0


if __name__ == "__main__":
    sys.exit(main())
