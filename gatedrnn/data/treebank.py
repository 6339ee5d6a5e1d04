"""Bracketed treebanks, through nltk.Tree."""

import re
from collections.abc import Iterator
from pathlib import Path

from nltk.tree import Tree

from gatedrnn.core.errors import DataError
from gatedrnn.data.text import read_lines

_CONLLU = re.compile(r"#|\d+(-\d+)?\t")


def read_treebank(path: Path | str, skipped: list[DataError] | None = None) -> Iterator[Tree]:
    """Trees of a file in Penn bracketing, on one line or several; `.gz` and "-" as in `read_lines`.

    Args:
        skipped: where errors of single trees go, each with its line, instead of being raised; the other trees on the lines of a
            bad one go with it. A tree that does not close ends before the next line that starts with a bracket.

    Raises: DataError: unbalanced brackets, text outside them or a tree without a word (each with its line); no tree at all;
        CoNLL-U; or as `read_lines`.
    """
    block: list[tuple[int, str]] = []  # lines from where no bracket is open to where none is open again
    depth = count = seen = 0
    for number, line in read_lines(path):
        if not seen and line.strip():
            seen = 1
            _no_conllu(path, number, line)
        if skipped is not None and depth and line.startswith("("):
            list(_kept(_trees(path, block), skipped))
            block, depth = [], 0
        block.append((number, line))
        depth += line.count("(") - line.count(")")
        if depth <= 0:
            for tree in _kept(_trees(path, block), skipped):
                count += 1
                yield tree
            block, depth = [], 0
    for tree in _kept(_trees(path, block), skipped):
        count += 1
        yield tree
    if not count:
        got = f"{len(skipped)} bad trees, the first: {skipped[0]}" if skipped else "an empty treebank"
        raise DataError(str(path), "must hold at least one tree", got, "Check the file")


def _kept(trees: Iterator[Tree], skipped: list[DataError] | None) -> Iterator[Tree]:
    """The trees; none of them if one is bad and errors are kept."""
    if skipped is None:
        yield from trees
        return
    try:
        yield from list(trees)
    except DataError as error:
        skipped.append(error)


def _trees(path: Path | str, lines: list[tuple[int, str]]) -> Iterator[Tree]:
    depth, start, pieces = 0, 0, []
    for number, line in lines:
        begin = 0
        for bracket in re.finditer(r"[()]", line):
            column = bracket.start()
            if bracket[0] == "(":
                if depth == 0:
                    _nothing_outside(path, number, line[begin:column])
                    start, begin = number, column
                depth += 1
                continue
            depth -= 1
            if depth < 0:
                raise DataError(f"{path}:{number}", "brackets must balance", "a ')' too many", "Mend this line")
            if depth == 0:
                yield _tree(path, start, " ".join([*pieces, line[begin : column + 1]]))
                pieces, begin = [], column + 1
        if depth:
            pieces.append(line[begin:])
        else:
            _nothing_outside(path, number, line[begin:])
    if depth:
        got, advice = f"{depth} '(' left open", "The tree that opens on this line does not close"
        raise DataError(f"{path}:{start}", "brackets must balance", got, advice)


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
        advice = "Plain text is no treebank; give Penn brackets, (S (NP …) (VP …))"
        raise DataError(f"{path}:{line}", "must hold brackets only", repr(text.strip()[:40]), advice)


def _no_conllu(path: Path | str, number: int, line: str) -> None:
    if _CONLLU.match(line):
        advice = "Dependencies are no constituents; give Penn brackets, (S (NP …) (VP …))"
        rule, got = "must hold brackets only", f"{line.strip()[:40]!r}, as in CoNLL-U"
        raise DataError(f"{path}:{number}", rule, got, advice)
