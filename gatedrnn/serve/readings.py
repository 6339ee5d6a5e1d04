"""/parse and /surprisal: the records that the commands of these names print, of texts in a request."""

from collections.abc import Callable, Iterable
from typing import Any

from gatedrnn.serve.http import RefusedError
from gatedrnn.serve.limits import Limits
from gatedrnn.serve.schema import ParseBody, SurprisalBody
from gatedrnn.studies.parsing import Layer, align_lines, layer_named, parse_lines, surprisal_records
from gatedrnn.training.run import Run

Work = Callable[[], Iterable[dict[str, Any]]]
"""What is left for the model to do, a record at a time."""


def parsing(run: Run, body: ParseBody, limits: Limits) -> Work:
    """A record a line, as `gatedrnn parse --json`.

    Raises: RefusedError: too much text, or none. ArgumentError: an unknown layer.
    """
    lines = _lines(body.text)
    sizes = [len(run.vocabulary.tokens(line)) for line in lines]
    _check(sum(max(1, size) for size in sizes), any(sizes), limits)
    layer = run.model.config.layer_of_trees if body.layer is None else _layer(body.layer)
    how = {"layer": layer, "gate": body.gate or run.model.config.tree_gate}
    how["algorithm"], how["mapping"] = body.algorithm, body.mapping or run.config.data.mapping
    return lambda: (parsed.record() | how for parsed in parse_lines(run.model, run.vocabulary, lines, **how))


def reading(run: Run, body: SurprisalBody, limits: Limits) -> Work:
    """A record a line, as `gatedrnn surprisal --json`. Raises: as `parsing`; a sentence of a list has no word."""
    lines, total, some = [], 0, False
    listed, empty_lines = isinstance(body.text, list), run.config.data.empty_lines
    for line in align_lines(run.vocabulary, _lines(body.text), body.mapping, "eos" if listed else empty_lines):
        if listed and empty_lines == "skip" and not line.ids:  # whose record would be missing
            got = f"none in sentence {len(lines) + 1}. Leave it out"
            raise RefusedError(400, f"text: each sentence of a list must hold a word; got {got}", param="text")
        lines.append(line)
        total, some = total + max(1, len(line.ids)), some or bool(line.ids)
        if total > limits.prompt_tokens:
            break
    _check(total, some, limits)
    how = {"carried": body.carried, "tokens": body.tokens, "layer": _layer(body.layer)}
    return lambda: surprisal_records(run.model, run.vocabulary, lines, **how)


def _lines(text: str | list[str]) -> list[str]:
    """Lines of a text as of a file; of a list, each is one."""

    def lines(text: str) -> list[str]:
        return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]

    return [" ".join(lines(each)) for each in text] if isinstance(text, list) else lines(text)


def _check(tokens: int, some: bool, limits: Limits) -> None:
    """Raises RefusedError: too much text, or none. Args: tokens: an empty line counts as one; some: whether a line has any."""
    if tokens > limits.prompt_tokens:
        rule = f"must be at most {limits.prompt_tokens} tokens in one request; got {tokens} or more"
        raise RefusedError(400, f"text: {rule}. Send fewer sentences", param="text", code="context_length_exceeded")
    if not some:
        raise RefusedError(400, "text: must hold at least one word; got none. Send a sentence", param="text")


def _layer(given: int | str | None) -> Layer | None:
    return None if given is None else layer_named(str(given))
