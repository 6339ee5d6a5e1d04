"""Checksums of the files that a model is loaded from, beside them in `checksums.json`: damage is noticed where a file is read.

A file that is not listed there is read as it is. While a file is replaced, the old one and the new one are both listed: no kill
leaves a folder that is refused.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gatedrnn.core.errors import CheckpointError
from gatedrnn.core.files import write_json, write_with

CHECKSUMS_FILE = "checksums.json"

Listed = dict[str, list[Any]]
"""File name → what it may be: {"sha256", "bytes"} of each state."""

_TRIES = 3  # while another process replaces the file


def checksum(path: Path) -> dict[str, Any]:
    """SHA-256 of a file, and its size in bytes. Raises: OSError: it cannot be read."""
    with path.open("rb") as stream:
        return {"sha256": hashlib.file_digest(stream, "sha256").hexdigest(), "bytes": path.stat().st_size}


def write_listed(path: Path, write: Callable[[Path], object]) -> None:
    """As `write_with`, and list the file's checksum. Raises: DataError: it cannot be written. CheckpointError: a damaged list."""
    listed = _listed(path.parent)
    before = listed.get(path.name) or ([checksum(path)] if path.is_file() else [])

    def both(temporary: Path) -> None:
        listed[path.name] = [checksum(temporary)]
        write_json(path.parent / CHECKSUMS_FILE, listed | {path.name: listed[path.name] + before})

    write_with(path, write, both)
    write_json(path.parent / CHECKSUMS_FILE, listed)


def accept(folder: Path, names: Iterable[str]) -> list[str]:
    """List these files as they are now, and no others; those that differ from what was listed.

    Raises: DataError: the list cannot be written. OSError: a file cannot be read.
    """
    try:
        before = _listed(folder)
    except CheckpointError:
        before = {}
    now: Listed = {name: [checksum(folder / name)] for name in names if (folder / name).is_file()}
    write_json(folder / CHECKSUMS_FILE, now)
    return [name for name in {**before, **now} if name not in now or now[name][0] not in before.get(name, [])]


def check(path: Path) -> None:
    """Compare a file that was read with its checksum, if one is listed.

    Raises: CheckpointError: it is another one, or the list is damaged.
    """
    for _ in range(_TRIES):
        found = checksum(path)
        listed = _listed(path.parent).get(path.name)
        if listed is None or found in listed:
            return
    advice = f"Restore the file; if the change was made on purpose: gatedrnn accept {path.parent}"
    raise CheckpointError(
        str(path), "must be unchanged since it was written", f"another checksum than in {CHECKSUMS_FILE}", advice
    )


def check_all(folder: Path) -> None:
    """`check` for every file that is listed. Raises: CheckpointError: as there, or one is missing."""
    for name in _listed(folder):
        if not (folder / name).is_file():
            raise CheckpointError(str(folder / name), "must exist", "no such file", "Restore it, or start another run")
        check(folder / name)


def _listed(folder: Path) -> Listed:
    """The list of a folder, empty where there is none. Raises: CheckpointError: it is damaged."""
    path = folder / CHECKSUMS_FILE
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(listed, dict) and all(isinstance(each, list) for each in listed.values()):
            return listed
        reason = "something other than lists of checksums"
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
    advice = f"Restore the file; if the other files are right: gatedrnn accept {folder}"
    raise CheckpointError(str(path), "is damaged", reason, advice)
