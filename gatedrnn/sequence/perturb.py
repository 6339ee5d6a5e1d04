"""Temperature and noise are affine in the pre-activation, so both fold into the weights and the hoisted projection.

(α + ε) / τ with α = W x + U h' + b: rows of W, U, b and peepholes are divided by τ, and ε / τ is added to W x once for all steps.
Dimensions: T time, B batch, R rows of all gates.
"""

from typing import Any

import torch
from torch import Tensor

from gatedrnn.cells import Extra, Params, Spec
from gatedrnn.gates import Gates, gumbel_noise, logistic_noise
from gatedrnn.sequence.backends.cpu.backend import unavailable


def fold(params: Params, spec: Spec, gates: Gates, training: bool) -> Params:
    """`params` with the rows of perturbed gates divided by the temperature of training or evaluation."""
    temperature = gates.temperature_when(training)
    if temperature == 1.0:
        return params
    named = spec.perturbed(gates)
    scale_R = torch.cat(
        [
            params.weight_hh.new_full((gate.rows,), 1.0 / temperature if gate.name in named else 1.0)
            for gate in spec.gates
        ]
    )
    extras = {
        extra.name: _scale_extra(params.extras[extra.name], spec, extra, named, temperature) for extra in spec.extras
    }
    return Params(
        params.weight_ih * scale_R[:, None],
        params.weight_hh * scale_R[:, None],
        None if params.bias_ih is None else params.bias_ih * scale_R,
        None if params.bias_hh is None else params.bias_hh * scale_R,
        extras,
    )


def _scale_extra(value: Tensor, spec: Spec, extra: Extra, named: tuple[str, ...], temperature: float) -> Tensor:
    rows = [value.new_full((spec.gate(n).rows,), 1.0 / temperature if n in named else 1.0) for n in extra.gates]
    scale = torch.cat(rows)
    return value * (scale[:, None] if extra.full else scale)


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
