"""Cells of one's own, from a Python file outside the package: what `--import FILE` does."""

import hashlib
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from gatedrnn.cells import CELLS
from gatedrnn.cells.spec import Cell
from gatedrnn.core.errors import DataError, GatedRNNError
from gatedrnn.core.origin import module_of

_PARTS = "step", "make_spec"
_RUN: dict[Path, str] = {}
"""A hash of each file's text as it was run."""


def import_cells(path: Path) -> None:
    """Run a Python file, and register its cells under their names; those that it registers itself keep theirs.

    A file that was run before is not run again. Its code is trusted: never import what you would not run.

    Raises: DataError: no file, an error in it (with its line), no cell in it, or another text than when it was run.
    """
    place = path.resolve()
    try:
        text = place.read_bytes()
    except OSError as error:
        why, advice = error.strerror or str(error), "Give the Python file that holds the cell"
        raise DataError(f"--import {path}", "must be a Python file", why, advice) from None
    digest = hashlib.sha256(text).hexdigest()
    if _RUN.setdefault(place, digest) != digest:
        advice = "Start a new process"
        raise DataError(f"--import {path}", "must not change after it was imported", "a changed file", advice)
    name = f"gatedrnn_own_{digest[:16]}"
    if name in sys.modules:
        return
    before = set(CELLS)
    loader = importlib.machinery.SourceFileLoader(name, str(place))  # whatever the file's ending
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader, origin=str(place)))
    sys.modules[name] = module  # where a pickled layer looks for the cell's functions
    loaded = {*sys.modules}
    try:
        loader.exec_module(module)
        registered = {id(CELLS[own]) for own in CELLS if own not in before}
        for value in {id(value): value for value in vars(module).values() if isinstance(value, Cell)}.values():
            if id(value) not in registered and value not in [CELLS[own] for own in before]:
                CELLS.register(value.name, value)
    except BaseException as error:  # whatever stops it, Ctrl-C and sys.exit() too
        _forget(place, name, before, loaded)
        if not isinstance(error, Exception):
            raise
        said = " ".join(str(error).split())
        ours = isinstance(error, GatedRNNError)
        got = said.removesuffix(".") if ours else f"{type(error).__name__}{_line(error, place)}: {said}"
        got, advice = (f"{got} Fix the file", "") if got.endswith("?") else (got, "Fix the file")
        raise DataError(f"--import {path}", "must run without an error", got, advice) from None
    if set(CELLS) == before:
        _forget(place, name, before, loaded)
        advice = 'Write CELLS.register("NAME", Cell(…)), as docs/add-a-cell.md shows'
        raise DataError(f"--import {path}", "must define a Cell", "none", advice)


def error_in_own_file(error: Exception) -> DataError | None:
    """An error that came through a file that was imported, in one line which names its line, and the cell if it was its.

    None for others, and for one of this package's that no step made: a `make_spec` raises those about its options.
    """
    ours, cell, part = isinstance(error, GatedRNNError), *_cell_of(error)
    for path in () if ours and part != "step" else _RUN:
        if line := _line(error, path):
            said = " ".join(str(error).split()).removesuffix(".")
            got = f"{'an error' if ours else type(error).__name__}{line} of {path.name}: {said}"
            owner, what = (f"cell {cell}", f"its {part} ") if cell else (f"--import {path}", "")
            return DataError(owner, f"{what}must run without an error", got, "Fix the file")
    return None


def _cell_of(error: Exception) -> tuple[str, str]:
    """The cell of an imported file whose function an error came through, or the cells that share it; its step, or its make_spec
    with the values that its arguments have.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in [frame for frame in frames if Path(frame.f_code.co_filename) in _RUN]:
        for part in _PARTS:
            if owners := [name for name, cell in CELLS.items() if _code(getattr(cell, part)) is frame.f_code]:
                told = inspect.formatargvalues(*inspect.getargvalues(frame))
                return " or ".join(owners), part if part == "step" else f"{part}{told}"
    return "", ""


def _code(function: Any) -> Any:
    """The code of a function, of the one that a partial calls, or of a class with `__call__`."""
    function = function.func if isinstance(function, partial) else function
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


def imported_files() -> list[Path]:
    """The files that were imported in this process, first to last: what another process needs to know the same cells."""
    return list(_RUN)


def imported_texts() -> list[str]:
    """What they held, as the first digits of a hash each."""
    return [digest[:12] for digest in _RUN.values()]


def _forget(place: Path, name: str, before: set[str], loaded: set[str]) -> None:
    """Undo an import: the file may be mended and imported again. Cells of modules that it imported stay: those do not run again.

    Args: before, loaded: names of cells and of modules that there were.
    """
    del _RUN[place], sys.modules[name]
    for own in set(CELLS) - before:
        made_in = {module_of(made) or name for made in (CELLS[own].step, CELLS[own].make_spec)}
        if made_in <= loaded | {name}:
            CELLS.remove(own)


def _line(error: BaseException, place: Path) -> str:
    """Which line of the file an error came from, the last one that was reached."""
    if isinstance(error, SyntaxError) and error.filename == str(place):
        return f" in line {error.lineno}"
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if Path(frame.f_code.co_filename) == place]
    return f" in line {lines[-1]}" if lines else ""
