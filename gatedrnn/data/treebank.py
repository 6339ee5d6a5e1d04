"""Bracketed treebanks, through nltk.Tree."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from gatedrnn.core.errors import DataError
from gatedrnn.data.text import read_lines
from gatedrnn.trees.tree import Tree

_CONLLU = re.compile(r"\d+(-\d+)?\t")
_ROOT = re.compile(r"\s*\(\s*(ROOT\b|TOP\b|\()")
"""The beginning of a tree whose root cannot stand inside another tree."""

Line = tuple[int, str, bool]
"""Its number, its text, and whether it begins where the file's first line does: as far to the left."""


def read_treebank(path: Path | str, skipped: list[DataError] | None = None) -> Iterator[Tree]:
    """Trees of a file in Penn bracketing, on one line or several; `.gz` and "-" as in `read_lines`.

    Args:
        skipped: a list that receives the errors of bad trees, each with its line and all lines that are left out, instead of
            raising them. The next tree after a bad tree is found by indentation: it begins at the next line that begins like
            the first line of the file, with a bracket. Where the bad tree begins with a root (ROOT, TOP or no label), or such
            lines also occur inside trees before it, the next one must begin with a root.

    Raises: DataError: unbalanced brackets, text outside them or a tree without a word (each with its line); no tree at all;
        CoNLL-U; or as `read_lines`.
    """
    count, inside = 0, False
    for block, starts in _blocks(_lines(path)):
        if skipped is None:
            for tree in _trees(path, block):
                count += 1
                yield tree
            continue
        trees, errors = _whole(path, block)
        inside = inside or (not errors and len(starts) > 1)
        if errors:
            first, *others = starts
            rooted = inside or _ROOT.match(block[first][1])
            trees, errors = _apart(path, block, [first, *(k for k in others if not rooted or _ROOT.match(block[k][1]))])
        count += len(trees)
        yield from trees
        skipped += errors
    if not count:
        got, advice = "an empty treebank", "Check the file"
        if skipped:
            got, advice = f"{len(skipped)} bad ones", f"The first: {skipped[0]}"
        raise DataError(str(path), "must hold at least one tree", got, advice)


def _lines(path: Path | str) -> Iterator[Line]:
    """Lines that are not blank. Raises: DataError: the first is CoNLL-U's."""
    indent = None
    for number, line in read_lines(path):
        text = line.lstrip()
        if not text:
            continue
        if indent is None and not text.startswith("#"):  # as comments do, of which CoNLL-U has some
            _no_conllu(path, number, line)
            indent = line[: len(line) - len(text)]
        yield number, line, indent is not None and line.startswith(indent) and text == line[len(indent) :]


def _blocks(lines: Iterable[Line]) -> Iterator[tuple[list[Line], list[int]]]:
    """Lines from one that may begin a tree, where no bracket is open, to the next; and where in a block such lines are."""
    block: list[Line] = []
    starts: list[int] = []
    depth = 0
    for number, line, leftmost in lines:
        if (leftmost and (line.lstrip()[0] == "(" or depth <= 0)) or not block:
            if block and depth <= 0:
                yield block, starts
                block, starts, depth = [], [], 0
            starts.append(len(block))
        block.append((number, line, leftmost))
        depth += line.count("(") - line.count(")")
    if block:
        yield block, starts


def _apart(path: Path | str, block: list[Line], starts: list[int]) -> tuple[list[Tree], list[DataError]]:
    """Trees of a block with a bad one, read again from each of these places, and what is wrong with the others."""
    trees: list[Tree] = []
    errors: list[DataError] = []
    for a, b in pairwise([*starts, len(block)]):
        for part, _ in _blocks(block[a:b]):
            found, wrong = _whole(path, part)
            trees += found
            errors += wrong
    return trees, errors


def _whole(path: Path | str, lines: list[Line]) -> tuple[list[Tree], list[DataError]]:
    """All trees of these lines, or what is wrong with one of them, and which lines are left out therefore."""
    try:
        return list(_trees(path, lines)), []
    except DataError as error:
        first, last = lines[0][0], lines[-1][0]
        return [], [DataError(f"{error} Lines {first}–{last} are left out.") if last > first else error]


def _trees(path: Path | str, lines: Iterable[Line]) -> Iterator[Tree]:
    depth, start, pieces = 0, 0, []
    for number, line, _ in lines:
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


_BLANKS = " \t\r\n"
_SPACE = re.compile(rf"[^\S{_BLANKS}]")
_WORDS = re.compile(r"(\([^\s()]+[ \t\r\n]+|\))([^()]+)(?=([()]))")
"""Words behind a label or a bracket, which may hold white space that does not separate, such as the no-break space of numbers."""
_ODD = "\\" + "".join(filter(_SPACE.match, map(chr, range(0x3001))))
"""What NLTK does not read as a part of a word."""


def _parsed(text: str) -> Tree:
    """A tree by NLTK, which cuts words at every white space. Raises: ValueError, IndexError, RecursionError: it is malformed."""
    if _SPACE.search(text):
        return _without_odd(text)
    try:
        return Tree.fromstring(text)
    except ValueError:
        if "\\" not in text:
            raise
        return _without_odd(text)  # it was no escape of a bracket


def _without_odd(text: str) -> Tree:
    """The same, with other characters in place of `_ODD` while NLTK reads it: some for private use that the text lacks."""
    ranges = ("".join(map(chr, range(first, first + len(_ODD)))) for first in range(0xF0000, 0x10FF00, 256))
    kept = next(each for each in ranges if not set(each) & set(text))

    def word(found: re.Match[str]) -> str:
        alone = found[1] != ")" and found[3] == ")"  # in their bracket; between others, white space is none of a word
        text = found[2].strip() or (found[2].strip(_BLANKS) if alone else "")
        return found[1] + found[2].replace(text, text.translate(spaces))

    spaces, back = str.maketrans(_ODD[1:], kept[1:]), str.maketrans(kept, _ODD)
    text = _WORDS.sub(word, text)
    try:
        tree = Tree.fromstring(text)
    except ValueError:
        tree = Tree.fromstring(text.replace("\\", kept[0]))
    for place in tree.treepositions("leaves"):
        tree[place] = tree[place].translate(back)
    for part in tree.subtrees():
        part.set_label(part.label().translate(back))
    return tree


def _tree(path: Path | str, line: int, text: str) -> Tree:
    try:
        tree = _parsed(text)
        words = tree.leaves()
    except (ValueError, IndexError, RecursionError) as error:  # NLTK 3.9 does not limit the depth
        reason = str(error).splitlines()[0]
        if "MAX_TREE_DEPTH" in reason:
            reason = "one of too many levels"
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
