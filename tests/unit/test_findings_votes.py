"""Votes at the edges: weights of any size and type."""

import numpy as np
import pytest

from gatedrnn.trees import consensus

LEFT, RIGHT = {(0, 2), (0, 3), (0, 4)}, {(2, 4), (1, 4), (0, 4)}


@pytest.mark.parametrize("far", [1e308, 1e17, 1e-320, 5e-324])
def test_weights_of_any_size(far):
    assert consensus([LEFT, RIGHT, RIGHT], 4, [far, 1 / 3, 1 / 3]) == (LEFT if far > 1 else RIGHT)
    assert consensus([LEFT, RIGHT, RIGHT], 4, [far] * 3) == RIGHT


@pytest.mark.parametrize("weights", [np.ones(3, np.float32), np.array([1, 2, 3]), [True, 1, 2.0]])
def test_weights_of_any_type(weights):
    assert consensus([LEFT, RIGHT, RIGHT], 4, weights) == RIGHT
