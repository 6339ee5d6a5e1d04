"""What the rows of several cells need."""

from numba import njit

from gatedrnn.sequence.backends.cpu.lanewise import choose_positive


@njit
def nothing(*arguments):
    """The second half of a step, of a cell whose step has none."""


@njit(forceinline=True)
def value(y, hard, k):
    """The value of a sigmoid gate y: itself, or 0 or 1 where bit k of `hard` is set."""
    if hard >> k & 1:
        return choose_positive(y - 0.5, 1.0, 0.0) + y * 0.0  # NaN stays
    return y
