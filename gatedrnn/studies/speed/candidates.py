"""Who is measured: each candidate as a function that runs one step, after its check against the reference.

Dimensions: T steps, B batch, N tokens, R rows of all gates.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from gatedrnn.core.errors import GatedRNNError
from gatedrnn.layers import Recurrent
from gatedrnn.sequence.backends.cpu.availability import unavailable
from gatedrnn.studies.speed.shapes import PARTS, PEERS, Shape, gflop, layers_of, lengths_of, peers, stack

_TOLERANCE = {False: 1e-4, True: 3e-2}
"""Largest relative error in norm that still is the same function; bfloat16 if True."""
_UNROLLED = 70  # steps: torch.compile unrolls the reference's loop, and takes minutes for more

Candidate = tuple[tuple[str, str], tuple[Callable[[], None], float]]


def candidates(
    shape: Shape, cells: list[str], backends: tuple[str, ...], mm: bool, parts: bool, device: str
) -> Iterator[Candidate]:
    """Each as ((name, backend), (a function that runs one step, GFLOP))."""
    torch.manual_seed(0)
    for cell in [c for c in PEERS if c in cells or c == "lstm"]:
        for half in (False,) if device == "cpu" else (False, True):
            layers = peers(cell, shape).to(device, torch.bfloat16 if half else torch.float32)
            label = "torch, bf16" if half else "torch"
            yield (f"torch.nn.{PEERS[cell].__name__}", label), (_runner(layers, shape), gflop(cell, shape))
    for cell in cells:
        for backend in backends:
            if backend == "cpu" and unavailable(torch.empty(0)) is not None:
                continue
            if backend == "compiled" and shape.steps > _UNROLLED:
                continue
            for half in (False, True) if backend in ("cpu", "triton", "torch") else (False,):
                layers = stack(cell, shape, "reference" if backend == "compiled" else backend).to(device)
                if backend == "compiled":
                    layers = nn.ModuleList(torch.compile(layer) for layer in layers)  # type: ignore[misc]
                else:
                    check(cell, shape, backend, half, device)
                label = f"{backend}, bf16" if half else backend
                yield (cell, label), (_runner(layers, shape, half), gflop(cell, shape))
            if backend == "cpu" and not shape.ragged:
                whole = gflop(cell, shape)
                for half in (False, True) if _has_bf16() else (False,):
                    label = "bf16" if half else "float32"
                    yield (f"{cell}: products only", label), (_bound(cell, shape, half, shape.parts), whole)
                for name, part in PARTS.items() if parts else ():
                    if part & shape.parts:
                        step = _bound(cell, shape, False, part)
                        yield (f"{cell}: {name}", "float32, part"), (step, gflop(cell, shape, part))
        if device == "cuda" and not shape.ragged:
            for label, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
                step = _captured(partial(_mm, cell, shape, device, dtype))
                yield (f"{cell}: products only", label), (step, gflop(cell, shape))
        elif mm and not shape.ragged:
            yield (f"{cell}: products only", "torch.mm"), (_mm(cell, shape, device), gflop(cell, shape))


def _has_bf16() -> bool:
    """Whether the kernels multiply in bfloat16 on this CPU."""
    from gatedrnn.sequence.backends.cpu.runtime.target import best

    return best().half != "wide"


def _captured(make: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """The step that `make` returns, as one CUDA graph; made by its first call, so that it alone is left out where memory ends."""
    made: list[tuple[torch.cuda.CUDAGraph, Callable[[], None]]] = []

    def step() -> None:
        if not made:
            once, graph = make(), torch.cuda.CUDAGraph()
            once()
            with torch.cuda.graph(graph):
                once()
            made.append((graph, once))  # the latter holds the operands
        made[0][0].replay()

    return step


def run(layers: nn.ModuleList, x: Tensor, shape: Shape, states: list[Any] | None = None) -> Tensor:
    """Output of the stack; a PackedSequence between torch.nn's layers where lengths differ; `states` are carried over."""
    lengths = lengths_of(shape) if shape.ragged else None
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
    like = next(layers.parameters())
    size = (shape.steps, shape.batch, shape.sizes[0])
    x = torch.randn(size, requires_grad=shape.training, device=like.device, dtype=like.dtype)
    states: list[Any] = [None] * len(layers)

    def step() -> None:
        with (
            torch.autocast(like.device.type, torch.bfloat16) if half else nullcontext(),
            torch.set_grad_enabled(shape.training),
        ):
            y = run(layers, x, shape, states)
        if shape.training:
            layers.zero_grad()
            y.square().mean().backward()

    return step


def check(cell: str, shape: Shape, backend: str, half: bool, device: str = "cpu") -> None:
    """Compare outputs and, in training, gradients with the reference in float64, at this shape with two steps.

    Raises: GatedRNNError: they differ.
    """
    small = replace(shape, steps=min(shape.steps, 12 if shape.ragged else 2), batch=min(shape.batch, 5))
    ours, truth = stack(cell, small, backend).to(device), stack(cell, small, "reference").double().to(device)
    truth.load_state_dict(ours.state_dict())
    ours.eval()
    truth.eval()
    x = torch.randn(small.steps, small.batch, small.sizes[0], device=device)
    found = []
    for layers, given in ((ours, x), (truth, x.double())):
        with torch.autocast(device, torch.bfloat16) if half and layers is ours else nullcontext():
            y = run(layers, given, small)
        gradients = torch.autograd.grad(y.square().sum(), list(layers.parameters())) if small.training else ()
        found.append([y.detach(), *gradients])
    worst = max(float((a.double() - b).norm() / b.norm().clamp_min(1e-12)) for a, b in zip(*found, strict=True))
    if not worst < _TOLERANCE[half]:
        raise GatedRNNError(
            f"bench {cell} on {backend}", "must agree with the reference before it is timed", f"a relative error of {worst:.2g}",
            "This is a bug: please report it",
        )  # fmt: skip


def _bound(cell: str, shape: Shape, half: bool, parts: int) -> Callable[[], None]:
    from gatedrnn.studies.speed.bound import bound

    steps = [
        bound(shape.steps, shape.batch, a, b, layer.spec.rows, parts, "bf16" if half else "f32")
        for layer, a, b in layers_of(cell, shape)
    ]

    def step() -> None:
        for one in steps:
            one()

    return step


def _mm(cell: str, shape: Shape, device: str, dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    T, B, N = shape.steps, shape.batch, shape.steps * shape.batch
    sets = []
    for layer, a, b in layers_of(cell, shape):
        R = layer.spec.rows
        sizes = (N, a), (R, a), (R, b), (N, b), (N, R), (B, b), (B, R)
        sets.append([torch.randn(size, device=device, dtype=dtype) for size in sizes])

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
