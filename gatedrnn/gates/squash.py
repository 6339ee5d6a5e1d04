"""From logits to gate values, soft or straight-through.

Shapes: every function maps logits [..., K] to values [..., K]; `hard` gives binary values forward and the soft
function's gradient backward (Bengio, Léonard & Courville 2013).
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def straight_through(soft: Tensor, hard: Tensor) -> Tensor:
    """`hard` in the forward pass, the gradient of `soft` in the backward pass. Both [...]; returns [...]."""
    return hard + (soft - soft.detach())


def sigmoid(z: Tensor, hard: bool = False) -> Tensor:
    """σ(z); `hard`: 1 where z > 0, else 0.

    Equations: Li et al. 2018, eq. 4 (the Gumbel gate is σ of perturbed logits). Departs: none.
    """
    soft = torch.sigmoid(z)
    return straight_through(soft, (z > 0).to(soft.dtype)) if hard else soft


def cumax(z: Tensor, hard: bool = False) -> Tensor:
    """cumsum(softmax(z)): P(unit k is 1) = P(split ≤ k) for a split point drawn from softmax(z); rises to 1, up to rounding.

    Equations: Shen et al. 2019, eq. 6–8. Departs: none.
    """
    return split_below(torch.softmax(z, -1), hard)


def tail_cumax(z: Tensor, hard: bool = False) -> Tensor:
    """1 − cumax(z) as an exclusive sum of the tail, which does not cancel: P(split > k); falls to exactly 0.

    Equations: Shen et al. 2019, eq. 10. Departs: summed from the end instead of subtracted from 1.
    """
    return split_above(torch.softmax(z, -1), hard)


def split_below(p: Tensor, hard: bool = False) -> Tensor:
    """P(split ≤ k) of a split point with probabilities p; `hard`: of the likeliest one."""
    soft = p.cumsum(-1)
    return straight_through(soft, _one_hot_split(p).cumsum(-1)) if hard else soft


def split_above(p: Tensor, hard: bool = False) -> Tensor:
    """P(split > k) of a split point with probabilities p; `hard`: of the likeliest one."""
    soft = _exclusive_tail(p)
    return straight_through(soft, _exclusive_tail(_one_hot_split(p))) if hard else soft


def _exclusive_tail(p: Tensor) -> Tensor:
    return F.pad(p[..., 1:].flip(-1).cumsum(-1).flip(-1), (0, 1))


def _one_hot_split(p: Tensor) -> Tensor:
    return F.one_hot(p.argmax(-1), p.shape[-1]).to(p.dtype)


SQUASHES: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "sigmoid": sigmoid,
    "cumax": cumax,
    "tail_cumax": tail_cumax,
    "tanh": lambda z, hard: torch.tanh(z),
    "relu": lambda z, hard: torch.relu(z),
    "exp": lambda z, hard: torch.exp(z),
}
"""By name, by which kernels know them: do not change an entry. The last three have no hard form."""
