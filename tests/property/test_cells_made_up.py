"""Cells made up from the compiler's vocabulary: kernels are equations (`python -m tests.property.made_up` tries more)."""

import os

import pytest

from gatedrnn.compiler.cell import compile_cell
from gatedrnn.compiler.errors import UnsupportedError
from tests.property.made_up import check, load, make

INSIDE = [400, 698, 881]
"""A product inside the step: a state that is a gate, a temperature, logits read after it.

The other seeds have an exponential gate in float32, chunks, sums from the end, the least of a row, and numbers of the Spec.
"""


@pytest.mark.parametrize("seed", [*INSIDE, 3, 4, 15, 36])
def test_kernels_for_the_cpu_are_the_equation(tmp_path, seed):
    assert check(make(seed), tmp_path, "cpu") is None


@pytest.mark.parametrize("seed", [1, 3, 12])
def test_products_with_matrices_of_the_cells_own_are_the_equation(tmp_path, seed):
    assert check(make(seed, with_matrices=True), tmp_path, "cpu") is None


@pytest.mark.parametrize("seed", [*INSIDE, 3, 4, 26])
def test_kernels_for_a_gpu_are_the_equation(tmp_path, monkeypatch, seed):
    pytest.importorskip("triton", minversion="3.4")
    monkeypatch.setitem(os.environ, "TRITON_INTERPRET", "1")
    assert check(make(seed), tmp_path, "triton") is None


def test_nearly_every_cell_of_the_vocabulary_is_compiled(tmp_path):
    refused = []
    for seed in range(100, 110):
        made = make(seed)
        cell = load(made, tmp_path)
        try:
            refused += [
                found.gpu
                for found in [compile_cell(cell.step, cell.make_spec(made.hidden))]
                if isinstance(found.gpu, str)
            ]
        except UnsupportedError as error:
            refused.append(str(error))
    assert len(refused) <= 1, refused
