"""/parse and /surprisal: the records that the commands of these names print, of texts in a request."""

from collections.abc import Callable
from typing import Any

from gatedrnn.serve.http import RefusedError
from gatedrnn.serve.limits import Limits
from gatedrnn.serve.schema import ParseBody, SurprisalBody
from gatedrnn.studies.parsing import Layer, align_lines, default_layer, layer_named, parse_lines, surprisal_records
from gatedrnn.training.run import Run

Work = Callable[[], list[dict[str, Any]]]
"""What is left for the model to do."""


def parsing(run: Run, body: ParseBody, limits: Limits) -> Work:
    """A record a line, as `gatedrnn parse --json`.

    Raises: RefusedError: too much text, or none. ArgumentError: an unknown layer.
    """
    lines = _lines(body.text)
    _check(sum(len(run.vocabulary.tokens(line)) for line in lines), limits)
    how = {"layer": _layer(body.layer) or default_layer(run.model), "gate": body.gate, "algorithm": body.algorithm}
    how["mapping"] = body.mapping or run.config.data.mapping
    return lambda: [parsed.record() | how for parsed in parse_lines(run.model, run.vocabulary, lines, **how)]


def reading(run: Run, body: SurprisalBody, limits: Limits) -> Work:
    """A record a line, as `gatedrnn surprisal --json`. Raises: as `parsing`."""
    lines, total = [], 0
    for line in align_lines(run.vocabulary, _lines(body.text), body.mapping, run.config.data.empty_lines):
        lines.append(line)
        total += len(line.ids)
        if total > limits.prompt_tokens:
            break
    _check(total, limits)
    how = {"carried": body.carried, "tokens": body.tokens, "layer": _layer(body.layer)}
    return lambda: list(surprisal_records(run.model, run.vocabulary, lines, **how))


def _lines(text: str | list[str]) -> list[str]:
    """Lines of a text as of a file; of a list, each is one."""
    if isinstance(text, list):
        return [" ".join(line.splitlines()) for line in text]
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _check(tokens: int, limits: Limits) -> None:
    if not tokens:
        raise RefusedError(400, "text: must hold at least one word; got none. Send a sentence", param="text")
    if tokens > limits.prompt_tokens:
        rule = f"must be at most {limits.prompt_tokens} tokens in one request; got {tokens} or more"
        raise RefusedError(400, f"text: {rule}. Send fewer sentences", param="text", code="context_length_exceeded")


def _layer(given: int | str | None) -> Layer | None:
    return None if given is None else layer_named(str(given))
