"""Unsupervised constituency parsing: trees off master gates or by a grammar, scores beside baselines; trains nothing."""

from gatedrnn.studies.parsing.distances import (
    GATES,
    MEAN,
    Layer,
    Reading,
    cells_with_master_gates,
    has_distances,
    layer_named,
    read_sentences,
)
from gatedrnn.studies.parsing.evaluation import BASELINE_NAMES, ParsingResult, by_length, evaluate_parsing
from gatedrnn.studies.parsing.grammars import GrammarParse, grammar_trees, parse_by_grammar, parse_lines_by_grammar
from gatedrnn.studies.parsing.lines import align_lines, parse_lines, surprisal_records
from gatedrnn.studies.parsing.parse import Parse, parse_sentences
from gatedrnn.studies.parsing.voters import Ballot, agreements, induced_trees, layers_by_gold, read_gold
from gatedrnn.studies.parsing.votes import PRIOR, Vote, vote, voter_weights

__all__ = [
    "BASELINE_NAMES",
    "GATES",
    "MEAN",
    "PRIOR",
    "Ballot",
    "GrammarParse",
    "Layer",
    "Parse",
    "ParsingResult",
    "Reading",
    "Vote",
    "agreements",
    "align_lines",
    "by_length",
    "cells_with_master_gates",
    "evaluate_parsing",
    "grammar_trees",
    "has_distances",
    "induced_trees",
    "layer_named",
    "layers_by_gold",
    "parse_by_grammar",
    "parse_lines",
    "parse_lines_by_grammar",
    "parse_sentences",
    "read_gold",
    "read_sentences",
    "surprisal_records",
    "vote",
    "voter_weights",
]
