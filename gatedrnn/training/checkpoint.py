"""Everything a training needs to go on exactly where it was: one safetensors file a checkpoint, tensors and a JSON text.

Written to a neighbour and moved into place, so that a kill or a full disk leaves the one before; the last two are kept.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatedrnn.core.errors import CheckpointError
from gatedrnn.core.files import check_readable, to_json, write_with
from gatedrnn.training.run import CHECKPOINT_FOLDER, METRICS_FILE, checkpoints, read_metrics

_CHECK, _VERSION = "checksum", {"version": "2"}


def save(run: Path, step: int, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Write the checkpoint of `step` and remove all but it and the one before: a later one was damaged.

    Raises: DataError: it cannot be written; the ones before are still there.
    """
    from safetensors.torch import save_file

    path = run / CHECKPOINT_FOLDER / f"step-{step:09d}.safetensors"
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    said = to_json(values, str(path))
    text = {"values": said, _CHECK: str(_checksum(kept, said)), **_VERSION}
    write_with(path, lambda temporary: save_file(kept, temporary, text))
    files = checkpoints(run)
    this = files.index(path)
    for other in (*files[:this], *files[this + 2 :]):
        other.unlink(missing_ok=True)


def load(run: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and values of the newest checkpoint that is whole; None where there is none at all.

    Raises: CheckpointError: there are some, and none is whole, or one cannot be read.
    """
    files = checkpoints(run)
    reason = ""
    for path in files:
        check_readable(path)
        try:
            return _read(path)
        except CheckpointError as error:
            reason = reason or str(error)
    if files:
        told = reason.removesuffix(".").removesuffix(". Remove it")
        raise CheckpointError(
            str(run / CHECKPOINT_FOLDER), "must hold a complete checkpoint", told, "Start another run"
        )
    return None


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            text = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no mapping; not mapped
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(str(path), "is damaged", f"{type(error).__name__}: {error}", "Remove it") from error
    said, version = text.get("values", ""), text.get("version", "1")
    if version not in ("1", _VERSION["version"]):
        raise CheckpointError(str(path), "is of another version", version, "Use the version that wrote it")
    first = version == "1"
    if text.get(_CHECK) != str(_checksum(tensors, said, first)):
        raise CheckpointError(str(path), "is damaged", "another checksum", "Remove it")
    return tensors, _from_first(path, said) if first else json.loads(said)


def _from_first(path: Path, said: str) -> dict[str, Any]:
    """Values of version 1, which counted the lines of metrics.jsonl and does not name the projection (None)."""
    run = path.parent.parent
    try:
        values = json.loads(said)
        metrics = read_metrics(run)[: values["metrics"]] if values["metrics"] else []
        if len(metrics) == values["metrics"]:
            return values | {"metrics": metrics, "project": None}
        reason = f"{len(metrics)} lines of {values['metrics']}"
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    rule = "must hold the epochs of its checkpoint, which is of version 1"
    raise CheckpointError(str(run / METRICS_FILE), rule, reason, "Restore the file")


def _checksum(tensors: dict[str, Tensor], values: str, first: bool = False) -> int:
    """CRC-32 of everything; in version 1 (`first`) of names and contents alone."""
    total = 0 if first else zlib.crc32(values.encode())
    for name, tensor in sorted(tensors.items()):
        told = name if first else f"{name} {tensor.dtype} {list(tensor.shape)}"
        total = zlib.crc32(told.encode(), total)
        content: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        total = zlib.crc32(content, total)
    return total
