"""The inside algorithm of a probabilistic grammar whose two children are drawn independently, for ragged batches.

A rule A → B C has the probability P(B | A, left) · P(C | A, right). So each span is multiplied by the two tables once, and a
split point costs N products instead of N · S².
Dimensions: B batch, T words, N non-terminals, P pre-terminals, S = N + P symbols, W places of
spans of one width, K split points.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_LEAST = -1e30
"""Log-probability of what is impossible, or below the smallest number of its type; finite, so that no NaN comes of it."""


def inside(
    words_BTP: Tensor,
    left_NS: Tensor,
    right_NS: Tensor,
    root_N: Tensor,
    lengths_B: Tensor,
    spans_BTT: Tensor | None = None,
) -> Tensor:
    """Log-probability of each sentence, summed over all its binary trees.

    Equations: Baker 1979; Liu, Yang, Kim & Tu 2023, eq. 6, for the form of the rules. Departs: none. Computed with linear
    probabilities, a scale for each span; once differentiable.

    Args:
        words_BTP: log P(word t | pre-terminal) [B, T, P]; what lies beyond a length must be finite and counts for nothing.
        left_NS, right_NS: log P(child | parent), the first N columns for non-terminals [N, N + P].
        root_N: log P(non-terminal | start) [N].
        lengths_B: words of each sentence, 2 … T.
        spans_BTT: a score that is added to the log-probability of every tree that has the span of words i … j, at [b, i, j].
            The gradient of the result with respect to it is the probability of the span given the sentence.

    Returns: log-probability in nats [B]; about −1e30 where it is below what the type holds.
    """
    with torch.autocast(words_BTP.device.type, enabled=False):
        return _Inside.apply(words_BTP, left_NS, right_NS, root_N, lengths_B, spans_BTT)  # type: ignore[no-any-return]


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


class _Inside(torch.autograd.Function):
    """Inside forward, outside backward; what is kept of each span has 1 for its largest number, and a scale beside it."""

    @staticmethod
    def forward(
        ctx: Any, words: Tensor, left: Tensor, right: Tensor, root: Tensor, lengths: Tensor, spans: Tensor | None
    ) -> Tensor:
        (batch, steps, _), count = words.shape, len(root)
        tables, start = torch.cat([left, right]).exp(), root.exp()
        lefts, rights = _charts(words, batch, steps + 1, steps + 1, count)
        scale_l, scale_r = _charts(words, batch, steps + 1, steps + 1)
        inner: dict[int, Tensor] = {}
        kept: dict[int, tuple[Tensor, Tensor]] = {}
        total = words.new_full((batch,), _LEAST)
        for width in range(1, steps + 1):
            if width == 1:
                scale = words.amax(-1)
                inner[1] = (words - scale[..., None]).exp()
            else:
                inner[width], scale, kept[width] = _joined(width, (lefts, rights), (scale_l, scale_r))
            if spans is not None:
                scale = scale + spans.diagonal(width - 1, 1, 2)
            if width > 1:
                ended = (lengths == width).nonzero()[:, 0]
                total[ended] = _above_zero(inner[width][ended, 0] @ start).log() + scale[ended, 0]
            both = inner[width] @ tables[:, _children(width, count)].t()
            lefts.width(width).copy_(both[..., :count])
            rights.width(width).copy_(both[..., count:])
            scale_l.width(width).copy_(scale)
            scale_r.width(width).copy_(scale)
        ctx.save_for_backward(words, tables, start, lengths)
        ctx.kept = lefts, rights, inner, kept
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        words, tables, start, lengths = ctx.saved_tensors
        lefts, rights, inner, kept = ctx.kept
        (batch, steps, _), count = words.shape, len(start)
        out_l, out_r = _Chart(torch.zeros_like(lefts.cells)), _Ends(torch.zeros_like(rights.cells))
        d_tables, d_root, d_words = torch.zeros_like(tables), torch.zeros_like(start), words
        d_spans = words.new_zeros(batch, steps, steps) if ctx.needs_input_grad[5] else None
        for width in range(steps, 0, -1):
            both = torch.cat([out_l.width(width), out_r.width(width)], -1)
            columns = _children(width, count)
            outer = both @ tables[:, columns]
            if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:  # of left or right children
                d_tables[:, columns] += both.flatten(0, 1).t() @ inner[width].flatten(0, 1)
            if width > 1:
                ended = (lengths == width).nonzero()[:, 0]
                whole = inner[width][ended, 0]
                share = grad[ended, None] / _above_zero(whole @ start)[:, None]
                outer[ended, 0] += share * start
                d_root += (share * whole).sum(0)
            found = outer * inner[width]
            if d_spans is not None:
                d_spans.diagonal(width - 1, 1, 2).copy_(found.sum(-1))
            if width == 1:
                d_words = found
            else:
                _spread(width, outer, kept[width], (lefts, rights), (out_l, out_r))
        d_tables = d_tables * tables
        return d_words, d_tables[:count], d_tables[count:], d_root * start, None, d_spans


def _charts(like: Tensor, *shape: int) -> tuple[_Chart, _Ends]:
    """Two charts of unknown numbers, of the type and on the device of `like`."""
    return _Chart(like.new_empty(shape)), _Ends(like.new_empty(shape))


def _children(width: int, count: int) -> slice:
    """Columns of a table for spans of this width: pre-terminals for one word, else non-terminals."""
    return slice(count, None) if width == 1 else slice(count)


def _joined(
    width: int, charts: tuple[_Chart, _Ends], scales: tuple[_Chart, _Ends]
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Spans of a width from the narrower ones.

    Returns: inside probabilities [B, W, N] over their largest; the log of what they are to be multiplied with [B, W]; and for
        `_spread` the weight of each split point [B, W, K] and the largest number under these weights [B, W].
    """
    splits = scales[0].starts(width) + scales[1].ends(width)
    best = splits.amax(-1)
    weights = (splits - best[..., None]).exp()
    pairs = charts[0].starts(width) * charts[1].ends(width)
    total = torch.matmul(weights[..., None, :], pairs)[..., 0, :]
    peak = _above_zero(total.amax(-1))
    return total / peak[..., None], (best + peak.log()).clamp_min(_LEAST), (weights, peak)


def _spread(
    width: int, outer: Tensor, kept: tuple[Tensor, Tensor], charts: tuple[_Chart, _Ends], into: tuple[_Chart, _Ends]
) -> None:
    """Add what spans of a width bring to the gradients of the narrower ones; `outer`: the gradient of theirs [B, W, N]."""
    weights, peak = kept
    shares = weights[..., None] * (outer / peak[..., None])[..., None, :]
    into[0].starts(width).addcmul_(shares, charts[1].ends(width))
    into[1].ends(width).addcmul_(shares, charts[0].starts(width))


def _above_zero(values: Tensor) -> Tensor:
    """What is 0 by underflow, as the smallest number that has an inverse."""
    return values.clamp_min(torch.finfo(values.dtype).tiny)
