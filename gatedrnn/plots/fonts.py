"""Fonts for letters that matplotlib's own font lacks, among those that are installed."""

import warnings
from contextlib import suppress
from functools import cache

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

_BOXES = "Last Resort"  # matplotlib's font whose every letter is a box


def fit_fonts(figure: Figure) -> None:
    """Give texts with letters that their font lacks the installed fonts that have them, the one with most of them first.

    Warns once a process of the letters that are left.
    """
    texts = [text for text in figure.findobj(Text) if not text.get_text().isascii()]
    own = _letters(font_manager.findfont(font_manager.FontProperties())) if texts else set()
    lacking = {letter for text in texts for letter in text.get_text() if letter not in own and letter.isprintable()}
    if not lacking:
        return
    letters = {each.name: _letters(each.fname) for each in _installed()}
    chosen, left = [], lacking
    while letters and left & letters[best := max(letters, key=lambda name: len(left & letters[name]))]:
        chosen.append(best)
        left = left - letters[best]
    for text in texts:
        if lacking & set(text.get_text()):
            text.set_fontfamily(["sans-serif", *chosen])
    if left:
        _warn(" ".join(sorted(left)[:8]) + (" …" if len(left) > 8 else ""))


@cache
def _warn(letters: str) -> None:
    advice = "install one (Noto has fonts of every script), or use the SVG, which other programs draw with their own"
    warnings.warn(f"no installed font has {letters}, drawn as boxes; {advice}", stacklevel=4)


def _installed() -> list[font_manager.FontEntry]:
    """Upright fonts of ordinary weight, in a fixed order; those too that were installed after matplotlib last looked."""
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known:
            with suppress(Exception):  # a damaged font is not ours to report
                font_manager.fontManager.addfont(path)
    entries = [each for each in font_manager.fontManager.ttflist if each.style == "normal" and each.weight == 400]
    return sorted((each for each in entries if _BOXES not in each.name), key=lambda each: (each.name, each.fname))


def _letters(path: str) -> set[str]:
    with suppress(Exception):  # a font that is gone, or damaged, has none
        return {chr(code) for code in font_manager.get_font(path).get_charmap()}
    return set()
