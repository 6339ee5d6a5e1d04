"""Successive halving: many settings trained for a short time, the better half of them for longer."""

from gatedrnn.studies.sweep.halving import Round, Trial, best_first, combinations, rounds

__all__ = ["Round", "Trial", "best_first", "combinations", "rounds"]
