"""Temperature and noise are affine in the pre-activation, so both fold into the weights and the hoisted projection.

(α + ε) / τ with α = W x + U h' + b: rows of W, U, b and of the further parameters are divided by τ,
and ε / τ is added to W x once for all steps.
Dimensions: T time, B batch, R rows of all gates.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gatedrnn.cells import Extra, Params, Spec
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import Gates, gumbel_noise, logistic_noise, uniform


def scale(spec: Spec, gates: Gates, training: bool, like: Tensor) -> Tensor | None:
    """1 / τ for the rows of perturbed gates and 1 for the others, [R] as `like`; None where τ is 1."""
    temperature = gates.temperature_when(training)
    if temperature == 1.0:
        return None
    named = spec.perturbed(gates)
    most = torch.finfo(like.dtype).max
    if 1.0 / temperature > most:
        got, advice = f"{temperature:g}, whose inverse is more than {most:g}", "Give 1e-3 or more"
        raise ArgumentError("Gates.temperature", f"must fit {like.dtype}", got, advice)
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
    """Noise still to be drawn, by a kernel that adds it as it draws it.

    Args:
        seed: int64 [1] where the noise is wanted; with a row's number and a column's place in its block it determines the noise.
        blocks: first and last + 1 column of each sigmoid gate's logistic noise.
        distributions: first and last + 1 column of each cumax gate's Gumbel noise, which is there for all of them or none.
        probability: p of an element, or of a distribution, as float32 has it.
        scale: 1 / τ.
    """

    seed: Tensor
    blocks: tuple[tuple[int, int], ...]
    distributions: tuple[tuple[int, int], ...]
    probability: float
    scale: float

    def rows(self, count: int, columns: int, dtype: torch.dtype) -> Tensor:
        """The noise [count, columns], on the seed's device: the reference that every backend is tested against."""
        device, real = self.seed.device, real_of(dtype)
        # vmap may have several seeds, whose noise must not be written into what they share
        noise = torch.zeros(count, columns, dtype=real, device=device) + 0 * self.seed.to(real)
        numbers = torch.arange(count, device=device)
        for k, (first, last) in enumerate(self.blocks):
            u = uniform(self.seed, numbers * len(self.blocks) + k, last - first).to(real)
            noise[:, first:last] = logistic_noise(u, self.probability) * self.scale
        return self.with_distributions(noise).to(dtype)

    def with_distributions(self, noise: Tensor) -> Tensor:
        """`noise` [count, columns] with that of the cumax gates in it; their rows are counted down from −1."""
        for k, (first, last) in enumerate(self.distributions):
            numbers = torch.arange(len(noise), device=noise.device) * len(self.distributions) + k
            u = uniform(self.seed, -1 - numbers, last - first + 1).to(noise.dtype)
            drawn = torch.where(u[:, -1:] < self.probability, gumbel_noise(u[:, :-1]), 0.0)
            noise[:, first:last] = drawn * self.scale
        return noise


def real_of(dtype: torch.dtype) -> torch.dtype:
    """The type that noise is drawn in, and that states and biases have on a GPU, beside tensors of `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def plan_noise(spec: Spec, gates: Gates, seed: Tensor) -> Draw | None:
    """The noise that `gates` asks for, as a `Draw` (ε / τ) of this seed; None if there is none to draw.

    Raises: ArgumentError: `gates` names a gate the cell lacks.
    """
    named = spec.perturbed(gates)
    blocks, distributions = [], []
    for gate, start in zip(spec.gates, spec.starts, strict=True):
        if gate.name in named:
            (blocks if gate.squash == "sigmoid" else distributions).append((start, start + gate.rows))
    probability = float(np.float32(gates.noise_probability))
    if not probability or not (blocks or distributions):
        return None
    return Draw(seed, tuple(blocks), tuple(distributions), probability, 1.0 / gates.temperature)


def draw_seed(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """A seed int64 [1] on `device`, from a generator of any device; None for PyTorch's global one there."""
    place = device if generator is None else generator.device
    return torch.randint(0, 2**62, (1,), generator=generator, device=place).to(device)


def draw_noise(
    spec: Spec, gates: Gates, steps: int, batch: int, seed: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor | None:
    """Noise ε for every step, before the division by τ; None where `gates` asks for none.

    Args: steps, batch: T and B; seed: see `draw_seed`.

    Returns: [T, B, R], zero in rows that are not perturbed: logistic with probability p an element for sigmoid gates, Gumbel
        with probability p a distribution for cumax gates.
    Raises: ArgumentError: `gates` names a gate the cell lacks.
    """
    draw = plan_noise(spec, replace(gates, temperature=1.0), seed)
    return None if draw is None else draw.rows(steps * batch, spec.rows, dtype).view(steps, batch, spec.rows)


def fold_noise(noise_TBR: Tensor | None, gates: Gates, training: bool, dtype: torch.dtype) -> Tensor | None:
    """ε / τ in `dtype`, what is added to the hoisted projection."""
    return None if noise_TBR is None else noise_TBR.to(dtype) / gates.temperature_when(training)
