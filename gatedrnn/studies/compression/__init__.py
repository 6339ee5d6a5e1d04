"""Compression of a trained model: which weights, by which scheme, into which small form; trains nothing."""

from gatedrnn.studies.compression.projection import Projection
from gatedrnn.studies.compression.schemes import METHODS, WEIGHTS, Scheme, compressed, published

__all__ = ["METHODS", "WEIGHTS", "Projection", "Scheme", "compressed", "published"]
