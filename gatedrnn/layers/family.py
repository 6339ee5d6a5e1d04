"""The family: one final class a cell with torch.nn's signature, and `Recurrent` for any registered cell."""

import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import Parameter, Signature
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from gatedrnn.cells import CELLS, Cell
from gatedrnn.core.errors import ArgumentError, CheckpointError
from gatedrnn.gates import Gates
from gatedrnn.layers.recurrent import RecurrentBase

Device = torch.device | str | None
Layer = TypeVar("Layer", bound=type[RecurrentBase])


def _signed(layer: Layer) -> Layer:
    """`layer` whose constructor shows all arguments, its own, the base's and its cell's, and refuses any other."""
    init: Any = layer.__init__
    own, base = (dict(inspect.signature(given).parameters) for given in (init, RecurrentBase.__init__))
    cell: Cell | None = getattr(layer, "cell", None)
    options = cell.options if cell else {}
    shown = {n: Parameter(n, Parameter.KEYWORD_ONLY, default=v, annotation=type(v)) for n, v in options.items()}
    order = [(shown | base | own)[name] for name in dict.fromkeys([*own, *base, *shown])]
    rest = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    order = [p for p in order if p.kind not in rest or (cell is None and p.name == "options")]
    signature = Signature(sorted(order, key=lambda p: p.kind))

    @functools.wraps(init)
    def constructor(self: Any, *args: Any, **kwargs: Any) -> None:
        if cell:  # before Python misses `hidden_size` where `hiden_size` is given
            self._check_options({name: kwargs[name] for name in kwargs.keys() - signature.parameters.keys()})
        init(self, *args, **kwargs)

    constructor.__signature__ = signature  # type: ignore[attr-defined]
    layer.__init__ = constructor  # type: ignore[method-assign]
    return layer


@final
@_signed
class RNN(RecurrentBase):
    """Vanilla RNN, h = φ(W x + U h' + b); a drop-in for torch.nn.RNN, whose fourth positional is `nonlinearity` too.

    Args: nonlinearity: φ, "tanh", "relu" or "sigmoid". The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["rnn"]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        shared = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        super().__init__(*shared, nonlinearity=nonlinearity, **kwargs)


@final
@_signed
class LSTM(RecurrentBase):
    """LSTM, c = f∘c' + i∘g, h = o∘tanh(c); a drop-in for torch.nn.LSTM. Arguments, shapes and errors: `RecurrentBase`."""

    cell = CELLS["lstm"]


@final
@_signed
class PeepholeLSTM(RecurrentBase):
    """LSTM whose gates also read the cell state: i and f the old one, o the new one.

    Args: peephole: "diagonal" (Gers & Schmidhuber 2000; `weight_ch_l0` [3H], rows i f o), the default, or "full" ([3H, H],
        textbooks). The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["peephole"]


@final
@_signed
class CoupledLSTM(RecurrentBase):
    """LSTM with i = 1 − f (rows f g o). Arguments, shapes and errors: `RecurrentBase`."""

    cell = CELLS["coupled"]


@final
@_signed
class GRU(RecurrentBase):
    """GRU; a drop-in for torch.nn.GRU.

    Args: reset_after: True, the default, is torch's form, n = tanh(W x + r∘(U h')), h = (1 − z)∘n + z∘h'; False the
        textbook's, n = tanh(W x + U (r∘h')), h = (1 − z)∘h' + z∘n. The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["gru"]


@final
@_signed
class ONLSTM(RecurrentBase):
    """ON-LSTM (Shen, Tan, Sordoni & Courville 2019): master gates by cumax order the cell state.

    Low units are short-lived, high units keep long-range information. Rows: i f g o (H each), master_input, master_forget
    (D_m = H / chunk_size each).

    Args:
        chunk_size: C, consecutive units that share a master gate; divides hidden_size; 1 by default.
        split_points: "paper", the default (the last chunk never leaves its initial state, because cumax ends at 1), or
            "free" (D_m + 1 split points, the last one beyond every unit).
        The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["onlstm"]

    @classmethod
    def load_ordered_neurons(
        cls, state_dict: Mapping[str, Tensor], layer: int, *, dropconnect: float = 0.0
    ) -> "ONLSTM":
        """A one-layer ONLSTM with the weights of layer `layer` (from 0) of the authors' published model.

        Args:
            state_dict: of their `ONLSTMStack`, or of a model that holds one under any prefix (`rnn.cells.0.ih.0.weight`).
            layer: which cell; sizes and chunk size are read off its shapes.
            dropconnect: the rate it was trained with; their code evaluates with (1 − rate)·U, which is folded in here.

        Raises: CheckpointError: the layer is missing or its shapes fit no ON-LSTM.
        """
        found = {
            part: _find(state_dict, f"cells.{layer}.{part}", "ONLSTM.load_ordered_neurons")
            for part in ("ih.0.weight", "ih.0.bias", "hh.weight", "hh.bias")
        }
        rows, hidden = found["hh.weight"].shape
        masters = rows - 4 * hidden
        if masters <= 0 or masters % 2 or hidden % (masters // 2):
            got = f"hh.weight {list(found['hh.weight'].shape)}"
            rule, advice = "rows must be 4·H + 2·D_m with D_m dividing H", "Is it an ON-LSTM's?"
            raise CheckpointError("ONLSTM.load_ordered_neurons", rule, got, advice)
        chunks = masters // 2
        weight = found["ih.0.weight"]
        module = cls(weight.shape[1], hidden, chunk_size=hidden // chunks, dtype=weight.dtype, device=weight.device)
        sizes = [chunks, chunks, hidden, hidden, hidden, hidden]

        def reorder(value: Tensor) -> Tensor:
            i_master, f_master, o, g, i, f = value.split(sizes)
            return torch.cat([i, f, g, o, i_master, f_master])

        names = {"weight_ih_l0": "ih.0.weight", "bias_ih_l0": "ih.0.bias"}
        names |= {"weight_hh_l0": "hh.weight", "bias_hh_l0": "hh.bias"}
        with _fitting("ONLSTM.load_ordered_neurons"):
            ours = {name: reorder(found[theirs]) for name, theirs in names.items()}
            ours["weight_hh_l0"] = ours["weight_hh_l0"] * (1.0 - dropconnect)
            module.load_state_dict(ours)
        return module


@final
@_signed
class G2LSTM(RecurrentBase):
    """G²-LSTM (Li et al. 2018): an LSTM whose input and forget gates are pushed to 0 and 1 by Gumbel noise in training.

    Args:
        temperature: τ in training, 0.9 by default. In evaluation `gates.evaluation_temperature`, 1 as in the authors' code.
        noise_probability: p, the share of gates perturbed at each step of training, 0.2 by default.
        gates: a whole `Gates` instead: all of its fields count, those left at their defaults too. An argument beside it must
            say the same.
        The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["g2lstm"]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *args: Any,
        temperature: float | None = None,
        noise_probability: float | None = None,
        gates: Gates | None = None,
        **kwargs: Any,
    ) -> None:
        asked = {"temperature": temperature, "noise_probability": noise_probability}
        asked = {name: value for name, value in asked.items() if value is not None}
        if gates is None:
            gates = replace(self.cell.gates, **asked)
        elif isinstance(gates, Gates):
            for name, value in asked.items():
                if value != getattr(gates, name):
                    got = f"{name}={value}, gates={gates}"
                    advice = f"Write {name} into the Gates alone"
                    raise ArgumentError(f"G2LSTM.{name}", f"must equal gates.{name} where both are given", got, advice)
        super().__init__(input_size, hidden_size, *args, gates=gates, **kwargs)

    @classmethod
    def load_g2(cls, state_dict: Mapping[str, Tensor]) -> "G2LSTM":
        """A G2LSTM with the weights of the authors' `g2_lstm.LSTM` (one or more layers `cell_0`, `cell_1`, …).

        Their weights are transposed, ordered f i o g, with one bias, which becomes bias_ih (bias_hh is 0).

        Args: state_dict: of their LSTM, or of a model that holds exactly one under any prefix.
        Raises: CheckpointError: no layer is found or the shapes do not fit.
        """
        found = (re.search(r"(?:^|\.)cell_(\d+)\.weight_ih$", key) for key in state_dict)
        layers = sorted({int(match[1]) for match in found if match})
        if not layers or layers != list(range(len(layers))):
            raise CheckpointError(
                "G2LSTM.load_g2", "must hold cell_0.weight_ih and so on", f"layers {layers}", "Is it a G²-LSTM's?"
            )
        first = _find(state_dict, "cell_0.weight_ih", "G2LSTM.load_g2")
        if first.shape[1] % 4:
            raise CheckpointError(
                "G2LSTM.load_g2", "weight_ih must have 4·H columns", list(first.shape), "Is it a G²-LSTM's?"
            )
        bias = any(key.endswith("cell_0.bias") for key in state_dict)
        module = cls(
            first.shape[0], first.shape[1] // 4, len(layers), bias=bias, dtype=first.dtype, device=first.device
        )

        def reorder(value: Tensor) -> Tensor:
            f, i, o, g = value.chunk(4)
            return torch.cat([i, f, g, o])

        ours = {}
        with _fitting("G2LSTM.load_g2"):
            for layer in layers:
                for name in ("weight_ih", "weight_hh"):
                    value = _find(state_dict, f"cell_{layer}.{name}", "G2LSTM.load_g2")
                    ours[f"{name}_l{layer}"] = reorder(value.t())
                if bias:
                    value = reorder(_find(state_dict, f"cell_{layer}.bias", "G2LSTM.load_g2"))
                    ours |= {f"bias_ih_l{layer}": value, f"bias_hh_l{layer}": torch.zeros_like(value)}
            module.load_state_dict(ours)
        return module


@final
@_signed
class Recurrent(RecurrentBase):
    """Layers of any registered cell, by name: what the models use, and the way to a cell of your own.

    Args:
        cell: a name in `CELLS`, or a `Cell`.
        The rest, shapes and errors: `RecurrentBase`.
    """

    def __init__(self, cell: str | Cell, input_size: int, hidden_size: int, *args: Any, **kwargs: Any) -> None:
        self.cell = CELLS[cell] if isinstance(cell, str) else cell
        super().__init__(input_size, hidden_size, *args, **kwargs)


@contextmanager
def _fitting(owner: str) -> Iterator[None]:
    """torch's complaint about shapes as ours."""
    try:
        yield
    except CheckpointError:
        raise
    except RuntimeError as error:
        got = " ".join(str(error).split())
        raise CheckpointError(
            owner, "shapes must fit one another", got, "Check which layer and model they are of"
        ) from error


def _find(state_dict: Mapping[str, Tensor], ending: str, owner: str) -> Tensor:
    keys = [key for key in state_dict if key == ending or key.endswith(f".{ending}")]
    if len(keys) != 1:
        got = f"{len(keys)} of them" if keys else f"keys such as {', '.join(sorted(state_dict)[:3]) or 'none'}"
        raise CheckpointError(owner, f"must hold one key that ends in {ending!r}", got, "Check the layer's number")
    return state_dict[keys[0]]
