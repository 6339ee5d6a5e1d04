"""What commands that read a text or write a folder share."""

import os
from pathlib import Path

from gatedrnn.core.errors import ArgumentError, DataError

INTERRUPTED = 130
"""The exit code of what Ctrl-C ended, as shells have it."""

GO_ON = "the same command with --resume goes on"

STATES = {False: "state carried", True: "state reset at each sentence"}
"""By whether the state is reset."""

_NEW_LEVELS = 32
_ROOM = "x" * 64  # as long as the names of files that will be written


def nothing(path: str) -> DataError:
    """The error of a text without a sentence; `-` is standard input."""
    name = "standard input" if path == "-" else path
    return DataError(name, "must hold at least one sentence", "an empty text", "Check the file")


def check_folder(option: str, path: str) -> None:
    """Check that a folder can be at `path`: it is there, or new below one that is there.

    Raises: ArgumentError: a file, a dangling link, a name too long, or folders too deep.
    """
    folder, advice = Path(path), f"Choose another {option}"
    try:
        (folder / _ROOM).exists()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError(option, "must name a folder", f"{path!r}: {reason}", advice) from error
    new = 0
    for place in (folder, *folder.absolute().parents):
        if os.path.lexists(place):
            if not place.is_dir():
                kind = "a link to nothing" if place.is_symlink() and not place.exists() else "a file"
                raise ArgumentError(option, "must be a folder, or a new one", f"{str(place)!r}, {kind}", advice)
            break
        new += 1
    if not path or new > _NEW_LEVELS:
        got = f"{new} new folders, one inside another" if path else "an empty name"
        raise ArgumentError(option, f"must be a folder, or at most {_NEW_LEVELS} new ones deep", got, advice)
