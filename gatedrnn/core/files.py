"""Atomic writing: a file is either the old one or the new one, never half of it."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gatedrnn.core.errors import DataError


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then move it into place.

    Raises: DataError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise DataError(str(path), "the folder must be writable", error.strerror or str(error)) from error
    os.close(descriptor)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
