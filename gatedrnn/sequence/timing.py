"""Which of several backends runs a size on a GPU: timed at the size's first call, kept on disk, only read by later processes."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from gatedrnn.core.errors import DataError
from gatedrnn.core.files import cache_folder, write_json
from gatedrnn.sequence.modes import storage_type
from gatedrnn.sequence.plan import plan_for
from gatedrnn.sequence.request import Request

Run = Callable[[Request], Any]
Row = dict[str, float | None]
"""Seconds by backend; None where it failed, for want of memory above all."""

_WARM, _TIMED = 3, 5  # a loop's first calls compile, choose launches and capture
_KNOWN: dict[str, str] = {}
_LOCK = Lock()


def measurable(device: torch.device) -> bool:
    """Whether calls on `device` can be timed now: on a GPU, outside captures and compilers."""
    return device.type == "cuda" and not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()


def fastest(able: Mapping[str, Run], request: Request, lost: Callable[[str], None]) -> str:
    """The name in `able` that ran requests of this size fastest.

    Sizes are alike whose batches and steps round up to the same powers of 2.

    Args:
        able: how each backend runs a request. They are run on copies: no gradient, state or random number is touched.
        lost: told of each that was timed and is not taken.

    Raises: RuntimeError: all of them failed; the last one's.
    """
    key = _size(request)
    with _LOCK:
        if key not in _KNOWN:
            table = _read()
            seconds = table.get(key, {})
            if seconds.keys() != able.keys() or all(taken is None for taken in seconds.values()):
                seconds = _timed(able, request)
                with suppress(DataError):  # nowhere to keep it: it serves this process
                    write_json(_path(), {**_read(), key: seconds})
                for name in seconds.keys() - {_least(seconds)}:
                    lost(name)
            _KNOWN[key] = _least(seconds)
        return _KNOWN[key]


def forget() -> None:
    """Forget what this process knows; the file stays."""
    _KNOWN.clear()


def _least(seconds: Row) -> str:
    return min((taken, name) for name, taken in seconds.items() if taken is not None)[1]


def _path() -> Path:
    return cache_folder() / "backends.json"


def _read() -> dict[str, Row]:
    """The table on disk; none where there is no file, or one that was damaged."""
    try:
        table = json.loads(_path().read_text(encoding="utf-8"))
        return {key: {name: None if s is None else float(s) for name, s in row.items()} for key, row in table.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _size(request: Request) -> str:
    """All that decides on the time but the values, as a line that can be read."""
    x, spec = request.x_TBD, request.spec
    (T, B, D), plan = x.shape, plan_for(request.cell.step, spec)
    place = torch.cuda.get_device_name(x.device) if x.is_cuda else str(x.device)
    kernel = request.cell.name if isinstance(plan, str) else plan.kernel
    sizes = f"D={D} H={spec.hidden_size} B<={_up(B)} T<={_up(T)} {storage_type(x)}".replace("torch.", "")
    return f"{place}, torch {torch.__version__}: {kernel} {sizes} {'training' if _trains(request) else 'inference'}"


def _up(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _trains(request: Request) -> bool:
    given = (request.x_TBD, *request.params.tensors(), *request.state)
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)


def _timed(able: Mapping[str, Run], request: Request) -> Row:
    """Seconds of one call of each, with its gradients where they are wanted."""
    seconds: Row = {}
    failure = None
    for name, run in able.items():
        try:
            seconds[name] = _seconds(_trial(run, request))
        except RuntimeError as error:  # out of memory, or a size that a library refuses
            seconds[name], failure = None, error
    if failure is not None and all(taken is None for taken in seconds.values()):
        raise failure
    return seconds


def _trial(run: Run, request: Request) -> Callable[[], None]:
    trains, p = _trains(request), request.params
    leaves: list[Tensor] = []

    def copied(tensor: Tensor) -> Tensor:
        copy = tensor.detach().clone()
        if trains and tensor.requires_grad:
            leaves.append(copy.requires_grad_())
        return copy

    names = [name for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if getattr(p, name) is not None]
    copies = {name: copied(getattr(p, name)) for name in names}
    params = replace(p, **copies, extras={name: copied(tensor) for name, tensor in p.extras.items()})
    state = tuple(copied(tensor) for tensor in request.state)
    ours = replace(request, params=params, x_TBD=copied(request.x_TBD), state=state)

    def once() -> None:
        output = run(ours).output_TBH
        if leaves:
            torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)

    return once


def _seconds(run: Callable[[], None]) -> float:
    taken = []
    for k in range(_WARM + _TIMED):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if k >= _WARM:
            taken.append(time.perf_counter() - began)
    return min(taken)
