"""Which of several backends runs a size on a GPU: timed at the size's first call, kept on disk, only read by later processes."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from gatedrnn.core.errors import DataError
from gatedrnn.core.files import cache_folder, write_json
from gatedrnn.core.torch_internals import dispatch_modes
from gatedrnn.sequence.modes import float32_products, storage_type
from gatedrnn.sequence.request import Request

Run = Callable[[Request], Any]
Row = dict[str, float]
"""Seconds by backend."""

_WARM, _TIMED = 3, 5  # a loop's first calls compile, choose launches and capture
_PATIENCE = 10.0  # seconds to wait for another process that writes the table
_KNOWN: dict[str, str] = {}
"""The choice by size. It never changes within a process, so that what is computed again for a gradient runs as it did before."""


def measurable(device: torch.device) -> bool:
    """Whether calls on `device` can be timed now: on a GPU, outside captures, compilers and modes that see every operator."""
    if device.type != "cuda" or torch.compiler.is_compiling() or dispatch_modes():
        return False
    with torch.cuda.device(device):
        return not torch.cuda.is_current_stream_capturing()


def known(able: Sequence[str], request: Request) -> str | None:
    """Which of `able` is taken for requests of this size; None where that has not been measured, in this process or before.

    Sizes are alike whose batches and steps round up to the same powers of 2.
    """
    key = _size(request)
    if key not in _KNOWN:
        seconds = _read().get(key, {})
        if seconds.keys() != set(able):
            return None
        _KNOWN.setdefault(key, _least(seconds))
    return _KNOWN[key]


def measure(able: Mapping[str, Run], request: Request, lost: Callable[[str], None]) -> None:
    """Time all of `able` on requests of this size; `known` then names the fastest, the first one where all of them failed.

    No lock is held while anything is timed: threads that meet a size at once time it each, and take what the first of them found.

    Args:
        able: how each backend runs a request. They are run on copies: no gradient, state or random number is touched.
        lost: told of each that was timed and is not taken.
    """
    key, seconds = _size(request), _timed(able, request)
    if seconds.keys() == able.keys():
        _keep(key, seconds)
    for name in able.keys() - {_least(seconds)} if seconds else ():
        lost(name)
    if seconds:
        _KNOWN.setdefault(key, _least(seconds))


def forget() -> None:
    """Forget what this process knows; the file stays."""
    _KNOWN.clear()


def _least(seconds: Row) -> str:
    return min(seconds, key=lambda name: (seconds[name], name))


def _path() -> Path:
    return cache_folder() / "backends.json"


def _read() -> dict[str, Row]:
    """The table on disk; none where there is no file, or one that was damaged."""
    try:
        table = json.loads(_path().read_text(encoding="utf-8"))
        return {key: {name: float(taken) for name, taken in row.items()} for key, row in table.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _keep(key: str, seconds: Row) -> None:
    """Add a row to the table on disk; where there is none to be had, the row serves this process."""
    path = _path()
    with suppress(DataError, OSError, NotImplementedError):  # no folder, no lock in time, no locks on this file system
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_PATIENCE):
            write_json(path, {**_read(), key: seconds})


def _size(request: Request) -> str:
    """All that decides on the time but the values, as a line that can be read."""
    x, spec = request.x_TBD, request.spec
    T, B, D = x.shape
    place = torch.cuda.get_device_name(x.device) if x.is_cuda else str(x.device)
    projection = "" if request.params.weight_hr is None else f" J={len(request.params.weight_hr)}"
    sizes = f"D={D}{projection} B<={_up(B)} T<={_up(T)} {storage_type(x)}".replace("torch.", "")
    kind = "training" if _trains(request) else "inference"
    return f"{place}, {_versions()}: {request.cell.name} {spec.text()} {sizes} {kind}, products {float32_products()}"


def _versions() -> str:
    ours = import_module("gatedrnn").__version__  # which is being imported when this module is
    return f"gatedrnn {ours}, torch {torch.__version__}, triton {_triton()}, cudnn {torch.backends.cudnn.version()}"


def _triton() -> str | None:
    return getattr(import_module("triton"), "__version__", None) if find_spec("triton") else None


def _up(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _trains(request: Request) -> bool:
    given = (request.x_TBD, *request.params.tensors(), *request.state)
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)


def _timed(able: Mapping[str, Run], request: Request) -> Row:
    """Seconds of one call of each that did not fail, with its gradients where they are wanted."""
    seconds: Row = {}
    for name, run in able.items():
        # out of memory, a size that a library refuses, no compiler on this machine
        with suppress(Exception), _unseen():
            seconds[name] = _seconds(_trial(run, request), request.x_TBD.device)
    return seconds


@contextmanager
def _unseen() -> Iterator[None]:
    """Keeps the hooks on saved tensors away: a checkpoint's would run the user's function again, and with it this one."""
    with ExitStack() as stack:
        with suppress(RuntimeError):  # where hooks are forbidden, there are none
            same = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
            stack.enter_context(same)  # the innermost are asked, and no others
        yield


def _trial(run: Run, request: Request) -> Callable[[], None]:
    trains, p = _trains(request), request.params
    leaves: list[Tensor] = []

    def copied(tensor: Tensor) -> Tensor:
        copy = tensor.detach().clone()
        if trains and tensor.requires_grad:
            leaves.append(copy.requires_grad_())
        return copy

    weights = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    names = [name for name in weights if getattr(p, name) is not None]
    copies = {name: copied(getattr(p, name)) for name in names}
    params = replace(p, **copies, extras={name: copied(tensor) for name, tensor in p.extras.items()})
    state = tuple(copied(tensor) for tensor in request.state)
    ours = replace(request, params=params, x_TBD=copied(request.x_TBD), state=state)

    def once() -> None:
        output = run(ours).output_TBH
        if leaves:
            torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)

    return once


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    taken = []
    for k in range(_WARM + _TIMED):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        run()
        torch.cuda.synchronize(device)
        if k >= _WARM:
            taken.append(time.perf_counter() - began)
    return min(taken)
