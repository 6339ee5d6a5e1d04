"""Text in: vocabulary, corpora, treebanks, batching, the built-in grammar; no model."""

from gatedrnn.data.alignment import Aligned, align, align_words, spaced_words
from gatedrnn.data.batching import Window, windows
from gatedrnn.data.config import MAPPINGS, DataConfig
from gatedrnn.data.conllu import ConlluSentence, is_conllu, plain_lines, read_conllu
from gatedrnn.data.corpus import Corpus, find_splits
from gatedrnn.data.grammar import CONSTRUCTIONS, DEEPER, Pair, agreement_pairs, sample_trees, write_corpus
from gatedrnn.data.pairs import MinimalPair, read_pairs
from gatedrnn.data.suites import METRICS, Item, Suite, read_suite
from gatedrnn.data.text import read_batches, read_lines, read_sentences
from gatedrnn.data.treebank import read_treebank
from gatedrnn.data.vocabulary import EOS, UNK, Vocabulary

__all__ = [
    "CONSTRUCTIONS",
    "DEEPER",
    "EOS",
    "MAPPINGS",
    "METRICS",
    "UNK",
    "Aligned",
    "ConlluSentence",
    "Corpus",
    "DataConfig",
    "Item",
    "MinimalPair",
    "Pair",
    "Suite",
    "Vocabulary",
    "Window",
    "agreement_pairs",
    "align",
    "align_words",
    "find_splits",
    "is_conllu",
    "plain_lines",
    "read_batches",
    "read_conllu",
    "read_lines",
    "read_pairs",
    "read_sentences",
    "read_suite",
    "read_treebank",
    "sample_trees",
    "spaced_words",
    "windows",
    "write_corpus",
]
