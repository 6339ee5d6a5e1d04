"""Text as XML may hold it."""

import re

_NOT_IN_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def well_formed(text: str) -> str:
    """The text with U+FFFD for each character that no XML document may hold, such as most control characters."""
    return _NOT_IN_XML.sub("\ufffd", text)
