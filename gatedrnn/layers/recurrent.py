"""The abstract recurrent layer: torch.nn.LSTM's arguments, inputs, outputs and state-dict names around any cell.

Dimensions: T time, B batch, D input, H hidden, R rows of all gates, N units of one gate.
"""

import inspect
import math
import numbers
from abc import ABC
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from gatedrnn.cells import Cell, Params, Spec, State, Trace
from gatedrnn.cells.native import native
from gatedrnn.compiler.outside import mark
from gatedrnn.core.checks import like, nearest, one_of, positive_int, probability
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import Gates
from gatedrnn.layers.dropout import dropped_weight
from gatedrnn.layers.inputs import Batch, read_input, read_names, read_noise, read_state
from gatedrnn.layers.prepared import read_call
from gatedrnn.sequence import (
    Draw,
    Request,
    backend_for,
    choices,
    draw_noise,
    draw_seed,
    fold_noise,
    measure,
    plan_noise,
    scale,
)


class RecurrentBase(nn.Module, ABC):
    """Layers of one cell, with the interface of torch.nn.LSTM. Abstract: use `ONLSTM`, `LSTM`, … or `Recurrent(cell, …)`.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as torch.nn.LSTM.
        gates: temperature and noise, see `Gates`; None for the cell's default (that of G²-LSTM; none for other cells).
        weight_dropout: probability that an element of U is dropped in training, with one mask for each forward call; the
            parameters, the state dict and the optimiser never see the mask.
        backend: "auto" or a backend's name.
        proj_size: J > 0 projects h to J units (`weight_hr_l0` [J, H]), as torch.nn.LSTM does, for any cell whose equation
            uses h' only in U h'; 0 for no projection.
        options: options of the cell, such as `chunk_size=10`.

    Raises: ArgumentError: a size, a probability or an option is out of range, or the cell has no such option.
    """

    cell: Cell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        gates: Gates | None = None,
        weight_dropout: float = 0.0,
        backend: str = "auto",
        proj_size: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.input_size = positive_int(f"{owner}.input_size", input_size)
        self.hidden_size = positive_int(f"{owner}.hidden_size", hidden_size)
        self.num_layers = positive_int(f"{owner}.num_layers", num_layers)
        self.bias = _flag(f"{owner}.bias", bias)
        self.batch_first = _flag(f"{owner}.batch_first", batch_first)
        self.dropout = probability(f"{owner}.dropout", dropout)
        self.bidirectional = _flag(f"{owner}.bidirectional", bidirectional)
        self.weight_dropout = probability(f"{owner}.weight_dropout", weight_dropout)
        self.backend = one_of(f"{owner}.backend", backend, choices())
        self.gates = self.cell.gates if gates is None else gates
        if not isinstance(self.gates, Gates):
            raise ArgumentError(f"{owner}.gates", "must be a Gates", repr(gates), "Write gates=Gates(temperature=0.9)")
        self._check_options(options)
        self.options = {**self.cell.options, **options}
        try:
            spec: Any = self.cell.make_spec(self.hidden_size, **self.options)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # of something in it
            rule = "make_spec must take hidden_size and the cell's options"
            raise ArgumentError(f"cell {self.cell.name}", rule, str(error), "Mend make_spec") from error
        if not isinstance(spec, Spec):
            rule = "make_spec must return a Spec"
            raise ArgumentError(f"cell {self.cell.name}", rule, f"a {type(spec).__name__}", "Mend make_spec")
        # its own: kernels are known by it, and a graph of another equation is not taken for it
        self.spec = replace(spec, equation=mark(self.cell.step)).with_gates(self.gates)
        self.spec.perturbed(self.gates)
        self.proj_size = _projectable(owner, self.cell, self.spec, proj_size)
        if dtype is not None:
            _check_dtype(owner, dtype)
        self._register(device, dtype)
        self.reset_parameters()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy reads the equation anew, as a new layer does."""
        super().__setstate__(state)
        self.spec = replace(self.spec, equation=mark(self.cell.step))

    def reset_parameters(self) -> None:
        """Draw every parameter from U(−1/√H, 1/√H), in torch's order: the same seed gives torch.nn.LSTM's weights."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        starts = {extra.name: extra.start for extra in self.spec.extras if extra.start is not None}
        for name, parameter in self.named_parameters():
            own = name.removeprefix("parametrizations.").partition(".")[0]
            start = starts.get(own.rpartition("_l")[0])
            if start is None:
                nn.init.uniform_(parameter, -bound, bound)
            else:
                nn.init.constant_(parameter, start)

    def flatten_parameters(self) -> None:
        """Do nothing. The method exists for code that calls it on a torch.nn.LSTM."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """Parameters by layer and direction, as in torch.nn.LSTM."""
        return [[getattr(self, own) for own in names.values()] for names in self._names]

    @property
    def _flat_weights(self) -> list[Tensor]:
        return [weight for place in self.all_weights for weight in place]

    @property
    def mode(self) -> str:
        """The `mode` of the torch.nn layer that computes the same: LSTM, GRU, RNN_TANH or RNN_RELU.

        Raises: AttributeError: torch.nn has no such layer; `hasattr(layer, "mode")` is then false.
        """
        name = native(self.cell.step, self.spec) if self.gates == Gates() else None
        if name is None:
            raise AttributeError("mode")
        return name.upper()

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Any = None,
        *,
        lengths: Tensor | Sequence[int] | np.ndarray | None = None,
        return_gates: bool | Collection[str] | None = False,
        noise: list[Tensor | None] | None = None,
    ) -> Any:
        """Run the layers over a batch of sequences.

        Args:
            input: [T, B, D], [B, T, D] if `batch_first`, [T, D] unbatched, or a PackedSequence.
            hx: initial states, each [layers·directions, B, H] (no B if unbatched), h_0 [.., J] if projected: one tensor for
                cells whose only state is h, else a tuple of the states in order, as (h_0, c_0); None for zeros.
            lengths: number of valid steps in each row, integers [B] in 1…T, any order; output and gates are 0 beyond them.
            return_gates: also return the trace, of all gates or of the named ones; None is taken as False.
            noise: gate noise by layer and direction, as `sample_noise` draws it; None to draw it here in training.

        Returns: (output, states[, trace]). output [T, B, directions·H], or ·J (or as the input's layout); states as `hx`; trace:
            a list by layer and direction of {gate name: [T, B, N]}, batch second unless `batch_first`, in the batch's order.
        Raises: ArgumentError: a shape, type, length or number of states does not fit.
        """
        named = return_gates is not False and read_names(type(self).__name__, return_gates)
        try:
            call = None if lengths is not None or noise is not None or named else read_call(self, input, hx)
        except RuntimeError:  # a nested tensor has no shape to ask for; it is refused below
            call = None
        if call is not None and (prepared := call.prepared()) is not None:
            return call.run(prepared)
        owner = type(self).__name__
        batch = read_input(owner, input, lengths, self.input_size, self.batch_first, self._weight.dtype)
        states = read_state(owner, hx, self.spec.states, self._state_shapes(batch), batch)
        x_TBD, finals, traces = batch.x_TBD, [], []
        if noise is not None:
            like, shape = self._weight, (*x_TBD.shape[:2], self.spec.rows)
            given = map(batch.arrange, read_noise(owner, noise, len(states), shape, like.device))
            noise = [fold_noise(each, self.gates, self.training, like.dtype) for each in given]
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x_TBD = F.dropout(x_TBD, self.dropout, self.training)
            outputs = []
            for place in range(layer * self._directions, (layer + 1) * self._directions):
                perturbation = self._noise() if noise is None else noise[place]
                request = self.request(
                    place, x_TBD, states[place], noise=perturbation, lengths_B=batch.lengths_B, return_gates=named
                )
                measure(request, self.backend)
                result = backend_for(request, self.backend).run(request)
                outputs.append(result.output_TBH)
                finals.append(result.state)
                if named:
                    traces.append(self._named(named, result.trace or {}))
            x_TBD = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        # no views, so that `h_n.detach_()` works as with torch.nn.LSTM
        stacked = tuple(batch.restore_state(torch.stack(layers)) for layers in zip(*finals, strict=True))
        result = batch.restore(x_TBD), stacked if len(self.spec.states) > 1 else stacked[0]
        if not named:
            return result
        return *result, [{name: batch.restore_gate(gate) for name, gate in trace.items()} for trace in traces]

    def sample_noise(self, steps: int, batch: int, generator: torch.Generator | None = None) -> list[Tensor | None]:
        """Gate noise for `forward(noise=…)`: a list by layer and direction of [T, B, R], None without noise."""
        like, sizes = self._weight, (steps, batch)
        seeds = [draw_seed(like.device, generator) for _ in self._places()]
        return [draw_noise(self.spec, self.gates, *sizes, seed, like.dtype) for seed in seeds]

    def request(self, place: int, x_TBD: Tensor, state: State, **fields: Any) -> Request:
        """The request for one layer and direction (`place` counts both), with its temperature, and weight dropout drawn."""
        params = self.params(place)
        if self.training and self.weight_dropout:
            params.weight_hh = dropped_weight(params.weight_hh, self.weight_dropout)
        scale_R = scale(self.spec, self.gates, self.training, params.weight_hh)
        reverse = place % self._directions == 1
        return Request(self.cell, self.spec, params, x_TBD, state, scale_R, reverse=reverse, **fields)

    plain_request = request

    def params(self, place: int) -> Params:
        """The tensors of one layer and direction as they are now; `place` counts both."""
        held: dict[str, Any] = self._parameters  # asked first: a module's getattr takes longer than the look-up
        names = self._names[place].values()
        return self.as_params([getattr(self, own) if held.get(own) is None else held[own] for own in names])

    def as_params(self, weights: list[Any]) -> Params:
        """The tensors of one layer and direction, in order of registration."""
        extras = self.spec.extras
        if not extras and not self.proj_size:
            return Params(*weights)
        own, last = weights[: len(weights) - len(extras)], weights[len(weights) - len(extras) :]
        weight_hr = own.pop() if self.proj_size else None
        return Params(*own, weight_hr=weight_hr, extras={e.name: w for e, w in zip(extras, last, strict=True)})

    def _noise(self) -> Draw | None:
        """The noise of a layer and direction, still to be drawn; none in evaluation."""
        if not self.training or self.gates.noise_probability == 0.0:
            return None
        return plan_noise(self.spec, self.gates, draw_seed(self._weight.device))

    def _named(self, wanted: bool | tuple[str, ...], trace: Trace) -> Trace:
        """The trace, which must have every gate that was named."""
        missing = [name for name in wanted if name not in trace] if isinstance(wanted, tuple) else []
        if missing:
            owner = f"{type(self).__name__}.return_gates"
            known = ", ".join(each.name for each in (*self.spec.gates, *self.spec.derived))
            raise ArgumentError(
                owner, f"must name gates of the cell: {known}", missing[0], "Or pass True for all gates"
            )
        return trace

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _places(self) -> list[tuple[int, str]]:
        suffixes = ("", "_reverse")[: self._directions]
        return [(layer, suffix) for layer in range(self.num_layers) for suffix in suffixes]

    def _shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        rows = self.spec.rows
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, width), "weight_hh": (rows, self._output_size)}
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        return shapes | {extra.name: self.spec.extra_shape(extra) for extra in self.spec.extras}

    def _state_shapes(self, batch: Batch) -> list[tuple[int, int, int]]:
        sizes = [self._output_size] + [self.hidden_size] * (len(self.spec.states) - 1)
        return [(self.num_layers * self._directions, batch.size, size) for size in sizes]

    @property
    def _output_size(self) -> int:
        return self.proj_size or self.hidden_size

    def _check_options(self, options: dict[str, Any]) -> None:
        known = {*inspect.signature(type(self)).parameters, *self.cell.options} - {"options"}
        for name, value in options.items():
            if name not in self.cell.options:
                advice = " ".join(dict.fromkeys([nearest(name, known), nearest("", known)]))  # the nearest, then all
                owner, rule = f"{type(self).__name__}.{name}", f"is not an argument of {self.cell.title}"
                raise ArgumentError(owner, rule, repr(value), advice)
            like(f"{type(self).__name__}.{name}", value, self.cell.options[name])

    def _register(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        self._names: list[dict[str, str]] = []  # of the parameters, by layer and direction
        for layer, suffix in self._places():
            width = self.input_size if layer == 0 else self._output_size * self._directions
            shapes = self._shapes(width)
            self._names.append({name: f"{name}_l{layer}{suffix}" for name in shapes})
            for name, shape in shapes.items():
                parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(self._names[-1][name], parameter)

    @property
    def _weight(self) -> Tensor:
        weight: Any = self.weight_hh_l0  # a parameter, or what torch.func or a parametrisation put in its place
        return weight

    def extra_repr(self) -> str:
        """Sizes and whatever differs from its default, for repr."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        defaults |= {"proj_size": 0, "weight_dropout": 0.0, "backend": "auto"}
        parts += [f"{name}={getattr(self, name)!r}" for name, value in defaults.items() if getattr(self, name) != value]
        parts += [f"{name}={value!r}" for name, value in self.options.items() if value != self.cell.options.get(name)]
        if self.gates != self.cell.gates:
            parts.append(f"gates={self.gates}")
        return ", ".join(parts)


def _check_dtype(owner: str, dtype: Any) -> None:
    """Raise ArgumentError unless weights can be of `dtype`: real or complex, of two bytes or more."""
    try:
        kind = torch.empty(0, dtype=dtype, device="meta").dtype  # torch also takes Python's float
    except (TypeError, RuntimeError):
        kind = torch.bool
    if not (kind.is_floating_point or kind.is_complex) or kind.itemsize < 2:
        rule = "must be a floating-point type of 16 bits or more"
        raise ArgumentError(f"{owner}.dtype", rule, repr(dtype), "Give torch.float32, or leave it out")


def _flag(owner: str, value: Any) -> bool:
    """True or False, as 0 or 1 or NumPy's too: of text any would be true."""
    if not isinstance(value, numbers.Integral | np.bool_) or value not in (0, 1):
        raise ArgumentError(owner, "must be True or False", repr(value), "Give one of them")
    return bool(value)


def _projectable(owner: str, cell: Cell, spec: Spec, size: int) -> int:
    """The size of a projection, if the equation has h' in U h' alone."""
    if size == 0:
        return 0
    if positive_int(f"{owner}.proj_size", size) >= spec.hidden_size:
        raise ArgumentError(
            f"{owner}.proj_size",
            f"must be less than hidden_size={spec.hidden_size}",
            size,
            "Or give 0 for no projection",
        )
    nothing: Any = None  # stands for h' and U: whatever reads them fails
    meta: Any = {"device": "meta"}
    params = Params(nothing, nothing, extras={e.name: torch.empty(spec.extra_shape(e), **meta) for e in spec.extras})
    x_gates, h_gates = (torch.empty(1, rows, **meta) for rows in (spec.rows, spec.recurrent_rows))
    others = [torch.empty(1, spec.hidden_size, **meta)] * (len(spec.states) - 1)
    try:
        new, trace = cell.step(spec, params, x_gates, h_gates, (nothing, *others))
        failed = TypeError("h' itself is returned") if any(value is None for value in (*new, *trace.values())) else None
    except Exception as error:  # whatever somebody's step makes of nothing
        failed = error
    if failed:
        rule = "works only for a cell whose equation uses h' only in U h'"
        raise ArgumentError(f"{owner}.proj_size", rule, cell.title, "Leave it at 0") from failed
    return size
