"""The family: one final class a cell with torch.nn's signature, and `Recurrent` for any registered cell.

Each signature is written out, for `help()`, completion and type checkers; every class passes all of it on.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from gatedrnn.cells import CELLS, Cell
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import Gates
from gatedrnn.layers import published
from gatedrnn.layers.inputs import shown
from gatedrnn.layers.recurrent import RecurrentBase

Device = torch.device | str | None
Init = TypeVar("Init", bound=Callable[..., None])


def _checks_keywords(init: Init) -> Init:
    """Report an unknown keyword, with the nearest known one, before Python reports a missing argument."""
    known = inspect.signature(init).parameters

    @functools.wraps(init)
    def constructor(self: Any, *args: Any, **kwargs: Any) -> None:
        self._check_options({name: value for name, value in kwargs.items() if name not in known})
        init(self, *args, **kwargs)

    return constructor  # type: ignore[return-value]


@final
class RNN(RecurrentBase):
    """Vanilla RNN, h = φ(W x + U h' + b); replaces torch.nn.RNN; the fourth argument is `nonlinearity`, as there.

    Args: nonlinearity: φ, "tanh", "relu" or "sigmoid". The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["rnn"]

    @_checks_keywords
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None, *,
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto", proj_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend, proj_size=proj_size,
            nonlinearity=nonlinearity,
        )  # fmt: skip


@final
class LSTM(RecurrentBase):
    """LSTM, c = f∘c' + i∘g, h = o∘tanh(c); replaces torch.nn.LSTM.

    Args: input_cap: whether the input gate is at most 1 − f, i = min(σ(·), 1 − f) (Melis, Dyer & Blunsom 2018); gates that are
        returned are the capped ones. False, the default, is torch's equation. The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["lstm"]

    @_checks_keywords
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        proj_size: int = 0, device: Device = None, dtype: torch.dtype | None = None, *,
        input_cap: bool = False,
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend, proj_size=proj_size,
            input_cap=input_cap,
        )  # fmt: skip


@final
class PeepholeLSTM(RecurrentBase):
    """LSTM whose gates also read the cell state: i and f read the old one, o reads the new one.

    Args: peephole: "diagonal" (Gers & Schmidhuber 2000; `weight_ch_l0` [3H], rows i f o), the default, or "full" ([3H, H],
        textbooks). The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["peephole"]

    @_checks_keywords
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None, *,
        peephole: str = "diagonal",
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto", proj_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend, proj_size=proj_size,
            peephole=peephole,
        )  # fmt: skip


@final
class CoupledLSTM(RecurrentBase):
    """LSTM with i = 1 − f (rows f g o). Arguments, shapes and errors: `RecurrentBase`."""

    cell = CELLS["coupled"]

    @_checks_keywords
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None, *,
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto", proj_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend, proj_size=proj_size,
        )  # fmt: skip


@final
class GRU(RecurrentBase):
    """GRU; replaces torch.nn.GRU.

    Args: reset_after: True, the default, is torch's form, n = tanh(W x + r∘(U h')), h = (1 − z)∘n + z∘h'; False the
        textbook's, n = tanh(W x + U (r∘h')), h = (1 − z)∘h' + z∘n. The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["gru"]

    @_checks_keywords
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None, *,
        reset_after: bool = True,
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend,
            reset_after=reset_after,
        )  # fmt: skip


@final
class MGU(RecurrentBase):
    """Minimal gated unit (Zhou, Wu, Zhang & Zhou 2016): one gate f does the work of the forget, reset and input gates (rows f n).

    Arguments, shapes and errors: `RecurrentBase`; no `proj_size`.
    """

    cell = CELLS["mgu"]

    @_checks_keywords
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None, *,
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend,
        )  # fmt: skip


@final
class LayerNormLSTM(RecurrentBase):
    """LSTM whose W x, U h' and cell state are normalised over their row (Ba, Kiros & Hinton 2016).

    Its state dict also has gains and shifts (`gain_ih_l0`, `shift_ih_l0`, …). Arguments, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["layernorm"]

    @_checks_keywords
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None, *,
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto", proj_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend, proj_size=proj_size,
        )  # fmt: skip


@final
class SLSTM(RecurrentBase):
    """sLSTM (Beck et al. 2024, of the xLSTM): exponential gates; states h, c, n and m, without heads.

    Arguments, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["slstm"]

    @_checks_keywords
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None, *,
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto", proj_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend, proj_size=proj_size,
        )  # fmt: skip


@final
class ONLSTM(RecurrentBase):
    """ON-LSTM (Shen, Tan, Sordoni & Courville 2019): master gates by cumax order the cell state.

    Low units hold short-lived information, high units long-range information. Rows: i f g o (H each), master_input, master_forget
    (D_m = H / chunk_size each).

    Args:
        chunk_size: C, consecutive units that share a master gate; divides hidden_size; 1 by default.
        split_points: "paper", the default (the last chunk never leaves its initial state, because cumax ends at 1), or
            "free" (D_m + 1 split points, the last one beyond the last unit).
        The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["onlstm"]

    @_checks_keywords
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None, *,
        chunk_size: int = 1, split_points: str = "paper",
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto", proj_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend, proj_size=proj_size,
            chunk_size=chunk_size, split_points=split_points,
        )  # fmt: skip

    @classmethod
    def load_ordered_neurons(
        cls, state_dict: Mapping[str, Tensor], layer: int, *, dropconnect: float = 0.0
    ) -> "ONLSTM":
        """A one-layer ONLSTM with the weights of layer `layer` (from 0) of the authors' published model.

        Args:
            state_dict: of their `ONLSTMStack`, or of a model that holds one under any prefix (`rnn.cells.0.ih.0.weight`).
            layer: which cell; sizes and chunk size are read off its shapes.
            dropconnect: the rate it was trained with; their code evaluates with (1 − rate)·U, which is folded in here.

        Raises: CheckpointError: the layer is missing or its shapes fit no ON-LSTM. ArgumentError: dropconnect is no probability.
        """
        return published.ordered_neurons(cls, state_dict, layer, dropconnect)


@final
class G2LSTM(RecurrentBase):
    """G²-LSTM (Li et al. 2018): an LSTM whose input and forget gates are pushed to 0 and 1 by Gumbel noise in training.

    Args:
        temperature: τ in training, 0.9 by default. In evaluation `gates.evaluation_temperature`, 1 as in the authors' code.
        noise_probability: p, the share of gates perturbed at each step of training, 0.2 by default.
        gates: a complete `Gates` instead, including the fields left at their defaults. An argument that is also given must
            have the same value.
        input_cap: as for `LSTM`.
        The rest, shapes and errors: `RecurrentBase`.
    """

    cell = CELLS["g2lstm"]

    @_checks_keywords
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None, *,
        temperature: float | None = None, noise_probability: float | None = None, input_cap: bool = False,
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto", proj_size: int = 0,
    ) -> None:  # fmt: skip
        asked = {"temperature": temperature, "noise_probability": noise_probability}
        asked = {name: value for name, value in asked.items() if value is not None}
        if gates is None:
            gates = replace(self.cell.gates, **asked)
        elif isinstance(gates, Gates):
            for name, value in asked.items():
                if value != getattr(gates, name):
                    got = f"{name}={value}, gates={gates}"
                    advice = f"Set {name} only in the Gates"
                    raise ArgumentError(f"G2LSTM.{name}", f"must equal gates.{name} where both are given", got, advice)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend, proj_size=proj_size,
            input_cap=input_cap,
        )  # fmt: skip

    @classmethod
    def load_g2(cls, state_dict: Mapping[str, Tensor]) -> "G2LSTM":
        """A G2LSTM with the weights of the authors' `g2_lstm.LSTM` (one or more layers `cell_0`, `cell_1`, …).

        Their weights are transposed, ordered f i o g, with one bias, which becomes bias_ih (bias_hh is 0).

        Args: state_dict: of their LSTM, or of a model that holds exactly one under any prefix.
        Raises: CheckpointError: no layer is found or the shapes do not fit.
        """
        return published.g2(cls, state_dict)


@final
class Recurrent(RecurrentBase):
    """Layers of any registered cell, by name. The models use it; use it for cells of your own too.

    Args:
        cell: a name in `CELLS`, or a `Cell`.
        The rest, shapes and errors: `RecurrentBase`. ArgumentError too: no such cell.
    """

    def __init__(
        self, cell: str | Cell, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Device = None, dtype: torch.dtype | None = None, *,
        gates: Gates | None = None, weight_dropout: float = 0.0, backend: str = "auto", proj_size: int = 0,
        **options: Any,
    ) -> None:  # fmt: skip
        self.cell = CELLS[cell] if isinstance(cell, str) else cell
        if not isinstance(self.cell, Cell):
            raise ArgumentError(
                "Recurrent.cell", "must be a cell's name or a Cell", shown(cell), f"Known names: {', '.join(CELLS)}"
            )
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype,
            gates=gates, weight_dropout=weight_dropout, backend=backend, proj_size=proj_size, **options,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The cell's name, then as for every layer."""
        return f"{self.cell.name!r}, {super().extra_repr()}"
