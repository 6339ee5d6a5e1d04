"""Phrase structure: spans, distances → trees, F1 by published protocols, baselines; knows no model and no torch."""

from gatedrnn.trees.baselines import BASELINES, balanced, balanced_up, left, random_spans, right, upper_bound
from gatedrnn.trees.consensus import best_tree, consensus
from gatedrnn.trees.distances import ALGORITHMS, distances_to_spans, spans_to_heights
from gatedrnn.trees.gold import KEEP_RULES, Gold, gold_tree, keep_word
from gatedrnn.trees.scores import PROTOCOLS, Score, agreement, bootstrap, depth, label_recall, score, sentence_f1
from gatedrnn.trees.spans import Bracketed, Span, brackets, spans_to_tree

__all__ = [
    "ALGORITHMS",
    "BASELINES",
    "KEEP_RULES",
    "PROTOCOLS",
    "Bracketed",
    "Gold",
    "Score",
    "Span",
    "agreement",
    "balanced",
    "balanced_up",
    "best_tree",
    "bootstrap",
    "brackets",
    "consensus",
    "depth",
    "distances_to_spans",
    "gold_tree",
    "keep_word",
    "label_recall",
    "left",
    "random_spans",
    "right",
    "score",
    "sentence_f1",
    "spans_to_heights",
    "spans_to_tree",
    "upper_bound",
]
