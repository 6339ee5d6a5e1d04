"""A cell over time: folding of temperature, the choice of a backend, the reference loop; no parameters of its own."""

from gatedrnn.sequence.dispatch import BACKENDS, backend_for, choices, measure, prepare
from gatedrnn.sequence.perturb import Draw, draw_noise, draw_seed, fold, fold_noise, plan_noise, scale
from gatedrnn.sequence.request import Backend, Request, Result

__all__ = [
    "BACKENDS",
    "Backend",
    "Draw",
    "Request",
    "Result",
    "backend_for",
    "choices",
    "draw_noise",
    "draw_seed",
    "fold",
    "fold_noise",
    "measure",
    "plan_noise",
    "prepare",
    "scale",
]
