"""What goes into one call of a layer."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from .calls import Call
from .calls_bench import Bench
from .calls_tensors import bare, restride


class Given:
    """Input, states and keywords of one call, drawn in float64 and given in any type."""

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
        plain = exact or (self.packed and call.strides == "two_tensor")  # which cannot be packed
        strides = "plain" if plain and call.strides in ("subclass", "two_tensor") else call.strides
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
            taken = (self.bench.dtype, self.call.autocast and getattr(torch, self.call.autocast))
            foreign = next(kind for kind in (torch.float16, torch.bfloat16, torch.float64) if kind not in taken)
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
                "x_quantised": lambda: x if x.is_meta else torch.quantize_per_tensor(x.detach().float(), 0.1, 0, torch.qint8),
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
