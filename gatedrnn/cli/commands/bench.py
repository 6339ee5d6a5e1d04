"""`gatedrnn bench`: speed and memory of the layers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gatedrnn.cells import CELLS
from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import option
from gatedrnn.studies.speed import GPU_GRID, SHAPES, check_memory, markdown, measure


@dataclass(frozen=True)
class Options(arguments.Options):
    """What is measured, and how often."""

    shape: tuple[str, ...] = option(
        (),
        f"shape to measure, repeatable: {', '.join(SHAPES)}, or one layer such as H1150-B20-T70[-inference]; S1 and S2 train "
        "layers 400-1150-1150-400 for 70 steps on batches of 20 and of 80, S3 layers 256-256-256 for 35 steps on batches of 32 "
        "[S3; with --device cuda S1, S2 and a grid of single layers]",
        "NAME",
    )
    cell: tuple[str, ...] = option((), f"cell to measure, repeatable: {', '.join(CELLS)} [all]", "NAME")
    backend: tuple[str, ...] = option(
        (),
        "backend to measure, repeatable: cpu, triton, torch, reference, compiled [cpu and reference; with --device cuda triton, "
        "reference and, for S1 and S2, compiled]",
        "NAME",
    )
    device: str = option("cpu", "device to measure on: cpu or cuda", "NAME")
    runs: int = option(9, "timed runs of each, interleaved; the median is reported")
    mm: bool = option(False, "also time the matrix products with torch.mm")
    parts: bool = option(False, "also time each part of the matrix products by itself")
    memory: bool = option(
        False, "also measure peak memory of training in float32, in one process per model (CPU, Linux)"
    )


def run(options: Options) -> "list[Any] | Iterator[Any]":
    """A record a shape, as one list; for words, each as soon as it is measured."""
    found = _measured(options)
    return list(found) if options.json else found


def show(found: Iterator[Any], options: Options) -> None:
    """A table a shape."""
    for result in found:
        print(markdown(result), flush=True)


def _measured(options: Options) -> Iterator[Any]:
    gpu = options.device == "cuda"
    shapes = list(options.shape) or (["S1", "S2", *GPU_GRID] if gpu else ["S3"])
    for shape in shapes:  # before the first is measured
        check_memory(shape, options.memory, options.device)
    for shape in shapes:
        compiled = ("compiled",) if shape in ("S1", "S2") else ()  # minutes a shape
        usual = ("triton", "reference", *compiled) if gpu else ("cpu", "reference")
        yield measure(
            shape,
            list(options.cell or CELLS),
            options.runs,
            tuple(options.backend or usual),
            options.mm,
            options.parts,
            options.memory,
            options.device,
        )
