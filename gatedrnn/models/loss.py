"""Cross-entropy of a decoder without ever holding the logits of a whole window.

The logits of a few rows at a time give their loss and, at once, their share of every gradient; backward only scales. Memory
is bounded by the chunk, and no window-sized array is written and read again.
Dimensions: N tokens, E width of the decoder's input, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.torch_internals import being_traced
from gatedrnn.sequence.backends.cpu.availability import unavailable
from gatedrnn.sequence.modes import readable, transformed

IGNORED = -100
"""A target that predicts nothing."""

_CHUNK_LOGITS = 4 << 20
_FEWEST_ROWS = 32  # fewer would read the decoder once for next to nothing


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    divisor: float | None = None,
    adversarial_softmax: float = 0.0,
) -> Tensor:
    """Sum of −log softmax(hidden Wᵀ + b)[target] in nats over the targets that are not −100, divided by their number.

    With `adversarial_softmax` α > 0 (AdvSoft), the target's row w of W is replaced by w + δ with δ = −α ‖w‖ h / ‖h‖, the vector
    of length α ‖w‖ that increases the loss most: the target's logit is lowered by α ‖w‖ ‖h‖. For the gradient δ is a constant,
    so h receives −α ‖w‖ h / ‖h‖ through that logit, and ‖w‖ has no gradient.

    Equations: Wang, Gong & Liu 2019, the closed form of the adversarial noise. Departs: none. Their code has one
        δ for all tokens of a word in a batch, and none for a token with w · h ≤ 0.

    All logits are held at once where a chunk's gradient cannot be kept: under torch.func, forward-mode differentiation,
    torch.jit.trace or a second differentiation, for subclasses with functions of their own, and on devices without autocast,
    such as meta.

    Args:
        hidden: [N, E]; weight: [V, E]; bias: [V].
        targets: [N], integers in 0…V − 1 or −100.
        divisor: instead of the number of targets, where the batch is a part of a larger one.
        adversarial_softmax: α, at least 0.

    Returns: a scalar in float32 at least; NaN if every target is −100 and there is no divisor, as torch's.
    Raises: ArgumentError: the targets are no integers, not one a row, or out of range (checked on the CPU); α is negative or
        not finite.
    """
    if not 0 <= adversarial_softmax < float("inf"):
        owner, rule = "chunked_cross_entropy.adversarial_softmax", "must be a finite number of at least 0"
        raise ArgumentError(owner, rule, adversarial_softmax, "Give 0 to switch it off")
    targets = whole_numbers("chunked_cross_entropy.targets", targets, "[N]", "Flatten them")
    if hidden.shape[:-1] != targets.shape:
        rule, got = f"must be one for each row of hidden {list(hidden.shape)}", list(targets.shape)
        raise ArgumentError("chunked_cross_entropy.targets", rule, got, "Give one target per token")
    if not _chunkable(hidden, weight, bias, targets):
        return _at_once(hidden, weight, bias, targets, divisor, adversarial_softmax)
    # autocast leaves float64 as it is
    autocast = torch.is_autocast_enabled(hidden.device.type) and weight.dtype != torch.float64
    dtype = torch.get_autocast_dtype(hidden.device.type) if autocast else weight.dtype
    if dtype == torch.float16:  # a gradient divided by N is lost in it, before a GradScaler can scale it
        dtype = torch.float32
    if dtype == torch.bfloat16 and weight.dtype == torch.float32 and _slow_bfloat16(hidden):
        dtype = torch.float32
    settings = divisor, adversarial_softmax, dtype, torch.is_grad_enabled()
    return _ChunkedCrossEntropy.apply(hidden, weight, bias, targets, *settings)  # type: ignore[return-value]


def _slow_bfloat16(hidden: Tensor) -> bool:
    """Whether products of bfloat16 take longer than those of float32 where `hidden` is; a compiler takes what was asked for."""
    if hidden.device.type != "cpu" or torch.compiler.is_compiling() or unavailable(hidden) is not None:
        return False
    from gatedrnn.sequence.backends.cpu.runtime.target import best

    return not best().quick


def whole_numbers(owner: str, ids: Tensor, shape: str, advice: str) -> Tensor:
    """`ids` of any integer type as int64.

    Raises: ArgumentError: they are no tensor of integers, or have not as many dimensions as `shape`, such as "[T, B]".
    """
    whole = isinstance(ids, Tensor) and not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    if not whole or ids.dim() != 1 + shape.count(","):
        got = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ArgumentError(owner, f"must be integers {shape}", got, advice)
    return ids.long()


def check_targets(owner: str, targets: Tensor, given: Tensor, name: str) -> None:
    """Raises ArgumentError: there is not one target beside each of the ids `given`, which are the `name`."""
    if targets.shape != given.shape or targets.device != given.device:
        rule = f"must have the {name}' shape {list(given.shape)} and device {given.device}"
        got = f"{list(targets.shape)} on {targets.device}"
        raise ArgumentError(owner, rule, got, "Give one target per token")


def _chunkable(*tensors: Tensor) -> bool:
    """Whether gradients may be worked out in forward: nothing but numbers, and one backward, is asked of plain tensors."""
    if transformed() or not all(readable(type(tensor)) for tensor in tensors):
        return False
    if torch.compiler.is_compiling():
        return True
    return not being_traced() and torch.amp.is_autocast_available(tensors[0].device.type)


def _at_once(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, divisor: float | None, adversarial_softmax: float
) -> Tensor:
    """The same in PyTorch's own operators: they differentiate as often, and transform, as is wished."""
    full = torch.promote_types(weight.dtype, torch.float32)
    logits = F.linear(hidden.to(weight.dtype), weight).to(full) + bias.to(full)
    if adversarial_softmax:
        target = targets.masked_fill(targets == IGNORED, 0)
        radius = adversarial_softmax * _length(weight.detach()[target], full)
        logits = logits.scatter_add(-1, target[:, None], (-radius * _length(hidden.to(weight.dtype), full))[:, None])
    if divisor is None:
        return F.cross_entropy(logits, targets, ignore_index=IGNORED)
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum") / divisor


def _losses(logits: Tensor, bias: Tensor, target: Tensor, share: Tensor, needed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """−log softmax(logits + bias)[target] [n], share · (softmax − one-hot) [n, V], where `needed`, and the latter's sum [V]."""
    if unavailable(logits) is None:
        losses, d_bias = torch.ops.gatedrnn.cross_entropy_(logits, bias, target, share, needed)
        return losses, logits, d_bias
    log_p = logits.add_(bias).log_softmax(-1)
    losses = -log_p.gather(-1, target[:, None]).squeeze(-1)
    error = log_p.exp_().mul_(share[:, None]).scatter_add_(-1, target[:, None], -share[:, None])
    return losses, error, error.sum(0)


def _parts(tokens: int, words: int) -> list[slice]:
    """The chunks: of one size, each with few enough tokens for its logits to stay in cache."""
    rows = max(_FEWEST_ROWS, _CHUNK_LOGITS // words)
    rows = max(1, -(-tokens // max(1, -(-tokens // rows))))
    return [slice(start, start + rows) for start in range(0, tokens, rows)]


def _length(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Euclidean norms [n] of rows [n, E]."""
    return torch.linalg.vector_norm(rows, dim=-1, dtype=dtype)


def _lower_targets(
    logits: Tensor, hidden: Tensor, weight: Tensor, target: Tensor, adversarial_softmax: float
) -> Tensor:
    """Subtract α ‖w‖ ‖h‖ from each target's logit, in place; returns δ / h = −α ‖w‖ / ‖h‖ [n, 1].

    Targets out of range are clamped here, for `_losses` to refuse.
    """
    index = target.clamp(0, len(weight) - 1)
    radius = adversarial_softmax * _length(weight[index], logits.dtype)
    length = _length(hidden, logits.dtype)
    logits.scatter_add_(-1, index[:, None], (-radius * length)[:, None])
    return (-radius / length).nan_to_num_(0, 0, 0)[:, None]  # δ = 0 where h = 0


def _add_gradients(
    gradients: list[Tensor | None], part: slice, error: Tensor, hidden: Tensor, weight: Tensor, along: Tensor | None
) -> None:
    """Add a chunk's share to the gradients of hidden [N, E] (its rows `part`) and weight [V, E].

    Args:
        error: gradient of the chunk's logits [n, V].
        hidden: the chunk's rows [n, E].
        along: factors [n, 1] of `hidden` in a further part of its gradient.
    """
    d_hidden, d_weight = gradients
    if d_hidden is not None:
        d_hidden[part] = error @ weight
        if along is not None:
            d_hidden[part] += (along * hidden).to(d_hidden.dtype)
    if d_weight is not None and d_weight.dtype == error.dtype:
        d_weight.addmm_(error.t(), hidden)
    elif d_weight is not None:
        d_weight += error.t() @ hidden


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Gradients are worked out in forward, while a chunk's probabilities are in cache."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, divisor: float | None,
        adversarial_softmax: float, dtype: torch.dtype, differentiate: bool,
    ) -> Tensor:  # fmt: skip
        full = torch.promote_types(weight.dtype, torch.float32)
        needs = [differentiate and need for need in ctx.needs_input_grad[:3]]
        hidden_c, weight_c, bias_c = hidden.to(dtype), weight.to(dtype), bias.to(full)
        d_hidden = torch.empty_like(hidden_c) if needs[0] else None
        d_weight = torch.zeros_like(weight, dtype=full) if needs[1] else None
        d_bias = torch.zeros_like(bias_c) if needs[2] else None
        count = (targets != IGNORED).sum() if divisor is None else divisor
        parts = count.clamp_min(1) if isinstance(count, Tensor) else count
        total = torch.zeros((), dtype=full, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _parts(len(targets), len(weight)):
                kept = targets[part] != IGNORED
                target = targets[part].masked_fill(~kept, 0)
                logits, along = F.linear(hidden_c[part], weight_c).to(full), None
                if adversarial_softmax:
                    along = _lower_targets(logits, hidden_c[part], weight_c, target, adversarial_softmax)
                losses, error, d_bias_part = _losses(logits, bias_c, target, kept.to(full) / parts, any(needs))
                total += losses.masked_fill(~kept, 0).sum()
                if d_bias is not None:
                    d_bias += d_bias_part
                if along is not None and any(needs):
                    along *= error.gather(-1, target[:, None])
                error = error.to(dtype)
                _add_gradients([d_hidden, d_weight], part, error, hidden_c[part], weight_c, along)
        if any(needs):
            ctx.save_for_backward(hidden, weight, bias, targets, d_hidden, d_weight, d_bias)
            ctx.settings = divisor, adversarial_softmax
        return total / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, *gradients = ctx.saved_tensors
        inputs = hidden, weight, bias
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():  # they are to be differentiated once more
            places = [k for k, gradient in enumerate(gradients) if gradient is not None]
            inputs = hidden.view_as(hidden), weight.view_as(weight), bias.view_as(bias)  # hidden may depend on weight
            loss = _at_once(inputs[0], inputs[1], inputs[2], targets, *ctx.settings)
            again = torch.autograd.grad(loss, [inputs[k] for k in places], grad, create_graph=True)
            return *(again[places.index(k)] if k in places else None for k in range(3)), None, None, None, None, None
        found: list[Tensor | None] = [None, None, None]
        for k, (gradient, given) in enumerate(zip(gradients, inputs, strict=True)):
            if gradient is not None:
                wide = gradient.to(torch.promote_types(gradient.dtype, given.dtype))
                found[k] = (wide * grad).to(given.dtype)
        return *found, None, None, None, None, None
