"""`gatedrnn surprisal`: a row a word (or a token) with its surprisal in bits and its distance."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import tee
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import option, run_place
from gatedrnn.cli.text import mapping_option, nothing, text_place
from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import EOS, UNK, Aligned, align, read_lines
from gatedrnn.training.run import Run, load_run

COLUMNS = ("sentence", "word_index", "word", "token", "surprisal_bits", "distance", "known")


@dataclass(frozen=True)
class Options(arguments.Options):
    """Of which run and text."""

    run: str = run_place()
    file: str = text_place()
    carried: bool = option(False, "carry the state on, instead of one for each sentence")
    tokens: bool = option(False, "a row a token, not summed to words")
    layer: str | None = option(None, "whose distances, from 1, or mean [as in parse]", "N")
    mapping: str | None = mapping_option("[exact]")


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A record a sentence."""
    from gatedrnn.models import surprisals

    run = load_run(options.run)
    eos, unknown = run.vocabulary.ids[EOS], run.vocabulary.ids[UNK]
    lines, again, more = tee(_lines(run, options), 3)
    found = surprisals(run.model, (line.ids for line in again), eos, carried=options.carried)
    distances = _distances(run, more, options)
    read = foreign = 0
    for line, bits, far in zip(lines, found, distances, strict=True):
        rows = _token_rows(run, line, bits, far) if options.tokens else _word_rows(run, line, bits, far)
        indices, words, tokens, values, where = zip(*rows, strict=True)
        unknowns = [unknown in run.vocabulary.encode(each) for each in tokens]
        read, foreign = read + len(unknowns) - 1, foreign + sum(unknowns)
        yield {
            "words": words,
            "surprisal_bits": values,
            "unknown": unknowns,
            "word_index": indices,
            "tokens": tokens,
            "distances": where,
            "state": "carried" if options.carried else "reset",
        }
    if foreign and run.vocabulary.level == "word" and options.mapping is None and not options.json:
        told = "looked up as written; --mapping number tries lower case and N for numbers too"
        print(f"gatedrnn: {foreign} of {read} words are unknown, {told}", file=sys.stderr)


def show(found: Iterator[dict[str, Any]], options: Options) -> None:
    """A row a word, or a token."""
    for number, record in enumerate(found, 1):
        if number == 1:
            state = "carried" if options.carried else "reset at each sentence"
            print(f"gatedrnn: state {state}", file=sys.stderr)
            print(*COLUMNS, sep="\t")
        names = ("word_index", "words", "tokens", "surprisal_bits", "distances", "unknown")
        for index, word, tokens, bits, far, unknown in zip(*(record[name] for name in names), strict=True):
            text, shown = " ".join(tokens).replace("\t", "\\t"), "" if far is None else f"{far:.6f}"
            print(number, index, word, text, f"{bits:.6f}", shown, int(not unknown), sep="\t")


def _lines(run: Run, options: Options) -> Iterator[Aligned]:
    """Each line that `evaluate` would count; nothing to read is an error."""
    mapping, found = options.mapping or "exact", False
    for _, line in read_lines(options.file):
        aligned = align(run.vocabulary, line if line.strip() else "", mapping)
        found = found or bool(aligned.ids)
        if aligned.ids or run.config.data.empty_lines == "eos":
            yield aligned
    if not found:
        raise nothing(options.file)


def _distances(run: Run, lines: Iterator[Aligned], options: Options) -> Iterator[list[float] | None]:
    """Of each token of each line, None for a line or a model without any."""
    from gatedrnn.studies.parsing import default_layer, has_distances, layer_named, read_sentences

    if not has_distances(run.model):
        if options.layer is not None:
            got = f"cell {run.config.model.cell!r}"
            raise ArgumentError("surprisal --layer", "needs a cell with master gates", got, "Leave --layer out")
        yield from (None for _ in lines)
        return
    layer = default_layer(run.model) if options.layer is None else layer_named(options.layer)
    lines, again = tee(lines)
    readings = read_sentences(run.model, (line.ids for line in again if line.ids), run.vocabulary.ids[EOS], [layer])
    for line in lines:
        yield next(readings).distances[layer] if line.ids else None


Rows = list[tuple[int, str, list[str], float, float | None]]
"""Number of a word, the word, its tokens, bits, distance."""


def _token_rows(run: Run, line: Aligned, bits: list[float], far: list[float] | None) -> Rows:
    tokens, where = run.vocabulary.decode(line.ids), far or [None] * len(line.ids)
    rows: Rows = [
        (owner + 1, line.words[owner] if line.words else token, [token], value, d)
        for token, owner, value, d in zip(tokens, line.owners, bits, where, strict=False)
    ]
    return [*rows, (len(line.words) + 1, EOS, [EOS], bits[-1], None)]


def _word_rows(run: Run, line: Aligned, bits: list[float], far: list[float] | None) -> Rows:
    """Bits of a word's tokens are summed; its distance is its first token's, since the cut lies before it."""
    *each, end = _token_rows(run, line, bits, far)
    rows: Rows = [(k, word, [], 0.0, None) for k, word in enumerate(line.words, 1)]
    for k, word, tokens, value, d in each:
        _, _, before, total, first = rows[k - 1]
        rows[k - 1] = (k, word, [*before, *tokens], total + value, first if before else d)
    return [*rows, end]
