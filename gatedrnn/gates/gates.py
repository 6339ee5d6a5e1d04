"""How a layer's gates are perturbed: temperature and noise as data, for any cell."""

from dataclasses import dataclass

import torch

from gatedrnn.core.checks import positive_number, probability
from gatedrnn.core.errors import ArgumentError


@dataclass(frozen=True)
class Gates:
    """The perturbation of a layer's gates: a gate is an affine map α, a perturbation (α + ε) / τ, then a squashing.

    Noise ε is drawn in training only. Sigmoid gates get logistic noise, on each element with probability
    `noise_probability`. Cumax gates get Gumbel noise; the split-point distribution counts as one gate, which is perturbed as a
    whole or not at all. `Gates()` leaves the cell as published.

    Equations: Li et al. 2018, eq. 4–5 (G²-LSTM). Departs: the evaluation temperature is explicit; at its default, 1,
    evaluation uses the plain gate, as the authors' code does.

    Args:
        temperature: τ in training, above 0.
        evaluation_temperature: τ in evaluation, above 0.
        noise_probability: p in [0, 1], the share of gates perturbed at a step of training.
        straight_through: binary gates in the forward pass (in training and evaluation), soft gradient in the backward pass.
        names: the gates to perturb; None for the cell's memory gates: every sigmoid or cumax gate except the output gate.

    Raises: ArgumentError: a value is out of range.
    """

    temperature: float = 1.0
    evaluation_temperature: float = 1.0
    noise_probability: float = 0.0
    straight_through: bool = False
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        positive_number("Gates.temperature", self.temperature)
        positive_number("Gates.evaluation_temperature", self.evaluation_temperature)
        probability("Gates.noise_probability", self.noise_probability)
        if isinstance(self.names, str):
            raise ArgumentError(
                "Gates.names", "must be a tuple of gate names", repr(self.names), "Write ('input_gate',)"
            )
        if self.names is not None:
            object.__setattr__(self, "names", tuple(self.names))

    def temperature_when(self, training: bool) -> float:
        """τ in training or in evaluation."""
        return self.temperature if training else self.evaluation_temperature


torch.serialization.add_safe_globals([Gates])  # a checkpoint that holds one loads under weights_only=True
