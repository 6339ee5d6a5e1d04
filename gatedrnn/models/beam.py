"""Beam search for translations, a batch of sources at once.

Dimensions: B sources, K hypotheses of each, V tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.models.finite import finite
from gatedrnn.models.surprisal import evaluating
from gatedrnn.models.translation import Source, TranslationModel

_EOS, _UNK = 1, 0
_WIDEST = 1000
_STEEPEST = 10  # the largest alpha: with a larger one, the penalty of a long translation is too large for a float


@dataclass(frozen=True)
class Hypothesis:
    """A translation.

    Args:
        ids: its tokens, without `<eos>`.
        score: log P over its length penalty.
        log_probability: log P, `<eos>` included.
        alignment: for each token, the place in the source, its `<eos>` left out, that attention looked at most.
    """

    ids: list[int]
    score: float
    log_probability: float
    alignment: list[int]


@dataclass(frozen=True)
class Beam:
    """How to search.

    Args:
        size: number of hypotheses kept, at most 1000; 1 always takes the most probable token.
        alpha: exponent α of the length penalty ((5 + n) / 6)^α; 0 for none (Wu et al. 2016, eq. 14).
        n_best: how many translations of each source are given, at most `size`.
        ratio, extra: a translation has at most ratio · source + extra tokens.

    Raises: ArgumentError: a value is out of range.
    """

    size: int = 5
    alpha: float = 1.0
    n_best: int = 1
    ratio: float = 2.0
    extra: int = 10

    def __post_init__(self) -> None:
        positive_int("beam.size", self.size)
        positive_int("beam.n_best", self.n_best)
        if self.size > _WIDEST:
            raise ArgumentError("beam.size", f"must be at most {_WIDEST}", self.size, "Try 5")
        if self.n_best > self.size:
            got = f"n_best={self.n_best}, size={self.size}"
            raise ArgumentError("beam.n_best", "must be at most the beam's size", got, "Make the beam larger")
        if not 0 <= self.alpha <= _STEEPEST:
            raise ArgumentError("beam.alpha", f"must lie in 0…{_STEEPEST}", self.alpha, "Try 1")


@torch.no_grad()
def translate(
    model: TranslationModel, source_TB: Tensor, source_B: Tensor, beam: Beam | None = None
) -> list[list[Hypothesis]]:
    """The best translations of each source, the best first; `<unk>` is never written.

    A source's search ends once as many as the beam has are finished, and no unfinished one would be better if it ended next.

    Args: source_TB, source_B: ids [T, B] with `<eos>` at their ends, and lengths [B].
    Raises: CheckpointError: the model's scores are not finite.
    """
    beam = beam or Beam()
    with evaluating(model):
        search = _Search(model, source_TB, source_B, beam)
        while search.alive:
            search.step()
    return [found[: beam.n_best] for found in search.done]


class _Search:
    """All sources' hypotheses; those of a source that is done are no longer computed."""

    def __init__(self, model: TranslationModel, source_TB: Tensor, source_B: Tensor, beam: Beam) -> None:
        self.model, self.beam, self.device = model, beam, source_TB.device
        self.alive: list[int] = list(range(len(source_B)))
        self.limits = [max(1, int(beam.ratio * int(n)) + beam.extra) for n in source_B]
        self.done: list[list[Hypothesis]] = [[] for _ in self.alive]
        self.source: Source = model.encode(source_TB, source_B)
        self.width = 1  # hypotheses of each source: they begin as one
        self.totals_BK = torch.zeros(len(self.alive), 1, dtype=torch.float64, device=self.device)
        self.tokens = torch.full((len(self.alive),), _EOS, device=self.device)
        self.histories: list[list[tuple[list[int], list[int]]]] = [[([], [])] for _ in self.alive]

    def step(self) -> None:
        """One token more for every hypothesis."""
        K, found = self.beam.size, self.model.decode(self.source, self.tokens[None])
        scores_NV = finite("translation.scores", found.scores[0]).double()
        scores_NV[:, _UNK] = -torch.inf
        V = scores_NV.shape[1]
        log_BKV = torch.log_softmax(scores_NV, -1).view(len(self.alive), self.width, V) + self.totals_BK[..., None]
        length = len(self.histories[0][0][0]) + 1
        # where only the end may follow
        full = [k for k, sentence in enumerate(self.alive) if length > self.limits[sentence]]
        ends_V = torch.arange(V, device=self.device) == _EOS
        log_BKV[full] = log_BKV[full].masked_fill(~ends_V, -torch.inf)
        log_BN, places_BN = log_BKV.flatten(1).topk(min(2 * K, self.width * V - self.width), 1)  # K of them do not end
        looked = self._looked(found.attention[0]).view(len(self.alive), self.width).tolist()
        alive, rows, totals, tokens, histories = [], [], [], [], []
        given = zip(self.alive, log_BN.tolist(), places_BN.tolist(), strict=True)
        for k, (sentence, logs, places) in enumerate(given):
            going = self._extended(sentence, logs, [(p // V, p % V) for p in places], self.histories[k], looked[k])
            if not going:
                continue
            going += [(-float("inf"), *going[-1][1:])] * (K - len(going))  # of a tiny vocabulary: never chosen again
            alive.append(sentence)
            rows += [k * self.width + parent for _, parent, _, _ in going]
            totals.append([total for total, *_ in going])
            tokens += [token for _, _, token, _ in going]
            histories.append([history for *_, history in going])
        self.alive, self.histories = alive, histories
        if alive:
            self.source, self.width = found.source.take(torch.tensor(rows, device=self.device)), K
            self.totals_BK = torch.tensor(totals, dtype=torch.float64, device=self.device)
            self.tokens = torch.tensor(tokens, device=self.device)

    def _looked(self, attention_NS: Tensor) -> Tensor:
        """The place of each source with the most attention, its `<eos>` left out; 0 where it has nothing else."""
        end_NS = F.pad(self.source.beyond_BS[:, 1:], (0, 1), value=True)  # from the last place on
        end_NS[:, 0] = False
        return attention_NS.masked_fill(end_NS, -1.0).argmax(-1)

    def _extended(
        self, sentence: int, logs: list[float], places: list[tuple[int, int]], before: Sequence[tuple[list[int], list[int]]],
        looked: list[int],
    ) -> list[tuple[float, int, int, tuple[list[int], list[int]]]]:  # fmt: skip
        """Unfinished hypotheses of a source after one token more (log P, parent, token, history); none where its search ends."""
        K, done, going = self.beam.size, self.done[sentence], []
        length = len(before[0][0]) + 1
        for rank, (log, (parent, token)) in enumerate(zip(logs, places, strict=True)):
            if log == -float("inf"):
                break
            ids, alignment = before[parent]
            if token == _EOS:
                if rank < K:
                    done.append(Hypothesis(ids, log / self._penalty(length), log, alignment))
            elif len(going) < K:
                going.append((log, parent, token, ([*ids, token], [*alignment, looked[parent]])))
        done.sort(key=lambda one: -one.score)
        del done[K:]
        if len(done) == K and going and (K == 1 or going[0][0] / self._penalty(length + 1) <= done[-1].score):
            return []
        return going

    def _penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self.beam.alpha
