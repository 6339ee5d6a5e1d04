"""Bracketed treebanks, through nltk.Tree."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from nltk.tree import Tree

from gatedrnn.core.errors import DataError
from gatedrnn.data.text import read_lines

_CONLLU = re.compile(r"#|\d+(-\d+)?\t")


Lines = list[tuple[int, str]]


def read_treebank(path: Path | str, skipped: list[DataError] | None = None) -> Iterator[Tree]:
    """Trees of a file in Penn bracketing, on one line or several; `.gz` and "-" as in `read_lines`.

    Args:
        skipped: a list that receives the errors of bad trees, each with its line, instead of raising them. The next tree after a
            bad tree is found by indentation: it begins at the next line that begins like the first line of the file, with a
            bracket, unless such lines also occur inside trees in this file.

    Raises: DataError: unbalanced brackets, text outside them or a tree without a word (each with its line); no tree at all;
        CoNLL-U; or as `read_lines`.
    """
    count, inside = 0, False
    for block, starts in _blocks(path):
        if skipped is None:
            for tree in _trees(path, block):
                count += 1
                yield tree
            continue
        trees, errors = _whole(path, block)
        inside = inside or (not errors and len(starts) > 1)
        if errors and not inside:
            parts = [_whole(path, block[a:b]) for a, b in pairwise([*starts, len(block)])]
            trees, errors = (
                [tree for found, _ in parts for tree in found],
                [error for _, wrong in parts for error in wrong],
            )
        count += len(trees)
        yield from trees
        skipped += errors
    if not count:
        got = f"{len(skipped)} bad ones" if skipped else "an empty treebank"
        raise DataError(
            str(path), "must hold at least one tree", got, f"The first: {skipped[0]}" if skipped else "Check the file"
        )


def _blocks(path: Path | str) -> Iterator[tuple[Lines, list[int]]]:
    """Lines from one that may begin a tree, where no bracket is open, to the next; and where in a block such lines are."""
    block: Lines = []
    starts: list[int] = []
    depth, indent = 0, None
    for number, line in read_lines(path):
        text = line.lstrip()
        if not text:
            continue
        if indent is None:
            _no_conllu(path, number, line)
            indent = line[: len(line) - len(text)]
        flush = line.startswith(indent) and text == line[len(indent) :]
        if (flush and (text[0] == "(" or depth <= 0)) or not block:
            if block and depth <= 0:
                yield block, starts
                block, starts, depth = [], [], 0
            starts.append(len(block))
        block.append((number, line))
        depth += line.count("(") - line.count(")")
    if block:
        yield block, starts


def _whole(path: Path | str, lines: Lines) -> tuple[list[Tree], list[DataError]]:
    """All trees of these lines, or what is wrong with one of them."""
    try:
        return list(_trees(path, lines)), []
    except DataError as error:
        return [], [error]


def _trees(path: Path | str, lines: Lines) -> Iterator[Tree]:
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
                raise DataError(f"{path}:{number}", "brackets must balance", "one ')' too many", "Fix this line")
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
        words = tree.leaves()
    except (ValueError, IndexError, RecursionError) as error:  # NLTK 3.9 does not limit the depth
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}:{line}", "must be a bracketed tree", reason, "Fix this tree") from error
    if not words:
        raise DataError(f"{path}:{line}", "a tree must have at least one word", text[:40], "Remove this tree")
    return tree


def _nothing_outside(path: Path | str, line: int, text: str) -> None:
    if text.strip():
        advice = "Plain text is not a treebank; give Penn brackets, (S (NP …) (VP …))"
        raise DataError(f"{path}:{line}", "must hold brackets only", repr(text.strip()[:40]), advice)


def _no_conllu(path: Path | str, number: int, line: str) -> None:
    if _CONLLU.match(line):
        advice = "Dependencies are not constituents; give Penn brackets, (S (NP …) (VP …))"
        rule, got = "must hold brackets only", f"{line.strip()[:40]!r}, as in CoNLL-U"
        raise DataError(f"{path}:{number}", rule, got, advice)
