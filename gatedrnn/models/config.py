"""Configurations as frozen dataclasses, and their strict way from and to YAML."""

from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from gatedrnn.cells import CELLS
from gatedrnn.core.checks import nearest, one_of, positive_int, probability
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import Gates

T = TypeVar("T")


@dataclass(frozen=True)
class LanguageModelConfig:
    """A recurrent language model.

    Args:
        vocabulary_size: V; None until the data is known.
        cell: a name in `CELLS`.
        embedding_size: E.
        hidden_sizes: H of each layer, first to last.
        tied: the decoder shares the embedding's weights; the last hidden size must be E.
        chunk_size, split_points: of cells with master gates; others do not read them.
        peephole, reset_after, nonlinearity: of the peephole LSTM, the GRU and the vanilla RNN.
        gates: temperature and noise; None for what belongs to the cell.
        embedding_dropout: whole rows of the embedding; input_dropout: locked, on the embedded input; hidden_dropout: locked,
            between layers; output_dropout: locked, on the last layer's output; weight_dropout: on U, one mask a window.

    Raises: ArgumentError: a value is out of range, or a tied decoder does not fit.
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
            raise ArgumentError("model.hidden_sizes", "must have at least one layer", "none")
        for size in self.hidden_sizes:
            positive_int("model.hidden_sizes", size)
        for field in fields(self):
            if field.name.endswith("_dropout"):
                probability(f"model.{field.name}", getattr(self, field.name))
        if self.tied and self.hidden_sizes[-1] != self.embedding_size:
            got = f"hidden_sizes={list(self.hidden_sizes)}, embedding_size={self.embedding_size}"
            advice = f"End hidden_sizes with {self.embedding_size}, or set tied: false"
            raise ArgumentError("model.tied", "the last hidden size must equal the embedding size", got, advice)

    def cell_options(self) -> dict[str, Any]:
        """The options that this cell reads."""
        return {name: getattr(self, name) for name in CELLS[self.cell].options}


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as plain YAML values."""
    return _plain(asdict(config))


def from_dict(kind: type[T], values: Any, owner: str) -> T:
    """Build configuration `kind` from plain values, strictly.

    Args: owner: where the values stand ("config.yaml: model"), for messages.
    Raises: ArgumentError: not a mapping, an unknown key (names the nearest known one), or a value out of range.
    """
    if not isinstance(values, dict):
        raise ArgumentError(owner, "must be a mapping of keys to values", repr(values))
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    built = {}
    for key, value in values.items():
        if key not in known:
            raise ArgumentError(f"{owner}.{key}", "unknown key", None, nearest(str(key), known))
        nested = [part for part in (hints[key], *getattr(hints[key], "__args__", ())) if is_dataclass(part)]
        if nested and value is not None:
            value = from_dict(nested[0], value, f"{owner}.{key}")  # type: ignore[arg-type]
        built[key] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**built)
    except TypeError as error:
        raise ArgumentError(owner, "cannot be read", str(error)) from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value
