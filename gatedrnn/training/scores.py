"""The perplexity that a run's folder tells of itself."""

import json
import math
from pathlib import Path
from typing import Any

from gatedrnn.training.run import best_record

COMPRESSION_FILE = "compression.json"


def known_perplexity(folder: Path) -> tuple[float | None, str]:
    """The best epoch's perplexity, as the log has it, else what `compress` wrote of its weights; and which text it is of."""
    best = best_record(folder)
    if best is not None:
        return best["valid_perplexity"], f"validation text, epoch {best['epoch']}"
    path = folder / COMPRESSION_FILE
    try:
        record: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
        found, data = record.get("perplexity_after"), record.get("data", "the validation text or its --data")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None, ""  # a note for people stops nothing
    if not isinstance(found, int | float) or not math.isfinite(found):
        return None, ""
    return found, f"as gatedrnn compress measured it on {'the validation text' if data is None else data}"
