"""CoNLL-U: sentences with every line as written, their surface tokens, and attributes added to MISC.

A surface token is a multiword token (a row with an ID such as 3-4) or a word outside of one. Empty nodes (8.1) are no tokens.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gatedrnn.core.errors import DataError
from gatedrnn.data.text import read_lines

_COLUMNS = 10
_FORM, _MISC = 1, 9
_ID = re.compile(r"(\d{1,9})(?:([-.])(\d{1,9}))?")
_ENDINGS = (".conllu", ".conllu.gz")


@dataclass(frozen=True)
class ConlluSentence:
    """One sentence.

    Args:
        lines: its comments and rows, as written.
        places: the line of each surface token.
        words: the form of each.
        spaces: whether white space follows each, as `SpaceAfter=No` says.
    """

    lines: Sequence[str]
    places: Sequence[int]
    words: Sequence[str]
    spaces: Sequence[bool]

    @classmethod
    def of(cls, words: Sequence[str], spaces: Sequence[bool], text: str, number: int) -> "ConlluSentence":
        """A sentence of plain text, with `sent_id` and `text`; every column but ID, FORM and MISC (`SpaceAfter`) is `_`."""
        comments = [f"# sent_id = {number}", f"# text = {' '.join(text.split())}"]
        after = ["_" if space else "SpaceAfter=No" for space in spaces]
        rows = ["\t".join([str(k), word, *"_" * (_MISC - 2), after[k - 1]]) for k, word in enumerate(words, 1)]
        return cls([*comments, *rows], range(2, 2 + len(rows)), words, spaces)

    def with_misc(
        self, attributes: Sequence[Mapping[str, str | None]], comments: Mapping[str, str | None] | None = None
    ) -> str:
        """Its text, with attributes in MISC of each surface token, and comments after its own.

        An attribute or a comment of that name is replaced; without a value (None) it is removed. The rest stays as it was.
        """
        lines, comments = list(self.lines), comments or {}
        for place, new in zip(self.places, attributes, strict=True):
            cells = lines[place].split("\t")
            kept = [part for part in cells[_MISC].split("|") if part != "_" and part.partition("=")[0] not in new]
            added = [f"{name}={value}" for name, value in new.items() if value is not None]
            cells[_MISC] = "|".join([*kept, *added]) or "_"
            lines[place] = "\t".join(cells)
        first = next((k for k, line in enumerate(lines) if not line.startswith("#")), len(lines))
        own = [line for line in lines[:first] if line.lstrip("# ").partition("=")[0].strip() not in comments]
        new = [f"# {name} = {value}" for name, value in comments.items() if value is not None]
        return "\n".join([*own, *new, *lines[first:], "", ""])


def is_conllu(path: str) -> bool:
    """Whether a file's name says that it is CoNLL-U."""
    return path.lower().endswith(_ENDINGS)


def plain_lines(path: str) -> Iterator[str]:
    """Lines of a text, one sentence a line. Raises: DataError: as `read_lines`; or a row of CoNLL-U, which is no sentence."""
    for number, line in read_lines(path):
        if line.count("\t") == _COLUMNS - 1 and _ID.fullmatch(line.partition("\t")[0]):
            advice = f"parse and surprisal read CoNLL-U from a file whose name ends in {_ENDINGS[0]}"
            raise DataError(f"{path}:{number}", "must be text, one sentence a line", "a row of CoNLL-U", advice)
        yield line


def read_conllu(path: Path | str) -> Iterator[ConlluSentence]:
    """Sentences of a file of CoNLL-U, `.gz` too, in constant memory.

    Raises: DataError: the file cannot be read, or a line is not as in CoNLL-U (with its number).
    """
    lines: list[tuple[int, str]] = []
    for number, line in read_lines(path):
        if line.strip():
            lines.append((number, line))
        elif lines:
            yield _sentence(str(path), lines)
            lines = []
    if lines:
        yield _sentence(str(path), lines)


def _sentence(path: str, lines: list[tuple[int, str]]) -> ConlluSentence:
    places, following, covered = [], 1, 0
    for k, (number, line) in enumerate(lines):
        if line.startswith("#"):
            if following > 1 or places:
                raise _wrong(path, number, "a comment must come before the words of its sentence", line)
            continue
        cells = line.split("\t")
        if len(cells) != _COLUMNS or "" in cells:
            raise _wrong(path, number, f"must have {_COLUMNS} columns, each with a value or _, separated by tabs", line)
        kind, first, last = _place(cells[0])
        expected = following - 1 if kind == "." else following
        if first != expected or (kind == "-" and (last < first or covered >= first)):
            raise _wrong(path, number, f"IDs must be consecutive; the next one is {following}", cells[0])
        covered = last if kind == "-" else covered
        following += not kind
        if kind == "-" or (not kind and first > covered):
            places.append(k)
    last_number = lines[-1][0]
    if not places or covered >= following:
        raise _wrong(path, last_number, "a sentence must hold all words that its IDs announce", lines[-1][1])
    rows = [lines[k][1].split("\t") for k in places]
    spaces = ["SpaceAfter=No" not in row[_MISC].split("|") for row in rows]
    return ConlluSentence([line for _, line in lines], places, [row[_FORM] for row in rows], spaces)


def _place(text: str) -> tuple[str, int, int]:
    """The kind of an ID ("", "-" or "."), and its numbers; ("", 0, 0), which is never the next one, for what is no ID."""
    found = _ID.fullmatch(text)
    return (found[2] or "", int(found[1]), int(found[3] or 0)) if found else ("", 0, 0)


def _wrong(path: str, number: int, rule: str, got: str) -> DataError:
    shown = got if len(got) <= 40 else f"{got[:40]}…"
    return DataError(f"{path}:{number}", rule, repr(shown), "Fix this line, or see universaldependencies.org/format")
