"""What gates do: histograms, shares near 0 and 1, update frequencies, split points; trains nothing."""

from gatedrnn.studies.gates.statistics import BINS, GateValues, LayerStatistics, collect, kept_share

__all__ = ["BINS", "GateValues", "LayerStatistics", "collect", "kept_share"]
