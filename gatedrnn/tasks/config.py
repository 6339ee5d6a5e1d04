"""The section `training` of a run: what the loop and its tasks read."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from gatedrnn.core.checks import one_of, positive_int, positive_number, probability
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates.gates import temperature
from gatedrnn.sequence import choices

OPTIMIZERS = ("adam", "adamw", "sgd")
SCHEDULES = ("plateau", "cosine", "one_cycle", "constant")
UNITS = ("stream", "sentence")
WINDOWS = (
    "unit", "sequence_length", "random_lengths", "partial_shuffle", "reset_probability", "activation_penalty", "temporal_penalty",
    "adversarial_softmax",
)  # fmt: skip
"""Keys of windows of a stream, of penalties on what its layers give, and of its softmax."""
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "64-true")

_SELECTING = ("optimizer", "schedule", "unit")


@dataclass(frozen=True)
class TrainingConfig:
    """The section `training` of a run's YAML.

    Args:
        epochs: passes over the training text.
        finetune_epochs: at most so many further passes, from the best weights, with weights averaged from the first step on.
        minutes: budget of wall-clock time, validation included; null for no budget.
        patience: training stops after so many epochs without a new best score; null to never stop.
        unit: stream (the state is carried from window to window) or sentence (batched by length, each from a fresh state).
        batch_size: stretches of the text, or sentences, read side by side, over all processes.
        sequence_length: steps of truncated back-propagation, with unit: stream.
        partial_shuffle: rotate each stretch of the stream by a random number of tokens in every epoch (Press 2019).
        reset_probability: the probability that a stretch starts a window from the zero state instead of the carried one
            (Melis, Dyer & Blunsom 2018).
        random_lengths: draw each window's length around sequence_length; the learning rate changes in proportion.
        optimizer: adam, adamw or sgd.
        betas: for adam and adamw: decay rates of the running means of gradients and of squared gradients; 0 and 0.999 of adam
            are RMSprop as Melis, Dyer & Blunsom (2018) have it.
        learning_rate: learning rate after warm-up.
        warmup_steps: steps over which the learning rate rises from 0; not for one_cycle.
        schedule: plateau, cosine (to 0), one_cycle (up, constant, down; after Smith 2018) or constant; cosine and one_cycle
            run over all epochs, or over the minutes if these end first.
        peak_beta: for one_cycle: the first of `betas` at the highest learning rate; it changes together with the learning rate
            (Smith 2018).
        plateau_factor: for plateau: factor of the learning rate after an epoch that does not improve enough.
        plateau_threshold: for plateau: share of the validation loss by which an epoch must improve on the best one.
        final_temperature: the gates' τ changes to this value, geometrically over all epochs or the minutes; null to keep τ.
        final_noise_probability: the gates' p changes to this value, linearly; null to keep p.
        weight_decay: λ: λw is added to the gradient of each weight w after clipping, as of the penalty λ/2 · ‖w‖²; for adamw,
            each step takes learning_rate · λw off instead (Loshchilov & Hutter 2019).
        gradient_clip: largest gradient norm, 0 for no clipping.
        activation_penalty: α of AR: factor of the penalty on the squared output of the last layer (with skip_connections, of
            the sum of all), after dropout (Merity, McCann & Socher 2017).
        temporal_penalty: β of TAR: factor of the penalty on the squared change of the same, before dropout.
        adversarial_softmax: α of AdvSoft: in the training loss, each target's output embedding w is moved against the decoder's
            input by α times the length of w (Wang, Gong & Liu 2019); 0 to switch it off.
        average_interval: averaging of weights starts after the first epoch that is worse than the best one before the last so
            many (NT-ASGD of Merity, Keskar & Socher 2018, with sgd); null for never.
        average_epoch: averaging of weights starts at the end of this epoch at the latest; null for never.
        average_decay: averages are exponential: after each step the average keeps this share of itself. Without average_interval
            and average_epoch it starts with the first step; null for the mean over all steps (Polyak & Juditsky 1992).
        evaluation_batch_size: stretches of the text read side by side in validation.
        checkpoint_minutes: minutes between checkpoints; one is also written after each epoch.
        tensorboard: whether to log to RUN/tensorboard too.
        seed: seed of initialisation, dropout, gate noise, window lengths and order.
        device: auto (a GPU of CUDA if there is one, else the CPU), cpu, cuda, … (Lightning Fabric's accelerator).
        precision: 32-true, bf16-mixed, 16-mixed or 64-true (Fabric's).
        backend: backend of the recurrence, auto or a name.

    Raises: ArgumentError: a value is out of range.
    """

    epochs: int = 10
    finetune_epochs: int = 0
    minutes: float | None = None
    patience: int | None = None
    unit: str = "stream"
    batch_size: int = 20
    sequence_length: int = 35
    random_lengths: bool = False
    partial_shuffle: bool = False
    reset_probability: float = 0.0
    optimizer: str = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    learning_rate: float = 0.002
    warmup_steps: int = 0
    schedule: str = "plateau"
    peak_beta: float | None = None
    plateau_factor: float = 0.5
    plateau_threshold: float = 0.01
    final_temperature: float | None = None
    final_noise_probability: float | None = None
    weight_decay: float = 0.0
    gradient_clip: float = 1.0
    activation_penalty: float = 0.0
    temporal_penalty: float = 0.0
    adversarial_softmax: float = 0.0
    average_interval: int | None = None
    average_epoch: int | None = None
    average_decay: float | None = None
    evaluation_batch_size: int = 32
    checkpoint_minutes: float = 10.0
    tensorboard: bool = False
    seed: int = 1
    device: str = "auto"
    precision: str = "32-true"
    backend: str = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "sequence_length", "evaluation_batch_size"):
            positive_int(f"training.{name}", getattr(self, name))
        for name in ("seed", "finetune_epochs", "warmup_steps"):
            positive_int(f"training.{name}", getattr(self, name), minimum=0)
        for name in ("patience", "average_interval", "average_epoch"):
            if getattr(self, name) is not None:
                positive_int(f"training.{name}", getattr(self, name))
        for name in ("learning_rate", "checkpoint_minutes", *(["minutes"] if self.minutes is not None else [])):
            positive_number(f"training.{name}", getattr(self, name))
        if self.final_temperature is not None:
            temperature("training.final_temperature", self.final_temperature)
        if self.final_noise_probability is not None:
            probability("training.final_noise_probability", self.final_noise_probability)
        for name in ("weight_decay", "gradient_clip", "plateau_threshold", "activation_penalty", "temporal_penalty"):
            _at_least_0(name, getattr(self, name), "Give a number such as 0.25")
        _at_least_0(
            "adversarial_softmax", self.adversarial_softmax, "Give a number such as 0.03, or 0 to switch it off"
        )
        if not 0 < self.plateau_factor <= 1:
            raise ArgumentError(
                "training.plateau_factor", "must lie in (0, 1]", self.plateau_factor, "Give a number such as 0.5"
            )
        one_of("training.optimizer", self.optimizer, OPTIMIZERS)
        one_of("training.schedule", self.schedule, SCHEDULES)
        self._check_cycle()
        one_of("training.unit", self.unit, UNITS)
        one_of("training.precision", self.precision, PRECISIONS)
        one_of("training.backend", self.backend, choices())
        probability("training.reset_probability", self.reset_probability)
        for name in ("random_lengths", "partial_shuffle", "reset_probability"):
            if getattr(self, name) and self.unit == "sentence":
                advice = f"Leave {name} out, or set unit: stream"
                raise ArgumentError(f"training.{name}", "needs unit: stream", "unit: sentence", advice)
        if self.average_decay is not None and not 0 <= self.average_decay < 1:
            advice = "Give a number such as 0.999"
            raise ArgumentError("training.average_decay", "must lie in [0, 1)", self.average_decay, advice)

    def _check_cycle(self) -> None:
        """Raises ArgumentError: betas are not two numbers in [0, 1), or a peak cannot be used."""
        betas = tuple(self.betas)
        object.__setattr__(self, "betas", betas)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ArgumentError("training.betas", "must be two numbers in [0, 1)", list(betas), "Write [0.9, 0.999]")
        if self.peak_beta is None:
            return
        if not 0 <= self.peak_beta < 1:
            raise ArgumentError("training.peak_beta", "must lie in [0, 1)", self.peak_beta, "Give a number such as 0.7")
        if self.schedule != "one_cycle" or self.optimizer == "sgd":
            rule = "needs schedule: one_cycle and optimizer: adam or adamw"
            got = f"{self.schedule} and {self.optimizer}"
            raise ArgumentError("training.peak_beta", rule, got, "Leave it out")

    @staticmethod
    def without_clashes(values: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
        """`values` without those that an optimiser, a schedule or a unit among `given` forbids, unless given too.

        Args: given: keys of options, as "training.unit".
        """
        left, asked = set[str](), {name: values.get(name) for name in _SELECTING if f"training.{name}" in given}
        if asked.get("unit") == "sentence":
            left |= {"random_lengths", "partial_shuffle", "reset_probability"}
        if asked.get("schedule", "one_cycle") != "one_cycle" or asked.get("optimizer") == "sgd":
            left.add("peak_beta")
        if asked.get("schedule") == "one_cycle":
            left.add("warmup_steps")
        return {key: value for key, value in values.items() if key not in left or f"training.{key}" in given}


def _at_least_0(name: str, value: float, advice: str) -> None:
    """Raises ArgumentError: a number is negative or not finite."""
    if not 0 <= value < float("inf"):
        raise ArgumentError(f"training.{name}", "must be a finite number of at least 0", value, advice)
