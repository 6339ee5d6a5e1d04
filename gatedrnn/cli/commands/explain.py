"""`gatedrnn explain CELL`: the path of a computation, with file and line of each hop."""

import inspect
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from gatedrnn import gates
from gatedrnn.cells import CELLS
from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import option, place
from gatedrnn.cli.output import show_table
from gatedrnn.compiler.cell import compile_cell
from gatedrnn.compiler.kept import kept
from gatedrnn.core.errors import ArgumentError
from gatedrnn.layers import Recurrent, RecurrentBase
from gatedrnn.sequence import BACKENDS, backend_for, draw_noise, reference, scale
from gatedrnn.sequence.backends.cpu.availability import unavailable

_COMPILED = "compiled from the step and its derivative"


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which cell."""

    cell: str = place("CELL", ", ".join(CELLS))
    kernel: bool = option(False, "print the CPU kernel that is compiled from the step")


def run(options: Options) -> dict[str, Any]:
    """The hops, or the kernel's text. Raises: ArgumentError: unknown cell."""
    return {"cell": options.cell, "kernel": kernel(options.cell)} if options.kernel else hops(options.cell)


def show(found: dict[str, Any], options: Options) -> None:
    """A table of the hops, or the text."""
    if options.kernel:
        print(found["kernel"])
        return
    columns = ("what", "how", "where")
    table = Table(title=escape(found["title"]), show_lines=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for hop in found["hops"]:
        table.add_row(*(escape(hop[column]) for column in columns))
    show_table(table, 130)


def hops(name: str) -> dict[str, Any]:
    """Each hop of cell `name`: what it computes, how, and where the code stands.

    Raises: ArgumentError: unknown cell, with the nearest name.
    """
    cell, layer = CELLS[name], _layer(name)
    H = layer.hidden_size
    request, several = (
        layer.request(0, torch.zeros(1, B, H), (torch.zeros(B, H),) * len(layer.spec.states)) for B in (1, 2)
    )
    kernels = _kernels(name, layer)
    if not kernels.startswith(_COMPILED):
        reference.run(several)  # which fails for a step that fails everywhere
    supported = {key: backend.supports(request) or "yes" for key, backend in BACKENDS.items()}
    chosen = next(key for key, backend in BACKENDS.items() if backend is backend_for(request))
    rows = ", ".join(f"{gate.name} {_width(gate.rows, H)} {gate.squash}" for gate in layer.spec.gates)
    extras = "".join(f"; {extra.name} for {', '.join(extra.gates)}" for extra in layer.spec.extras)
    perturbed = ", ".join(layer.spec.perturbed(layer.gates)) or "none"
    step = (_own(cell.step).__doc__ or "").strip().split("\n\n")
    found = [
        ("layer", "torch.nn.LSTM's arguments, shapes and state dict", _where(RecurrentBase.forward)),
        ("rows of weights", f"{rows}{extras}", _where(cell.make_spec)),
        ("temperature", f"{layer.gates}; gates it can perturb: {perturbed}", _where(scale)),
        ("noise", "logistic for sigmoid, Gumbel for cumax; in training only", _where(draw_noise)),
        ("loop over time", "W x for all steps at once, U h' step by step", _where(reference.run)),
        ("kernels", kernels, _where(compile_cell)),
        ("squashing", ", ".join(sorted({gate.squash for gate in layer.spec.gates})), _where(gates.sigmoid)),
        ("step", " ".join(step[0].split()), _where(cell.step)),
        ("source", " ".join(step[1].split("Args:")[0].split()) if len(step) > 1 else "", _where(cell.step)),
        ("CPU's instructions", *_instructions()),
        ("backend", "; ".join(f"{key}: {reason}" for key, reason in supported.items()) + f"; auto runs {chosen}", ""),
    ]
    return {
        "cell": name,
        "title": cell.title,
        "options": cell.options,
        "backend": chosen,
        "hops": [{"what": what, "how": how, "where": where} for what, how, where in found],
    }


def _instructions() -> tuple[str, str]:
    """Those that kernels use and those there are, and where that is found; or why there are no kernels."""
    if reason := unavailable(torch.empty(0, device="cpu")):
        return reason, ""
    from gatedrnn.sequence.backends.cpu.runtime.target import best, targets  # of llvmlite, which may be missing

    return f"{best().name}; this CPU has {', '.join(targets())}", _where(best)


def kernel(name: str) -> str:
    """The text of cell `name`'s CPU kernel for one row of the batch. Raises: ArgumentError: unknown cell, or none can be made."""
    cell = CELLS[name]
    found = kept(cell.step, _layer(name).spec)
    if isinstance(found, str):
        raise ArgumentError(f"explain {name}", "must be a cell with kernels", found, "It runs on the reference backend")
    return "\n".join(filter(None, [*found.forward, *found.backward])).rstrip()


def _kernels(name: str, layer: Recurrent) -> str:
    found = kept(layer.cell.step, layer.spec)
    return found if isinstance(found, str) else f"{_COMPILED}; explain {name} --kernel prints it"


def _layer(name: str) -> Recurrent:
    """A small layer of cell `name`: of 8 units if it has that size. Raises: ArgumentError: unknown cell, or no size is found."""
    cell = CELLS[name]
    spec = cell.example(sizes=(8,))
    H = spec.hidden_size if spec else 8  # whose error says what is wrong
    return Recurrent(cell, H, H)


def _width(rows: int, H: int) -> str:
    return "[H]" if rows == H else f"[{rows} of H = {H}]"


def _own(function: Any) -> Any:
    """The function that a partial calls, else itself."""
    return function.func if isinstance(function, partial) else function


def _where(function: Any) -> str:
    function = _own(function)
    path = Path(inspect.getsourcefile(function) or "")
    root = Path(inspect.getsourcefile(Recurrent) or "").parents[2]
    shown = path.relative_to(root) if path.is_relative_to(root) else path
    return f"{shown}:{inspect.getsourcelines(function)[1]}"
