"""Cells that are registered for one test, and Triton's interpreter for a layer of them."""

import importlib.util

import pytest

from gatedrnn.cells import CELLS


@pytest.fixture
def interpreted(monkeypatch):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def registered():
    """Registers cells, and removes them again."""
    before = set(CELLS)
    yield lambda cell: CELLS.register(cell.name, cell)
    for name in set(CELLS) - before:
        CELLS.remove(name)
