"""What is read off a trace of gates."""

from torch import Tensor


def syntactic_distance(master_forget: Tensor) -> Tensor:
    """1 − mean of the master forget gate: an estimate of the split point d_f / D; high when a large constituent has ended.

    Equations: Shen et al. 2019, eq. 17. Departs: none.

    Args:
        master_forget: gate values [..., D_m] in [0, 1].

    Returns: distances [...] in [0, 1].
    """
    return 1.0 - master_forget.mean(-1)
