"""Targeted syntactic evaluation: does a model prefer the grammatical sentence of a pair?"""

from gatedrnn.studies.syntax.pairs import log_probabilities, pair_accuracy

__all__ = ["log_probabilities", "pair_accuracy"]
