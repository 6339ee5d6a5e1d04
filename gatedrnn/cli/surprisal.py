"""`gatedrnn surprisal`: a row a word (or a token) with its surprisal in bits and its distance."""

import sys
from collections.abc import Iterator
from itertools import tee
from typing import Any

from gatedrnn.cli.text import STATES, nothing
from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.files import to_json
from gatedrnn.data import EOS, UNK, Aligned, align, read_lines
from gatedrnn.training.run import Run, load_run

COLUMNS = ("sentence", "word_index", "word", "token", "surprisal_bits", "distance", "known")


def surprisal(options: Any) -> None:
    """`gatedrnn surprisal`."""
    from gatedrnn.models import surprisals

    run = load_run(options.run)
    eos, unknown = run.vocabulary.ids[EOS], run.vocabulary.ids[UNK]
    lines, again, more = tee(_lines(run, options), 3)
    found = surprisals(run.model, (line.ids for line in again), eos, carried=options.carried)
    distances = _distances(run, more, options)
    read = foreign = 0
    for number, (line, bits, far) in enumerate(zip(lines, found, distances, strict=True), 1):
        rows = _token_rows(run, line, bits, far) if options.tokens else _word_rows(run, line, bits, far)
        indices, words, tokens, values, where = zip(*rows, strict=True)
        known = [unknown not in run.vocabulary.encode(each) for each in tokens]
        read, foreign = read + len(known) - 1, foreign + len(known) - sum(known)
        if options.json:
            record = {"words": words, "surprisal_bits": values, "unknown": [not one for one in known]}
            record |= {
                "word_index": indices,
                "tokens": tokens,
                "distances": where,
                "state": "carried" if options.carried else "reset",
            }
            print(to_json(record, ensure_ascii=False))
            continue
        if number == 1:
            print(f"gatedrnn: {STATES[not options.carried]}", file=sys.stderr)
            print(*COLUMNS, sep="\t")
        shown = [("" if d is None else f"{d:.6f}", int(sure)) for d, sure in zip(where, known, strict=True)]
        for index, word, token, value, (d, sure) in zip(indices, words, tokens, values, shown, strict=True):
            text = " ".join(token).replace("\t", "\\t")
            print(number, index, word, text, f"{value:.6f}", d, sure, sep="\t")
    if foreign and run.vocabulary.level == "word" and options.mapping is None and not options.json:
        told = "looked up as written; --mapping number tries lower case and N for numbers too"
        print(f"gatedrnn: {foreign} of {read} words are unknown, {told}", file=sys.stderr)


def _lines(run: Run, options: Any) -> Iterator[Aligned]:
    """Each line that `evaluate` would count; nothing to read is an error."""
    mapping, found = options.mapping or "exact", False
    for _, line in read_lines(options.file):
        aligned = align(run.vocabulary, line if line.strip() else "", mapping)
        found = found or bool(aligned.ids)
        if aligned.ids or run.config.data.empty_lines == "eos":
            yield aligned
    if not found:
        raise nothing(options.file)


def _distances(run: Run, lines: Iterator[Aligned], options: Any) -> Iterator[list[float] | None]:
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
