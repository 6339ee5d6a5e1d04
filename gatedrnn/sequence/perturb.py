"""Temperature and noise are affine in the pre-activation, so both fold into the weights and the hoisted projection.

(α + ε) / τ with α = W x + U h' + b: rows of W, U, b and peepholes are divided by τ, and ε / τ is added to W x once for all steps.
Dimensions: T time, B batch, R rows of all gates.
"""

from typing import Any

import torch
from torch import Tensor

from gatedrnn.cells import Extra, Params, Spec
from gatedrnn.gates import Gates, gumbel_noise, logistic_noise
from gatedrnn.sequence.backends.cpu.availability import unavailable


def scale(spec: Spec, gates: Gates, training: bool, like: Tensor) -> Tensor | None:
    """1 / τ for the rows of perturbed gates and 1 for the others, [R] as `like`; None where τ is 1."""
    temperature = gates.temperature_when(training)
    if temperature == 1.0:
        return None
    named = spec.perturbed(gates)
    rows = [like.new_full((gate.rows,), 1.0 / temperature if gate.name in named else 1.0) for gate in spec.gates]
    return torch.cat(rows)


def fold(params: Params, spec: Spec, scale_R: Tensor | None) -> Params:
    """`params` with every row multiplied by its scale."""
    if scale_R is None:
        return params
    extras = {e.name: fold_extra(params.extras[e.name], spec, e, scale_R) for e in spec.extras}
    return Params(
        params.weight_ih * scale_R[:, None],
        params.weight_hh * scale_R[:, None],
        None if params.bias_ih is None else params.bias_ih * scale_R,
        None if params.bias_hh is None else params.bias_hh * scale_R,
        extras,
    )


def fold_extra(value: Tensor, spec: Spec, extra: Extra, scale_R: Tensor) -> Tensor:
    """A further parameter with its rows multiplied by the scales of the gates that own them."""
    of_gate = dict(zip((gate.name for gate in spec.gates), spec.split(scale_R), strict=True))
    rows = torch.cat([of_gate[name] for name in extra.gates])
    return value * (rows[:, None] if extra.full else rows)


def draw_noise(
    spec: Spec,
    gates: Gates,
    steps: int,
    batch: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    temperature: float = 1.0,
) -> Tensor | None:
    """Noise ε / temperature for every step; None where `gates` asks for none.

    Args:
        steps, batch: T and B.
        generator: where the randomness comes from; None for torch's global generator.

    Returns: [T, B, R], zero in rows that are not perturbed: logistic with probability p an element for sigmoid gates, Gumbel
        with probability p a distribution for cumax gates.
    Raises: ArgumentError: `gates` names a gate the cell lacks.
    """
    if gates.noise_probability == 0.0:
        return None
    named = spec.perturbed(gates)
    places, start = [], 0
    for gate in spec.gates:
        if gate.name in named:
            places.append((gate, start, start + gate.rows))
        start += gate.rows
    like = torch.empty(0, device=device, dtype=dtype)
    blocks = [(first, last) for gate, first, last in places if gate.squash == "sigmoid"]
    p = gates.noise_probability
    noise_TBR = _sparse_logistic(steps * batch, spec.rows, blocks, p, temperature, like, generator)
    noise_TBR = noise_TBR.view(steps, batch, spec.rows)
    for gate, first, last in places:
        if gate.squash != "sigmoid":
            drawn = gumbel_noise(steps, batch, gate.rows, generator=generator, device=device, dtype=like.dtype)
            chance = torch.rand(steps, batch, 1, generator=generator, device=device)
            noise_TBR[..., first:last] = drawn * (chance < p) / temperature
    return noise_TBR


def _sparse_logistic(
    rows: int,
    columns: int,
    blocks: list[tuple[int, int]],
    p: float,
    temperature: float,
    like: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """[rows, columns]: logistic with probability p in the columns of `blocks`, else 0. A kernel's, where there are kernels."""
    if unavailable(like) is None:
        seed = torch.randint(0, 2**62, (), generator=generator)
        edges = [edge for block in blocks for edge in block]
        return torch.ops.gatedrnn.logistic_noise(seed, rows, columns, edges, p, 1.0 / temperature, like)
    noise = like.new_zeros(rows, columns)
    options: dict[str, Any] = {"generator": generator, "device": like.device}
    for first, last in blocks:
        drawn = logistic_noise(rows, last - first, dtype=like.dtype, **options)
        noise[:, first:last] = drawn * (torch.rand(rows, last - first, **options) < p) / temperature
    return noise


def fold_noise(noise_TBR: Tensor | None, gates: Gates, training: bool) -> Tensor | None:
    """ε / τ, what is added to the hoisted projection."""
    temperature = gates.temperature_when(training)
    return noise_TBR if noise_TBR is None or temperature == 1.0 else noise_TBR / temperature
