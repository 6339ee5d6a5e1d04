"""`gatedrnn accept`: new checksums for a run whose files, or own cell's equation, were changed on purpose."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import run_place
from gatedrnn.core.checksums import CHECKSUMS_FILE
from gatedrnn.core.errors import CheckpointError, EquationError
from gatedrnn.core.files import write_with
from gatedrnn.models.saving import CONFIG_FILE, note_cells
from gatedrnn.training.run import accept_run, load_run, locked


@dataclass(frozen=True)
class Options(arguments.Options):
    """Which run."""

    run: str = run_place()


def run(options: Options) -> dict[str, Any]:
    """The folder, and what had changed. Raises: CheckpointError: it is no run, or cannot be read."""
    folder = Path(options.run)
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(str(folder), "must be a run's folder", f"no {CONFIG_FILE}", "Check the path")
    with locked(folder):
        path = folder / CHECKSUMS_FILE
        before = path.read_bytes() if path.is_file() else None
        changed = accept_run(folder)
        try:
            try:
                load_run(folder, None)
            except EquationError:
                note_cells(folder, None)
                note_cells(folder, load_run(folder, None).model)
                changed += ["the equation of its cell"]
        except BaseException:  # it cannot be read: its list stays as it was
            if before is None:
                path.unlink()
            else:
                write_with(path, lambda temporary: temporary.write_bytes(before))
            raise
    return {"run": str(folder), "accepted": changed}


def show(found: dict[str, Any], options: Options) -> None:
    """A line."""
    folder, changed = found["run"], found["accepted"]
    print(f"accepted in {folder}: {', '.join(changed)}" if changed else f"nothing had changed in {folder}")
