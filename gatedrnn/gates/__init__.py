"""Gates as pure functions of logits and explicit noise: squashing, temperature, Gumbel and logistic noise; no cell, no state."""

from gatedrnn.gates.gates import Gates
from gatedrnn.gates.noise import gumbel_noise, logistic_noise, uniform
from gatedrnn.gates.squash import SQUASHES, cumax, sigmoid, split_above, split_below, straight_through, tail_cumax
from gatedrnn.gates.trace import syntactic_distance

__all__ = [
    "SQUASHES",
    "Gates",
    "cumax",
    "gumbel_noise",
    "logistic_noise",
    "sigmoid",
    "split_above",
    "split_below",
    "straight_through",
    "syntactic_distance",
    "tail_cumax",
    "uniform",
]
