"""Unsupervised constituency parsing: distances off a model's master forget gates, trees, scores beside baselines."""

from gatedrnn.studies.parsing.distances import Reading, cells_with_master_gates, default_layer, read_sentences
from gatedrnn.studies.parsing.evaluation import BASELINE_NAMES, ParsingResult, by_length, evaluate_parsing

__all__ = [
    "BASELINE_NAMES",
    "ParsingResult",
    "Reading",
    "by_length",
    "cells_with_master_gates",
    "default_layer",
    "evaluate_parsing",
    "read_sentences",
]
