"""Statistics of every gate of every layer over a text, in one pass.

Dimensions: M tokens that count, N units of a gate, H hidden.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gatedrnn.cells import Spec, Trace, repeat_chunks
from gatedrnn.models.finite import finite
from gatedrnn.tasks.gates import LayerGates

BINS = 50
LOW, HIGH = 0.1, 0.9
"""Beyond these a gate counts as nearly closed or open (Li et al. 2018)."""

_COUNTED = 1 << 24  # histc counts in float32, which holds whole numbers up to here
_GROUPS = 20  # of consecutive units, at most


@dataclass(frozen=True)
class GateValues:
    """The values of one gate of one layer.

    Args:
        mean: of all values.
        low, high: share of values below 0.1 and above 0.9.
        counts: how many values fall into each of the BINS equal parts of [start, 1].
        start: 0, or −1 for a candidate.
    """

    mean: float
    low: float
    high: float
    counts: list[int]
    start: float


@dataclass(frozen=True)
class LayerStatistics:
    """One layer.

    Args:
        gates: by name.
        update_frequency: by group of consecutive units, low ones first: share of the steps at which less than half of the
            state is kept; empty for a cell without such a share, see `kept_share`.
        split_points: of master gates, the mean place of the split in (0, 1): the share of units below it.
        distance: mean syntactic distance; None without master gates.
        name: the layer's.
    """

    gates: dict[str, GateValues]
    update_frequency: list[float]
    split_points: dict[str, float]
    distance: float | None
    name: str


def kept_share(spec: Spec, trace: Trace) -> Tensor | None:
    """How much of each unit's old state is kept [..., H]; None for a cell without a gate for it, or with an exponential one.

    Equations: ON-LSTM f̂ = f∘ω + (f̃ − ω); LSTM's f; GRU's z (reset after the product) or 1 − z (before); MGU's 1 − f.

    A cell whose only state is h, and whose step multiplies by rows of U (`recurrent_gates`), resets h' before the product. Its
    gate lets the candidate in, as in the GRU (before) and the MGU, so that the rest is kept. The f of an sLSTM is no share: it is
    scaled by the stabiliser m at each step. The share of c / n that is kept is f n' / n, and a trace does not hold n.
    """
    if "master_forget" in trace:
        if not {"master_input", "forget_gate"} <= trace.keys():
            return None
        forget, above = trace["master_forget"], trace["master_forget"] * trace["master_input"]
        H = trace["forget_gate"].shape[-1]
        return trace["forget_gate"] * repeat_chunks(above, H) + repeat_chunks(forget - above, H)
    name = next((name for name in ("forget_gate", "update_gate") if name in trace), None)
    if name is None or name in _exponential(spec):
        return None
    return 1 - trace[name] if len(spec.states) == 1 and spec.recurrent_gates is not None else trace[name]


def _exponential(spec: Spec) -> set[str]:
    """Names of the gates that have no largest value."""
    return {gate.name for gate in spec.gates if gate.squash == "exp"}


def collect(readings: Iterable[Sequence[LayerGates]]) -> list[LayerStatistics]:
    """Statistics of each layer over all that a task reads, batch by batch (`Task.gates`)."""
    sums: dict[str, _LayerSums] = {}
    for layers in readings:
        for layer in layers:
            sums.setdefault(layer.name, _LayerSums(layer.name)).add(layer.spec, layer.trace_MN)
    return [own.statistics() for own in sums.values()]


class _LayerSums:
    """Running sums of one layer."""

    def __init__(self, name: str) -> None:
        self.name, self.tokens = name, 0
        self.counts: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}  # of the values, of those below and of those above
        self.units: dict[str, int] = {}
        self.updates_H: Tensor | None = None

    def add(self, spec: Spec, trace_MN: dict[str, Tensor]) -> None:
        self.tokens += len(next(iter(trace_MN.values())))
        starts = {gate.name: -1.0 for gate in spec.gates if gate.squash == "tanh"}
        for name, values_MN in trace_MN.items():
            if "m" in spec.states and name in _exponential(spec):  # stabilised: above 1 only where the old state is 0
                values_MN = values_MN.clamp(max=1.0)
            start = starts.get(name, 0.0)
            within = values_MN.clamp(start, 1.0).flatten()  # float32's cumax may end above 1
            parts = within.split(_COUNTED)
            found = torch.stack([torch.histc(part, BINS, start, 1.0).long() for part in parts]).sum(0)
            three = torch.stack([values_MN.sum(), (values_MN < LOW).sum(), (values_MN > HIGH).sum()]).double()
            self.counts[name] = self.counts.get(name, 0) + found
            self.sums[name] = self.sums.get(name, 0) + three
            self.units[name] = values_MN.shape[-1]
        kept_MH = kept_share(spec, trace_MN)
        if kept_MH is not None:
            updated = (kept_MH < 0.5).sum(0)
            self.updates_H = updated if self.updates_H is None else self.updates_H + updated
        self.starts = starts

    def statistics(self) -> LayerStatistics:
        gates = {}
        for name, three in self.sums.items():
            mean, low, high = (finite(f"gates.{name}", three) / (self.tokens * self.units[name])).tolist()
            gates[name] = GateValues(mean, low, high, self.counts[name].tolist(), self.starts.get(name, 0.0))
        masters: dict[str, float] = {}
        if "master_forget" in gates:
            masters["master_forget"] = 1 - gates["master_forget"].mean
        if "master_input" in gates:
            masters["master_input"] = gates["master_input"].mean
        frequency: list[float] = []
        if self.updates_H is not None:
            groups = self.updates_H.double().tensor_split(min(_GROUPS, len(self.updates_H)))
            frequency = [float(group.mean()) / self.tokens for group in groups]
        return LayerStatistics(gates, frequency, masters, masters.get("master_forget"), self.name)
