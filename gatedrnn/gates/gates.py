"""How a layer's gates are perturbed: temperature and noise as data, for any cell."""

from dataclasses import dataclass
from typing import Any

import torch

from gatedrnn.core.checks import boolean, positive_number, probability
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
        temperature: τ in training, above 0; 1 / τ must be finite in float32.
        evaluation_temperature: τ in evaluation, likewise.
        noise_probability: p in [0, 1], the share of gates perturbed at a step of training.
        straight_through: binary gates in the forward pass (in training and evaluation), soft gradient in the backward pass.
        names: the gates to perturb; None for the cell's memory gates: every sigmoid or cumax gate except the output gate.

    Raises: ArgumentError: a value is out of range or of the wrong type.
    """

    temperature: float = 1.0
    evaluation_temperature: float = 1.0
    noise_probability: float = 0.0
    straight_through: bool = False
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        temperature("Gates.temperature", self.temperature)
        temperature("Gates.evaluation_temperature", self.evaluation_temperature)
        probability("Gates.noise_probability", self.noise_probability)
        boolean("Gates.straight_through", self.straight_through)
        if self.names is not None:
            names = names_of(self.names)
            if names is None:
                raise ArgumentError(
                    "Gates.names", "must be a tuple of gate names", repr(self.names), "Write ('input_gate',)"
                )
            object.__setattr__(self, "names", names)

    def temperature_when(self, training: bool) -> float:
        """τ in training or in evaluation."""
        return self.temperature if training else self.evaluation_temperature


def temperature(owner: str, value: float) -> None:
    """Raises ArgumentError: no τ, or one that float32 cannot divide by."""
    held = torch.finfo(torch.float32)
    if not held.tiny <= 1.0 / positive_number(owner, value) <= held.max:
        raise ArgumentError(owner, "must have an inverse that float32 can hold", repr(value), "Give 1e-3 … 1e3")


def names_of(given: Any) -> tuple[str, ...] | None:
    """`given` as a tuple; None where it is no collection of strings."""
    try:
        names: tuple[Any, ...] = (None,) if isinstance(given, str) else tuple(given)
    except TypeError:  # it cannot be iterated over
        return None
    return names if all(isinstance(name, str) for name in names) else None


torch.serialization.add_safe_globals([Gates])  # a checkpoint that holds one loads under weights_only=True
