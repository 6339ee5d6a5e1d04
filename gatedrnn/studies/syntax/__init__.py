"""Targeted syntactic evaluation: minimal pairs, and test suites of SyntaxGym."""

from gatedrnn.studies.syntax.evaluation import (
    METHODS,
    UNKNOWN,
    Judged,
    SyntaxResult,
    continuation_ids,
    evaluate_pairs,
    sentence_ids,
    words_of_pieces,
)
from gatedrnn.studies.syntax.formula import Formula
from gatedrnn.studies.syntax.pairs import beginning_log_probabilities, log_probabilities
from gatedrnn.studies.syntax.suites import Judgement, SuiteResult, evaluate_suite, read_regions

__all__ = [
    "METHODS",
    "UNKNOWN",
    "Formula",
    "Judged",
    "Judgement",
    "SuiteResult",
    "SyntaxResult",
    "beginning_log_probabilities",
    "continuation_ids",
    "evaluate_pairs",
    "evaluate_suite",
    "log_probabilities",
    "read_regions",
    "sentence_ids",
    "words_of_pieces",
]
