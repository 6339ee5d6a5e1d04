"""Words of scripts without spaces between words: every visible character is one, with the marks that combine with it."""

import re
import unicodedata
from functools import cache

_MARKED = (*range(0x300, 0x20000), *range(0xE0000, 0xE0200))  # where Unicode has marks
_JOINERS = "\u200c\u200d"
INVISIBLE = "\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0001-\U000e007f"
"""Characters without a shape of their own; joiners among them join what is beside them."""


def character_words(line: str) -> list[str]:
    """The visible characters of a line, each with the combining marks (Unicode's M) and joiners that follow it.

    White space and other invisible characters are left out; `<unk>` and `<eos>` are one word each.
    """
    return _characters().findall(line)


def character_words_of_lines(lines: list[str], end: str) -> list[str]:
    """As `character_words`, of all lines, `end` after each."""
    text = "\n".join([*lines, ""])
    return [end if word == "\n" else word for word in _characters(r"\n|").findall(text)]


@cache
def _characters(other: str = "") -> re.Pattern[str]:
    marks = "".join(chr(code) for code in _MARKED if unicodedata.category(chr(code))[0] == "M")
    return re.compile(rf"{other}<unk>|<eos>|[^\s{INVISIBLE}][{marks}{_JOINERS}]*")
