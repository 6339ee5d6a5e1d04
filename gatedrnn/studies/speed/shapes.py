"""What is measured: stacks of layers, their inputs' sizes, and the arithmetic and traffic that these need.

Dimensions: T steps, B batch, N tokens, D input, H hidden, R rows of all gates.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gatedrnn.cells import CELLS
from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.layers import Recurrent

PEERS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@dataclass(frozen=True)
class Shape:
    """A stack of layers and its input.

    Args:
        sizes: input, then every layer's width.
        chunk_size: of an ON-LSTM.
        steps, batch: T and B.
        training: forward and backward; else forward without gradients.
        ragged: lengths uniform in 10 … T, unsorted (torch.nn peers take a PackedSequence).
        calls: of a run, one after another; where there is more than one, the state is carried over.
    """

    sizes: tuple[int, ...]
    chunk_size: int
    steps: int
    batch: int
    training: bool = True
    ragged: bool = False
    calls: int = 1

    @property
    def parts(self) -> int:
        """The products that a step needs, a bit each of `PARTS`."""
        return 31 if self.training else 3

    @property
    def tokens(self) -> int:
        """Steps of all sequences."""
        return int(lengths_of(self).sum()) if self.ragged else self.steps * self.batch


PARTS = {"W x, all steps": 1, "U h', step by step": 2, "Uᵀ dg, step by step": 4, "dW, dU, db": 8, "dx": 16}
_OF_INPUT, _OF_HIDDEN = (
    ("W x, all steps", "dW, dU, db", "dx"),
    ("U h', step by step", "Uᵀ dg, step by step", "dW, dU, db"),
)
"""Parts with as many columns as the input, and as h, is wide."""
_WIDE = (400, 1150, 1150, 400)
SHAPES = {
    "S1": Shape(_WIDE, 10, 70, 20),
    "S2": Shape(_WIDE, 10, 70, 80),
    "S3": Shape((256, 256, 256), 8, 35, 32),
    "S4": Shape(_WIDE, 10, 30, 1, training=False),
    "stream": Shape(_WIDE, 10, 1, 1, training=False, calls=64),
    "small": Shape((64, 64), 8, 1, 1, training=False, calls=512),
    "S5": Shape(_WIDE, 10, 128, 64, training=False),
    "ragged": Shape((256, 256), 8, 70, 32, ragged=True),
}


GPU_GRID = [
    f"H{H}-B{B}-T{T}{kind}"
    for kind in ("", "-inference")
    for T in (70, 512, 2048)
    for H in (256, 650, 1150, 2048)
    for B in (1, 20, 64, 256)
]
"""One layer H → H."""


def shape_named(name: str) -> Shape:
    """One of `SHAPES`, or one layer: "H1150-B20-T70", "H1150-B20-T70-inference". Raises: ArgumentError: neither."""
    found = re.fullmatch(r"H(\d+)-B(\d+)-T(\d+)(-inference)?", name)
    if found:
        H, B, T = (positive_int(f"bench.shape {name}", int(size)) for size in found.groups()[:3])
        return Shape((H, H), next(c for c in (10, 8, 5, 4, 2, 1) if H % c == 0), T, B, found[4] is None)
    if name not in SHAPES:
        raise ArgumentError(
            "bench.shape", "unknown shape", repr(name), f"Known: {', '.join(SHAPES)}, and one layer as H1150-B20-T70"
        )
    return SHAPES[name]


def stack(cell: str, shape: Shape, backend: str = "auto") -> nn.ModuleList:
    """One layer of `cell` a width."""
    options: dict[str, Any] = {"chunk_size": shape.chunk_size} if "chunk_size" in CELLS[cell].options else {}
    return nn.ModuleList(Recurrent(cell, a, b, backend=backend, **options) for a, b in pairwise(shape.sizes))


def peers(cell: str, shape: Shape) -> nn.ModuleList:
    """The same of torch.nn."""
    return nn.ModuleList(PEERS[cell](a, b) for a, b in pairwise(shape.sizes))


def gflop(cell: str, shape: Shape, parts: int | None = None) -> float:
    """Arithmetic of a step's products. Args: parts: some of them alone, as in `PARTS`."""
    asked = shape.parts if parts is None else parts
    of_input, of_hidden = (sum(bool(asked & PARTS[name]) for name in names) for names in (_OF_INPUT, _OF_HIDDEN))
    layers = layers_of(cell, shape)
    return sum(2 * shape.tokens * layer.spec.rows * (of_input * D + of_hidden * H) for layer, D, H in layers) / 1e9


def traffic(cell: str, shape: Shape, size: int) -> float:
    """Bytes that a step moves if U is read anew at every step of time and nothing else twice.

    Forward: x, W, U; of every token W x and U h' written and read, gates, h and state written, the state read.
    Backward: U; of every token gates, states, two gradients read, the gates' gradient written, Uᵀ dg written and read; then
    the gates' gradient, h and x for dU and dW, and the gradient of x.
    """
    N, total = shape.steps * shape.batch, 0
    for layer, D, H in layers_of(cell, shape):
        R = layer.spec.rows
        total += R * D + shape.steps * R * H + N * (D + 5 * R + 3 * H)
        if shape.training:
            total += shape.steps * R * H + N * (2 * R + 6 * H) + N * (3 * R + H + 2 * D) + R * (3 * D + H)
    return float(size * total)


def layers_of(cell: str, shape: Shape) -> list[tuple[Any, int, int]]:
    """Each layer, without memory for its weights, its input's width and its own."""
    with torch.device("meta"):
        layers = stack(cell, shape)
    return [(layer, *pair) for layer, pair in zip(layers, pairwise(shape.sizes), strict=True)]


def lengths_of(shape: Shape) -> Tensor:
    """Steps of each sequence of a ragged batch [B], the same each time."""
    return torch.randint(10, shape.steps + 1, (shape.batch,), generator=torch.Generator().manual_seed(1))
