"""`gatedrnn import`: a folder that `gatedrnn export --to hf` wrote, as a run again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatedrnn.cli import arguments
from gatedrnn.cli.arguments import place, required


@dataclass(frozen=True)
class Options(arguments.Options):
    """From where to where."""

    folder: str = place("DIR", "folder that `gatedrnn export --to hf` wrote")
    out: str = required("the run's folder, new or empty", "RUN")


def run(options: Options) -> dict[str, Any]:
    """Both folders. Raises: ArgumentError: transformers is missing. DataError, CheckpointError: no such folder, or damaged."""
    from gatedrnn.hf import import_folder

    import_folder(Path(options.folder), Path(options.out))
    return {"folder": options.folder, "run": options.out}


def show(found: dict[str, Any], options: Options) -> None:
    """A line."""
    print(f"the run is in {found['run']}")
