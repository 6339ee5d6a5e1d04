"""The perplexity of a compressed run, as `gatedrnn compress` wrote it beside the weights."""

import json
import math
from pathlib import Path

from gatedrnn.core.errors import DataError

COMPRESSION_FILE = "compression.json"
MEASURED = "as gatedrnn compress measured it on the validation text or its --data"
"""Which text the perplexity is of: the file does not say which of the two."""


def compressed_perplexity(folder: Path) -> float | None:
    """The perplexity of a run's compressed weights; None where `compress` wrote none. Raises: DataError: the file is damaged."""
    path = folder / COMPRESSION_FILE
    try:
        found = json.loads(path.read_bytes()).get("perplexity_after") if path.is_file() else None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        rule, advice = "must be what gatedrnn compress wrote", "Restore the file, or delete it"
        raise DataError(str(path), rule, f"{type(error).__name__}: {error}", advice) from error
    return found if isinstance(found, int | float) and math.isfinite(found) else None
