"""The tests that depend on the CPU's instructions, under every lower set that this machine can pretend to have, and on one core.

`make test` has run them as the machine is. Run it as `python tests/instructions.py [set…]`.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from gatedrnn.sequence.backends.cpu.target import targets

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

ONE_CORE = {"OMP_NUM_THREADS": "1"}


def sets() -> dict[str, dict[str, str]]:
    """What is set for each, by name."""
    lower = list(targets())[1:]
    return {name: {"GATEDRNN_CPU": name, **LIBRARIES[name]} for name in lower} | {"one core": ONE_CORE}


def passes(name: str, switches: dict[str, str]) -> bool:
    """Run the tests of one set."""
    print(f"\n=== {name}: {' '.join(f'{key}={value}' for key, value in switches.items())}", flush=True)
    began, cores = time.monotonic(), os.sched_getaffinity(0)
    command = [sys.executable, "-m", "pytest", "-m", "instructions"]
    if switches is ONE_CORE:
        os.sched_setaffinity(0, {min(cores)})  # inherited
    else:
        command += ["-n", "auto", "--maxprocesses", "8", "--dist", "loadfile"]
    try:
        status = subprocess.run(command, cwd=Path(__file__).parents[1], env=os.environ | switches).returncode
    finally:
        os.sched_setaffinity(0, cores)
    print(f"=== {name}: {'passed' if status == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return status == 0


def main() -> int:
    wanted = sys.argv[1:]
    found = {name: switches for name, switches in sets().items() if not wanted or name in wanted}
    failed = [name for name, switches in found.items() if not passes(name, switches)]
    print(f"\n{len(found) - len(failed)} of {len(found)} sets passed" + "".join(f"; {name} failed" for name in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
