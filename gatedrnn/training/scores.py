"""What a run's folder tells of how good it is."""

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
        found, data = record.get("perplexity_after"), record.get("data", "")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None, ""  # a note for people stops nothing
    if not isinstance(found, int | float) or not math.isfinite(found) or not isinstance(data, str | None):
        return None, ""
    texts = {None: "the validation text", "": "the validation text or its --data", "-": "standard input"}
    told = texts[data] if data in texts else Path(str(data)).name  # not where it lies: this is published
    return found, f"as gatedrnn compress measured it on {told}"


def compression_figures(folder: Path, about: dict[str, Any]) -> dict[str, Any] | None:
    """What `compress` measured of a folder, if it tells that it made it as `about` says."""
    try:
        kept = json.loads((folder / COMPRESSION_FILE).read_bytes())
        return kept if about == {name: kept.pop(name) for name in about} else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # there is none, or it is damaged or an earlier version's
