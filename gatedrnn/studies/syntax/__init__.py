"""Targeted syntactic evaluation: does a model prefer the grammatical sentence of a pair?"""

from gatedrnn.studies.syntax.evaluation import METHODS, UNKNOWN, Judged, SyntaxResult, evaluate_pairs, sentence_ids
from gatedrnn.studies.syntax.pairs import log_probabilities, next_word_log_probabilities, pair_accuracy

__all__ = [
    "METHODS",
    "UNKNOWN",
    "Judged",
    "SyntaxResult",
    "evaluate_pairs",
    "log_probabilities",
    "next_word_log_probabilities",
    "pair_accuracy",
    "sentence_ids",
]
