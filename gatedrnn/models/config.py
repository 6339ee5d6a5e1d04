"""What a language model is made of."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from gatedrnn.cells import CELLS
from gatedrnn.core.checks import one_of, positive_int, probability
from gatedrnn.core.config import to_dict
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import Gates


@dataclass(frozen=True)
class LanguageModelConfig:
    """A recurrent language model.

    Args:
        vocabulary_size: V, set from the data.
        cell: the name of a registered cell, such as onlstm or lstm.
        embedding_size: width of a word's embedding.
        hidden_sizes: hidden units of each layer, first to last.
        tied: the decoder shares the embedding's weights; the last hidden size must be the embedding size.
        chunk_size: units that share a master gate (read by onlstm only).
        split_points: paper or free (read by onlstm only).
        peephole: diagonal or full (read by peephole only).
        reset_after: torch's GRU, or the textbook's if false (read by gru only).
        nonlinearity: tanh, relu or sigmoid (read by rnn only).
        gates: temperature and noise; null, or a key left out, for what belongs to the cell.
        embedding_dropout: probability that a word's whole embedding is dropped.
        input_dropout: locked, on the embedded input.
        hidden_dropout: locked, between layers.
        output_dropout: locked, on the last layer's output.
        weight_dropout: on the recurrent weights, one mask a window.

    Raises: ArgumentError: a value is out of range or is not read by the cell, or a tied decoder does not fit.
    """

    vocabulary_size: int | None = None
    cell: str = "onlstm"
    embedding_size: int = 300
    hidden_sizes: tuple[int, ...] = (300, 300)
    tied: bool = True
    chunk_size: int = 10
    split_points: str = "paper"
    peephole: str = "diagonal"
    reset_after: bool = True
    nonlinearity: str = "tanh"
    gates: Gates | None = None
    embedding_dropout: float = 0.0
    input_dropout: float = 0.2
    hidden_dropout: float = 0.2
    output_dropout: float = 0.3
    weight_dropout: float = 0.0

    def __post_init__(self) -> None:
        one_of("model.cell", self.cell, CELLS)
        if self.vocabulary_size is not None:
            positive_int("model.vocabulary_size", self.vocabulary_size)
        positive_int("model.embedding_size", self.embedding_size)
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        if not self.hidden_sizes:
            raise ArgumentError("model.hidden_sizes", "must have at least one layer", "none", "Write [300, 300]")
        for size in self.hidden_sizes:
            positive_int("model.hidden_sizes", size)
        for field in fields(self):
            if field.name.endswith("_dropout"):
                probability(f"model.{field.name}", getattr(self, field.name))
        if self.tied and self.hidden_sizes[-1] != self.embedding_size:
            got = f"hidden_sizes={list(self.hidden_sizes)}, embedding_size={self.embedding_size}"
            advice = f"End hidden_sizes with {self.embedding_size}, or set tied: false"
            raise ArgumentError("model.tied", "the last hidden size must equal the embedding size", got, advice)
        self._check_read()

    def _check_read(self) -> None:
        """Raises ArgumentError for what is set and the cell does not read: another cell's option, or gates to perturb."""
        for name in sorted(_unread(self.cell)):
            value, default = getattr(self, name, None), getattr(LanguageModelConfig, name, None)
            if name == "gates" and value not in (None, CELLS[self.cell].gates):
                rule = "needs a cell with gates to perturb"
            elif name != "gates" and value != default:
                rule = f"is read by {', '.join(cell for cell in CELLS if name in CELLS[cell].options)} only"
            else:
                continue
            raise ArgumentError(f"model.{name}", rule, f"{value!r} with cell={self.cell}", "Leave it out")

    @staticmethod
    def completed(values: dict[str, Any]) -> dict[str, Any]:
        """`values` with what `gates` leaves open from the cell: a G²-LSTM keeps its temperature where only p is given."""
        gates, cell = values.get("gates"), values.get("cell", LanguageModelConfig.cell)
        if not isinstance(gates, dict) or not isinstance(cell, str) or cell not in CELLS:
            return values
        return {**values, "gates": to_dict(CELLS[cell].gates) | gates}

    @staticmethod
    def without_unread(values: dict[str, Any], names: Collection[str] | None = None) -> dict[str, Any]:
        """`values` without those, among `names` [all], that their cell does not read, as files of earlier versions hold them."""
        unread = _unread(values.get("cell", LanguageModelConfig.cell))
        return {key: value for key, value in values.items() if key not in unread or not (names is None or key in names)}

    def cell_options(self) -> dict[str, Any]:
        """The options that this cell reads; one that no field is named after keeps the cell's own default."""
        return {name: getattr(self, name) for name in CELLS[self.cell].options if hasattr(self, name)}


def _unread(cell: Any) -> set[str]:
    """Fields that this cell does not read."""
    if not isinstance(cell, str) or cell not in CELLS:
        return set()
    others = {name for other in CELLS for name in CELLS[other].options} - set(CELLS[cell].options)
    return others if CELLS[cell].make_spec(1).perturbed(Gates()) else {*others, "gates"}
