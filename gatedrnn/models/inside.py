"""The inside algorithm of a probabilistic grammar in Chomsky normal form, for ragged batches.

Rules of each kind of children (both constituents, a word first, a word last, two words) have a table of their own. A word's row
of the second and third is the same for all spans that begin or end with it, so it is multiplied once a word, and a span costs N³
products besides N² for each of its split points.
Dimensions: B batch, T words, N non-terminals, P pre-terminals, S = N + P symbols, W places of spans of one width, K split
points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_LEAST = -1e30
"""Log-probability of what is impossible, or below the smallest number of its type; finite, so that no NaN comes of it."""


def inside(
    words_BTP: Tensor, rules_NSS: Tensor, root_N: Tensor, lengths_B: Tensor, spans_BTT: Tensor | None = None
) -> Tensor:
    """Log-probability of each sentence, summed over all its binary trees.

    Equations: Baker 1979. Departs: none. Computed with linear probabilities, a scale for each span; once differentiable.

    Args:
        words_BTP: log P(word t | pre-terminal) [B, T, P]; what lies beyond a length must be finite and counts for nothing.
        rules_NSS: log P(left child, right child | parent), non-terminals first [N, N + P, N + P].
        root_N: log P(non-terminal | start) [N].
        lengths_B: words of each sentence, 2 … T.
        spans_BTT: a score that is added to the log-probability of every tree that has the span of words i … j, at [b, i, j];
            −∞ for a span that no tree may have. The gradient of the result with respect to it is the probability of the span
            given the sentence.

    Returns: log-probability in nats [B]; about −1e30 where it is below what the type holds.
    """
    with torch.autocast(words_BTP.device.type, enabled=False):
        return _Inside.apply(words_BTP, rules_NSS, root_N, lengths_B, spans_BTT)  # type: ignore[no-any-return]


class _Chart:
    """A number, or a vector, for each span [B, start, end, …], and its spans of one width as views without a copy.

    Args: cells: [B, T + 1, T + 1, …], contiguous.
    """

    def __init__(self, cells: Tensor) -> None:
        self.cells = cells
        self.sides = cells.shape[1]

    def width(self, width: int) -> Tensor:
        """Every span of one width [B, W, …]."""
        return self._strided((self.sides - width,), 0, width, ((1, 1),))

    def starts(self, width: int) -> Tensor:
        """For each span of one width all that begin with it and are narrower, narrow ones first [B, W, K, …]."""
        return self._strided((self.sides - width, width - 1), 0, 1, ((1, 1), (0, 1)))

    def _strided(self, shape: Sequence[int], row: int, column: int, steps: Sequence[tuple[int, int]]) -> Tensor:
        batch, down, across, *inner = self.cells.stride()
        offset = self.cells.storage_offset() + row * down + column * across
        strides = [batch, *(down * r + across * c for r, c in steps), *inner]
        return self.cells.as_strided([len(self.cells), *shape, *self.cells.shape[3:]], strides, offset)


class _Ends(_Chart):
    """The same, stored by end and start, so that all that end with a span lie side by side."""

    def width(self, width: int) -> Tensor:
        """Every span of one width [B, W, …]."""
        return self._strided((self.sides - width,), width, 0, ((1, 1),))

    def ends(self, width: int) -> Tensor:
        """For each span of one width all that end with it and are narrower, wide ones first [B, W, K, …]."""
        return self._strided((self.sides - width, width - 1), width, 1, ((1, 1), (0, 1)))


class _Rules(NamedTuple):
    """P(children | parent), linear, a table for each kind of children.

    Args: both: [N, N·N]; first, last: [P, N·N], of a parent and the other child; pair: [N, P·P].
    """

    both: Tensor
    first: Tensor
    last: Tensor
    pair: Tensor

    @classmethod
    def of(cls, rules_NSS: Tensor) -> "_Rules":
        """The tables of rules."""
        N = len(rules_NSS)
        first, last = rules_NSS[:, N:, :N].permute(1, 0, 2), rules_NSS[:, :N, N:].permute(2, 0, 1)
        return cls(*(t.flatten(1) for t in (rules_NSS[:, :N, :N], first, last, rules_NSS[:, N:, N:])))

    def joined(self) -> Tensor:
        """[N, S, S] of the tables, or of their gradients."""
        N, P = len(self.both), len(self.first)
        first, last = self.first.view(P, N, N).permute(1, 0, 2), self.last.view(P, N, N).permute(1, 2, 0)
        upper = torch.cat([self.both.view(N, N, N), last], 2)
        return torch.cat([upper, torch.cat([first, self.pair.view(N, P, P)], 2)], 1)


@dataclass
class _Kept:
    """What forward leaves for backward. Vectors of a span have 1 for their largest number, and a scale beside them.

    Args:
        rules: as tables.
        wanted: whether their gradients are.
        words: of pre-terminals [B, T, P].
        first, last: rules whose first, or last, child is this word, summed over its pre-terminals [B, T, N parent, N other].
        lefts, rights: inside probabilities of spans of two words or more, else 0 [B, T + 1, T + 1, N].
        inner: the same by width [B, W, N].
        splits: by width, the weights of split points [B, W, K], the largest number under them [B, W], and the sums over split
            points of products of children [B, W, N·N or P·P], None where one child is a word, or rules need no gradient.
    """

    rules: _Rules
    wanted: bool
    words: Tensor
    first: Tensor
    last: Tensor
    lefts: _Chart
    rights: _Ends
    inner: dict[int, Tensor]
    splits: dict[int, tuple[Tensor, Tensor, Tensor | None]]


class _Inside(torch.autograd.Function):
    """Inside forward, outside backward."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, rules: Tensor, root: Tensor, lengths: Tensor, spans: Tensor | None) -> Tensor:
        (batch, steps, _), count = words.shape, len(root)
        tables, start, scale = _Rules.of(rules.exp()), root.exp(), words.amax(-1)
        linear = (words - scale[..., None]).exp()
        first, last = ((linear @ table).unflatten(-1, (count, count)) for table in (tables.first, tables.last))
        charts = _charts(words, batch, steps + 1, steps + 1, count)
        kept = _Kept(tables, ctx.needs_input_grad[1], linear, first, last, *charts, {}, {})
        scales = _charts(words, batch, steps + 1, steps + 1)
        result = words.new_full((batch,), _LEAST)
        for width in range(1, steps + 1):
            if width > 1:
                scale = _joined(kept, scales, width)
            if spans is not None:
                scale = (scale + spans.diagonal(width - 1, 1, 2)).clamp_min(_LEAST)
            if width > 1:
                ended = (lengths == width).nonzero()[:, 0]
                result[ended] = _log(kept.inner[width][ended, 0] @ start, scale[ended, 0])
            for chart in scales:
                chart.width(width).copy_(scale)
        ctx.save_for_backward(start, lengths)
        ctx.kept = kept
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        (start, lengths), kept = ctx.saved_tensors, ctx.kept
        batch, steps, _ = kept.words.shape
        found = _Gradients.zeros(kept)
        d_root = torch.zeros_like(start)
        d_spans = grad.new_zeros(batch, steps, steps) if ctx.needs_input_grad[4] else None
        for width in range(steps, 1, -1):
            outer, inner = found.lefts.width(width) + found.rights.width(width), kept.inner[width]
            ended = (lengths == width).nonzero()[:, 0]
            whole = inner[ended, 0]
            share = grad[ended, None] / _divisor(whole @ start)[:, None]
            outer[ended, 0] += share * start
            d_root += (share * whole).sum(0)
            if d_spans is not None:
                d_spans.diagonal(width - 1, 1, 2).copy_((outer * inner).sum(-1))
            found.spread(kept, width, outer)
        d_words, d_rules = found.ended(kept)
        if d_spans is not None:
            d_spans.diagonal(0, 1, 2).copy_(d_words.sum(-1))
        return d_words, d_rules, d_root * start, None, d_spans


@dataclass
class _Gradients:
    """Of what `_Kept` holds.

    Args:
        words: [B, T, P].
        both, pair: of these tables; None where the rules need none.
        lefts, rights: of inside probabilities [B, T + 1, T + 1, N].
        first, last: of spans whose first, or last, child is a word, times the weight of this split [B, T + 1, T + 1, N].
    """

    words: Tensor
    both: Tensor | None
    pair: Tensor | None
    lefts: _Chart
    rights: _Ends
    first: _Chart
    last: _Ends

    @classmethod
    def zeros(cls, kept: _Kept) -> "_Gradients":
        """None of them known yet."""
        both, pair = (torch.zeros_like(t) if kept.wanted else None for t in (kept.rules.both, kept.rules.pair))
        charts = (_charts(kept.words, *kept.lefts.cells.shape) for _ in range(2))
        return cls(torch.zeros_like(kept.words), both, pair, *next(charts), *next(charts))

    def spread(self, kept: _Kept, width: int, outer: Tensor) -> None:
        """Add what spans of a width bring to the narrower ones; `outer`: the gradient of theirs [B, W, N]."""
        weights, peak, products = kept.splits[width]
        outer = outer / peak[..., None]
        if width == 2:
            self._add_table(self.pair, outer, products)
            d_BWPP = (outer @ kept.rules.pair).unflatten(-1, (kept.words.shape[-1], -1))
            self.words[:, :-1] += (d_BWPP @ kept.words[:, 1:, :, None])[..., 0]
            self.words[:, 1:] += (kept.words[:, :-1, None] @ d_BWPP)[..., 0, :]
            return
        first, last = outer * weights[..., :1], outer * weights[..., -1:]
        self.first.width(width).copy_(first)
        self.last.width(width).copy_(last)
        self.rights.width(width - 1)[:, 1:] += (first[..., None, :] @ kept.first[:, : 1 - width])[..., 0, :]
        self.lefts.width(width - 1)[:, :-1] += (last[..., None, :] @ kept.last[:, width - 1 :])[..., 0, :]
        if width > 3:
            self._add_table(self.both, outer, products)
            d_BWNN = (outer @ kept.rules.both).unflatten(-1, (outer.shape[-1], -1))
            lefts, rights, inner = *_inner(kept.lefts, kept.rights, width), weights[..., 1:-1, None]
            d_lefts, d_rights = _inner(self.lefts, self.rights, width)
            d_lefts.addcmul_(rights @ d_BWNN.transpose(-1, -2), inner)
            d_rights.addcmul_(lefts @ d_BWNN, inner)

    def ended(self, kept: _Kept) -> tuple[Tensor, Tensor | None]:
        """Gradients of log P(word | pre-terminal) and of the rules, after every width's `spread`."""
        first = (self.first.cells[:, :-1].transpose(-1, -2) @ kept.lefts.cells[:, 1:]).flatten(2)
        last = (self.last.cells[:, 1:].transpose(-1, -2) @ kept.rights.cells[:, :-1]).flatten(2)
        words = self.words + first @ kept.rules.first.t() + last @ kept.rules.last.t()
        if self.both is None or self.pair is None:
            return words * kept.words, None
        by_P = kept.words.flatten(0, 1).t()
        tables = _Rules(self.both, by_P @ first.flatten(0, 1), by_P @ last.flatten(0, 1), self.pair)
        return words * kept.words, tables.joined() * kept.rules.joined()

    @staticmethod
    def _add_table(table: Tensor | None, outer: Tensor, products: Tensor | None) -> None:
        if table is not None and products is not None:
            table.addmm_(outer.flatten(0, 1).t(), products.flatten(0, 1))


def _charts(like: Tensor, *shape: int) -> tuple[_Chart, _Ends]:
    """Two charts of zeros, of the type and on the device of `like`."""
    return _Chart(like.new_zeros(shape)), _Ends(like.new_zeros(shape))


def _inner(lefts: _Chart, rights: _Ends, width: int) -> tuple[Tensor, Tensor]:
    """Left and right children of spans of a width, where neither is a word [B, W, K − 2, N]."""
    return lefts.starts(width)[:, :, 1:-1], rights.ends(width)[:, :, 1:-1]


def _joined(kept: _Kept, scales: tuple[_Chart, _Ends], width: int) -> Tensor:
    """Put spans of a width together from the narrower ones, in `kept`.

    Returns: the log of what their inside probabilities are to be multiplied with [B, W].
    """
    splits = scales[0].starts(width) + scales[1].ends(width)
    best = splits.amax(-1)
    weights = (splits - best[..., None]).exp()
    products = None
    if width == 2:
        products = (kept.words[:, :-1, :, None] * kept.words[:, 1:, None, :]).flatten(2)
        total = products @ kept.rules.pair.t()
    else:
        narrower = kept.inner[width - 1]
        total = (kept.first[:, : 1 - width] @ narrower[:, 1:, :, None])[..., 0] * weights[..., :1]
        total += (kept.last[:, width - 1 :] @ narrower[:, :-1, :, None])[..., 0] * weights[..., -1:]
        if width > 3:
            lefts, rights = _inner(kept.lefts, kept.rights, width)
            products = ((lefts * weights[..., 1:-1, None]).transpose(-1, -2) @ rights).flatten(2)
            total += products @ kept.rules.both.t()
    largest = total.amax(-1)
    peak = _divisor(largest)
    kept.inner[width] = total / peak[..., None]
    kept.splits[width] = weights, peak, products if kept.wanted else None
    kept.lefts.width(width).copy_(kept.inner[width])
    kept.rights.width(width).copy_(kept.inner[width])
    return _log(largest, best)


def _divisor(values: Tensor) -> Tensor:
    """The same; infinity for what is 0 by underflow, so that what it divides counts for nothing."""
    return values.masked_fill(values < torch.finfo(values.dtype).tiny, torch.inf)


def _log(values: Tensor, scale: Tensor) -> Tensor:
    """log(values) + scale; `_LEAST` for what is 0 by underflow, or below."""
    found = values.clamp_min(torch.finfo(values.dtype).tiny).log() + scale
    return found.clamp_min(_LEAST).masked_fill(values < torch.finfo(values.dtype).tiny, _LEAST)
