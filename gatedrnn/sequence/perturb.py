"""Temperature and noise are affine in the pre-activation, so both fold into the weights and the hoisted projection.

(α + ε) / τ with α = W x + U h' + b: rows of W, U, b and peepholes are divided by τ, and ε / τ is added to W x once for all steps.
Dimensions: T time, B batch, R rows of all gates.
"""

from dataclasses import dataclass
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
        params.weight_hr,
        extras,
    )


def fold_extra(value: Tensor, spec: Spec, extra: Extra, scale_R: Tensor) -> Tensor:
    """A further parameter with its rows multiplied by the scales of the gates that own them."""
    of_gate = dict(zip((gate.name for gate in spec.gates), spec.split(scale_R), strict=True))
    rows = torch.cat([of_gate[name] for name in extra.gates])
    return value * (rows[:, None] if extra.full else rows)


@dataclass(frozen=True)
class Draw:
    """Sparse logistic noise still to be drawn, by a kernel that adds it as it draws it.

    Args:
        seed: int64 [1]; with a row's number and a column's place in its block it determines the noise.
        blocks: first and last + 1 column of each block.
        probability: p of an element.
        scale: 1 / τ.
    """

    seed: Tensor
    blocks: tuple[tuple[int, int], ...]
    probability: float
    scale: float

    def rows(self, count: int, columns: int, like: Tensor) -> Tensor:
        """The noise [count, columns]."""
        edges = [edge for block in self.blocks for edge in block]
        p, scale = self.probability, self.scale
        return torch.ops.gatedrnn.logistic_noise(self.seed, count, columns, edges, p, scale, like.detach())


def plan_noise(spec: Spec, gates: Gates, like: Tensor) -> Draw | None:
    """The noise that `gates` asks for, as a `Draw` (ε / τ); None if there is none, or it must be drawn as a tensor.

    Raises: ArgumentError: `gates` names a gate the cell lacks.
    """
    if gates.noise_probability == 0.0 or unavailable(like) is not None:
        return None
    named = spec.perturbed(gates)
    places = _places(spec, gates)
    if not places or any(gate.squash != "sigmoid" for gate in spec.gates if gate.name in named):
        return None
    seed = torch.randint(0, 2**62, (1,), device="cpu")
    return Draw(seed, places, gates.noise_probability, 1.0 / gates.temperature)


def draw_noise(
    spec: Spec,
    gates: Gates,
    steps: int,
    batch: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    """Noise ε for every step, before the division by τ; None where `gates` asks for none.

    Args:
        steps, batch: T and B.
        generator: where the randomness comes from; None for torch's global generator.

    Returns: [T, B, R], zero in rows that are not perturbed: logistic with probability p an element for sigmoid gates, Gumbel
        with probability p a distribution for cumax gates.
    Raises: ArgumentError: `gates` names a gate the cell lacks.
    """
    p = gates.noise_probability
    if p == 0.0:
        return None
    named = spec.perturbed(gates)
    like = torch.empty(0, device=device, dtype=dtype)
    options: dict[str, Any] = {"generator": generator, "device": like.device}
    if unavailable(like) is None:
        draw = Draw(torch.randint(0, 2**62, (1,), generator=generator, device="cpu"), _places(spec, gates), p, 1.0)
        noise_TBR = draw.rows(steps * batch, spec.rows, like).view(steps, batch, spec.rows)
    else:
        noise_TBR = like.new_zeros(steps, batch, spec.rows)
        for first, last in _places(spec, gates):
            shape = (steps, batch, last - first)
            drawn = logistic_noise(*shape, dtype=like.dtype, **options)
            noise_TBR[..., first:last] = drawn * (torch.rand(shape, **options) < p)
    start = 0
    for gate in spec.gates:
        if gate.name in named and gate.squash != "sigmoid":
            drawn = gumbel_noise(steps, batch, gate.rows, dtype=like.dtype, **options)
            chance = torch.rand(steps, batch, 1, **options)
            noise_TBR[..., start : start + gate.rows] = drawn * (chance < p)
        start += gate.rows
    return noise_TBR


def _places(spec: Spec, gates: Gates) -> tuple[tuple[int, int], ...]:
    """First and last + 1 row of each perturbed sigmoid gate."""
    named = spec.perturbed(gates)
    places, start = [], 0
    for gate in spec.gates:
        if gate.name in named and gate.squash == "sigmoid":
            places.append((start, start + gate.rows))
        start += gate.rows
    return tuple(places)


def fold_noise(noise_TBR: Tensor | None, gates: Gates, training: bool) -> Tensor | None:
    """ε / τ, what is added to the hoisted projection."""
    temperature = gates.temperature_when(training)
    return noise_TBR if noise_TBR is None or temperature == 1.0 else noise_TBR / temperature
