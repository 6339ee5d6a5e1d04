"""What every test gets: one thread, and the folder of shared files (skipped where a clone has none)."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

SHARED = Path(__file__).resolve().parents[2] / "shared"


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
