"""What spans say of their trees, by the names of benepar: `parse_string`, `constituents`, `labels`."""

from collections.abc import Iterator
from typing import Any

from spacy.tokens import Doc, Span, Token

from gatedrnn.core.errors import ArgumentError
from gatedrnn.trees import brackets, distances_to_spans

LABEL = "X"
"""Of every constituent: an induced tree has no labels."""


def add_extensions() -> None:
    """Make the attributes known to spaCy."""
    Doc.set_extension("gatedrnn", default=None, force=True)
    for name in ("surprisal", "distance"):
        Token.set_extension(name, default=None, force=True)
    for name, getter in (("parse_string", parse_string), ("constituents", constituents), ("labels", labels)):
        Span.set_extension(name, getter=getter, force=True)


def parse_string(span: Span) -> str:
    """`(X (X the cat) sleeps)`; "" for white space. Raises: ArgumentError: the span is no constituent, or there are no trees."""
    tokens, found = _inside(span)
    if not tokens:
        return ""
    places = {token.i: k for k, token in enumerate(tokens)}
    inner = {(places[start], places[end - 1] + 1) for start, end in found}
    return brackets(inner, [token.text for token in tokens], LABEL)


def constituents(span: Span) -> Iterator[Span]:
    """Constituents of two words or more: the span itself, then those inside, each before its own parts.

    A sentence of one word is one too; white space has none. Raises: ArgumentError: as `parse_string`.
    """
    tokens, found = _inside(span)
    if not tokens:
        return iter(())
    ordered = sorted(found, key=lambda place: (place[0], -place[1]))
    return iter([span, *(span.doc[start:end] for start, end in ordered[1:])])


def labels(span: Span) -> tuple[str, ...]:
    """("X",) of a constituent, () of any other span. Raises: ArgumentError: there are no trees."""
    return (LABEL,) if _found(span)[1] else ()


def _inside(span: Span) -> tuple[list[Token], list[tuple[int, int]]]:
    """Words of a constituent, and the constituents in it, from its first word to after its last one."""
    tokens, found = _found(span)
    if tokens and not found:
        rule, advice = "must be a constituent of its sentence", "Use sent, or one of sent._.constituents"
        raise ArgumentError("span._.parse_string", rule, repr(span.text[:40]), advice)
    return tokens, found


def _found(span: Span) -> tuple[list[Token], list[tuple[int, int]]]:
    """The same; no constituents if the span is none."""
    about: dict[str, Any] | None = span.doc._.gatedrnn
    if about is None:
        rule, got = "needs a document that the component has processed", None
        advice = 'Use a pipeline with nlp.add_pipe("gatedrnn", config={"run": RUN})'
        if any(token._.surprisal is not None for token in span):
            got = "a part or a union of such documents, from which spaCy drops doc._.gatedrnn"
            advice = "Copy it from the old document: new._.gatedrnn = old._.gatedrnn"
        raise ArgumentError("span._.parse_string", rule, got, advice)
    if about["why_no_trees"]:
        need, _, got = about["why_no_trees"].partition("; got ")
        raise ArgumentError("span._.parse_string", f"needs {need}", got, "token._.surprisal is still available")
    tokens = [token for token in span if token._.distance is not None]
    sentence = [token for token in span.sent if token._.distance is not None]
    if not tokens or len(tokens) > len(sentence) or tokens[-1].i > sentence[-1].i:
        return tokens, []
    spans = distances_to_spans([token._.distance for token in sentence], about["algorithm"])
    places = {(sentence[i].i, sentence[j - 1].i + 1) for i, j in {*spans, (0, len(sentence))}}
    first, end = tokens[0].i, tokens[-1].i + 1
    inner = [place for place in places if first <= place[0] and place[1] <= end]
    return tokens, inner if (first, end) in places else []
