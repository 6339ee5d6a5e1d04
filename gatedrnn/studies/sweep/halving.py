"""Which settings are compared, in which rounds, for how long, and which go on.

Source: Jamieson & Talwalkar 2016 (Non-stochastic best arm identification). Departs: a setting is trained afresh in each round,
so that its schedule runs over the minutes of that round.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from gatedrnn.core.errors import ArgumentError
from gatedrnn.core.files import parse_yaml


@dataclass(frozen=True)
class Trial:
    """One combination of values.

    Args: number: from 1; settings: value by key, such as {"training.learning_rate": 0.002}.
    """

    number: int
    settings: dict[str, Any]

    @property
    def label(self) -> str:
        """The settings in words, each key by its last part."""
        return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.settings.items())


@dataclass(frozen=True)
class Round:
    """Args: count: trials; minutes: of training, for each of them."""

    count: int
    minutes: float


def values_of(over: str) -> tuple[str, list[Any]]:
    """ "training.learning_rate=0.001,0.002" → the key and its values, each read as YAML.

    Raises: ArgumentError: no key of a section, fewer than two values, or one twice.
    """
    key, equals, text = over.partition("=")
    rule = "must be SECTION.KEY=VALUE,VALUE,…"
    advice = "Write --over training.learning_rate=0.001,0.002"
    if not equals or key.split(".")[0] not in ("data", "model", "training") or "." not in key:
        raise ArgumentError("--over", rule, repr(over), advice)
    try:
        values = parse_yaml(f"[{text}]")
    except yaml.YAMLError:
        raise ArgumentError("--over", rule, repr(over), advice) from None
    if len(values) < 2 or len({repr(value) for value in values}) < len(values):
        raise ArgumentError("--over", "must name at least two values, each once", repr(over), advice)
    return key, values


def combinations(overs: Sequence[str]) -> list[Trial]:
    """Every combination of the values given by `--over`. Raises: ArgumentError: as `values_of`; no key, or one twice."""
    given = [values_of(over) for over in overs]
    keys = [key for key, _ in given]
    if not keys or len(set(keys)) < len(keys):
        got = ", ".join(keys) or "none"
        raise ArgumentError("--over", "must name at least one key, each once", got, "Write --over training.seed=1,2")
    found = itertools.product(*(values for _, values in given))
    return [Trial(number, dict(zip(keys, values, strict=True))) for number, values in enumerate(found, 1)]


def rounds(trials: int, minutes: float, processes: int) -> list[Round]:
    """Rounds of `trials`, half as many, …, 2; each takes an equal share of the `minutes`, on so many processes."""
    counts = [trials]
    while counts[-1] > 2:
        counts.append(math.ceil(counts[-1] / 2))
    return [Round(count, minutes / len(counts) / math.ceil(count / processes)) for count in counts]


def best_first(scores: Mapping[int, float | None], higher: bool) -> list[int]:
    """The numbers of the trials, the best first; a trial without a score is the worst.

    Args: scores: by trial; higher: whether more is better.
    """
    sign = -1.0 if higher else 1.0
    return sorted(scores, key=lambda n: (math.inf if scores[n] is None else sign * scores[n], n))  # type: ignore[operator]
