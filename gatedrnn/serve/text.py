"""Text of tokens as they come: piece by piece, and held back while it may be the beginning of a stop string."""

import re
from collections.abc import Sequence
from typing import NamedTuple, final

from gatedrnn.data import Vocabulary

_CONTEXT = 8  # tokens of a prompt that decide how the first new one is written
_SENTENCE = 64  # with `tokenize: penn`, as quotation marks open and close
_OPENING = ("``", "`")  # whose place depends on the word that follows
_UNFINISHED = "\ufffd"  # how the first bytes of a character read
_LONGEST_CHARACTER = 8  # tokens; what is no character by then is no beginning of one


class Scored(NamedTuple):
    """A token with its log-probability in nats, and those of the most probable ones."""

    token: str
    logprob: float | None
    top: dict[str, float] | None


class Piece(NamedTuple):
    """What a token adds to a text; `scored` if log-probabilities are wanted."""

    text: str
    scored: Scored | None = None


@final
class Pieces:
    """The text of tokens, in pieces that joined are the whole.

    Args: before: the tokens of the prompt.
    """

    def __init__(self, vocabulary: Vocabulary, before: Sequence[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._kept = _SENTENCE if vocabulary.tokenize == "penn" else 0
        self._tokens = list(before[-max(_CONTEXT, self._kept) :])
        self._read = len(self._tokens)

    def preview(self, token: str) -> str:
        """What `token` would add, whole or not."""
        return self._beyond(self._vocabulary.text([*self._tokens, token]))

    def add(self, token: str) -> str:
        """What `token` adds; nothing while a character lacks bytes, or a quotation mark its word."""
        self._tokens.append(token)
        whole = self._vocabulary.text(self._tokens)
        unfinished = whole.endswith(_UNFINISHED) or (self._kept and token in _OPENING)
        if unfinished and len(self._tokens) - self._read < _LONGEST_CHARACTER:
            return ""
        return self._release(whole)

    def rest(self) -> str:
        """What was held back, when no token follows."""
        return self._release(self._vocabulary.text(self._tokens)) if self._read < len(self._tokens) else ""

    def _beyond(self, whole: str) -> str:
        """What `whole` adds to the text so far, whose spaces the new token may have changed."""
        known = self._vocabulary.text(self._tokens[: self._read])
        if whole.startswith(known):
            return whole[len(known) :]
        if same := re.match(r"\s*".join(map(re.escape, "".join(known.split()))), whole):
            return whole[same.end() :]
        alike = (k for k, (a, b) in enumerate(zip(known, whole, strict=False)) if a != b)
        return whole[next(alike, len(known)) :]

    def _release(self, whole: str) -> str:
        piece = self._beyond(whole)
        self._tokens = self._tokens[min(self._read, max(0, len(self._tokens) - self._kept)) :]
        self._read = len(self._tokens)
        return piece


@final
class Stops:
    """Pieces on their way out, held back while the text may be the beginning of a stop string.

    Args: stops: the strings, none empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held: list[Piece] = []
        self.stopped = False

    def put(self, piece: Piece) -> list[Piece]:
        """The pieces that may go out; `stopped` tells whether a stop string was found, whose text stays out."""
        if not self._stops:
            return [piece]
        self._held.append(piece)
        text = "".join(held.text for held in self._held)
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            return self._cut(min(places))
        safe = len(text) - max(_beginning(text, stop) for stop in self._stops)
        out: list[Piece] = []
        while self._held and len(self._held[0].text) <= safe:
            out.append(self._held.pop(0))
            safe -= len(out[-1].text)
        return out

    def rest(self) -> list[Piece]:
        """What was held back, when no piece follows."""
        out, self._held = self._held, []
        return out

    def _cut(self, place: int) -> list[Piece]:
        """The first `place` letters of what is held."""
        out: list[Piece] = []
        for text, scored in self._held:
            if place <= 0:
                break
            kept = text[:place]
            out.append(Piece(kept, scored and scored._replace(token=kept if kept != text else scored.token)))
            place -= len(text)
        return out


def _beginning(text: str, stop: str) -> int:
    """Letters at the end of `text` with which `stop` begins."""
    return next(size for size in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:size]))
