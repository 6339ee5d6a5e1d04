"""What models are made of."""

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from gatedrnn.cells import CELLS
from gatedrnn.core.checks import nearest, one_of, positive_int, probability
from gatedrnn.core.config import convert, to_dict
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import Gates

MEAN = "mean"
"""The layer that stands for the mean of all layers' distances."""

TREE_GATES = ("master_forget", "master_input", "both")
"""Gates that distances are read from; of both, their mean."""

OLD_KEYS = ("chunk_size", "split_points", "peephole", "reset_after", "nonlinearity")
"""Options that were keys of the section `model`, where they are still read."""

_LARGEST = 3.4e38  # that float32 holds

DECIDED_BY_DATA = {f"model.{key}" for key in ("vocabulary_size", "classes", "target_size", "shared_embedding")}
"""Keys that a training sets, whatever is given."""


@dataclass(frozen=True)
class CellSection:
    """What sections of a configuration have in common that name a cell, its options and its gates, widths and dropouts."""

    advised: ClassVar[bool] = True
    """Whether options of the cell have its defaults for language models, not those of its layer."""

    @property
    def sizes(self: Any) -> tuple[int, ...]:
        """Hidden units of every layer."""
        return self.hidden_sizes

    def _check(self: Any) -> None:
        """Fill in the cell's options. Raises: ArgumentError: a value is out of range or is not read by the cell."""
        if self.cell not in CELLS:
            advice = f"{nearest(str(self.cell), CELLS)} For a cell of your own, give its file with --import FILE, or register it"
            raise ArgumentError("model.cell", "must be a registered cell", repr(self.cell), advice)
        if self.vocabulary_size is not None:
            positive_int("model.vocabulary_size", self.vocabulary_size)
        positive_int("model.embedding_size", self.embedding_size)
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        if not self.hidden_sizes:
            raise ArgumentError("model.hidden_sizes", "must have at least one layer", "none", "Write [300, 300]")
        for size in self.hidden_sizes:
            positive_int("model.hidden_sizes", size)
        for each in fields(self):
            if each.name.endswith("_dropout"):
                probability(f"model.{each.name}", getattr(self, each.name))
        object.__setattr__(self, "options", self._all_options())
        own = (None, CELLS[self.cell].gates)
        if "gates" in _unread(self.cell, self.hidden_sizes, self.options) and self.gates not in own:
            got = f"{self.gates!r} with cell={self.cell}"
            raise ArgumentError("model.gates", "needs a cell with gates to perturb", got, "Leave it out")

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        self.__init__(**with_options(state))  # a pickle of an earlier version has the old keys

    def _all_options(self: Any) -> dict[str, Any]:
        """Every option of the cell. Raises: ArgumentError: one is unknown, another cell's, or not of its default's type."""
        cell = CELLS[self.cell]
        found = cell.options | (cell.advised if self.advised else {})
        for name, value in convert(dict[str, Any], self.options, "model.options").items():
            owner = f"model.options.{name}"
            if name in found:
                kind = type(found[name])
                found[name] = convert(kind, value, owner) if kind in (bool, int, float, str) else value
                continue
            others = [other for _, other in CELLS.items() if name in other.options]
            if not others:
                advice = nearest(str(name), cell.options) if cell.options else f"{self.cell} has no options"
                raise ArgumentError(owner, "unknown key", None, advice)
            if all(value not in (other.options[name], other.advised.get(name)) for other in others):
                rule = f"applies only to {', '.join(other.name for other in others)}"
                raise ArgumentError(owner, rule, f"{value!r} with cell={self.cell}", "Leave it out")
        return found

    @classmethod
    def completed(cls: Any, values: dict[str, Any]) -> dict[str, Any]:
        """`values` as they are now written, with what `gates` leaves open from the cell, as a G²-LSTM's temperature."""
        values = with_options(values)
        gates, cell = values.get("gates"), values.get("cell", cls.cell)
        if not isinstance(gates, dict) or not isinstance(cell, str) or cell not in CELLS:
            return values
        return {**values, "gates": to_dict(CELLS[cell].gates) | gates}

    @classmethod
    def without_unread(cls: Any, values: dict[str, Any], names: Collection[str] | None = None) -> dict[str, Any]:
        """`values` without those, among `names` ("options.chunk_size") [all], that their cell does not read."""
        values = with_options(values)
        unread = _unread(values.get("cell", cls.cell), options=values.get("options"))
        left = unread if names is None else unread.intersection(names)
        kept = {key: value for key, value in values.items() if key not in left}
        if isinstance(kept.get("options"), dict):
            kept["options"] = {key: value for key, value in kept["options"].items() if f"options.{key}" not in left}
        return kept


@dataclass(frozen=True)
class LanguageModelConfig(CellSection):
    """A recurrent language model.

    Args:
        vocabulary_size: V, set from the data.
        cell: the name of a registered cell, such as onlstm or lstm.
        embedding_size: width of a word's embedding.
        hidden_sizes: hidden units of each layer, first to last.
        tied: the decoder shares the embedding's weights; the last hidden size must be the embedding size.
        skip_connections: the decoder reads the sum of all layers' outputs instead of the last one's; all must have one size
            (Melis, Dyer & Blunsom 2018).
        forget_bias: the initial bias of each forget gate (Jozefowicz, Zaremba & Sutskever 2015); null for the layers' own
            initialisation.
        master_bias: β, added to the initial biases of master gates: from 0 to β over the split points of the master input gate,
            from 0 to −β over those of the master forget gate, so that a new model keeps and writes most units; null for the
            layers' own initialisation.
        tree_layer: the layer whose distances make trees unless another is named: a number from 1, or "mean" for the mean of all
            layers; null for the second, or the only one.
        tree_gate: the gate whose distances these are, likewise: master_forget, master_input, or both for the mean of the two.
        options: options of the cell, such as {chunk_size: 10}; an option left out has the cell's default for language models.
        gates: temperature and noise; null, or a key left out, for the cell's default.
        embedding_dropout: probability that a word's whole embedding is dropped.
        input_dropout: locked, on the embedded input.
        hidden_dropout: locked, between layers.
        output_dropout: locked, on the last layer's output.
        weight_dropout: on the recurrent weights, one mask for each window.

    Raises: ArgumentError: a value is out of range or is not read by the cell, or a tied decoder does not fit.
    """

    vocabulary_size: int | None = None
    cell: str = "onlstm"
    embedding_size: int = 300
    hidden_sizes: tuple[int, ...] = (300, 300)
    tied: bool = True
    skip_connections: bool = False
    forget_bias: float | None = None
    master_bias: float | None = None
    tree_layer: int | str | None = None
    tree_gate: str = TREE_GATES[0]
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    gates: Gates | None = None
    embedding_dropout: float = 0.0
    input_dropout: float = 0.2
    hidden_dropout: float = 0.2
    output_dropout: float = 0.3
    weight_dropout: float = 0.0

    def __post_init__(self) -> None:
        self._check()
        if self.tied and self.hidden_sizes[-1] != self.embedding_size:
            got = f"hidden_sizes={list(self.hidden_sizes)}, embedding_size={self.embedding_size}"
            advice = f"End hidden_sizes with {self.embedding_size}, or set tied: false"
            raise ArgumentError("model.tied", "the last hidden size must equal the embedding size", got, advice)
        if self.skip_connections and len(set(self.hidden_sizes)) > 1:
            rule, got = "needs hidden layers of one size", f"hidden_sizes={list(self.hidden_sizes)}"
            raise ArgumentError("model.skip_connections", rule, got, "Make them equal, or set skip_connections: false")
        if self.forget_bias is not None:
            self._check_bias("forget_bias", self.forget_bias, "forget_gate")
        if self.master_bias is not None:
            self._check_bias("master_bias", self.master_bias, "master_forget")
        self._check_trees()

    @property
    def layer_of_trees(self) -> int | str:
        """The layer whose distances make trees: `tree_layer`, else the second, as in the paper, or the only one."""
        return self.tree_layer or min(2, len(self.hidden_sizes))

    def _check_trees(self) -> None:
        """Raises ArgumentError: a cell without distances has a setting of them, or there is no such layer or gate."""
        one_of("model.tree_gate", self.tree_gate, TREE_GATES)
        if self.tree_layer is not None:
            self._check_gate("tree_layer", TREE_GATES[0])
        if self.tree_gate != TREE_GATES[0]:
            for gate in TREE_GATES[:2]:
                self._check_gate("tree_gate", gate)
        layers, layer = len(self.hidden_sizes), self.tree_layer
        if not (layer is None or layer == MEAN or (type(layer) is int and 1 <= layer <= layers)):
            rule = f"must lie in 1…{layers}, or be {MEAN}"
            raise ArgumentError("model.tree_layer", rule, repr(layer), "Choose a layer of the model")

    def _check_gate(self, key: str, gate: str) -> None:
        """Raises ArgumentError: the cell, whose gate `gate` a setting needs, does not have it."""
        spec = CELLS[self.cell].example(self.options, self.hidden_sizes)
        if spec is not None and gate not in {each.name for each in spec.gates}:
            advice = f"Leave it out, or set it to {TREE_GATES[0] if key == 'tree_gate' else 'null'}"
            raise ArgumentError(f"model.{key}", f"needs a cell with a {_shown(gate)}", f"cell={self.cell}", advice)

    def _check_bias(self, key: str, value: float, gate: str) -> None:
        """Raises ArgumentError: `value` is not finite in float32, or no bias of the cell is added to its gate `gate`."""
        self._check_gate(key, gate)
        owner, spec = f"model.{key}", CELLS[self.cell].example(self.options, self.hidden_sizes)
        if spec is not None and spec.normalised:
            rule = f"needs a cell whose {_shown(gate)} is not normalised after the bias is added"
            raise ArgumentError(owner, rule, f"cell={self.cell}", "Leave it out, or set it to null")
        if not -_LARGEST <= value <= _LARGEST:
            raise ArgumentError(owner, "must be a finite number of float32", value, "Give a number such as 1")


@dataclass(frozen=True)
class PairClassifierConfig(CellSection):
    """A classifier of pairs of sentences, by one encoder.

    Args:
        vocabulary_size: V, set from the data.
        classes: the number of labels, set from the data.
        cell: the name of a registered cell, such as onlstm or lstm.
        embedding_size: width of a word's embedding.
        hidden_sizes: hidden units of each layer of the encoder, first to last.
        bidirectional: whether each layer reads a sentence in both directions.
        head_size: hidden units of the head; 0 for the size of the last layer.
        options: options of the cell, such as {chunk_size: 10}; an option left out has the cell's default for language models.
        gates: temperature and noise; null, or a key left out, for the cell's default.
        embedding_dropout: probability that a word's whole embedding is dropped.
        input_dropout: locked, on the embedded input.
        hidden_dropout: locked, between layers.
        head_dropout: before both layers of the head.
        weight_dropout: on the recurrent weights, one mask for each batch.

    Raises: ArgumentError: a value is out of range or is not read by the cell.
    """

    vocabulary_size: int | None = None
    classes: int | None = None
    cell: str = "onlstm"
    embedding_size: int = 128
    hidden_sizes: tuple[int, ...] = (400,)
    bidirectional: bool = False
    head_size: int = 0
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    gates: Gates | None = None
    embedding_dropout: float = 0.0
    input_dropout: float = 0.2
    hidden_dropout: float = 0.2
    head_dropout: float = 0.3
    weight_dropout: float = 0.0

    def __post_init__(self) -> None:
        self._check()
        positive_int("model.head_size", self.head_size, minimum=0)
        if self.classes is not None:
            positive_int("model.classes", self.classes)


@dataclass(frozen=True)
class TranslationConfig(CellSection):
    """An encoder and a decoder with attention.

    Args:
        vocabulary_size: of the source, set from the data.
        target_size: of the target's vocabulary, set from the data.
        shared_embedding: one embedding for both sides; set from the data if both sides share a vocabulary.
        cell: the name of a registered cell, such as onlstm or lstm.
        embedding_size: width of a token's embedding, on both sides.
        hidden_sizes: hidden units of each layer of the encoder; the first layer is bidirectional.
        decoder_sizes: hidden units of each layer of the decoder; attention follows the first layer.
        tied: the output layer shares the weights of the target's embedding.
        options: options of the cell, such as {chunk_size: 8}; an option left out has the layer's default.
        gates: temperature and noise; null, or a key left out, for the cell's default.
        embedding_dropout: probability that a token's whole embedding is dropped.
        input_dropout: locked, on embedded inputs of both sides.
        hidden_dropout: locked, between layers.
        output_dropout: on the input of the output layer.
        weight_dropout: on the recurrent weights, one mask for each batch.
        label_smoothing: in training, the share of the target probability that is spread over all tokens.

    Raises: ArgumentError: a value is out of range or is not read by the cell.
    """

    advised: ClassVar[bool] = False

    vocabulary_size: int | None = None
    target_size: int | None = None
    shared_embedding: bool = False
    cell: str = "lstm"
    embedding_size: int = 256
    hidden_sizes: tuple[int, ...] = (256, 256)
    decoder_sizes: tuple[int, ...] = (256, 256)
    tied: bool = True
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    gates: Gates | None = None
    embedding_dropout: float = 0.1
    input_dropout: float = 0.3
    hidden_dropout: float = 0.3
    output_dropout: float = 0.3
    weight_dropout: float = 0.0
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        self._check()
        probability("model.label_smoothing", self.label_smoothing)
        object.__setattr__(self, "decoder_sizes", tuple(self.decoder_sizes))
        if not self.decoder_sizes:
            raise ArgumentError("model.decoder_sizes", "must have at least one layer", "none", "Write [256, 256]")
        for size in self.decoder_sizes:
            positive_int("model.decoder_sizes", size)
        if self.target_size is not None:
            positive_int("model.target_size", self.target_size)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Hidden units of every layer, of the encoder and of the decoder."""
        return *self.hidden_sizes, *self.decoder_sizes


def required(config: Any, name: str, advice: str = "Give the vocabulary's length") -> int:
    """A size that is set from the data. Raises: ArgumentError: it is not set yet."""
    size = getattr(config, name)
    if size is None:
        raise ArgumentError(f"model.{name}", "must be set to build a model", None, advice)
    return size


def with_options(values: Any) -> Any:
    """The section `model` with its old keys moved into `options`. Raises: ArgumentError: one is in both, and differs."""
    old = {key: values[key] for key in OLD_KEYS if key in values} if isinstance(values, dict) else {}
    options = values.get("options", {}) if old else None
    if not isinstance(options, dict):
        return values
    for key, value in old.items():
        if options.get(key, value) != value:
            got, advice = f"{value!r} and {options[key]!r}", f"Drop model.{key}"
            raise ArgumentError(f"model.{key}", f"must equal model.options.{key} where both are given", got, advice)
    return {key: value for key, value in values.items() if key not in old} | {"options": old | options}


def _shown(gate: str) -> str:
    """A gate's name in a message."""
    return f"{gate.removesuffix('_gate').replace('_', ' ')} gate"


def _unread(cell: Any, sizes: Collection[int] = (), options: Any = None) -> set[str]:
    """What this cell does not read: "options.NAME" of other cells' options, and settings of gates that it does not have.

    Args: sizes, options: the first of these hidden sizes that the cell has, with these options, is asked for its gates.
    """
    if not isinstance(cell, str) or cell not in CELLS:
        return set()
    others = {f"options.{name}" for other in CELLS for name in CELLS[other].options if name not in CELLS[cell].options}
    given = options if isinstance(options, dict) else {}
    spec = CELLS[cell].example({name: value for name, value in given.items() if name in CELLS[cell].options}, sizes)
    if spec is None:
        return others
    named = {gate.name for gate in spec.gates}
    left = set() if spec.perturbed(Gates()) else {"gates"}
    left |= set() if "master_forget" in named else {"master_bias", "tree_layer", "tree_gate"}
    left |= set() if "forget_gate" in named else {"forget_bias"}
    return others | left | ({"master_bias", "forget_bias"} if spec.normalised else set())
