"""A loss that is 0 where distances give the trees that they should. Dimensions: T time, B batch, S a split, W a word inside."""

import torch
from torch import Tensor


def tree_loss(distances_TB: Tensor, heights_TB: Tensor, margin: float, divisor: float | None = None) -> Tensor:
    """By how much the distances of sentences fail to split every constituent where its tree does.

    Top-down, a constituent is split before its word with the largest distance. The hinge loss of a constituent asks that the
    distance at its split exceeds each other distance inside it by `margin`: mean over W of max(0, margin − d_S + d_W) / margin.

    Equations: Shen et al. 2018 ("Straight to the Tree"), eq. 8. Departs: only pairs of a split and a word inside its
        constituent are compared, since top-down parsing compares no others; in units of `margin`; a mean over constituents of
        three words or more, each of which counts the same, instead of a sum over pairs.
    Args:
        distances_TB: of each word [T, B], large where a constituent is split before it.
        heights_TB: height of the split before each word [T, B], as `spans_to_heights` gives it, of an integer type; 0 for the
            first word, and where there is no tree.
        margin: above 0.
        divisor: what the sum over constituents is divided by; None for their number (of heights above 1).

    Returns: the mean over the constituents of the batch, a scalar; 0 where there are none.
    """
    steps = int(heights_TB.any(1).sum())  # sentences may be longer than the longest one with a tree
    if not steps:
        return distances_TB.sum() * 0
    distances_BT, heights_BT = distances_TB[: steps + 2].t(), heights_TB[: steps + 2].t()
    inside_BSW = _inside(heights_BT)
    lacking_BSW = (margin - distances_BT[:, :, None] + distances_BT[:, None, :]).clamp_min(0) / margin
    words_BS = inside_BSW.sum(-1)
    each_BS = (lacking_BSW * inside_BSW).sum(-1) / words_BS.clamp_min(1)
    return each_BS.sum() / ((heights_TB > 1).sum().clamp_min(1) if divisor is None else max(divisor, 1e-9))


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
