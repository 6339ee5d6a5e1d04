"""Runs a `Case`: every call of a layer against the reference in float64; what it gave out is looked at again at the end."""

import mmap
import os
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from gatedrnn.core.errors import GatedRNNError

from .calls import SLOW_WRAPS, Call, Case, Change
from .calls_bench import Bench
from .calls_change import change
from .calls_expected import compare, expected, expected_gradients, precision, refusal_is_fair, weights_of
from .calls_given import Given
from .calls_tensors import Finding, Values, bare, equal, error_of, ours, restride, where
from .calls_wraps import WAYS, context, wrapped


class Run(Given):
    """One call of a layer, and its results."""

    def read(self, result: Any) -> Values:
        output, finals, *trace = result
        values = {"output": output.data if isinstance(output, PackedSequence) else output}
        values |= {f"final {k}": f for k, f in enumerate(finals if isinstance(finals, tuple) else (finals,))}
        for place, gates in enumerate(trace[0] if trace else []):
            values |= {f"{name} {place}": gate for name, gate in gates.items()}
        return values

    def chosen(self, values: Values) -> dict[str, Tensor]:
        """Values that the loss is of, with their gradients."""
        found = {}
        random = torch.Generator().manual_seed(self.probe_seed)
        for name, value in values.items():
            probe = torch.randn(value.shape, generator=random, dtype=torch.float64).to(value.dtype)
            if self.call.loss in ("output", "final") and not name.startswith(self.call.loss):
                continue
            if self.call.loss == "gate" and name.startswith(("output", "final")) and self.call.gates:
                continue
            if self.call.loss == "sum":
                probe = torch.ones((), dtype=value.dtype).expand(value.shape)
            elif self.call.loss == "strided":
                probe = restride(probe, "strided")
            elif self.call.loss == "expanded":
                probe = restride(probe, "expanded")
            if value.requires_grad and value.device.type != "meta":
                found[name] = probe
        return found

    def gradients(self, values: Values, leaves: dict[str, Tensor], **options: Any) -> Values:
        probes = self.chosen(values)
        wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        if not probes or not wanted:
            return {}
        results, ends = [values[name] for name in probes], list(wanted.values())
        if self.call.wrap == "reentrant":  # which torch.autograd.grad refuses
            torch.autograd.backward(results, list(probes.values()))
            found = [leaf.grad for leaf in ends]
            for leaf in ends:
                leaf.grad = None
        else:
            found = torch.autograd.grad(results, ends, list(probes.values()), allow_unused=True, **options)
        return {
            f"gradient of {name}": torch.zeros_like(bare(leaf)) if g is None else bare(g)
            for (name, leaf), g in zip(wanted.items(), found, strict=True)
        }

    def own_gradients(self, values: Values, leaves: dict[str, Tensor], **options: Any) -> Values:
        """Of the leaves and of the layer's own parameters."""
        if self.call.mode != "grad":
            return {}
        parameters = {f"parameter {name}": p for name, p in self.layer.named_parameters()}
        return self.gradients(values, leaves | parameters, retain_graph=True, **options)

    def measured(self, backend: str | None = None) -> Values:
        """By the layer, in the call's own mode and wrap."""
        call, layer = self.call, self.layer
        before = layer.backend
        if backend is not None:
            layer.backend = backend
        flags = [(p, p.requires_grad) for p in layer.parameters()]
        for k, (p, _) in enumerate(flags):
            if call.frozen in ("weights", "all") or (call.frozen == "some" and k % 2):
                with suppress(RuntimeError):
                    p.requires_grad_(False)
        layer.train(call.training)
        try:
            with ExitStack() as stack:
                if call.autocast:
                    stack.enter_context(torch.autocast("cpu", getattr(torch, call.autocast)))
                mode = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
                stack.enter_context(mode[call.mode]())
                return self._wrapped()
        finally:
            layer.backend = before
            for p, flag in flags:
                with suppress(RuntimeError):
                    p.requires_grad_(flag)

    def _wrapped(self) -> Values:
        wrap = self.call.wrap
        layer = self.layer
        leaves, x, hx, keywords = self.inputs(self.bench.dtype, exact=False)
        before = (
            None
            if not isinstance(x, Tensor)
            or x.layout != torch.strided
            or x.is_meta
            or type(x) is not Tensor
            or x.is_nested
            or x.is_quantized
            else x.detach().clone()
        )
        special = WAYS.get(wrap)
        if special is not None:
            values = special(self, layer, x, hx, keywords, leaves)
        else:
            with context(wrap, layer):
                values = self.read(wrapped(self, wrap, layer, x, hx, keywords)(x, hx, **keywords))
                values |= self.own_gradients(values, leaves)
        if before is not None and not equal(x.detach(), before):
            raise Finding("input changed", wrap)
        return {name: bare(value.detach()) for name, value in values.items()}


def run_call(bench: Bench, call: Call) -> None:
    """One call, checked."""
    run = Run(bench, replace(call, training=False) if bench.calm else call)
    call = run.call
    found, error = error_of(run.measured)
    weights, unreadable = error_of(lambda: weights_of(run))
    if unreadable is not None:  # a parametrisation that PyTorch cannot compute in this type
        fair = error is not None and ours(error) and refusal_is_fair(run)  # what is wrong in the call is found first
        if type(error) is not type(unreadable) and not fair and not call.autocast:  # which may change what fails
            raise Finding("another exception than of the weight", where(error or unreadable))
        return
    same, fault = error_of(lambda: expected(run, None, weights))
    if error is not None:
        if ours(error):
            if refusal_is_fair(run) or (fault is not None and ours(fault)):
                return
            raise Finding("refused", where(error))
        if fault is not None and (type(fault) is type(error) or call.wrap):
            return
        if call.wrap == "trace" and isinstance(error, RuntimeError):
            return
        _, other = error_of(lambda: run.measured("reference"))
        if other is not None and type(other) is type(error):
            return
        raise Finding("exception", where(error))
    if fault is not None:
        if call.strides == "two_tensor" or bench.lenient == "subclass" or call.noise == "drawn64":
            return
        if call.wrong.startswith("lengths") and call.wrap in SLOW_WRAPS and bench.dtype == torch.float16:
            return  # the reference's graph has no operator that checks them: beyond T is T
        raise Finding("accepted what the reference refuses", f"{call.wrong or call.wrap}: {where(fault)}")
    exact = expected(run, torch.float64, weights)
    exact, same = expected_gradients(run, exact, weights), expected_gradients(run, same, weights)
    only_values = (
        call.wrap in ("trace", "jvp", "func_grad", "jacrev", "vmap", "vmap_in", "threads", "threads_change")
        or bench.lenient
        or call.strides == "two_tensor"
        or (call.wrap == "reentrant" and call.frozen in ("x", "all"))  # no input asks for a graph
    )
    if only_values:
        names = found.keys() & exact.keys() if call.mode == "grad" else found.keys()
        if bench.lenient == "subclass" and call.wrap.startswith("compile"):  # PyTorch may lose these, nn.Linear's too
            names = {n for n in names if not n.startswith("gradient of parameter")}
        exact = {n: v for n, v in exact.items() if n in names}
        same = {n: v for n, v in same.items() if n in names}
        found = {n: v for n, v in found.items() if n in exact}
    floor = precision(call.autocast, bench.dtype)
    cumulative = (
        bench.configs[run.index][0] == "onlstm"
    )  # of a NaN even the sums that are exactly 0 are NaN in a kernel
    compare(found, exact, same, floor, run.lengths is not None, cumulative)
    keep(bench, call, found, run)


def keep(bench: Bench, call: Call, found: Values, run: Run) -> None:
    """What was given out is looked at again at the end; some of it as another process sees it, or in a file."""
    output = found["output"]
    if output.is_meta or call.mode == "inference" or type(output) is not Tensor:  # a subclass is torch's to share
        return
    plain = call.strides == "plain" and not run.packed and run.lengths is None and call.wrap == ""
    if plain and output.nbytes >= 1 << 16 and output.untyped_storage().nbytes() > 1.6 * output.nbytes:
        raise Finding("storage too large", f"{output.untyped_storage().nbytes()} bytes for {output.nbytes}")
    if call.keep in ("share", "queue") and output.is_contiguous() and output.numel():
        bench.kept.append(("an output in another process", in_shared_memory(output, call.keep), output.clone()))
    elif call.keep != "drop":
        bench.kept += [(f"{name} of an earlier call", value, value.clone()) for name, value in found.items()]


def in_shared_memory(tensor: Tensor, way: str) -> Tensor:
    """A contiguous tensor as the process sees it that it was sent to: the same memory, mapped once more."""
    if way == "share":
        tensor.share_memory_()
    descriptor, size = tensor.untyped_storage()._share_fd_cpu_()[:2]
    mapped = mmap.mmap(os.dup(descriptor), size)
    whole = torch.frombuffer(
        mapped, dtype=tensor.dtype, offset=tensor.storage_offset() * tensor.itemsize, count=tensor.numel()
    )
    return whole.view(tensor.shape)


def run_case(case: Case) -> None:
    """The whole program. Raises Finding."""
    torch.set_num_threads(case.threads)
    sys.setswitchinterval(0.005)
    try:
        bench = Bench(case)
    except GatedRNNError as error:
        raise Finding("refused", where(error)) from error
    except Finding:
        raise
    except Exception as error:
        raise Finding("exception", f"while building: {where(error)}") from error
    for entry in case.program:
        if isinstance(entry, Change):
            change(bench, entry)
        else:
            run_call(bench, entry)
        for name, value, clone in bench.kept:
            if not equal(value, clone):
                raise Finding("given out, then overwritten", name)
    if bench.__dict__.get("compiled"):
        torch._dynamo.reset()
