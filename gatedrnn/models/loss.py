"""Cross-entropy of a decoder without ever holding the logits of a whole window.

The logits of a few rows at a time give their loss and, at once, their share of every gradient; backward only scales. Memory
is bounded by the chunk, and no window-sized array is written and read again.
Dimensions: N tokens, E width of the decoder's input, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from gatedrnn.sequence.backends.cpu.availability import unavailable

IGNORED = -100
"""A target that predicts nothing."""

_CHUNK_LOGITS = 4 << 20
_FEWEST_ROWS = 32  # fewer would read the decoder once for next to nothing


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, divisor: float | None = None
) -> Tensor:
    """Sum of −log softmax(hidden Wᵀ + b)[target] in nats over the targets that are not −100, divided by their number.

    Args:
        hidden: [N, E]; weight: [V, E]; bias: [V].
        targets: [N], int64 in 0…V − 1 or −100.
        divisor: instead of the number of targets, where the batch is a part of a larger one.

    Returns: a scalar in float32 at least; NaN if every target is −100 and there is no divisor, as torch's.
    """
    autocast = torch.is_autocast_enabled(hidden.device.type)
    dtype = torch.get_autocast_dtype(hidden.device.type) if autocast else weight.dtype
    needed = torch.is_grad_enabled()
    return _ChunkedCrossEntropy.apply(hidden, weight, bias, targets, divisor, dtype, needed)  # type: ignore[return-value]


def _losses(logits: Tensor, bias: Tensor, target: Tensor, share: Tensor, needed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """−log softmax(logits + bias)[target] [n], share · (softmax − one-hot) [n, V], where `needed`, and the latter's sum [V]."""
    if unavailable(logits) is None:
        losses, d_bias = torch.ops.gatedrnn.cross_entropy_(logits, bias, target, share, needed)
        return losses, logits, d_bias
    log_p = logits.add_(bias).log_softmax(-1)
    losses = -log_p.gather(-1, target[:, None]).squeeze(-1)
    error = log_p.exp_().mul_(share[:, None]).scatter_add_(-1, target[:, None], -share[:, None])
    return losses, error, error.sum(0)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Gradients are worked out in forward, while a chunk's probabilities are in cache."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, divisor: float | None, dtype: torch.dtype,
        differentiate: bool,
    ) -> Tensor:  # fmt: skip
        full = torch.promote_types(weight.dtype, torch.float32)
        needed = differentiate and any(ctx.needs_input_grad)
        hidden_c, weight_c, bias_c = hidden.to(dtype), weight.to(dtype), bias.to(full)
        d_hidden = torch.empty_like(hidden_c) if needed else None
        d_weight = torch.zeros_like(weight, dtype=full) if needed else None
        d_bias = torch.zeros_like(bias_c) if needed else None
        count = (targets != IGNORED).sum() if divisor is None else divisor
        total = torch.zeros((), dtype=full, device=hidden.device)
        rows = max(_FEWEST_ROWS, _CHUNK_LOGITS // len(weight))
        rows = max(1, -(-len(targets) // max(1, -(-len(targets) // rows))))  # chunks of one size
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(targets), rows):
                part = slice(start, start + rows)
                kept = targets[part] != IGNORED
                target = targets[part].masked_fill(~kept, 0)
                logits = F.linear(hidden_c[part], weight_c).to(full)
                losses, error, d_bias_part = _losses(logits, bias_c, target, kept.to(full) / count, needed)
                total += (losses * kept).sum()
                if d_hidden is None or d_weight is None or d_bias is None:
                    continue
                d_bias += d_bias_part
                error = error.to(dtype)
                d_hidden[part] = error @ weight_c
                if d_weight.dtype == dtype:
                    d_weight.addmm_(error.t(), hidden_c[part])
                else:
                    d_weight += error.t() @ hidden_c[part]
        if needed:
            ctx.save_for_backward(d_hidden, d_weight, d_bias)
            ctx.dtypes = hidden.dtype, weight.dtype, bias.dtype
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return *(saved.to(dtype) * grad.to(dtype) for saved, dtype in gradients), None, None, None, None
