"""Noise for gates, from uniform numbers that a counter gives: a number depends on a seed, its row and its place alone.

The reference that every backend is tested against: their kernels draw the same uniform numbers bit for bit.
Dimensions: N rows, R numbers of a row.
"""

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_ROUNDS = 7


def uniform(seed: Tensor, rows_N: Tensor, count: int) -> Tensor:
    """U ∈ (0, 1), multiples of 2⁻²³ plus 2⁻²⁴: [N, count] in float32.

    Equations: Salmon et al. 2011, Philox-4x32 with 7 rounds; the four words of a counter are a quarter of the row apart.

    Args:
        seed: int64 [1], the key.
        rows_N: number of each row, int64 [N]: the counter's upper half; places in the row are its lower half.
    """
    quarter = -(-count // 4)
    place = torch.arange(quarter, device=rows_N.device)
    c0, c1, c2, c3 = place, torch.zeros_like(place), (rows_N & _LOW)[:, None], (rows_N >> 32 & _LOW)[:, None]
    seed = seed.to(rows_N.device)
    k0, k1 = seed & _LOW, seed >> 32 & _LOW
    for _ in range(_ROUNDS):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # modulo 2⁶⁴, as wide as they are
        c0, c1 = (second >> 32 & _LOW) ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> 32 & _LOW) ^ c3 ^ k1, first & _LOW
        k0, k1 = k0 + 0x9E3779B9 & _LOW, k1 + 0xBB67AE85 & _LOW
    words = [word.expand(len(rows_N), quarter) for word in (c0, c1, c2, c3)]
    return ((torch.cat(words, 1)[:, :count] >> 9).float() + 0.5) * 2.0**-23


def logistic_noise(u: Tensor, probability: float = 1.0) -> Tensor:
    """log V − log(1 − V) of V = u / p where u < p, else 0: σ((α + noise) / τ) is Li et al. 2018's Gumbel gate, eq. 4.

    |noise| ≤ 16.7, since V keeps 2⁻²⁴ from 0 and 1.
    """
    v = (u / probability).clamp_max(1.0 - 2.0**-24)
    return torch.where(u < probability, torch.log(v / (1.0 - v)), 0.0)


def gumbel_noise(u: Tensor) -> Tensor:
    """−log(−log u): softmax((α + noise) / τ) is the Gumbel-softmax of Jang, Gu & Poole 2017, eq. 2."""
    return -torch.log(-torch.log(u))
