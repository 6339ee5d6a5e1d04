"""The kernels' sources as this process imported them: code compiled of others may have another calling convention."""

import hashlib
from pathlib import Path


def fingerprint() -> str:
    """Of this folder's sources as they are on disk now."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        try:
            digest.update(path.read_bytes())
        except OSError:  # an editor's lock, or a file just being replaced
            digest.update(b"\0")
    return digest.hexdigest()


IMPORTED = fingerprint()
"""Of the sources as they were when the package was imported."""


def changed() -> str | None:
    """None, or that the files are no longer those this process imported, and what to do."""
    if fingerprint() == IMPORTED:
        return None
    return "gatedrnn's files have changed since this process imported them; restart the process"
