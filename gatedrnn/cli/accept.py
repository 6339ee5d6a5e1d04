"""`gatedrnn accept`: new checksums for a run whose files were changed on purpose."""

from pathlib import Path
from typing import Any

from gatedrnn.core.errors import CheckpointError
from gatedrnn.core.files import to_json
from gatedrnn.models.saving import CONFIG_FILE
from gatedrnn.training.run import accept_run, load_run, locked


def accept(options: Any) -> None:
    """`gatedrnn accept`."""
    folder = Path(options.run)
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(str(folder), "must be a run's folder", f"no {CONFIG_FILE}", "Check the path")
    with locked(folder):
        changed = accept_run(folder)
    load_run(folder)
    if options.json:
        print(to_json({"run": str(folder), "accepted": changed}))
    else:
        print(f"accepted in {folder}: {', '.join(changed)}" if changed else f"nothing had changed in {folder}")
