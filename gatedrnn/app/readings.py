"""What the page shows of a run: pictures of a sentence, a table of its words, and a text that goes on; knows no Gradio."""

from html import escape
from itertools import islice
from typing import Any

import torch

from gatedrnn.core.checks import positive_int, positive_number
from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import EOS
from gatedrnn.data.prompt import prompt_ids, prompt_tokens
from gatedrnn.models import generate
from gatedrnn.plots.surprisal import surprisal_bars
from gatedrnn.plots.trees import to_svg, tree_and_gates
from gatedrnn.studies.parsing import MEAN, Layer, has_distances, layer_named, read_sentences
from gatedrnn.studies.parsing.lines import align_lines, surprisal_records
from gatedrnn.training.run import Run
from gatedrnn.trees import brackets, distances_to_spans

LONGEST = 100
"""Words of a sentence."""
MOST = 1000
"""Tokens of a continuation."""

Rows = list[list[Any]]


def layers(run: Run) -> list[str]:
    """Names of the layers that trees can be read from, the default first; none without master gates."""
    if not has_distances(run.model):
        return []
    numbers, chosen = [str(k + 1) for k in range(len(run.model.layers))], str(run.model.config.layer_of_trees)
    every = [*numbers, *([MEAN] if len(numbers) > 1 else [])]
    return [chosen, *(each for each in every if each != chosen)]


def about(run: Run) -> str:
    """One line about a run."""
    sizes = ", ".join(str(layer.hidden_size) for layer in run.model.layers)
    return f"{run.config.model.cell}, layers of {sizes}, {len(run.vocabulary):,} tokens ({run.vocabulary.level})"


def read(run: Run, sentence: str, layer: str | None, mapped: bool) -> tuple[str, str, str, Rows]:
    """A sentence as a run reads it.

    Args:
        layer: of the tree and the gates; None for the default.
        mapped: whether surprisal looks words up in lower case, and numbers as N, too.

    Returns: picture of tree and gates (HTML), brackets, picture of surprisal (HTML), a row a word: word, bits, distance, known.
    Raises: ArgumentError: more words than LONGEST, or a layer that the model does not have.
    """
    words = run.vocabulary.tokens(sentence) if run.vocabulary.level == "word" else sentence.split()
    if not words:
        return "", "", "", []
    if len(words) > LONGEST:
        advice = "Use gatedrnn parse and gatedrnn surprisal, which read any length"
        raise ArgumentError("sentence", f"must have at most {LONGEST} words", len(words), advice)
    named = layer_named(layer) if layer else None
    picture, tree = _tree(run, words, named)
    mapping = "number" if mapped else "exact"
    far = named if has_distances(run.model) else None
    lines = align_lines(run.vocabulary, [sentence], mapping if run.vocabulary.level == "word" else "exact")
    record = next(surprisal_records(run.model, run.vocabulary, lines, layer=far), None)
    if record is None:  # a tokenizer may give no token
        return "", "", "", []
    values = record["words"], record["surprisal_bits"], record["distances"], record["unknown"]
    rows = [
        [word, round(bits, 4), "" if distance is None else round(distance, 4), "no" if unknown else "yes"]
        for word, bits, distance, unknown in zip(*values, strict=True)
    ]
    bars = surprisal_bars(record["words"], record["surprisal_bits"], record["unknown"])
    return picture, tree, _scrolled(to_svg(bars), len(rows)), rows


def _tree(run: Run, words: list[str], layer: Layer | None) -> tuple[str, str]:
    """Picture of tree, distances and master gates as HTML, and the brackets; or why there is no tree."""
    if run.vocabulary.level != "word":
        level = run.vocabulary.level
        return f"<p>No tree: trees are made of words, but this run reads tokens of level {level}.</p>", ""
    if not has_distances(run.model):
        cell = escape(run.config.model.cell)
        return f"<p>No tree: trees are read from master gates, and the cell {cell} has none (onlstm has them).</p>", ""
    chosen = run.model.config.layer_of_trees if layer is None else layer
    ids = run.vocabulary.encode_foreign(words, run.config.data.mapping)
    eos, kept = run.vocabulary.ids[EOS], {}
    for gate in ("master_forget", "master_input"):
        (kept[gate],) = read_sentences(run.model, [ids], eos, [chosen], gate=gate, keep_gates=True)
    (read,) = read_sentences(run.model, [ids], eos, [chosen], gate=run.model.config.tree_gate)
    distances = read.distances[chosen]
    spans = distances_to_spans(distances, "unbiased")
    gates = {
        f"{gate.removeprefix('master_')} {k}": values
        for gate, reading in kept.items()
        for k, values in reading.gates.items()
    }
    figure = tree_and_gates(words, [], sorted(spans), gates, distances)
    return _scrolled(to_svg(figure), len(words)), brackets(spans, words)


def _scrolled(svg: str, columns: int) -> str:
    """As wide as there is room, but legible; on white, as the pictures are drawn for."""
    sized = svg.replace("<svg ", f'<svg style="max-width:100%;height:auto;min-width:{50 * columns}px" ', 1)
    return f'<div style="overflow-x:auto;background:#fff;border-radius:8px;padding:8px">{sized}</div>'


def go_on(run: Run, prompt: str, temperature: float, many: int, seed: int) -> str:
    """The prompt and `many` tokens more, the most probable ones at temperature 0.

    Raises: ArgumentError: an argument is out of range.
    """
    if positive_int("words", many) > MOST:
        raise ArgumentError("words", f"must be at most {MOST:,}", many, "Use gatedrnn generate")
    if not 0 <= seed < 1 << 63:
        raise ArgumentError("seed", "must lie in 0…2^63 − 1", seed, "Give a whole number such as 1")
    if temperature != 0:
        positive_number("temperature", temperature)
    tokens = prompt_tokens(run.vocabulary, prompt)
    how = {"top_k": 1} if temperature == 0 else {"temperature": temperature}
    ids = generate(
        run.model,
        [run.vocabulary.ids[EOS], *prompt_ids(run.vocabulary, tokens, run.config.data.mapping)],
        generator=torch.Generator().manual_seed(seed),
        **how,  # type: ignore[arg-type]
    )
    words = run.vocabulary.decode(islice(ids, many))
    return run.vocabulary.text([*tokens, *words])
