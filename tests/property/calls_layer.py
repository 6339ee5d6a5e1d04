"""Runs a `Case`: every call of a layer against the reference in float64, and everything it gave out looked at again at the end.

A result is right where its error is at most 16 times that of the reference in the layer's own type, or 64 units in the last
place of the largest value; NaN and infinities stand where the reference has them.
"""

import mmap
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import gatedrnn
from gatedrnn import Gates, Recurrent
from gatedrnn.core.errors import GatedRNNError

from .calls import Call, Case, Change

PACKAGE = str(Path(gatedrnn.__file__).parent)
CLASSES = {
    "lstm": "LSTM", "gru": "GRU", "rnn": "RNN", "coupled": "CoupledLSTM", "peephole": "PeepholeLSTM", "onlstm": "ONLSTM",
    "g2lstm": "G2LSTM",
}  # fmt: skip
SISTERS = {"lstm": "g2lstm", "g2lstm": "lstm", "peephole": "lstm", "coupled": "gru", "onlstm": "onlstm"}
Values = dict[str, Tensor]


class Finding(Exception):  # noqa: N818 - what was found, not an error of the code that found it
    """What must not be: a kind, of few words, and the details."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


def where(error: BaseException) -> str:
    """The last place of the package that an error came through, and what it says."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
    place = f"{Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].name}" if frames else "outside"
    return f"{type(error).__name__} at {place}: {' '.join(str(error).split())[:300]}"


def ours(error: BaseException) -> bool:
    """Whether it is one of the package's errors; torch's wrappers of one count."""
    wrapped = type(error).__name__ in ("BackendCompilerFailed", "TorchRuntimeError", "UserError", "JitError")
    text = str(error)
    return isinstance(error, GatedRNNError) or (
        wrapped and ("ArgumentError" in text or "BackendError" in text or "; got " in text)
    )


def bare(tensor: Any) -> Any:
    """A plain tensor of a subclass."""
    if type(tensor).__name__ == "TwoTensor":
        return tensor.a
    return tensor.as_subclass(Tensor) if isinstance(tensor, Tensor) and type(tensor) is not Tensor else tensor


class Sub(Tensor):
    """A subclass with nothing of its own."""


class SubParameter(nn.Parameter):
    """A parameter's subclass."""


def restride(t: Tensor, how: str) -> Tensor:
    """The same values, or the first row of them in every row ("expanded"), lying otherwise; differentiable."""
    if how == "transposed" and t.dim() > 1:
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "strided":
        return torch.stack((t, torch.full_like(t, torch.nan) if t.is_floating_point() else t * 0 + 99), -1)[..., 0]
    if how == "narrow":
        wide = torch.full((*t.shape[:-1], 3), torch.nan, dtype=t.dtype, device=t.device)
        return torch.cat((wide, t, wide), -1)[..., 3:-3]
    if how == "offset":
        return torch.cat((t.new_zeros(1), t.reshape(-1)))[1:].view(t.shape)
    if how == "expanded" and t.dim() > 1 and t.shape[0]:
        return t[:1].expand(t.shape)
    if how == "neg":
        return torch._neg_view(-t)
    if how == "imag" and t.dtype in (torch.float32, torch.float64):
        return torch.complex(torch.zeros_like(t), -t).conj().imag
    if how == "subclass":
        return t.as_subclass(Sub)
    if how == "two_tensor":
        from torch.testing._internal.two_tensor import TwoTensor

        return TwoTensor(t, t.clone())
    return t


class Bench:
    """The layers of a case, as they are now."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.dtype: torch.dtype = getattr(torch, case.dtype)
        self.random = torch.Generator().manual_seed(case.seed % (1 << 40))
        self.kept: list[tuple[str, Tensor, Tensor]] = []
        self.lenient = ""  # why one of our errors is a fair answer
        self.calm = False  # whether training changes a weight at every look at it
        self.configs = [(case.cell, dict(case.options)), self._sister()]
        torch.manual_seed(case.seed % (1 << 40))
        self.layers = [self._build(*config) for config in self.configs]
        for layer in self.layers:
            if case.gain != 1.0:
                for p in layer.parameters():
                    p.data.mul_(case.gain)

    def _sister(self) -> tuple[str, dict[str, Any]]:
        case, options = self.case, dict(self.case.options)
        if case.cell == "gru":
            return "gru", {"reset_after": not options.get("reset_after", True)}
        if case.cell == "rnn":
            return "rnn", {"nonlinearity": "relu" if options.get("nonlinearity", "tanh") == "tanh" else "tanh"}
        return SISTERS[case.cell], options if case.cell == "onlstm" else {}

    def arguments(self, index: int) -> dict[str, Any]:
        case = self.case
        given: dict[str, Any] = {"num_layers": case.layers, "bidirectional": case.bidirectional}
        given |= {"bias": case.bias, "batch_first": case.batch_first, **self.configs[index][1]}
        given["gates"] = None if case.gates is None else Gates(**dict(case.gates))
        return given

    def _build(self, cell: str, options: dict[str, Any]) -> nn.Module:
        case, index = self.case, 0 if not hasattr(self, "layers") else 1
        index = [c is options for _, c in self.configs].index(True)
        given = self.arguments(index) | {"dtype": self.dtype, "device": case.device, "backend": case.backend}
        if not case.by_class:
            return Recurrent(cell, case.width, case.hidden, **given).eval()
        layer = getattr(gatedrnn, CLASSES[cell])(case.width, case.hidden, **given).eval()
        if case.gates is not None and cell != "g2lstm" and layer.gates != given["gates"]:
            raise Finding("gates dropped", f"{layer.gates} of {given['gates']}")
        if case.gates is not None and cell == "g2lstm":
            plain = Recurrent(cell, case.width, case.hidden, **given)
            if (layer.gates.temperature, layer.gates.noise_probability) != (
                plain.gates.temperature,
                plain.gates.noise_probability,
            ):
                raise Finding("gates dropped", f"{layer.gates} by its class, {plain.gates} by name")
        return layer

    def names(self, index: int) -> list[str]:
        return [name for name, _ in self.reference(index, torch.float32).named_parameters()]

    def reference(self, index: int, dtype: torch.dtype) -> nn.Module:
        """A plain layer on the reference."""
        layer, case = self.layers[index], self.case
        given = self.arguments(index) | {"backend": "reference", "dtype": dtype, "device": case.device}
        if isinstance(layer.gates, Gates):
            given["gates"] = layer.gates
        with torch.random.fork_rng([]):
            return Recurrent(self.configs[index][0], case.width, case.hidden, **given)

    def weights(self, index: int) -> dict[str, Tensor]:
        """What the layer computes with, by name; without what was taken away."""
        found = {name: getattr(self.layers[index], name) for name in self.names(index)}
        return {name: weight for name, weight in found.items() if weight is not None}


def error_of(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except Finding:
        raise
    except (Exception, SystemError) as error:
        return None, error


class Run:
    """One call: what is given, the layer's results, and what they should be."""

    def __init__(self, bench: Bench, call: Call) -> None:
        self.bench, self.call, self.case = bench, call, bench.case
        self.index = int(call.other)
        self.layer = bench.layers[self.index]
        random = torch.Generator().manual_seed(int(torch.randint(1 << 60, (), generator=bench.random)))
        B, T = call.batch, max(1, call.steps)
        self.packed = call.layout.startswith("packed") and B > 0
        self.single = call.layout == "single"
        if self.single:
            B = 1
        case = self.case
        places = case.layers * (2 if case.bidirectional else 1)
        shape = (T, case.width) if self.single else (B, T, case.width) if case.batch_first else (T, B, case.width)
        x = torch.randn(shape, generator=random, dtype=torch.float64)
        scale = {"zero": 0.0, "large": 30.0, "tiny": 1e-39}.get(call.values, 1.0)
        x = x * scale
        if call.values in ("nan", "inf", "-inf") and x.numel():
            x.view(-1)[int(torch.randint(x.numel(), (), generator=random))] = float(call.values)
        names = self.layer.spec.states
        shape = (places, case.hidden) if self.single else (places, B, case.hidden)
        states = [torch.randn(shape, generator=random, dtype=torch.float64) for _ in names] if call.states else []
        lengths = torch.randint(1, T + 1, (B,), generator=random).tolist()
        if call.layout == "packed_sorted":
            lengths.sort(reverse=True)
        if call.lengths == "full":
            lengths = [T] * B
        self.lengths = lengths if self.packed or (call.lengths and not self.single) else None
        noisy = call.training and self.layer.gates.noise_probability > 0
        self.noise: list[Tensor | None] | None = None
        if (call.noise and call.noise != "none") or noisy:
            rows = self.layer.spec.rows
            steps = max(lengths) if self.packed else T
            self.noise = [
                torch.randn((steps, B, rows), generator=random, dtype=torch.float64).to(bench.dtype).double()
                for _ in range(places)
            ]
        elif call.noise == "none":
            self.noise = [None] * places
        round_to = torch.float32 if bench.dtype == torch.float64 else bench.dtype
        self.x, self.states = x.to(round_to).double(), [s.to(round_to).double() for s in states]
        self.probe_seed = int(torch.randint(1 << 60, (), generator=random))
        self.steps, self.batch = T, B

    # What goes in

    def inputs(self, dtype: torch.dtype, exact: bool) -> tuple[dict[str, Tensor], Any, Any, dict[str, Any]]:
        """Leaves by name, then input, states and keywords; `exact` leaves subclasses away."""
        call, case = self.call, self.case
        grad = call.mode == "grad"
        leaves = {"x": self.x.to(dtype).clone()}
        leaves |= {f"state {k}": state.to(dtype).clone() for k, state in enumerate(self.states)}
        if case.device == "meta":
            leaves = {name: leaf.to("meta") for name, leaf in leaves.items()}
        for name, leaf in leaves.items():
            frozen = call.frozen in ("all", "x" if name == "x" else "states")
            leaf.requires_grad_(grad and not frozen)
        strides = "plain" if exact and call.strides in ("subclass", "two_tensor") else call.strides
        x: Any = restride(leaves["x"], strides)
        if strides == "two_tensor":  # it is made without a graph: a leaf itself
            leaves["x"] = x
        if self.packed:
            x = pack_padded_sequence(
                bare(x), torch.tensor(self.lengths), case.batch_first, enforce_sorted=call.layout == "packed_sorted"
            )
        states = [restride(leaves[f"state {k}"], call.state_strides) for k in range(len(self.states))]
        hx = None if not states else tuple(states) if len(states) > 1 else states[0]
        keywords: dict[str, Any] = {}
        if self.lengths is not None and not self.packed:
            keywords["lengths"] = self._lengths()
        if call.gates:
            keywords["return_gates"] = True if call.gates == "all" else (self.layer.spec.gates[0].name,)
        if self.noise is not None:
            keywords["noise"] = [self._noise(entry, dtype) for entry in self.noise]
        if call.wrong:
            x, hx = self._spoil(x, hx, keywords, dtype)
        return leaves, x, hx, keywords

    def _lengths(self) -> Any:
        given, how = self.lengths, self.call.lengths
        assert given is not None
        if how in ("int64", "int32", "int16", "uint8"):
            return torch.tensor(given, dtype=getattr(torch, how))
        if how == "strided":
            return torch.tensor([[n, 99] for n in given], dtype=torch.int32).reshape(-1, 2)[:, 0]
        return tuple(given) if how == "tuple" else list(given)

    def _noise(self, entry: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if entry is None:
            return None
        if self.call.noise == "drawn64":
            return entry if dtype != torch.float64 else entry.clone()
        entry = entry.to(dtype)
        entry = entry.to(self.case.device)
        return restride(entry, "strided") if self.call.noise == "drawn_strided" else entry

    def _spoil(self, x: Any, hx: Any, keywords: dict[str, Any], dtype: torch.dtype) -> tuple[Any, Any]:
        wrong = self.call.wrong
        kind, _, rest = wrong.partition("_")
        if kind in ("lengths",):
            keywords["lengths"] = self._wrong_lengths(rest)
        elif kind == "noise" and keywords.get("noise"):
            noise = keywords["noise"]
            keywords["noise"] = {
                "count": noise + noise,
                "shape": [entry[..., :-1] for entry in noise],
                "meta": [entry.to("meta") for entry in noise],
                "dtype": [entry.to(torch.int32) for entry in noise],
                "type": [entry.tolist() for entry in noise],
            }[rest]
        elif wrong == "gate_name":
            keywords["return_gates"] = ("nothing",)
        elif kind == "hx" and hx is not None:
            first = hx[0] if isinstance(hx, tuple) else hx
            foreign = torch.bfloat16 if self.bench.dtype == torch.float16 else torch.float16
            bad: Any = {
                "shape": lambda: first[..., :-1], "count": lambda: (first,) * 3, "dtype": lambda: first.to(foreign),
                "type": lambda: first.tolist(), "meta": lambda: first.detach().to("meta"),
                "sparse": lambda: first.detach().to_sparse(),
            }[rest]()  # fmt: skip
            hx = bad if rest == "count" else (bad, *hx[1:]) if isinstance(hx, tuple) else bad
        elif isinstance(x, Tensor):
            bad_x: Any = {
                "ndim1": lambda: x.reshape(-1), "ndim4": lambda: x[None, None], "width": lambda: x[..., :-1],
                "dtype": lambda: x.to(torch.float64 if dtype != torch.float64 else torch.float32),
                "int": lambda: x.nan_to_num().to(torch.int64), "complex": lambda: x.to(torch.complex64),
                "no_steps": lambda: x[:, :0] if self.case.batch_first and x.dim() == 3 else x[:0],
                "x_meta": lambda: x.detach().to("meta"), "x_sparse": lambda: x.detach().to_sparse(),
                "x_mkldnn": lambda: x.detach().float().to_mkldnn(),
                "x_nested": lambda: torch.nested.nested_tensor(list(x.detach())),
                "x_list": lambda: x.tolist(), "x_none": lambda: None, "x_numpy": lambda: x.detach().float().numpy(),
                "x_quantised": lambda: torch.quantize_per_tensor(x.detach().float(), 0.1, 0, torch.qint8),
            }.get(wrong, lambda: x)()  # fmt: skip
            x = bad_x
        return x, hx

    def _wrong_lengths(self, rest: str) -> Any:
        T, B = self.steps, max(1, self.batch)
        return {
            "zero": [0] + [T] * (B - 1), "long": [T + 1] + [1] * (B - 1), "negative": [-1] * B, "count": [1] * (B + 1),
            "float": [1.0] * B, "bool": torch.ones(B, dtype=torch.bool), "huge": torch.tensor([2**40] * B),
            "single": 1, "packed": [1] * B,
        }[rest]  # fmt: skip

    # What comes out

    def weights(self) -> dict[str, Tensor]:
        """What the layer computed with; torch.func leaves its own tensors behind where a hook computes a weight: once more."""
        if self.call.wrap in ("func_grad", "jacrev"):
            with torch.enable_grad() if self.call.mode == "grad" else torch.no_grad():
                for hook in self.layer._forward_pre_hooks.values():
                    hook(self.layer, ())
        return self.bench.weights(self.index)

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
        found = torch.autograd.grad(
            [values[name] for name in probes],
            list(wanted.values()),
            list(probes.values()),
            allow_unused=True,
            **options,
        )
        return {
            f"gradient of {name}": torch.zeros_like(bare(leaf)) if g is None else bare(g)
            for (name, leaf), g in zip(wanted.items(), found, strict=True)
        }

    def expected(self, dtype: torch.dtype | None, weights: dict[str, Tensor]) -> Values:
        """By the reference: in float64, or (dtype None) in the layer's own types and under the same autocast."""
        call, same = self.call, dtype is None
        own = self.bench.dtype if dtype is None else dtype
        reference = self.bench.reference(self.index, own).train(call.training)
        given, rounding = {}, torch.Generator().manual_seed(self.probe_seed)
        for name, weight in weights.items():
            weight = bare(weight.detach())
            if (
                same and weight.dtype == torch.float64
            ):  # rounded otherwise: a right answer may be off by what that changes
                shift = torch.finfo(weight.dtype).eps * torch.randn(weight.shape, generator=rounding)
                weight = weight * (1 + shift.to(weight))
            given[name] = (weight.clone() if same else weight.to(own)).requires_grad_(call.mode == "grad")
        for name in set(dict(reference.named_parameters())) - set(given):
            setattr(reference, name, None)
        with ExitStack() as stack:
            if call.autocast and same:
                stack.enter_context(torch.autocast("cpu", getattr(torch, call.autocast)))
            stack.enter_context(torch.enable_grad() if call.mode == "grad" else torch.no_grad())
            leaves, x, hx, keywords = self.inputs(own, exact=True)
            values = self.read(torch.func.functional_call(reference, given, (x, hx), keywords))
        found = {name: value.detach() for name, value in values.items()}
        if call.mode == "grad":
            found |= self.gradients(values, leaves | given)
        return found

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
        special = getattr(self, f"_{wrap}", None)
        if special is not None:
            values = special(layer, x, hx, keywords, leaves)
        else:
            with context(wrap, layer):
                values = self.read(self.callable(wrap, layer, x, hx, keywords)(x, hx, **keywords))
                values |= self._own_gradients(values, leaves)
        if before is not None and not equal(x.detach(), before):
            raise Finding("input changed", wrap)
        return {name: bare(value.detach()) for name, value in values.items()}

    def callable(self, wrap: str, layer: nn.Module, x: Any, hx: Any, keywords: Any) -> Callable[..., Any]:
        if wrap == "functional":
            given = dict(layer.named_parameters())
            return lambda x, hx, **kw: torch.func.functional_call(layer, given, (x, hx), kw)
        if wrap in ("checkpoint", "reentrant"):
            again = wrap == "reentrant"
            return lambda x, hx, **kw: checkpoint(lambda x, hx: layer(x, hx, **kw), x, hx, use_reentrant=again)
        if wrap.startswith("compile"):
            torch._dynamo.config.recompile_limit = 64
            torch._functorch.config.donated_buffer = False  # gradients are asked for with retain_graph
            options = {"backend": "inductor" if wrap == "compile_inductor" else "aot_eager"}
            options |= {"fullgraph": wrap == "compile_full", "dynamic": True if wrap == "compile_dynamic" else None}
            cache = self.bench.__dict__.setdefault("compiled", {})
            key = (id(layer), wrap)
            if key not in cache:
                cache[key] = torch.compile(layer, **options)
            return cache[key]
        if wrap == "export":
            return torch.export.export(layer, (x, hx), keywords).module()
        return layer

    def _own_gradients(self, values: Values, leaves: dict[str, Tensor], **options: Any) -> Values:
        """Of the leaves and of the layer's own parameters."""
        if self.call.mode != "grad":
            return {}
        parameters = {f"parameter {name}": p for name, p in self.layer.named_parameters()}
        return self.gradients(values, leaves | parameters, retain_graph=True, **options)

    def expected_gradients(self, found: Values, weights: dict[str, Tensor]) -> Values:
        """Gradients of effective weights as those of the parameters behind them."""
        values = {
            n: v
            for n, v in found.items()
            if not n.startswith("gradient of weight") and not n.startswith("gradient of bias")
        }
        if self.call.mode != "grad":
            return values
        parameters = dict(self.layer.named_parameters())
        frozen = set()
        if self.call.frozen in ("weights", "all", "some"):
            frozen = {n for k, n in enumerate(parameters) if self.call.frozen != "some" or k % 2}
        wanted = {n: p for n, p in parameters.items() if p.requires_grad and n not in frozen}
        pairs = [
            (w, found[f"gradient of {n}"])
            for n, w in weights.items()
            if f"gradient of {n}" in found and w.requires_grad
        ]
        if not wanted or not pairs:
            return values
        with torch.enable_grad():
            gradients = torch.autograd.grad(
                [w for w, _ in pairs],
                list(wanted.values()),
                [g.to(w.dtype) for w, g in pairs],
                allow_unused=True,
                retain_graph=True,
            )
        return values | {
            f"gradient of parameter {n}": torch.zeros_like(bare(p.detach())) if g is None else bare(g).detach()
            for (n, p), g in zip(wanted.items(), gradients, strict=True)
        }

    # Wraps that are more than another callable

    def _twice_backward(self, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
        values = self.read(layer(x, hx, **keywords))
        first = self._own_gradients(values, leaves)
        with torch.no_grad():
            layer(x, hx, **keywords)
        second = self._own_gradients(values, leaves)
        for name, value in first.items():
            if not torch.allclose(second[name], value, rtol=1e-5, equal_nan=True):
                raise Finding("second backward differs", name)
        return values | second

    def _double_backward(self, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
        values = self.read(layer(x, hx, **keywords))
        gradients = self._own_gradients(values, leaves, create_graph=True)
        squares = [(g * g).sum() for g in gradients.values() if g.requires_grad]
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        if squares and wanted:
            second = torch.autograd.grad(sum(squares), wanted, allow_unused=True)
            values |= {f"second {k}": g for k, g in enumerate(second) if g is not None}
        return {n: v for n, v in (values | gradients).items() if not n.startswith("second")}

    def _func_grad(self, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
        given = {n: p.detach() for n, p in layer.named_parameters() if p.requires_grad}

        def loss(weights: Any) -> Any:
            values = self.read(torch.func.functional_call(layer, weights, (x, hx), keywords))
            random = torch.Generator().manual_seed(self.probe_seed)
            total = 0
            for value in values.values():
                total = (
                    total
                    + (value * torch.randn(value.shape, generator=random, dtype=torch.float64).to(value.dtype)).sum()
                )
            return total, values

        if self.call.mode == "inference" or self.call.loss != "probe":
            return self.read(layer(x, hx, **keywords))
        gradients, values = torch.func.grad(loss, has_aux=True)(given)
        found = dict(values)
        if self.call.mode == "grad":
            found |= {f"gradient of parameter {n}": g for n, g in gradients.items()}
        return found

    _jacrev = _func_grad

    def _vmap(self, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any, dim: int = 0) -> Values:
        if not isinstance(x, Tensor):
            return self.read(layer(x, hx, **keywords))
        both = torch.stack((x * 0.5, x), dim)

        def one(x: Tensor) -> Any:
            return self.read(layer(x, hx, **keywords))

        values = {n: v[1] for n, v in torch.vmap(one, in_dims=dim)(both).items()}
        return values | self._own_gradients(values, leaves)

    def _vmap_in(self, *arguments: Any) -> Values:
        return self._vmap(*arguments, dim=-1)

    def _jvp(self, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
        if not isinstance(x, Tensor) or self.call.mode == "inference":
            return self.read(layer(x, hx, **keywords))
        values, _ = torch.func.jvp(lambda x: self.read(layer(x, hx, **keywords)), (x,), (torch.ones_like(x),))
        return values | self._own_gradients(values, leaves)

    def _trace(self, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
        if not isinstance(x, Tensor) or keywords:
            return self.read(layer(x, hx, **keywords))
        time = 1 if self.case.batch_first and x.dim() == 3 else 0
        longer = torch.cat((x, x), time) if self.probe_seed % 2 else x
        traced = torch.jit.trace(layer, (longer,) if hx is None else (longer, hx), check_trace=False)
        return self.read(traced(x) if hx is None else traced(x, hx))

    def _threads(self, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any, change: bool = False) -> Values:
        found: list[Any] = []
        autocast = self.call.autocast

        def work() -> None:
            try:
                with torch.no_grad(), torch.autocast("cpu", getattr(torch, autocast)) if autocast else nullcontext():
                    for _ in range(30):
                        found.append(self.read(layer(x, hx, **keywords)))
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
            one.join(20)
            if one.is_alive():
                raise Finding("hang", "a thread that infers does not end")
        values = self.read(layer(x, hx, **keywords))
        for entry in found:
            if isinstance(entry, Exception):
                raise entry
            for name, value in entry.items():
                if not equal(value, values[name]) and not close(value, values[name]):
                    raise Finding("threads differ", name)
        return values

    def _threads_change(self, *arguments: Any) -> Values:
        return self._threads(*arguments, change=True)

    def _data_parallel_threads(self, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any) -> Values:
        failed: list[Exception] = []

        def work() -> None:
            try:
                for _ in range(3):
                    with torch.enable_grad():
                        values = self.read(layer(x, hx, **keywords))
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
        return self.read(layer(x, hx, **keywords))

    def _fork(self, layer: Any, x: Any, hx: Any, keywords: Any, leaves: Any, busy: bool = False) -> Values:
        values = self.read(layer(x, hx, **keywords))
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
            self._forked(layer, x, hx, keywords, values)
        stop.set()
        for one in team:
            one.join(20)
        return values

    def _fork_busy(self, *arguments: Any) -> Values:
        return self._fork(*arguments, busy=True)

    def _forked(self, layer: Any, x: Any, hx: Any, keywords: Any, values: Values) -> None:
        before = {
            name: bare(value.detach()).numpy(force=True).tobytes() if value.dtype != torch.bfloat16 else b""
            for name, value in values.items()
        }
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                torch.set_num_threads(1)  # OpenMP's threads are gone: torch itself would wait for them
                found = self.read(layer(x, hx, **keywords))
                same = all(close(found[n], v) for n, v in values.items())
                os.write(writer, b"right" if same and before else b"wrong")
            except BaseException as error:
                os.write(writer, where(error).encode()[:400])
            os._exit(0)
        os.close(writer)
        ready, _, _ = select.select([reader], [], [], 20)
        said = os.read(reader, 1000) if ready else b"hang"
        os.close(reader)
        if not ready:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if said != b"right":
            raise Finding("forked child", f"{said.decode() or 'died'} (status {status})")


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


def equal(a: Tensor, b: Tensor) -> bool:
    """The same shape and values, NaN equal to NaN."""
    a, b = bare(a.detach()), bare(b.detach())
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.is_meta or bool(((a == b) | ((a != a) & (b != b))).all())


def close(a: Tensor, b: Tensor) -> bool:
    """Nearly the same values, NaN equal to NaN."""
    return torch.allclose(bare(a.detach()), bare(b.detach()), 1e-3, 1e-4, equal_nan=True)


def precision(call_autocast: str, dtype: torch.dtype) -> float:
    """Units in the last place of the largest value that an error may have, as a number."""
    types = [dtype] + ([getattr(torch, call_autocast)] if call_autocast and dtype != torch.float64 else [])
    eps = max(torch.finfo(kind).eps for kind in types)
    return 1e7 * eps if eps < 1e-12 else 64 * eps if eps < 1e-5 else 6 * eps


def compare(
    found: Values, exact: Values, same: Values, floor: float, ragged: bool = False, whole_rows: bool = False
) -> None:
    """Raises Finding where `found` is not as near to `exact` as `same` allows; `whole_rows`: a NaN may reach its whole row."""
    if found.keys() != exact.keys():
        raise Finding("wrong names", f"{sorted(found.keys() ^ exact.keys())}")
    sizes = [
        float(v.nan_to_num(0, 0, 0).abs().max())
        for n, v in exact.items()
        if n.startswith("gradient") and v.numel() and not v.is_meta
    ]
    largest = max(sizes, default=0.0)
    for name, value in exact.items():
        mine, theirs = found[name], same[name]
        gate = name != "output" and not name.startswith(
            ("final", "gradient", "state", "loss", "logits")
        )  # its type may be wider
        if mine.shape != value.shape or (mine.dtype != theirs.dtype and not gate):
            raise Finding(
                "wrong shape", f"{name}: {mine.dtype} {list(mine.shape)}, not {theirs.dtype} {list(theirs.shape)}"
            )
        if not value.numel() or mine.is_meta:
            continue
        mine, theirs = mine.double(), theirs.double()
        finite = value.isfinite() & theirs.isfinite()
        gradient = name.startswith("gradient")
        bad = (mine.isfinite() != theirs.isfinite()) & (mine.isfinite() != value.isfinite())
        if whole_rows and not gradient:
            bad &= ~(mine.isnan() & theirs.isnan().any(-1, keepdim=True))
        if gradient and ragged:  # the reference's masks multiply NaN by 0
            bad &= ~mine.isfinite()
        if bad.any():
            at = bad.nonzero()[0].tolist()
            raise Finding(
                "gradient not finite elsewhere" if gradient else "not finite elsewhere",
                f"{name} {at}: {float(mine[tuple(at)])}, not {float(theirs[tuple(at)])}; {int(bad.sum())} of {bad.numel()}",
            )
        nan = ~gradient & (mine.isnan() != theirs.isnan()) & (mine.isnan() != value.isnan()) & ~finite
        if not gradient and nan.any():
            raise Finding("NaN for infinity", name)
        finite &= mine.isfinite()
        if not finite.any():
            continue
        off = (mine - value).where(finite, 0).abs().max()
        allowed = 16 * float((theirs - value).where(finite, 0).abs().max())
        scale = float(value.where(finite, 0).abs().max())
        allowed += floor * max(scale, 1e-2 * largest if gradient else 0.0) + 1e-37
        if float(off) > allowed:
            raise Finding(
                "wrong gradient" if gradient else "wrong numbers",
                f"{name}: off by {float(off):.2g} of {scale:.2g}, allowed {allowed:.2g}",
            )


def refusal_is_fair(run: Run) -> bool:
    """Whether one of our errors is an answer to this call."""
    call, case = run.call, run.case
    unusual = ("double_backward", "jvp", "vmap", "vmap_in", "trace", "export", "func_grad", "jacrev")
    return bool(
        call.wrong
        or run.bench.lenient
        or call.wrap in unusual
        or run.layer.backend not in ("auto", "reference")
        or case.device == "meta"
        or call.strides in ("two_tensor", "subclass")
        or call.noise == "drawn64"
        or (call.autocast and run.bench.dtype in (torch.bfloat16, torch.float16))
    )


def run_call(bench: Bench, call: Call) -> None:
    """One call, checked."""
    run = Run(bench, replace(call, training=False) if bench.calm else call)
    call = run.call
    found, error = error_of(run.measured)
    weights, unreadable = error_of(lambda: run.weights())
    if unreadable is not None:  # a parametrisation that PyTorch cannot compute in this type
        if type(error) is not type(unreadable):
            raise Finding("another exception than of the weight", where(error or unreadable))
        return
    same, fault = error_of(lambda: run.expected(None, weights))
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
        raise Finding("accepted what the reference refuses", f"{call.wrong or call.wrap}: {where(fault)}")
    exact = run.expected(torch.float64, weights)
    exact, same = run.expected_gradients(exact, weights), run.expected_gradients(same, weights)
    only_values = (
        call.wrap in ("trace", "jvp", "func_grad", "jacrev", "vmap", "vmap_in", "threads", "threads_change")
        or bench.lenient
        or call.strides == "two_tensor"
    )
    if only_values:
        names = found.keys() & exact.keys() if call.mode == "grad" else found.keys()
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
    from .calls_change import change

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
