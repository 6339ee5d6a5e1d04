"""Folders that a person names, and what is in them."""

from pathlib import Path

from gatedrnn.core.errors import DataError

_NAMED = 8  # files in a message


def folder_with(path: Path | str, holding: str) -> Path:
    """The folder at `path`. Args: holding: what must be in it, in words. Raises: DataError: there is none."""
    folder = Path(path)
    try:
        there, got = folder.is_dir(), "no such folder"
    except OSError as error:  # the folder that it is in cannot be read
        there, got = False, error.strerror or str(error)
    if not there:
        raise DataError(str(folder), f"must be a folder with {holding}", got, "Check --data")
    return folder


def files_in(folder: Path) -> str:
    """Names of the first files, for a message. Raises: DataError: the folder cannot be read."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        got = error.strerror or str(error)
        raise DataError(str(folder), "must be a readable folder", got, "Check its permissions") from error
    return ", ".join(names[:_NAMED]) or "an empty folder"
