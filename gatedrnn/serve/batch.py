"""The completions of one run: prompts are read a piece at a time, rows go on side by side, and join and leave between steps.

A row's numbers do not depend on the rows beside it. The `cpu` backend gives a row the same bits in every batch of up to 64
tokens; products of the decoder have always the same number of rows, some of them zeros.
Dimensions: T time, B batch, H hidden, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.core.errors import GatedRNNError
from gatedrnn.models import LanguageModel
from gatedrnn.models.finite import finite
from gatedrnn.models.language_model import States
from gatedrnn.serve.cache import Snapshot, StateCache
from gatedrnn.serve.limits import MOST_ROWS, Limits
from gatedrnn.serve.rows import Event, Prompt, Row, Ticket, score
from gatedrnn.training.run import Run

_DECODED = 16  # rows of each product of the decoder
_READ_AT_ONCE = 256  # tokens of prompts, between two steps

Sent = tuple[Ticket, Event | Exception]


@final
class Batch:
    """Completions of a run, in the making. Used by one thread.

    Args: name: of the run, in the cache.
    """

    def __init__(self, name: str, run: Run, cache: StateCache, limits: Limits) -> None:
        self._name, self._run, self._cache, self._limits = name, run, cache, limits
        self._model: LanguageModel = run.model
        self._waiting: deque[Prompt] = deque()
        self._whole: list[Prompt] = []
        self._ready: deque[Row] = deque()
        self._rows: list[Row] = []
        self._states: States = []
        self.tokens = 0

    @property
    def busy(self) -> bool:
        """Whether there is something to compute."""
        return bool(self._waiting or self._ready or self._rows)

    def add(self, prompt: Prompt) -> None:
        """Let a prompt wait for its turn."""
        self._waiting.append(prompt)

    def drop(self) -> set[Ticket]:
        """Give all completions up; the requests that were waiting for one."""
        every = (*self._waiting, *self._whole, *self._ready, *self._rows)
        tickets = {each.ticket for each in every if not each.ticket.gone}
        for ticket in tickets:
            ticket.gone = True
        self._waiting, self._whole, self._ready, self._rows, self._states = deque(), [], deque(), [], []
        return tickets

    @torch.no_grad()
    def advance(self) -> Iterator[Sent]:
        """Read some of the prompts, and a step of all rows: what has become known."""
        self._waiting = deque(prompt for prompt in self._waiting if not prompt.ticket.gone)
        self._whole, coming, budget = [], len(self._ready), _READ_AT_ONCE
        while self._waiting and budget > 0 and coming < self._limits.rows:
            prompt = self._waiting[0]
            try:
                budget -= self._read(prompt)
            except GatedRNNError as error:
                prompt.ticket.gone = True
                yield self._waiting.popleft().ticket, error
                continue
            if prompt.read == len(prompt.ids):
                self._whole.append(self._waiting.popleft())
                coming += prompt.wanted.count
        yield from self._begin()
        self._regroup()
        if self._rows:
            yield from self._step()

    def _read(self, prompt: Prompt) -> int:
        """Read a prompt's next tokens; how many."""
        if not prompt.read and not prompt.scored:
            prompt.read, prompt.after = self._cache.longest(self._name, prompt.ids)
        ids = prompt.ids[prompt.read : prompt.read + MOST_ROWS]
        if not ids:  # all of it is known
            return 1
        before = None if prompt.after is None else prompt.after.states
        hidden_T1H, states = self._model.advance(torch.tensor(ids)[:, None], before)
        if prompt.scored:
            following = prompt.ids[prompt.read + 1 : prompt.read + len(ids) + 1]
            logits_TV = finite("completions.logits", self._decoded(hidden_T1H[:, 0]))
            most = prompt.wanted.logprobs or 0
            prompt.scores += [score(logits, token, most) for logits, token in zip(logits_TV, following, strict=False)]
        prompt.read += len(ids)
        prompt.after = Snapshot(states, hidden_T1H[-1].clone())
        self._cache.keep(self._name, prompt.ids[: prompt.read], prompt.after)
        return len(ids)

    def _begin(self) -> Iterator[Sent]:
        """The first token of each completion of the prompts that have been read."""
        if not self._whole:
            return
        last_BH = torch.cat([prompt.after.last_1H for prompt in self._whole if prompt.after is not None])
        for prompt, logits_V in zip(self._whole, self._decoded(last_BH), strict=True):
            for k in range(prompt.wanted.count):
                row = Row(self._run.vocabulary, prompt, prompt.first + k)
                yield prompt.ticket, self._taken(row, row.begin, logits_V)
                if row.finish is None and not row.ticket.gone:
                    self._ready.append(row)

    def _regroup(self) -> None:
        """Take in rows that are ready, and let those go that are finished or no longer wanted."""
        kept = [k for k, row in enumerate(self._rows) if row.finish is None and not row.ticket.gone]
        joining: list[Row] = []
        while self._ready and len(kept) + len(joining) < self._limits.rows:
            row = self._ready.popleft()
            joining += [] if row.ticket.gone else [row]
        if len(kept) == len(self._rows) and not joining:
            return
        parts = [[tuple(state[:, kept] for state in layer) for layer in self._states]] if kept else []
        parts += [row.prompt.after.states for row in joining if row.prompt.after is not None]
        self._rows = [*(self._rows[k] for k in kept), *joining]
        self._states = [
            tuple(torch.cat(states, 1) for states in zip(*layer, strict=True)) for layer in zip(*parts, strict=True)
        ]

    def _step(self) -> Iterator[Sent]:
        """The next token of each row."""
        last_1B = torch.tensor([[row.ids[-1] for row in self._rows]])
        hidden_1BH, self._states = self._model.advance(last_1B, self._states)
        for row, logits_V in zip(self._rows, self._decoded(hidden_1BH[0]), strict=False):
            yield row.ticket, self._taken(row, row.take, logits_V)

    def _taken(self, row: Row, take: Callable[[Tensor], Event], logits_V: Tensor) -> Event | Exception:
        before = len(row.ids)
        try:
            event = take(logits_V)
        except GatedRNNError as error:
            row.ticket.gone = True
            return error
        self.tokens += len(row.ids) - before  # none where a request asks for none
        return event

    def _decoded(self, hidden_BH: Tensor) -> Tensor:
        """Logits [B, V]: a product of 16 rows at a time, so that each row has the same bits whatever is beside it."""
        groups = F.pad(hidden_BH, (0, 0, 0, -len(hidden_BH) % _DECODED)).split(_DECODED)
        return torch.cat([self._model.decoder(group) for group in groups])[: len(hidden_BH)]
