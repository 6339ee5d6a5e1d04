"""`gatedrnn parse`: trees off a run's master gates, by its grammar, or by a vote of several runs, one a line."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import Found, option, place
from gatedrnn.cli.text import (
    ALGORITHM_TOLD,
    GATE_TOLD,
    LAYER_TOLD,
    PARSERS,
    as_conllu,
    check_conllu,
    check_gates_are_read,
    conllu_option,
    conllu_sentences,
    is_grammar,
    mapping_of,
    mapping_option,
    nothing,
    twice,
)
from gatedrnn.cli.votes import read_weights, weight_option
from gatedrnn.core.files import write_text
from gatedrnn.data import ConlluSentence, is_conllu, plain_lines
from gatedrnn.models.saving import CONFIG_FILE
from gatedrnn.studies import parsing
from gatedrnn.training.run import Run, load_runs
from gatedrnn.trees import ALGORITHMS

_WIDEST = 200  # words of a sentence that is drawn
_DRAWN = "\n<!-- gatedrnn parse -->\n"


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which runs and text, and how their trees are read."""

    runs: tuple[str, ...] = place(
        "RUN",
        "folder of a trained run; several vote. A last name that is no run is the text: one sentence per line, "
        "or CoNLL-U (FILE.conllu) [-, standard input]",
    )
    layer: str | None = option(None, LAYER_TOLD, "N")
    gate: str | None = option(None, GATE_TOLD, choices=parsing.GATES)
    algorithm: str = option("unbiased", ALGORITHM_TOLD, choices=ALGORITHMS)
    weight: tuple[str, ...] = weight_option()
    mapping: str | None = mapping_option("[the run's]")
    svg: str | None = option(None, "also draw each tree into DIR/00001.svg, …, in place of earlier ones", "DIR")
    conllu: bool = conllu_option("Distance in MISC (a grammar has none) and each tree in a comment")


def run(options: Options) -> Found:
    """A record a line; a line without a word has an empty tree: lines in are lines out. Raises: DataError: no line has one.

    Besides, sentences of CoNLL-U where FILE holds them.
    """
    check_conllu(options)
    folders, file = _split(options.runs)
    weights = read_weights(options.weight)
    runs = load_runs(folders, PARSERS)
    if all(map(is_grammar, runs)):
        check_gates_are_read(options)
    in_words = is_conllu(file)
    if in_words:
        again, sentences = twice(conllu_sentences(file), options.conllu)
        text: Iterator[Any] = (each.words for each in again)
    else:
        text, lines = twice(plain_lines(file), options.conllu)
        sentences = as_conllu(runs[0].vocabulary, lines or ())
    given = zip(runs, tee(text, len(runs)), strict=True)
    read = [_parses(run, own, in_words, options) for run, own in given]
    if len(runs) == 1 and not weights:
        return Found(_records(*read[0], file, options), sentences)
    how = {"runs": [{"run": folder, **how} for folder, (_, how) in zip(folders, read, strict=True)]}
    voted = parsing.vote([parses for parses, _ in read], [run.config.task for run in runs], weights)
    return Found(_records(voted, how, file, options), sentences)


def _split(names: tuple[str, ...]) -> tuple[list[str], str]:
    """The runs, and the text: the last name of several, unless it is the folder of a run."""
    *folders, last = names
    if not folders or (Path(last) / CONFIG_FILE).is_file():
        return [*names], "-"
    return folders, last


def _parses(run: Run, text: Iterator[Any], split: bool, options: Options) -> tuple[Iterator[Any], dict[str, Any]]:
    """The parses of one run, of sentences where the text is split into words, else of lines; and how they are read."""
    how: dict[str, Any] = {"mapping": mapping_of(run, options)}
    if is_grammar(run):
        parse = parsing.parse_by_grammar if split else parsing.parse_lines_by_grammar
        return parse(run.model, run.vocabulary, text, **how), how
    layer = run.model.config.layer_of_trees if options.layer is None else parsing.layer_named(options.layer)
    gate = options.gate or run.model.config.tree_gate
    how = {"layer": layer, "gate": gate, "algorithm": options.algorithm, **how}
    parse = parsing.parse_sentences if split else parsing.parse_lines
    return parse(run.model, run.vocabulary, text, **how), how


def _records(parses: Iterator[Any], how: dict[str, Any], file: str, options: Options) -> Iterator[dict[str, Any]]:
    """Records; trees are drawn, in place of all that an earlier call drew there, which ends with `_DRAWN`."""
    found, drawn = False, set[Path]()
    for number, parsed in enumerate(parses, 1):
        found = found or bool(parsed.words)
        yield parsed.record() | how
        if options.svg and parsed.words:
            drawn |= _draw(Path(options.svg) / f"{number:05d}.svg", parsed)
    if not found:
        raise nothing(file)
    for path in Path(options.svg).glob("*.svg") if options.svg else ():
        if path not in drawn and re.fullmatch("[0-9]{5,}", path.stem) and _is_drawing(path):
            path.unlink()


def show(found: Found, options: Options) -> None:
    """Its brackets alone; or CoNLL-U."""
    for one in found.record:
        if not options.conllu:
            print(one["tree"])
        elif one["words"]:
            sentence: ConlluSentence = next(each for each in found.more if each.words)
            known = one.get("distances") or [None] * len(one["words"])  # None removes those of an earlier run
            distances = [{"Distance": None if far is None else f"{far:.6f}"} for far in known]
            print(sentence.with_misc(distances, {"parse": one["tree"]}), end="")


def _is_drawing(path: Path) -> bool:
    """Whether `_draw` wrote it. What cannot be read is another's."""
    mark = _DRAWN.encode()
    with suppress(OSError):
        if path.is_file() and path.stat().st_size > len(mark):
            with path.open("rb") as file:
                file.seek(-len(mark), os.SEEK_END)
                return file.read() == mark
    return False


def _draw(path: Path, parsed: Any) -> set[Path]:
    """What was written."""
    import svgling

    from gatedrnn.plots.xml import well_formed

    if len(parsed.words) > _WIDEST:
        told = f"not drawn, {len(parsed.words):,} words; at most {_WIDEST} are drawn"
        print(f"gatedrnn: {path.name}: {told}", file=sys.stderr)
        return set()
    write_text(path, well_formed(svgling.draw_tree(parsed.tree).get_svg().tostring()) + _DRAWN)
    return {path}
