"""What each test gets: one thread, the folder of shared files (skipped where a clone has none), Triton's interpreter, markers."""

import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from quicker import quicken_triton

torch.set_num_threads(1)
gc.set_threshold(20_000, 20, 50)  # by default, every 700 new objects start it, and tracing makes many

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # how fast a machine is decides no test

if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it as it is imported, and wherever a kernel is defined
    importlib.import_module("gatedrnn.sequence.backends.triton.loops")
    del os.environ["TRITON_INTERPRET"]  # for the other tests, the backend is not there
    quicken_triton()

INSTRUCTIONS = (
    "cli/test_interrupt.py::test_training_on_after_compression",
    "golden/",
    "parity/test_cpu_backend",
    "parity/test_cpu_care",
    "parity/test_cpu_inference",
    "parity/test_cpu_nearly_float32",
    "parity/test_cpu_operators",
    "parity/test_cpu_small",
    "parity/test_guard_pages",
    "parity/test_sequence",
    "parity/test_torch",
    "unit/test_compression",
    "unit/test_loss_kernel",
    "unit/test_loss_trust",
    "unit/test_parsing_study",
    "unit/test_resume",
)
"""Files of the tests, or tests, whose results depend on the CPU's instructions; others are the same on every machine.

Not of them: `parity/test_cpu_products`, which tries every target of the machine in any case.
"""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One more process than cores, which works while a test of another one waits for a server or a command."""
    if config.option.numprocesses != "auto" or os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None  # as xdist decides
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores + 1, 8)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of `pytest -m instructions`, files without such tests are not even read, which takes seconds."""
    if config.option.markexpr != "instructions" or collection_path.suffix != ".py":
        return None  # as pytest decides
    name = collection_path.relative_to(Path(__file__).parent).as_posix()
    return None if any(name.startswith(each.partition("::")[0]) for each in INSTRUCTIONS) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, for `pytest -m instructions`, but for cells that are like another one."""
    for item in items:
        if item.get_closest_marker("alike"):
            continue
        if f"{item.path.relative_to(Path(__file__).parent).as_posix()}::{item.name}".startswith(INSTRUCTIONS):
            item.add_marker("instructions")


def pytest_unconfigure() -> None:
    """What was kept from the collector is free again, so that no library tells of it as lost when the process ends."""
    gc.unfreeze()


SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="module", autouse=True)
def nothing_compiled_before():
    """Each file begins with what `torch.compile` knows in a fresh process: code that it once gave up on, it skips ever after."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    gc.freeze()  # so that the collector does not look at libraries and at all tests again and again


@pytest.fixture(scope="session")
def shared_file() -> Callable[[str], Path]:
    """`shared_file("golden/onlstm_small.npz")`: the path, or a skip that names what is absent."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"needs ../shared/{name}, absent in this clone")
        return path

    return find


@pytest.fixture(scope="session")
def shared(shared_file: Callable[[str], Path]) -> Path:
    """The shared folder itself, or a skip."""
    return shared_file("")
