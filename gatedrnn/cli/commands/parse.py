"""`gatedrnn parse`: trees off a run's master gates, or by its grammar, one a line."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import Found, option, run_place
from gatedrnn.cli.text import (
    ALGORITHM_TOLD,
    GATE_TOLD,
    LAYER_TOLD,
    check_conllu,
    check_gates_are_read,
    conllu_option,
    conllu_sentences,
    mapping_option,
    nothing,
    text_place,
)
from gatedrnn.core.files import write_text
from gatedrnn.data import ConlluSentence, is_conllu, read_lines
from gatedrnn.studies.parsing import GATES
from gatedrnn.tasks import GrammarInduction, LanguageModelling
from gatedrnn.training.run import Run, load_run
from gatedrnn.trees import ALGORITHMS

_WIDEST = 200  # words of a sentence that is drawn


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which run and text, and how its trees are read."""

    run: str = run_place()
    file: str = text_place()
    layer: str | None = option(None, LAYER_TOLD, "N")
    gate: str = option(GATES[0], GATE_TOLD, choices=GATES)
    algorithm: str = option("unbiased", ALGORITHM_TOLD, choices=ALGORITHMS)
    mapping: str | None = mapping_option("[the run's]")
    svg: str | None = option(None, "also draw each tree into DIR/00001.svg, …", "DIR")
    conllu: bool = conllu_option("Distance in MISC (a grammar has none) and each tree in a comment")


def run(options: Options) -> Found:
    """A record a line; a line without a word has an empty tree: lines in are lines out. Raises: DataError: no line has one.

    Besides, sentences of CoNLL-U where FILE holds them.
    """
    check_conllu(options)
    run = load_run(options.run, (LanguageModelling.name, GrammarInduction.name))
    of_sentences, of_lines, how = _parsers(run, options)
    if is_conllu(options.file):
        sentences, again = tee(conllu_sentences(options.file))
        parses = of_sentences(run.model, run.vocabulary, (each.words for each in again), **how)
        return Found(_records(parses, how, options), sentences)
    lines = (line for _, line in read_lines(options.file))
    return Found(_records(of_lines(run.model, run.vocabulary, lines, **how), how, options), None)


def _parsers(run: Run, options: Options) -> tuple[Any, Any, dict[str, Any]]:
    """What parses sentences, what parses lines, and how. Raises: ArgumentError: an option that runs of this task do not read."""
    from gatedrnn.studies import parsing

    how: dict[str, Any] = {"mapping": options.mapping or run.config.data.mapping}
    if run.config.task == GrammarInduction.name:
        check_gates_are_read(options)
        return parsing.parse_by_grammar, parsing.parse_lines_by_grammar, how
    layer = parsing.default_layer(run.model) if options.layer is None else parsing.layer_named(options.layer)
    how = {"layer": layer, "gate": options.gate, "algorithm": options.algorithm, **how}
    return parsing.parse_sentences, parsing.parse_lines, how


def _records(parses: Iterator[Any], how: dict[str, Any], options: Options) -> Iterator[dict[str, Any]]:
    """Records; trees are drawn."""
    found = False
    for number, parsed in enumerate(parses, 1):
        found = found or bool(parsed.words)
        yield parsed.record() | how
        if options.svg and parsed.words:
            _draw(Path(options.svg) / f"{number:05d}.svg", parsed)
    if not found:
        raise nothing(options.file)


def show(found: Found, options: Options) -> None:
    """Its brackets alone; or CoNLL-U."""
    number = 0
    for one in found.record:
        if not options.conllu:
            print(one["tree"])
        elif one["words"]:
            number += 1
            sentence = next(found.more) if found.more else ConlluSentence.of(one["words"], number)
            known = one.get("distances")
            distances = [{"Distance": f"{far:.6f}"} for far in known] if known else [{}] * len(one["words"])
            print(sentence.with_misc(distances, {"parse": one["tree"]}), end="")


def _draw(path: Path, parsed: Any) -> None:
    import svgling

    if len(parsed.words) > _WIDEST:
        told = f"not drawn, {len(parsed.words):,} words; at most {_WIDEST} are drawn"
        print(f"gatedrnn: {path.name}: {told}", file=sys.stderr)
        return
    write_text(path, svgling.draw_tree(parsed.tree).get_svg().tostring())
