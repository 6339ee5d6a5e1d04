"""A loss that is small where distances give the trees that they should.

Dimensions: T time, B batch, S a split, W a word inside its constituent.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def tree_loss(distances_TB: Tensor, heights_TB: Tensor, temperature: float, divisor: float | None = None) -> Tensor:
    """Negative log-likelihood of trees, as distances split sentences from the top down.

    A constituent is split before one of its words, drawn from softmax(d / temperature) over all its words but the first. The
    likelihood of a tree is the product over its constituents. Parsing by the largest distance gives the tree where each split is
    the likeliest one.

    Equations: Nguyen et al. 2021 ("A Conditional Splitting Framework for Efficient Constituency Parsing"), the likelihood of a
        sequence of splits, for trees without labels. Departs: the score of a split is the distance of the word after it, whatever
        the constituent, as in Shen et al. 2018 ("Straight to the Tree").
    Args:
        distances_TB: of each word [T, B], large where a constituent is split before it.
        heights_TB: height of the split before each word [T, B], as `spans_to_heights` gives it, of an integer type; 0 for the
            first word, and where there is no tree.
        temperature: τ, above 0.
        divisor: what the sum over constituents is divided by; None for their number (of heights above 1).

    Returns: the mean over the constituents of three words or more, in nats, a scalar; 0 where there are none. Two words can be
        split in one way only.
    """
    steps = int(heights_TB.any(1).sum())  # sentences may be longer than the longest one with a tree
    if not steps:
        return distances_TB.sum() * 0
    scores_BT, heights_BT = distances_TB[: steps + 2].t() / temperature, heights_TB[: steps + 2].t()
    others_BSW = (scores_BT[:, None, :] - scores_BT[:, :, None]).masked_fill(~_inside(heights_BT), -torch.inf)
    total = F.softplus(others_BSW.logsumexp(-1)).sum()  # −log softmax of the split; 0 where there are no others
    return total / ((heights_TB > 1).sum().clamp_min(1) if divisor is None else max(divisor, 1e-9))


def _inside(heights_BT: Tensor) -> Tensor:
    """Whether the split before word W lies inside the constituent that is split before word S, below it: bool [B, S, W].

    All splits between the two, and the one before W, are then lower than the one before S.
    """
    steps = heights_BT.shape[1]
    splits_BSW = heights_BT[:, None, :].expand(-1, steps, -1)
    after_SW = torch.ones(steps, steps, dtype=torch.bool, device=heights_BT.device).triu(1)
    highest_after = splits_BSW.masked_fill(~after_SW, 0).cummax(-1).values
    highest_before = splits_BSW.masked_fill(~after_SW.t(), 0).flip(-1).cummax(-1).values.flip(-1)
    lower = torch.where(after_SW, highest_after, highest_before) < heights_BT[:, :, None]
    return lower & (splits_BSW > 0) & ~torch.eye(steps, dtype=torch.bool, device=heights_BT.device)
