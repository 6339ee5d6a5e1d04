"""The kernels' sources as this process imported them: code compiled of others may have another calling convention."""

import hashlib
import warnings
from pathlib import Path

from gatedrnn.core.errors import BackendError
from gatedrnn.core.files import code_files

_LOST: str | None = None  # why kernels that are not loaded yet can no longer be had


def fingerprint() -> str:
    """Of the CPU backend's sources as they are on disk now."""
    digest = hashlib.sha256()
    for path in code_files(Path(__file__).parents[1], below=True):
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


def lost() -> str | None:
    """None, or why nothing can be compiled any more, as `check` found."""
    return _LOST


def check() -> None:
    """Raises BackendError if nothing can be compiled any more; from then on, kernels are unavailable."""
    global _LOST
    reason = changed()
    if reason:
        if _LOST is None:
            say(reason, "this call fails, and later ones")
        _LOST = reason
        raise BackendError("backend='cpu'", "cannot compile a kernel", reason, "The other backends still work")


def say(reason: str, which: str = "recurrent layers") -> None:
    """Warn that layers run without their kernels."""
    warnings.warn(f"gatedrnn: {which} run without their kernels and are slower: {reason}", stacklevel=2)
