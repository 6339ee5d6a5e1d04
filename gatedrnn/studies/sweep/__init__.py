"""Successive halving: many settings trained for a short time, the better half of them for longer."""

from gatedrnn.studies.sweep.halving import Round, Trial, better_half, combinations, rounds

__all__ = ["Round", "Trial", "better_half", "combinations", "rounds"]
