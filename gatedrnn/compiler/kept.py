"""What was compiled, kept on disk: a later process neither traces nor imports what tracing needs."""

import contextlib
import dataclasses
import hashlib
import json
import re
import threading
import traceback
from pathlib import Path
from typing import Any

import torch

from gatedrnn.cells.spec import Extra, Gate, Spec, Step
from gatedrnn.compiler.cell import Compiled, compile_cell
from gatedrnn.compiler.errors import UnsupportedError
from gatedrnn.compiler.outside import fingerprint, place
from gatedrnn.compiler.plan import Plan
from gatedrnn.compiler.triton import Gpu
from gatedrnn.core.errors import DataError
from gatedrnn.core.files import cache_folder, code_files, write_with
from gatedrnn.core.origin import module_of
from gatedrnn.core.torch_internals import all_decompositions
from gatedrnn.gates import SQUASHES, sigmoid

_KNOWN: dict[str, Compiled | str] = {}
"""By key, as the files on disk: why there is no kernel stands under a key of its own, which the step's lines are in."""


def kept(step: Step, spec: Spec) -> Compiled | str:
    """A cell's kernels, or why it has none: from memory, from disk, or compiled now."""
    if type(spec) is not Spec:
        return f"its Spec is a {type(spec).__name__}, which may hold values that kernels do not see"
    for part in (*spec.gates, *spec.extras):
        if type(part) not in (Gate, Extra):
            return f"its {part.name} is a {type(part).__name__}, which may hold values that kernels do not see"
    for gate in spec.gates:
        if module_of(SQUASHES[gate.squash]) != module_of(sigmoid):
            return f"the squash {gate.squash!r} of its gate {gate.name} is not one of the package's own"
    keys: list[str] = []
    for lines in (False, True):
        try:
            keys.append(_key(fingerprint(step, lines), spec))
        except UnsupportedError as error:
            return _reason(error, step)
        found = _KNOWN.get(keys[-1]) or _read(keys[-1])
        if found is not None:
            _KNOWN[keys[-1]] = found
            return found
    found, lasting = _compiled(step, spec)
    key = keys[isinstance(found, str)]
    if lasting:
        _write(key, found)
    _KNOWN[key] = found
    return found


def _key(step: str, spec: Spec) -> str:
    """What is kept there follows from all this."""
    parts = [step, spec.text(), torch.__version__, str(torch.get_default_dtype()), _SOURCES]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _compiled(step: Step, spec: Spec) -> tuple[Compiled | str, bool]:
    """Compiled in a thread of its own, where no mode of the caller's is at work; and whether it would be the same tomorrow.

    Tracing may also fail for want of memory, or for a library that does not load: the next process tries again.
    """
    found: list[tuple[Compiled | str, bool]] = []

    def work() -> None:
        try:
            found.append((compile_cell(step, spec), True))
        except Exception as error:  # whatever a user's step, or tracing it, may raise
            lasting = isinstance(error, UnsupportedError) or _reads_values(error)
            found.append((_reason(error, step), lasting and all_decompositions()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def _reason(error: Exception, step: Step) -> str:
    """One line, which names a line of the step's file."""
    first = (str(error).strip().splitlines() or [""])[0]
    where = "" if isinstance(error, UnsupportedError) and _PLACE.search(first) else _place(error, step, first)
    if isinstance(error, UnsupportedError):
        return f"its step has {first}{where}; compiled kernels do not support that"
    if isinstance(error, TypeError) and ("_Size" in first or "converted to an index" in first):
        return f"its step has a number that follows from the batch's size{where}; compiled kernels do not support that"
    if _reads_values(error):
        return f"its step cannot be traced: it reads a tensor's values{where}"
    return f"its step cannot be traced: {type(error).__name__}: {first}{where}"


def _reads_values(error: Exception) -> bool:
    return type(error).__name__.startswith(("DataDependent", "DynamicOutputShape"))


_PLACE = re.compile(r":\d+(, \d+)*\)")


def _place(error: Exception, step: Step, said: str) -> str:
    """The line of the step's file that the error came through last; else those with what it speaks of, or the step's first."""
    file = getattr(getattr(step, "__code__", None), "co_filename", None)
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    if lines:
        return f" ({Path(file or '').name}:{lines[-1]})"
    return place(step, "bias_hh" if "b_hh" in said else "")


def _sources() -> str:
    """A hash of the package's files that what is compiled follows from."""
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for folder in ("cells", "compiler", "core", "gates"):
        for path in code_files(package / folder):
            digest.update(path.read_bytes())
    return digest.hexdigest()


_SOURCES = _sources()


def _path(key: str) -> Path:
    return cache_folder() / f"cell-{key}.json"


def _read(key: str) -> Compiled | str | None:
    """What is kept there, if it is whole."""
    try:
        content = json.loads(_path(key).read_text("utf-8"))
        values, checksum = content["cell"], content["sha256"]
        if _checksum(values) != checksum:
            return None
        return values if isinstance(values, str) else Compiled(**_fields(values))
    except (OSError, DataError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _fields(values: dict[str, Any]) -> dict[str, Any]:
    """As they were: JSON has lists instead of tuples."""
    found: dict[str, Any] = {name: _tuples(value) for name, value in values.items()}
    if "plan" in values:
        found["plan"] = Plan.of(values["plan"])
    if isinstance(values.get("gpu"), dict):
        found["gpu"] = Gpu(**_fields(values["gpu"]))
    return found


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _write(key: str, found: Compiled | str) -> None:
    values = found if isinstance(found, str) else {**dataclasses.asdict(found), "plan": found.plan.text()}
    text = json.dumps({"cell": values, "sha256": _checksum(values)})
    with contextlib.suppress(DataError, OSError):  # then the next process compiles it anew
        write_with(_path(key), lambda path: path.write_text(text, "utf-8", newline=""))


def _checksum(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
