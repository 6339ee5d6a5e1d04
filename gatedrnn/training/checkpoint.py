"""Everything a training needs to go on exactly where it was: one safetensors file a checkpoint, tensors and a JSON text.

Written to a neighbour and moved into place, so that a kill or a full disk leaves the one before; the last two are kept.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatedrnn.core.errors import CheckpointError, DataError
from gatedrnn.core.files import ROOM, write_with
from gatedrnn.training.run import CHECKPOINT_FOLDER

_KEPT = 2
_CHECK = "checksum"


def save(run: Path, step: int, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Write the checkpoint of `step` and remove all but the last two.

    Raises: DataError: it cannot be written; the ones before are still there.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path = run / CHECKPOINT_FOLDER / f"step-{step:09d}.safetensors"
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = {"values": json.dumps(values), _CHECK: str(_checksum(kept))}
    try:
        write_with(path, lambda temporary: save_file(kept, temporary, text))
    except SafetensorError as error:
        raise DataError(str(path), "must be writable", str(error), ROOM) from error
    for old in _files(run)[_KEPT:]:
        old.unlink(missing_ok=True)


def load(run: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and values of the newest checkpoint that is whole; None where there is none at all.

    Raises: CheckpointError: there are some, and none is whole.
    """
    files = _files(run)
    reason = ""
    for path in files:
        try:
            return _read(path)
        except CheckpointError as error:
            reason = reason or str(error)
    if files:
        raise CheckpointError(str(run / CHECKPOINT_FOLDER), "must hold a whole checkpoint", reason, "Start another run")
    return None


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            text = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        values = json.loads(text["values"])
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(str(path), "is damaged", f"{type(error).__name__}: {error}", "Remove it") from error
    if text.get(_CHECK) != str(_checksum(tensors)):
        raise CheckpointError(str(path), "is damaged", "another checksum", "Remove it")
    return tensors, values


def _checksum(tensors: dict[str, Tensor]) -> int:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(name.encode(), total)
        content: Any = tensors[name].reshape(-1).view(torch.uint8).numpy()
        total = zlib.crc32(content, total)
    return total


def _files(run: Path) -> list[Path]:
    """Checkpoints, the newest first."""
    return sorted((run / CHECKPOINT_FOLDER).glob("step-*.safetensors"), reverse=True)
