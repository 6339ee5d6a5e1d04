"""Lines of text in, a record a line out: what `parse` and `surprisal` print, and a server answers."""

from collections.abc import Iterable, Iterator
from itertools import pairwise, tee
from typing import Any

from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import EOS, UNK, Aligned, Vocabulary, align
from gatedrnn.models import LanguageModel, surprisals
from gatedrnn.studies.parsing.distances import Layer, has_distances, read_sentences
from gatedrnn.studies.parsing.parse import Parse, parse_sentences


def parse_lines(model: LanguageModel, vocabulary: Vocabulary, lines: Iterable[str], **how: Any) -> Iterator[Parse]:
    """Parse lines, in order; a line without a word has an empty tree. Any number of them, in the memory of 4,096 sentences and of
    the empty lines between them.

    Args: how: as in `parse_sentences`.
    Raises: ArgumentError: as `parse_sentences`.
    """
    sentences, again = tee(vocabulary.tokens(line) for line in lines)
    parses = parse_sentences(model, vocabulary, filter(None, again), **how)
    return (next(parses) if words else Parse([], set(), []) for words in sentences)


def align_lines(
    vocabulary: Vocabulary, lines: Iterable[str], mapping: str = "exact", empty_lines: str = "skip"
) -> Iterator[Aligned]:
    """Words and tokens of each line that `evaluate` counts.

    Args: mapping, empty_lines: as in the section `data` of a run.
    """
    for line in lines:
        aligned = align(vocabulary, line if line.strip() else "", mapping)
        if aligned.ids or empty_lines == "eos":
            yield aligned


def surprisal_records(
    model: LanguageModel,
    vocabulary: Vocabulary,
    lines: Iterable[Aligned],
    *,
    carried: bool = False,
    tokens: bool = False,
    layer: Layer | None = None,
    gate: str | None = None,
) -> Iterator[dict[str, Any]]:
    """A record a line, as `surprisal --json` prints it, in constant memory for any number of lines; its tokens are readable.

    Args:
        carried: carry the state on, instead of a fresh one for each line and after each `<eos>` inside a line, which ends a
            sentence as in `evaluate`.
        tokens: a row a token, not summed to words.
        layer, gate: whose distances; None for the model's own (`tree_layer`, `tree_gate`).

    Raises: ArgumentError: a layer that the model does not have, or one where the cell has no master gates.
    """
    again, more, lines = tee(lines, 3)
    found = _surprisals(model, (line.ids for line in again), vocabulary.ids[EOS], carried)
    distances = _distances(model, vocabulary, more, layer, gate)
    rows_of = _token_rows if tokens else _word_rows
    for line, bits, far in zip(lines, found, distances, strict=True):
        indices, words, pieces, values, where = zip(*rows_of(vocabulary, line, bits, far), strict=True)
        yield {
            "words": words,
            "surprisal_bits": values,
            "unknown": [vocabulary.ids[UNK] in vocabulary.encode(each) for each in pieces],
            "word_index": indices,
            "tokens": [vocabulary.readable(each) for each in pieces],
            "distances": where,
            "state": "carried" if carried else "reset",
        }


def _surprisals(model: LanguageModel, lines: Iterator[list[int]], eos: int, carried: bool) -> Iterator[list[float]]:
    """Bits of the tokens of each line and of its end: each sentence of a line, which `<eos>` ends, is read by itself."""
    parts, again = tee(_parts(ids, eos) for ids in lines)
    found = surprisals(model, (part for each in again for part in each), eos, carried=carried)
    return ([value for _ in each for value in next(found)] for each in parts)


def _parts(ids: list[int], eos: int) -> list[list[int]]:
    """What stands between the ends in a line; a line without one is one part."""
    ends = [-1, *(k for k, i in enumerate(ids) if i == eos), len(ids)]
    return [ids[start + 1 : end] for start, end in pairwise(ends)]


def _distances(
    model: LanguageModel, vocabulary: Vocabulary, lines: Iterator[Aligned], layer: Layer | None, gate: str | None
) -> Iterator[list[float] | None]:
    """Of each token of each line, None for a line or a model without any."""
    if not has_distances(model):
        if layer is not None:
            got = f"cell {model.config.cell!r}"
            raise ArgumentError("surprisal --layer", "needs a cell with master gates", got, "Leave --layer out")
        yield from (None for _ in lines)
        return
    chosen = model.config.layer_of_trees if layer is None else layer
    lines, again = tee(lines)
    ids = (line.ids for line in again if line.ids)
    readings = read_sentences(model, ids, vocabulary.ids[EOS], [chosen], gate=gate or model.config.tree_gate)
    for line in lines:
        yield next(readings).distances[chosen] if line.ids else None


Rows = list[tuple[int, str, list[str], float, float | None]]
"""Number of a word, the word, its tokens, bits, distance."""


def _token_rows(vocabulary: Vocabulary, line: Aligned, bits: list[float], far: list[float] | None) -> Rows:
    tokens, where = vocabulary.decode(line.ids), far or [None] * len(line.ids)
    rows: Rows = [
        (owner + 1, line.words[owner] if line.words else token, [token], value, d)
        for token, owner, value, d in zip(tokens, line.owners, bits, where, strict=False)
    ]
    return [*rows, (len(line.words) + 1, EOS, [EOS], bits[-1], None)]


def _word_rows(vocabulary: Vocabulary, line: Aligned, bits: list[float], far: list[float] | None) -> Rows:
    """Bits of a word's tokens are summed; its distance is its first token's, since the cut lies before it."""
    *each, end = _token_rows(vocabulary, line, bits, far)
    rows: Rows = [(k, word, [], 0.0, None) for k, word in enumerate(line.words, 1)]
    for k, word, tokens, value, d in each:
        _, _, before, total, first = rows[k - 1]
        rows[k - 1] = (k, word, [*before, *tokens], total + value, first if before else d)
    return [*rows, end]
