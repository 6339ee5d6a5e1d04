"""Noise for gates, drawn from an explicit generator or torch's global one."""

import torch
from torch import Tensor


def logistic_noise(
    *shape: int,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """log U − log(1 − U), U ~ Uniform(0, 1), of `shape`: σ((α + noise) / τ) is Li et al. 2018's Gumbel gate, eq. 4.

    Drawn in float32 at least; |noise| ≤ 16.7, since U keeps 2⁻²⁴ from 0 and 1.
    """
    uniform = torch.rand(*shape, generator=generator, device=device, dtype=_drawn(dtype))
    return torch.logit(uniform, eps=2.0**-24).to(dtype or uniform.dtype)


def gumbel_noise(
    *shape: int,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """−log(−log U) of `shape`: softmax((α + noise) / τ) is the Gumbel-softmax of Jang, Gu & Poole 2017, eq. 2."""
    exponential = torch.empty(*shape, device=device, dtype=_drawn(dtype)).exponential_(generator=generator)
    return -exponential.clamp_min(2.0**-100).log().to(dtype or exponential.dtype)


def _drawn(dtype: torch.dtype | None) -> torch.dtype:
    dtype = dtype or torch.get_default_dtype()
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
