"""What a call may be wrapped in: a context, another callable, or a way of its own, which gives the values and gradients."""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from .calls_tensors import Finding, Values, close, equal, where


def context(wrap: str, layer: nn.Module) -> Any:
    """What is at work around a call."""
    stack = ExitStack()
    if wrap == "anomaly":
        stack.enter_context(torch.autograd.detect_anomaly(check_nan=False))
    elif wrap == "dispatch_mode":

        class Through(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))

        stack.enter_context(Through())
    elif wrap == "function_mode":

        class Same(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))

        stack.enter_context(Same())
    elif wrap == "default_dtype":
        torch.set_default_dtype(torch.float64)
        stack.callback(torch.set_default_dtype, torch.float32)
    elif wrap == "deterministic":
        torch.use_deterministic_algorithms(True)
        stack.callback(torch.use_deterministic_algorithms, False)
    elif wrap == "hooks":
        handles = [layer.register_forward_hook(lambda *_: None), layer.register_forward_pre_hook(lambda *_: None)]
        for handle in handles:
            stack.callback(handle.remove)
    elif wrap == "saved_hooks":
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()))
    return stack


def wrapped(run: Any, wrap: str, layer: nn.Module, x: Any, hx: Any, keywords: Any) -> Callable[..., Any]:
    if wrap == "functional":
        given = dict(layer.named_parameters())
        return lambda x, hx, **kw: torch.func.functional_call(layer, given, (x, hx), kw)
    if wrap == "checkpoint":
        return lambda x, hx, **kw: checkpoint(lambda x, hx: layer(x, hx, **kw), x, hx, use_reentrant=False)
    if wrap == "reentrant":
        return lambda x, hx, **kw: _reentrant(layer, x, hx, kw)
    if wrap.startswith("compile"):
        torch._dynamo.config.recompile_limit = 64
        torch._functorch.config.donated_buffer = False  # gradients are asked for with retain_graph
        options = {"backend": "inductor" if wrap == "compile_inductor" else "aot_eager"}
        options |= {"fullgraph": wrap == "compile_full", "dynamic": True if wrap == "compile_dynamic" else None}
        cache = run.bench.__dict__.setdefault("compiled", {})
        key = (id(layer), wrap)
        if key not in cache:
            cache[key] = torch.compile(layer, **options)
        return cache[key]
    if wrap == "export":
        return torch.export.export(layer, (x, hx), keywords).module()
    return layer


def _reentrant(layer: nn.Module, x: Any, hx: Any, keywords: Any) -> Any:
    """Checkpointed the old way, which sees only tensors that stand alone, not those in tuples."""
    given, inside = tree_flatten((x, hx))
    outside: list[Any] = []

    def flat(*given: Any) -> tuple[Any, ...]:
        found, form = tree_flatten(layer(*tree_unflatten(given, inside), **keywords))
        outside.append(form)
        return tuple(found)

    return tree_unflatten(checkpoint(flat, *given, use_reentrant=True), outside[0])


def _twice_backward(run: Any, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
    values = run.read(layer(x, hx, **keywords))
    first = run.own_gradients(values, leaves)
    with torch.no_grad():
        layer(x, hx, **keywords)
    second = run.own_gradients(values, leaves)
    for name, value in first.items():
        if not torch.allclose(second[name], value, rtol=1e-5, equal_nan=True):
            raise Finding("second backward differs", name)
    layer(
        x, hx, **keywords
    )  # what prunes or normalises leaves the weight of the last call, which is read for what is expected
    return values | second


def _double_backward(run: Any, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
    values = run.read(layer(x, hx, **keywords))
    gradients = run.own_gradients(values, leaves, create_graph=True)
    squares = [(g * g).sum() for g in gradients.values() if g.requires_grad]
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
    if squares and wanted:
        second = torch.autograd.grad(sum(squares), wanted, allow_unused=True)
        values |= {f"second {k}": g for k, g in enumerate(second) if g is not None}
    return {n: v for n, v in (values | gradients).items() if not n.startswith("second")}


def _func_grad(run: Any, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
    given = {n: p.detach() for n, p in layer.named_parameters() if p.requires_grad}

    def loss(weights: Any) -> Any:
        values = run.read(torch.func.functional_call(layer, weights, (x, hx), keywords))
        random = torch.Generator().manual_seed(run.probe_seed)
        total = 0
        for value in values.values():
            total = (
                total + (value * torch.randn(value.shape, generator=random, dtype=torch.float64).to(value.dtype)).sum()
            )
        return total, values

    if run.call.mode == "inference" or run.call.loss != "probe":
        return run.read(layer(x, hx, **keywords))
    gradients, values = torch.func.grad(loss, has_aux=True)(given)
    found = dict(values)
    if run.call.mode == "grad":
        found |= {f"gradient of parameter {n}": g for n, g in gradients.items()}
    return found


def _vmap(run: Any, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any, dim: int = 0) -> Values:
    if not isinstance(x, Tensor):
        return run.read(layer(x, hx, **keywords))
    both = torch.stack((x * 0.5, x), dim)

    def one(x: Tensor) -> Any:
        return run.read(layer(x, hx, **keywords))

    values = {n: v[1] for n, v in torch.vmap(one, in_dims=dim)(both).items()}
    return values | run.own_gradients(values, leaves)


def _vmap_in(*arguments: Any) -> Values:
    return _vmap(*arguments, dim=-1)


def _jvp(run: Any, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
    if not isinstance(x, Tensor) or run.call.mode == "inference":
        return run.read(layer(x, hx, **keywords))
    values, _ = torch.func.jvp(lambda x: run.read(layer(x, hx, **keywords)), (x,), (torch.ones_like(x),))
    return values | run.own_gradients(values, leaves)


def _trace(run: Any, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
    if not isinstance(x, Tensor) or keywords:
        return run.read(layer(x, hx, **keywords))
    time = 1 if run.case.batch_first and x.dim() == 3 else 0
    longer = torch.cat((x, x), time) if run.probe_seed % 2 else x
    traced = torch.jit.trace(layer, (longer,) if hx is None else (longer, hx), check_trace=False)
    return run.read(traced(x) if hx is None else traced(x, hx))


def _threads(run: Any, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any, change: bool = False) -> Values:
    found: list[Any] = []
    autocast = run.call.autocast

    def work() -> None:
        try:
            with torch.no_grad(), torch.autocast("cpu", getattr(torch, autocast)) if autocast else nullcontext():
                for _ in range(30):
                    found.append(run.read(layer(x, hx, **keywords)))
        except Exception as error:
            found.append(error)

    sys.setswitchinterval(1e-5)
    team = [threading.Thread(target=work) for _ in range(3)]
    for one in team:
        one.start()
    if change:
        parameters = [p for p in layer.parameters() if p.numel()]
        clones = [p.detach().clone() for p in parameters]
        end = time.monotonic() + 5
        while any(one.is_alive() for one in team) and time.monotonic() < end:
            for p, clone in zip(parameters, clones, strict=True):
                with torch.no_grad():
                    p.copy_(clone)
    for one in team:
        one.join(90)  # PyTorch on meta takes 25 s on one core
        if one.is_alive():
            raise Finding("hang", "a thread that infers does not end")
    values = run.read(layer(x, hx, **keywords))
    for entry in found:
        if isinstance(entry, Exception):
            raise entry
        for name, value in entry.items():
            if not equal(value, values[name]) and not close(value, values[name]):
                raise Finding("threads differ", name)
    return values


def _threads_change(*arguments: Any) -> Values:
    return _threads(*arguments, change=True)


def _data_parallel_threads(run: Any, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
    failed: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(3):
                with torch.enable_grad():
                    values = run.read(layer(x, hx, **keywords))
                    total = sum(v.sum() for v in values.values() if v.is_floating_point())
                    if isinstance(total, Tensor) and total.requires_grad:
                        total.backward()
        except Exception as error:
            failed.append(error)

    team = [threading.Thread(target=work) for _ in range(3)]
    for one in team:
        one.start()
    for one in team:
        one.join(20)
        if one.is_alive():
            raise Finding("hang", "a thread that trains does not end")
    layer.zero_grad()
    if failed:
        raise failed[0]
    return run.read(layer(x, hx, **keywords))


def _fork(run: Any, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any, busy: bool = False) -> Values:
    values = run.read(layer(x, hx, **keywords))
    stop = threading.Event()

    def work() -> None:
        with torch.no_grad():
            while not stop.is_set():
                for p in layer.parameters():
                    p.data.mul_(1.0)
                layer(x, hx, **keywords)

    team = [threading.Thread(target=work, daemon=True) for _ in range(2 if busy else 0)]
    for one in team:
        one.start()
    sys.setswitchinterval(1e-5)
    for _ in range(10 if busy else 1):
        _forked(run, layer, x, hx, keywords, values)
    stop.set()
    for one in team:
        one.join(20)
    return values


def _fork_busy(*arguments: Any) -> Values:
    return _fork(*arguments, busy=True)


def _forked(run: Any, layer: Any, x: Any, hx: Any, keywords: Any, values: Values) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # OpenMP's threads are gone: torch itself would wait for them
            torch.rand(1)  # waits for good if another thread was drawing numbers: PyTorch's own lock
            os.write(writer, b"ready ")
            found = run.read(layer(x, hx, **keywords))
            same = all(v.is_meta or close(found[n], v) for n, v in values.items())
            os.write(writer, b"right" if same else b"wrong")
        except BaseException as error:
            os.write(writer, where(error).encode()[:400])
        os._exit(0)
    os.close(writer)
    said = b""
    while (ready := bool(select.select([reader], [], [], 20)[0])) and (more := os.read(reader, 1000)):
        said += more
    os.close(reader)
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said != b"ready right" and (ready or said):
        raise Finding("forked child", f"{said.decode() or 'died'}{'' if ready else ', then hung'} (status {status})")


WAYS: dict[str, Callable[..., Values]] = {
    "twice_backward": _twice_backward,
    "double_backward": _double_backward,
    "func_grad": _func_grad,
    "jacrev": _func_grad,
    "vmap": _vmap,
    "vmap_in": _vmap_in,
    "jvp": _jvp,
    "trace": _trace,
    "threads": _threads,
    "threads_change": _threads_change,
    "data_parallel_threads": _data_parallel_threads,
    "fork": _fork,
    "fork_busy": _fork_busy,
}
"""Wraps that are more than another callable: of a run, its layer, input, states, keywords and leaves."""
