"""Bracketed treebanks, through nltk.Tree."""

from collections.abc import Iterator
from pathlib import Path

from nltk.tree import Tree

from gatedrnn.core.errors import DataError
from gatedrnn.data.text import read_lines


def read_treebank(path: Path | str) -> Iterator[Tree]:
    """Trees of a file in Penn bracketing, on one line or several; `.gz` and "-" as in `read_lines`.

    Raises: DataError: unbalanced brackets, text outside them or a tree without a word (each with its line); no tree at all;
        or as `read_lines`.
    """
    depth, start, pieces, count = 0, 0, [], 0
    for number, line in read_lines(path):
        begin = 0
        for column, character in enumerate(line):
            if character == "(":
                if depth == 0:
                    _nothing_outside(path, number, line[begin:column])
                    start, begin = number, column
                depth += 1
            elif character == ")":
                depth -= 1
                if depth < 0:
                    raise DataError(f"{path}:{number}", "brackets must balance", "a ')' too many", "Mend this line")
                if depth == 0:
                    yield _tree(path, start, " ".join([*pieces, line[begin : column + 1]]))
                    pieces, begin, count = [], column + 1, count + 1
        if depth:
            pieces.append(line[begin:])
        else:
            _nothing_outside(path, number, line[begin:])
    if depth:
        got = f"{depth} '(' left open at the end of the file"
        raise DataError(
            f"{path}:{start}", "brackets must balance", got, "The tree that opens on this line does not close"
        )
    if not count:
        raise DataError(str(path), "must hold at least one tree", "an empty treebank", "Check the file")


def _tree(path: Path | str, line: int, text: str) -> Tree:
    try:
        tree = Tree.fromstring(text)
    except (ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}:{line}", "must be a bracketed tree", reason, "Mend this tree") from error
    if not tree.leaves():
        raise DataError(f"{path}:{line}", "a tree must have at least one word", text[:40], "Remove this tree")
    return tree


def _nothing_outside(path: Path | str, line: int, text: str) -> None:
    if text.strip():
        advice = "CoNLL-U and plain text are no treebanks; give Penn brackets, (S (NP …) (VP …))"
        raise DataError(f"{path}:{line}", "must hold brackets only", repr(text.strip()[:40]), advice)
