"""Interleaved timing in one process, after a parity check: no check, no speed.

Dimensions: T steps, B batch.
"""

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from gatedrnn.cells import CELLS
from gatedrnn.core.checks import one_of, positive_int
from gatedrnn.core.errors import ArgumentError, GatedRNNError
from gatedrnn.layers import Recurrent
from gatedrnn.sequence import BACKENDS
from gatedrnn.sequence.backends.cpu.availability import unavailable
from gatedrnn.studies.speed.memory import peak_growth

PEERS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
_TOLERANCE = {
    False: 1e-4,
    True: 3e-2,
}  # largest relative error in norm that still is the same function; bfloat16 if True


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


PARTS = {"W x, all steps": 1, "U h', step by step": 2, "Uᵀ dg, step by step": 4, "dW, dU, db": 8, "dx": 16}
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


@dataclass(frozen=True)
class Row:
    """One line of the table: who ran, how long a step took (median, seconds), and its arithmetic (GFLOP)."""

    name: str
    backend: str
    seconds: float
    gflop: float


def measure(
    shape_name: str,
    cells: list[str],
    runs: int = 9,
    backends: tuple[str, ...] = ("cpu", "reference"),
    mm: bool = False,
    parts: bool = False,
    memory: bool = False,
) -> dict[str, Any]:
    """Time cells × backends, their torch.nn peers and bounds at one shape.

    Args:
        shape_name: a key of `SHAPES`.
        cells: names in `CELLS`; "lstm" from torch.nn is always there, to compare with.
        runs: timed runs of each, in turn, after one that warms up.
        backends: "cpu" (with and without bfloat16 products), "reference".
        mm: also time the products by torch.mm.
        parts: also time each part of the products by itself, in float32.
        memory: also measure the peak memory of training, in a process of its own each.

    Returns: shape, about (threads, machine, versions), tokens a run, and rows.
    Raises: ArgumentError: unknown shape or cell. GatedRNNError: a result is wrong, so that its speed means nothing.
    """
    shape = _shape(shape_name)
    positive_int("bench.runs", runs)
    for cell in cells:
        CELLS[cell]  # an unknown one raises, with the nearest
    for backend in backends:
        one_of("bench.backend", backend, list(BACKENDS))
    candidates = dict(_candidates(shape, cells, backends, mm, parts))
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in candidates}
    for run in range(runs + 1):
        for key, (step, _) in candidates.items():
            began = time.perf_counter()
            for _ in range(shape.calls):
                step()
            if run:
                seconds[key].append((time.perf_counter() - began) / shape.calls)
    rows = [Row(*key, statistics.median(seconds[key]), gflop) for key, (_, gflop) in candidates.items()]
    about = {
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "target": _target(),
        "torch": torch.__version__,
        "runs": runs,
    }
    tokens = int(_lengths(shape).sum()) if shape.ragged else shape.steps * shape.batch
    found = [asdict(row) for row in rows]
    for row in found if memory and shape.training else ():
        if row["backend"] in ("torch", "cpu"):
            row["peak_bytes"] = peak_growth(row["name"], shape_name, torch.get_num_threads())
    return {"shape": shape_name, **asdict(shape), "about": about, "tokens": tokens, "rows": found}


def _shape(name: str) -> Shape:
    if name not in SHAPES:
        raise ArgumentError("bench.shape", "unknown shape", repr(name), f"Known: {', '.join(SHAPES)}")
    return SHAPES[name]


def _target() -> str:
    if unavailable(torch.empty(0)) is not None:
        return "none"
    from gatedrnn.sequence.backends.cpu.target import best

    return best().name


def stack(cell: str, shape: Shape, backend: str = "auto") -> nn.ModuleList:
    """One layer of `cell` a width."""
    options = {"chunk_size": shape.chunk_size} if "chunk_size" in CELLS[cell].options else {}
    return nn.ModuleList(Recurrent(cell, a, b, backend=backend, **options) for a, b in pairwise(shape.sizes))


def peers(cell: str, shape: Shape) -> nn.ModuleList:
    """The same of torch.nn."""
    return nn.ModuleList(PEERS[cell](a, b) for a, b in pairwise(shape.sizes))


Candidate = tuple[tuple[str, str], tuple[Callable[[], None], float]]


def _candidates(
    shape: Shape, cells: list[str], backends: tuple[str, ...], mm: bool, parts: bool
) -> Iterator[Candidate]:
    """((name, backend), (a function that runs one step, GFLOP))."""
    torch.manual_seed(0)
    for cell in [c for c in PEERS if c in cells or c == "lstm"]:
        yield (f"torch.nn.{PEERS[cell].__name__}", "torch"), (_runner(peers(cell, shape), shape), gflop(cell, shape))
    for cell in cells:
        for backend in backends:
            if backend == "cpu" and unavailable(torch.empty(0)) is not None:
                continue
            for half in (False, True) if backend == "cpu" else (False,):
                check(cell, shape, backend, half)
                label = f"{backend}, bf16" if half else backend
                yield (cell, label), (_runner(stack(cell, shape, backend), shape, half), gflop(cell, shape))
            if backend == "cpu" and not shape.ragged:
                whole = gflop(cell, shape)
                for half in (False, True):
                    label = "bf16" if half else "float32"
                    yield (f"{cell}: products only", label), (_bound(cell, shape, half, shape.parts), whole)
                for name, part in PARTS.items() if parts else ():
                    if part & shape.parts:
                        amount = whole * (2 if part == PARTS["dW, dU, db"] else 1) / (6 if shape.training else 2)
                        yield (f"{cell}: {name}", "float32, part"), (_bound(cell, shape, False, part), amount)
        if mm and not shape.ragged:
            yield (f"{cell}: products only", "torch.mm"), (_mm(cell, shape), gflop(cell, shape))


def gflop(cell: str, shape: Shape) -> float:
    """Arithmetic of a step's products; three times the forward pass's in training."""
    tokens = int(_lengths(shape).sum()) if shape.ragged else shape.steps * shape.batch
    total = sum(2 * tokens * layer.spec.rows * (a + b) for layer, a, b in _layers(cell, shape))
    return total * (3 if shape.training else 1) / 1e9


def _layers(cell: str, shape: Shape) -> list[tuple[Any, int, int]]:
    """Each layer, without memory for its weights, its input's width and its own."""
    with torch.device("meta"):
        layers = stack(cell, shape)
    return [(layer, *pair) for layer, pair in zip(layers, pairwise(shape.sizes), strict=True)]


def _lengths(shape: Shape) -> Tensor:
    return torch.randint(10, shape.steps + 1, (shape.batch,), generator=torch.Generator().manual_seed(1))


def run(layers: nn.ModuleList, x: Tensor, shape: Shape, states: list[Any] | None = None) -> Tensor:
    """Output of the stack; a PackedSequence between torch.nn's layers where lengths differ; `states` are carried over."""
    lengths = _lengths(shape) if shape.ragged else None
    ours = isinstance(layers[0], Recurrent)
    y: Any = x
    if lengths is not None and not ours:
        y = pack_padded_sequence(x, lengths, enforce_sorted=False)
    for k, layer in enumerate(layers):
        hx = states[k] if states else None
        y, state = layer(y, hx, lengths=lengths) if lengths is not None and ours else layer(y, hx)
        if states is not None and shape.calls > 1:
            states[k] = state
    if lengths is not None and not ours:
        y = nn.utils.rnn.pad_packed_sequence(y, total_length=shape.steps)[0]
    return y


def _runner(layers: nn.ModuleList, shape: Shape, half: bool = False) -> Callable[[], None]:
    layers.train(shape.training)
    x = torch.randn(shape.steps, shape.batch, shape.sizes[0], requires_grad=shape.training)
    states: list[Any] = [None] * len(layers)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16) if half else nullcontext(), torch.set_grad_enabled(shape.training):
            y = run(layers, x, shape, states)
        if shape.training:
            layers.zero_grad()
            y.square().mean().backward()

    return step


def check(cell: str, shape: Shape, backend: str, half: bool) -> None:
    """Compare outputs and, in training, gradients with the reference in float64, at this shape with two steps.

    Raises: GatedRNNError: they differ.
    """
    small = Shape(
        **{**asdict(shape), "steps": min(shape.steps, 12 if shape.ragged else 2), "batch": min(shape.batch, 5)}
    )
    ours, truth = stack(cell, small, backend), stack(cell, small, "reference").double()
    truth.load_state_dict(ours.state_dict())
    ours.eval()
    truth.eval()
    x = torch.randn(small.steps, small.batch, small.sizes[0])
    found = []
    for layers, given in ((ours, x), (truth, x.double())):
        with torch.autocast("cpu", torch.bfloat16) if half and layers is ours else nullcontext():
            y = run(layers, given, small)
        gradients = torch.autograd.grad(y.square().sum(), list(layers.parameters())) if small.training else ()
        found.append([y.detach(), *gradients])
    worst = max(float((a.double() - b).norm() / b.norm().clamp_min(1e-12)) for a, b in zip(*found, strict=True))
    if not worst < _TOLERANCE[half]:
        raise GatedRNNError(
            f"bench {cell} on {backend}", "must agree with the reference before it is timed", f"a relative error of {worst:.2g}",
            "Report this: it is a bug",
        )  # fmt: skip


def _bound(cell: str, shape: Shape, half: bool, parts: int) -> Callable[[], None]:
    from gatedrnn.studies.speed.bound import bound

    steps = [
        bound(shape.steps, shape.batch, a, b, layer.spec.rows, parts, half) for layer, a, b in _layers(cell, shape)
    ]

    def step() -> None:
        for one in steps:
            one()

    return step


def _mm(cell: str, shape: Shape) -> Callable[[], None]:
    T, B, N = shape.steps, shape.batch, shape.steps * shape.batch
    sets = []
    for layer, a, b in _layers(cell, shape):
        R = layer.spec.rows
        sets.append([torch.randn(n) for n in ((N, a), (R, a), (R, b), (N, b), (N, R), (B, b), (B, R))])

    def step() -> None:
        for x, W, U, h, G, h_B, g_B in sets:
            torch.mm(x, W.t())
            for _ in range(T):
                torch.mm(h_B, U.t())
            if shape.training:
                for _ in range(T):
                    torch.mm(g_B, U)
                torch.mm(G.t(), h)
                torch.mm(G.t(), x)
                torch.mm(G, W)

    return step
