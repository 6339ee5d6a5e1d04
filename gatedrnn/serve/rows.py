"""Completions in the making: what a request asked for, its prompts, and the rows that a step computes side by side.

Dimensions: V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from gatedrnn.data import EOS, Vocabulary
from gatedrnn.models.finite import finite
from gatedrnn.models.generation import sampling_weights
from gatedrnn.serve.cache import Snapshot
from gatedrnn.serve.text import Piece, Pieces, Scored, Stops


class Event(NamedTuple):
    """What has become known of a completion.

    Args:
        index: of the completion within its request.
        pieces: that follow those of earlier events.
        finish: "stop" or "length" in the last event.
        new_tokens: of the whole completion, in the last event.
    """

    index: int
    pieces: list[Piece]
    finish: str | None = None
    new_tokens: int = 0


@dataclass(frozen=True)
class Wanted:
    """What a request asks of each of its completions.

    Args:
        temperature: 0 for the most probable token.
        top_p: sample from the fewest most probable tokens whose probabilities sum to p or more.
        seed: None for another text every time.
        bias: what is added to a token's logit, by id.
        count: completions of a prompt.
        new_tokens: at most.
        logprobs: how many of the most probable tokens are told at each place; None for no log-probabilities.
        echo: whether the prompt comes first.
        stops: strings that end a completion.
        past_eos: whether a completion goes on after `<eos>`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    bias: dict[int, float] = field(default_factory=dict)
    count: int = 1
    new_tokens: int = 16
    logprobs: int | None = None
    echo: bool = False
    stops: Sequence[str] = ()
    past_eos: bool = False


@dataclass(eq=False)
class Ticket:
    """A request, as the engine knows it.

    Args:
        send: takes events, or the error that ended all of it; called in the engine's thread, and must not wait.
        quiet: whether only the end of a completion is worth a call of `send`.
        gone: set by whoever no longer wants an answer.
    """

    send: Callable[[list[Event] | Exception], None]
    quiet: bool = False
    gone: bool = False
    held: list[Event] = field(default_factory=list)

    def tell(self, events: list[Event]) -> None:
        """Send events, at once or with the next end of a completion."""
        self.held += events
        if not self.quiet or any(event.finish for event in events):
            found, self.held = self.held, []
            self.send(found)


@dataclass(eq=False)
class Prompt:
    """A prompt on its way through the model.

    Args:
        tokens, ids: as the model reads them.
        first: index of its first completion within the request.
        shown: how many of the last tokens the request wrote; one fewer than there are where `<eos>` was put first.
        read: how many have been read, after which the model is `after`.
        scores: of the tokens from the second on, where they are wanted.
    """

    ticket: Ticket
    wanted: Wanted
    tokens: list[str]
    ids: list[int]
    first: int
    shown: int
    read: int = 0
    after: Snapshot | None = None
    scores: list[tuple[float, list[tuple[int, float]]]] = field(default_factory=list)
    _echoed: list[Piece] | None = field(default=None, init=False)

    @property
    def scored(self) -> bool:
        """Whether each of its tokens needs a log-probability."""
        return self.wanted.echo and self.wanted.logprobs is not None

    def echo(self, vocabulary: Vocabulary) -> list[Piece]:
        """The prompt itself, put together once for all of its completions."""
        if self._echoed is None:
            self._echoed = list(self._pieces(vocabulary))
        return self._echoed

    def _pieces(self, vocabulary: Vocabulary) -> Iterator[Piece]:
        pieces, start = Pieces(vocabulary), len(self.ids) - self.shown
        for place in range(start, len(self.ids)):
            token, score = self.tokens[place], self.scores[place - 1] if self.scored and place else None
            top = None if score is None else _named(vocabulary, pieces, score[1], token)
            text = "" if place == 0 else pieces.add(token)
            text += pieces.rest() if place == len(self.ids) - 1 else ""
            scored = Scored(_name(text, token), score[0] if score else None, top) if self.scored else None
            yield Piece(text, scored)


@final
class Sampler:
    """Chooses the tokens of one completion; what is computed beside it changes none of them.

    Args: index: of the completion within its request; each has a seed of its own.
    """

    def __init__(self, wanted: Wanted, index: int) -> None:
        self._wanted = wanted
        self._generator = torch.Generator()
        if wanted.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed((wanted.seed + index) % (1 << 63))
        self._ids = torch.tensor(list(wanted.bias), dtype=torch.int64)
        self._bias = torch.tensor(list(wanted.bias.values()), dtype=torch.float64)

    def pick(self, logits_V: Tensor) -> int:
        """The next token's id."""
        if len(self._ids):
            logits_V = logits_V.double().index_add(0, self._ids, self._bias)
        if self._wanted.temperature == 0:
            return int(logits_V.argmax())
        weights_V = sampling_weights(logits_V.double(), self._wanted.temperature, top_p=self._wanted.top_p)
        return int(torch.multinomial(weights_V, 1, generator=self._generator))


@final
class Row:
    """A completion in the making.

    Args: prompt: whose `after` is where it begins. index: of the completion within the request.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Prompt, index: int) -> None:
        self.prompt, self.index, self.ticket, self.wanted = prompt, index, prompt.ticket, prompt.wanted
        self.ids: list[int] = []
        self.finish: str | None = None
        self._vocabulary, self._eos = vocabulary, vocabulary.ids[EOS]
        self._sampler = Sampler(prompt.wanted, index)
        self._pieces = Pieces(vocabulary, prompt.tokens[len(prompt.tokens) - prompt.shown :])
        self._stops = Stops(prompt.wanted.stops)

    def begin(self, logits_V: Tensor) -> Event:
        """The prompt if it is wanted, and the first token."""
        echoed = self.prompt.echo(self._vocabulary) if self.wanted.echo else []
        if self.wanted.new_tokens == 0:
            self.finish = "length"
            return Event(self.index, echoed, self.finish)
        event = self.take(logits_V)
        return event._replace(pieces=[*echoed, *event.pieces])

    def take(self, logits_V: Tensor) -> Event:
        """The next token. Raises: CheckpointError: a logit is not finite."""
        token = self._sampler.pick(finite("completions.logits", logits_V))
        self.ids.append(token)
        ended = token == self._eos and not self.wanted.past_eos
        pieces = self._stops.put(self._piece(token, logits_V, ended))
        if ended or self._stops.stopped:
            self.finish = "stop"
        elif len(self.ids) == self.wanted.new_tokens:
            self.finish = "length"
        if self.finish is None:
            return Event(self.index, pieces)
        pieces += [] if self._stops.stopped else self._stops.rest()
        return Event(self.index, pieces, self.finish, len(self.ids))

    def _piece(self, token: int, logits_V: Tensor, ended: bool) -> Piece:
        word, top = self._vocabulary.words[token], None
        if self.wanted.logprobs is not None:
            logprob, best = score(logits_V, token, self.wanted.logprobs)
            top = logprob, _named(self._vocabulary, self._pieces, best, word)
        last = ended or len(self.ids) == self.wanted.new_tokens
        text = "" if ended else self._pieces.add(word)
        text += self._pieces.rest() if last else ""
        return Piece(text, top and Scored(_name(text, word), *top))


def score(logits_V: Tensor, token: int, most: int) -> tuple[float, list[tuple[int, float]]]:
    """A token's log-probability in nats, and ids and log-probabilities of the `most` most probable ones, its own at last.

    Computed in float64, before temperature and bias.
    """
    logs_V = logits_V.double().log_softmax(-1)
    own = float(logs_V[token])
    values, ids = logs_V.topk(min(most, len(logs_V)))
    return own, [*zip(ids.tolist(), values.tolist(), strict=True), (token, own)]


def _named(vocabulary: Vocabulary, pieces: Pieces, best: list[tuple[int, float]], own: str) -> dict[str, float]:
    """Log-probabilities by how each token would be written here; of two that are written alike, the first.

    Args: own: how the last one is written, which stands for an unknown word too.
    """
    found: dict[str, float] = {}
    for token, value in best:
        word = own if token == best[-1][0] else vocabulary.words[token]
        found.setdefault(_name(pieces.preview(word), word), value)
    return found


def _name(text: str, token: str) -> str:
    """How a token is called where log-probabilities are told: by what it adds, `<eos>` by its name."""
    return token if token == EOS and not text.strip() else text
