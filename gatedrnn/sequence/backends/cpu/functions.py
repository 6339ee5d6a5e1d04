"""exp, log, σ and tanh of vectors, with their derivatives from their values.

float32: polynomial and rational forms, relative error ≤ 3e-7 where the result is normal; float64: the C library's.
"""

from typing import Any

from numba import njit, types
from numba.extending import overload

from gatedrnn.sequence.backends.cpu.lanewise import (
    choose_nonzero,
    choose_positive,
    exp64,
    exponent,
    floor,
    log64,
    maximum,
    minimum,
    power_of_two,
    significand,
    tanh64,
)
from gatedrnn.sequence.backends.cpu.simd import Vec


def exp(x: Any) -> Any:
    """eˣ; in float32 0 for x < −87.3, infinite for x > 88.7."""


@overload(exp, strict=False)
def _exp(x: Any) -> Any:
    if not isinstance(x, Vec):
        return None
    if x.real == types.float64:
        return lambda x: exp64(x)

    def exp32(x):
        given = x
        x = maximum(minimum(x, 88.0), -87.0)
        n = floor(x * 1.44269504 + 0.5)
        r = x - n * 0.693359375
        r = r + n * 2.12194440e-4
        p = r * 1.9875691500e-4 + 1.3981999507e-3
        p = p * r + 8.3334519073e-3
        p = p * r + 4.1665795894e-2
        p = p * r + 1.6666665459e-1
        p = p * r + 5.0000001201e-1
        p = p * (r * r) + r + 1.0
        y = choose_positive(given - 88.7, 1e39, p * power_of_two(n))  # infinity in float32
        return choose_positive(-87.3 - given, 0.0, y)

    return exp32


def log(x: Any) -> Any:
    """log x of normal x > 0."""


@overload(log, strict=False)
def _log(x: Any) -> Any:
    if not isinstance(x, Vec):
        return None
    if x.real == types.float64:
        return lambda x: log64(x)

    def log32(x):
        e, m = exponent(x), significand(x)
        small = 0.70710678 - m
        e = choose_positive(small, e - 1.0, e)
        r = choose_positive(small, m + m, m) - 1.0
        p = r * 7.0376836292e-2 + -1.1514610310e-1
        p = p * r + 1.1676998740e-1
        p = p * r + -1.2420140846e-1
        p = p * r + 1.4249322787e-1
        p = p * r + -1.6668057665e-1
        p = p * r + 2.0000714765e-1
        p = p * r + -2.4999993993e-1
        p = p * r + 3.3333331174e-1
        y = p * r * r * r + e * -2.12194440e-4 - r * r * 0.5
        return r + y + e * 0.693359375

    return log32


def tanh(x: Any) -> Any:
    """tanh x."""


@overload(tanh, strict=False)
def _tanh(x: Any) -> Any:
    if not isinstance(x, Vec):
        return None
    if x.real == types.float64:
        return lambda x: tanh64(x)

    def tanh32(x):
        given = x
        x = maximum(minimum(x, 7.90531110763549805), -7.90531110763549805)
        y = x * x
        p = y * -2.76076847742355e-16 + 2.00018790482477e-13
        p = p * y + -8.60467152213735e-11
        p = p * y + 5.12229709037114e-08
        p = p * y + 1.48572235717979e-05
        p = p * y + 6.37261928875436e-04
        p = p * y + 4.89352455891786e-03
        q = y * 1.19825839466702e-06 + 1.18534705686654e-04
        q = q * y + 2.26843463243900e-03
        q = q * y + 4.89352518554385e-03
        y = choose_positive(given - 9.01, 1.0, x * p / q)  # exactly ±1 where float32's is: its slope is then 0
        return choose_positive(-9.01 - given, -1.0, y)

    return tanh32


@njit
def sigmoid(x):
    """σ(x) = 1 / (1 + e⁻ˣ)."""
    return 1.0 / (exp(-x) + 1.0)


@njit
def sigmoid_slope(y):
    """σ'(x) from y = σ(x)."""
    return y * (1.0 - y)


@njit
def tanh_slope(y):
    """tanh'(x) from y = tanh(x)."""
    return 1.0 - y * y


@njit
def greater(x, y):
    """1 where x > y, else 0."""
    return choose_positive(x - y, 1.0, 0.0)


@njit
def relu(x):
    """max(x, 0)."""
    return maximum(x, 0.0)


@njit
def where_nonzero(x, a, b):
    """a where x is not 0, else b."""
    return choose_nonzero(x, a, b)
