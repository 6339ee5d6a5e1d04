"""What commands that read a text share."""

from gatedrnn.core.errors import DataError

STATES = {False: "state carried", True: "state reset at each sentence"}
"""By whether the state is reset."""


def nothing(path: str) -> DataError:
    """The error of a text without a sentence; `-` is standard input."""
    name = "standard input" if path == "-" else path
    return DataError(name, "must hold at least one sentence", "an empty text", "Check the file")
