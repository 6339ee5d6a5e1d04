"""The perplexity of a compressed run, as `gatedrnn compress` wrote it beside the weights."""

import json
import math
from pathlib import Path

COMPRESSION_FILE = "compression.json"
MEASURED = "as gatedrnn compress measured it on the validation text or its --data"
"""Which text the perplexity is of: the file does not say which of the two."""


def compressed_perplexity(folder: Path) -> float | None:
    """The perplexity of a run's compressed weights; None where `compress` wrote none that can be read."""
    path = folder / COMPRESSION_FILE
    try:
        found = json.loads(path.read_bytes()).get("perplexity_after") if path.is_file() else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None  # a note for people stops nothing
    return found if isinstance(found, int | float) and math.isfinite(found) else None
