"""What a model computes must be finite; weights that are may still overflow."""

import math

from torch import Tensor

from gatedrnn.core.errors import CheckpointError


def finite(owner: str, values: Tensor) -> Tensor:
    """`values`, if they are finite. Raises: CheckpointError, in the name of `owner`: one is NaN or infinite."""
    total = float(values.detach().sum().double())
    if not math.isfinite(total) and not values.isfinite().all():
        advice = "The weights are damaged or too large: restore the run, or train again with a lower learning rate"
        raise CheckpointError(owner, "must be finite", "NaN or infinity", advice)
    return values
