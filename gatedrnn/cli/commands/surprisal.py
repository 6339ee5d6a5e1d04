"""`gatedrnn surprisal`: a row a word (or a token) with its surprisal in bits and its distance."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import Found, option, run_place
from gatedrnn.cli.text import (
    as_conllu,
    check_conllu,
    conllu_option,
    conllu_sentences,
    mapping_option,
    nothing,
    text_place,
    twice,
)
from gatedrnn.data import Aligned, ConlluSentence, align_words, is_conllu, plain_lines
from gatedrnn.studies.parsing import align_lines, layer_named, surprisal_records
from gatedrnn.training.run import Run, load_run

COLUMNS = ("sentence", "word_index", "word", "token", "surprisal_bits", "distance", "known")


@dataclass(frozen=True)
class Options(arguments.Options):
    """Of which run and text."""

    run: str = run_place()
    file: str = text_place(conllu=True)
    carried: bool = option(False, "carry the state on from sentence to sentence instead of resetting it")
    tokens: bool = option(False, "print one row per token instead of one per word")
    layer: str | None = option(
        None, "layer whose distances are printed, from 1, or mean for the mean of all layers [as in parse]", "N"
    )
    mapping: str | None = mapping_option("[exact]")
    conllu: bool = conllu_option("Surprisal, Distance and, for unknown words, Unknown=Yes in MISC")


def run(options: Options) -> Found:
    """A record a sentence; besides, sentences of CoNLL-U where FILE holds them."""
    check_conllu(options, "tokens")
    run = load_run(options.run)
    if not is_conllu(options.file):
        lines, again = twice(plain_lines(options.file), options.conllu)
        return Found(_records(run, _aligned(run, lines, options), options), as_conllu(run.vocabulary, again or ()))
    again, sentences = twice(conllu_sentences(options.file), options.conllu)
    mapping = options.mapping or "exact"
    lines = (align_words(run.vocabulary, each.words, each.spaces, mapping) for each in again)
    return Found(_records(run, lines, options), sentences)


def _records(run: Run, lines: Iterator[Aligned], options: Options) -> Iterator[dict[str, Any]]:
    layer = None if options.layer is None else layer_named(options.layer)
    how = {"carried": options.carried, "tokens": options.tokens, "layer": layer}
    read = foreign = 0
    for record in surprisal_records(run.model, run.vocabulary, lines, **how):
        read, foreign = read + len(record["unknown"]) - 1, foreign + sum(record["unknown"])
        yield record
    if foreign and run.vocabulary.level == "word" and options.mapping is None and not options.json:
        told = "looked up as written; --mapping number tries lower case and N for numbers too"
        print(f"gatedrnn: {foreign} of {read} words are unknown, {told}", file=sys.stderr)


def show(found: Found, options: Options) -> None:
    """A row a word, or a token; or CoNLL-U."""
    if options.conllu:
        _show_conllu(found.record, found.more)
        return
    for number, record in enumerate(found.record, 1):
        if number == 1:
            state = "carried" if options.carried else "reset at each sentence"
            print(f"gatedrnn: state {state}", file=sys.stderr)
            print(*COLUMNS, sep="\t")
        names = ("word_index", "words", "tokens", "surprisal_bits", "distances", "unknown")
        for index, word, tokens, bits, far, unknown in zip(*(record[name] for name in names), strict=True):
            cells = (text.replace("\t", "\\t").replace("\r", "\\r") for text in (word, " ".join(tokens)))
            shown = "" if far is None else f"{far:.6f}"
            print(number, index, *cells, f"{bits:.6f}", shown, int(not unknown), sep="\t")


def _show_conllu(records: Iterator[dict[str, Any]], sentences: Iterator[ConlluSentence]) -> None:
    """The surprisal of the end of a sentence, which is no word, stands in a comment."""
    for record in records:
        if not record["words"][:-1]:
            continue
        sentence = next(each for each in sentences if each.words)
        names = ("surprisal_bits", "distances", "unknown")
        attributes = [
            {
                "Surprisal": f"{bits:.6f}",
                "Distance": None if far is None else f"{far:.6f}",
                "Unknown": "Yes" if unknown else None,
            }
            for bits, far, unknown in zip(*(record[name][:-1] for name in names), strict=True)
        ]
        comments = {"eos_surprisal": f"{record['surprisal_bits'][-1]:.6f}"}
        print(sentence.with_misc(attributes, comments), end="")


def _aligned(run: Run, lines: Iterator[str], options: Options) -> Iterator[Aligned]:
    """Each line that `evaluate` would count; nothing to read is an error."""
    found = False
    for aligned in align_lines(run.vocabulary, lines, options.mapping or "exact", run.config.data.empty_lines):
        found = found or bool(aligned.ids)
        yield aligned
    if not found:
        raise nothing(options.file)
