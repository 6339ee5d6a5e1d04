"""The layers of a `Case`, as they are now."""

from typing import Any

import torch
from torch import Tensor, nn

import gatedrnn
from gatedrnn import Gates, Recurrent
from gatedrnn.cells import Cell

from .calls import Case
from .calls_tensors import Finding

CLASSES = {
    kind.cell.name: name
    for name, kind in vars(gatedrnn.layers).items()
    if isinstance(getattr(kind, "cell", None), Cell)
}
SISTERS = {"lstm": "g2lstm", "g2lstm": "lstm", "peephole": "lstm", "coupled": "gru", "onlstm": "onlstm", "mgu": "rnn"}
SISTERS |= dict.fromkeys(("layernorm", "slstm"), "lstm")


class Bench:
    """The layers of a case, as they are now."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.dtype: torch.dtype = getattr(torch, case.dtype)
        self.random = torch.Generator().manual_seed(case.seed % (1 << 40))
        self.kept: list[tuple[str, Tensor, Tensor]] = []
        self.lenient = ""  # why one of our errors is a fair answer
        self.calm = False  # whether training changes a weight at every look at it
        self.configs = [(case.cell, dict(case.options)), self._sister()]
        torch.manual_seed(case.seed % (1 << 40))
        self.layers = [self._build(*config) for config in self.configs]
        for layer in self.layers:
            if case.gain != 1.0:
                for p in layer.parameters():
                    p.data.mul_(case.gain)

    def _sister(self) -> tuple[str, dict[str, Any]]:
        case, options = self.case, dict(self.case.options)
        if case.cell == "gru":
            return "gru", {"reset_after": not options.get("reset_after", True)}
        if case.cell == "rnn":
            return "rnn", {"nonlinearity": "relu" if options.get("nonlinearity", "tanh") == "tanh" else "tanh"}
        return SISTERS[case.cell], options if case.cell == "onlstm" else {}

    def arguments(self, index: int) -> dict[str, Any]:
        case = self.case
        given: dict[str, Any] = {"num_layers": case.layers, "bidirectional": case.bidirectional}
        given |= {"bias": case.bias, "batch_first": case.batch_first, **self.configs[index][1]}
        given["gates"] = None if case.gates is None else Gates(**dict(case.gates))
        return given

    def _build(self, cell: str, options: dict[str, Any]) -> nn.Module:
        case, index = self.case, 0 if not hasattr(self, "layers") else 1
        index = [c is options for _, c in self.configs].index(True)
        given = self.arguments(index) | {"dtype": self.dtype, "device": case.device, "backend": case.backend}
        if not case.by_class:
            return Recurrent(cell, case.width, case.hidden, **given).eval()
        layer = getattr(gatedrnn, CLASSES[cell])(case.width, case.hidden, **given).eval()
        if case.gates is not None and cell != "g2lstm" and layer.gates != given["gates"]:
            raise Finding("gates dropped", f"{layer.gates} of {given['gates']}")
        if case.gates is not None and cell == "g2lstm":
            plain = Recurrent(cell, case.width, case.hidden, **given)
            if (layer.gates.temperature, layer.gates.noise_probability) != (
                plain.gates.temperature,
                plain.gates.noise_probability,
            ):
                raise Finding("gates dropped", f"{layer.gates} by its class, {plain.gates} by name")
        return layer

    def names(self, index: int) -> list[str]:
        return [name for name, _ in self.reference(index, torch.float32).named_parameters()]

    def reference(self, index: int, dtype: torch.dtype) -> nn.Module:
        """A plain layer on the reference."""
        layer, case = self.layers[index], self.case
        given = self.arguments(index) | {"backend": "reference", "dtype": dtype, "device": case.device}
        if isinstance(layer.gates, Gates):
            given["gates"] = layer.gates
        with torch.random.fork_rng([]):
            return Recurrent(self.configs[index][0], case.width, case.hidden, **given)

    def weights(self, index: int) -> dict[str, Tensor]:
        """What the layer computes with, by name; without what was taken away."""
        found = {name: getattr(self.layers[index], name) for name in self.names(index)}
        return {name: weight for name, weight in found.items() if weight is not None}
