"""What gates do: histograms, shares near 0 and 1, averages by word, update frequencies, split points; trains nothing."""

from gatedrnn.studies.gates.statistics import BINS, GateValues, LayerStatistics, collect, kept_share
from gatedrnn.studies.gates.words import WordGates, gates_by_word

__all__ = ["BINS", "GateValues", "LayerStatistics", "WordGates", "collect", "gates_by_word", "kept_share"]
