"""exp, log, σ and tanh of vectors, with their derivatives from their values.

float32: polynomial and rational forms, relative error ≤ 3e-7 where the result is normal; float64: the C library's.
"""

from typing import Any

from numba import types

from gatedrnn.sequence.backends.cpu.vector.lanewise import (
    absolute,
    at_least,
    choose_nonzero,
    choose_positive,
    equal,
    exp64,
    exponent,
    floor,
    greater,
    log64,
    maximum,
    minimum,
    power_of_two,
    significand,
    tanh64,
)
from gatedrnn.sequence.backends.cpu.vector.simd import Vec, njit, overload


def exp(x: Any) -> Any:
    """eˣ; in float32 0 for x < −87.3, infinite for x > 88.37, where the largest power of two that it multiplies by ends."""


@overload(exp)
def _exp(x: Any) -> Any:
    if not isinstance(x, Vec):
        return None
    if x.real == types.float64:
        return lambda x: exp64(x)

    def exp32(x):
        given = x
        x = maximum(minimum(x, 88.37), -87.3)
        n = floor(x * 1.44269504 + 0.5)
        r = x - n * 0.693359375
        r = r + n * 2.12194440e-4
        p = r * 1.9875691500e-4 + 1.3981999507e-3
        p = p * r + 8.3334519073e-3
        p = p * r + 4.1665795894e-2
        p = p * r + 1.6666665459e-1
        p = p * r + 5.0000001201e-1
        p = p * (r * r) + r + 1.0
        y = choose_positive(given - 88.37, 1e39, p * power_of_two(n))  # infinity in float32
        return choose_positive(-87.3 - given, 0.0, y)

    return exp32


def log(x: Any) -> Any:
    """log x of normal x > 0."""


@overload(log)
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


@overload(tanh)
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
def relu(x):
    """max(x, 0)."""
    return maximum(x, 0.0)


@njit
def greatest(x, y):
    """max(x, y); NaN where either is."""
    return choose_nonzero(equal(y, y), maximum(x, y), y)


@njit
def least(x, y):
    """min(x, y); NaN where either is."""
    return choose_nonzero(equal(y, y), minimum(x, y), y)


@njit
def ln(x):
    """log x of any x: −∞ of 0, NaN below."""
    tiny = greater(1e-37, x)
    y = log(choose_nonzero(tiny, x * 16777216.0, x)) - tiny * 16.635532333438686
    y = choose_nonzero(greater(x, 1e38) * equal(x, x + x), x, y)
    y = choose_nonzero(equal(x, 0.0), -1e309, y)  # −∞ in either precision
    return choose_nonzero(at_least(x, 0.0), y, x - x + (x - x) / (x - x))


@njit
def log1p(x):
    """log(1 + x)."""
    u = x + 1.0
    near = greater(0.5, absolute(x)) * choose_nonzero(u - 1.0, 1.0, 0.0)
    return choose_nonzero(near, ln(u) * x / (u - 1.0), choose_nonzero(greater(0.5, absolute(x)), x, ln(u)))


@njit
def expm1(x):
    """eˣ − 1."""
    return choose_nonzero(greater(0.5, absolute(x)), tanh(x * 0.5) * (exp(x) + 1.0), exp(x) - 1.0)


@njit
def sign(x):
    """−1, 0 or 1."""
    return greater(x, 0.0) - greater(0.0, x)


@njit
def not_number(x):
    """1 where x is NaN, else 0."""
    return 1.0 - equal(x, x)
