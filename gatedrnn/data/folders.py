"""Folders that a person names, and what is in them."""

import os
from collections.abc import Iterable
from pathlib import Path

from gatedrnn.core.errors import DataError
from gatedrnn.core.files import exists

_NAMED = 8  # files in a message


def folder_with(path: Path | str, holding: str) -> Path:
    """The folder at `path`. Args: holding: what must be in it, in words. Raises: DataError: there is none."""
    folder = Path(path)
    try:
        got = "something else" if exists(folder) else "no such folder"
        there = folder.is_dir()
    except OSError as error:  # the folder that it is in cannot be read
        there, got = False, error.strerror or str(error)
    if not there:
        raise DataError(str(folder), f"must be a folder with {holding}", got, "Check --data")
    return folder


def file_in(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of these files that a folder has; None where it has none. Raises: DataError: a folder, or a link to nothing."""
    path = next((path for name in names if os.path.lexists(path := folder / name)), None)
    if path is not None and not path.is_file():
        raise DataError(str(path), "must be a file", "something else", "Restore it, or remove it")
    return path


def files_in(folder: Path) -> str:
    """Names of the first files, for a message. Raises: DataError: the folder cannot be read."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        got = error.strerror or str(error)
        raise DataError(str(folder), "must be a readable folder", got, "Check its permissions") from error
    return ", ".join(names[:_NAMED]) or "an empty folder"
