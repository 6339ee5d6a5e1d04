"""`gatedrnn parse`: trees off a run's master gates, one a line."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import option, run_place
from gatedrnn.cli.text import ALGORITHM_TOLD, GATE_TOLD, LAYER_TOLD, mapping_option, nothing, text_place
from gatedrnn.core.files import write_text
from gatedrnn.data import read_lines
from gatedrnn.studies.parsing import GATES
from gatedrnn.training.run import load_run
from gatedrnn.trees import ALGORITHMS

_WIDEST = 200  # words of a sentence that is drawn


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which run and text, and how its trees are read."""

    run: str = run_place()
    file: str = text_place()
    layer: str | None = option(None, LAYER_TOLD, "N")
    gate: str = option(GATES[0], GATE_TOLD, choices=GATES)
    algorithm: str = option("unbiased", ALGORITHM_TOLD, choices=ALGORITHMS)
    mapping: str | None = mapping_option("[the run's]")
    svg: str | None = option(None, "also draw each tree into DIR/00001.svg, …", "DIR")


def run(options: Options) -> Iterator[dict[str, Any]]:
    """A record a line; a line without a word has an empty tree: lines in are lines out. Raises: DataError: no line has one."""
    from gatedrnn.studies.parsing import default_layer, layer_named, parse_lines

    run = load_run(options.run)
    layer = default_layer(run.model) if options.layer is None else layer_named(options.layer)
    how = {"layer": layer, "gate": options.gate, "algorithm": options.algorithm}
    how["mapping"] = options.mapping or run.config.data.mapping
    found = False
    lines = (line for _, line in read_lines(options.file))
    for number, parsed in enumerate(parse_lines(run.model, run.vocabulary, lines, **how), 1):
        found = found or bool(parsed.words)
        yield parsed.record() | how
        if options.svg and parsed.words:
            _draw(Path(options.svg) / f"{number:05d}.svg", parsed)
    if not found:
        raise nothing(options.file)


def show(found: Iterator[dict[str, Any]], options: Options) -> None:
    """Its brackets alone."""
    for one in found:
        print(one["tree"])


def _draw(path: Path, parsed: Any) -> None:
    import svgling

    if len(parsed.words) > _WIDEST:
        told = f"not drawn, {len(parsed.words):,} words; at most {_WIDEST} are drawn"
        print(f"gatedrnn: {path.name}: {told}", file=sys.stderr)
        return
    write_text(path, svgling.draw_tree(parsed.tree).get_svg().tostring())
