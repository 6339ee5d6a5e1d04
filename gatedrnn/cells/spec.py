"""What a cell is: gates in row order, states, parameters, and the signature of its step.

Dimensions: B batch, D input, H hidden, R rows of all gates, N units of one gate.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, cast

from torch import Tensor

from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import SQUASHES, Gates

State = tuple[Tensor, ...]
Trace = dict[str, Tensor]

_PERTURBABLE = ("sigmoid", "cumax", "tail_cumax")
_LARGEST_EXAMPLE = 1024
_RESERVED = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


@dataclass(frozen=True)
class Gate:
    """One gate, or the cell candidate: which rows of the weights it owns and how logits become values.

    Args:
        name: as in a trace, "forget_gate".
        rows: logits, rows of weight_ih and weight_hh.
        squash: a key of `gates.SQUASHES`.
        units: values kept of the squashed logits; None for all (free split points keep one fewer).
        memory: whether `Gates(names=None)` perturbs it: every sigmoid or cumax gate but the output gate.
        hard: straight-through binary values, of a sigmoid or cumax gate.
    """

    name: str
    rows: int
    squash: str = "sigmoid"
    units: int | None = None
    memory: bool = True
    hard: bool = False

    @property
    def perturbable(self) -> bool:
        """Whether temperature and noise mean something here: a sigmoid or cumax gate."""
        return self.squash in _PERTURBABLE

    def __call__(self, logits: Tensor) -> Tensor:
        """Values [..., units] of logits [..., rows]."""
        values = SQUASHES[self.squash](logits, self.hard)
        return values if self.units is None else values[..., : self.units]


@dataclass(frozen=True)
class Extra:
    """A parameter besides weights and biases, whose rows belong to gates in order (peephole weights).

    Args:
        name: prefix in the state dict; `_l0` is appended.
        gates: names of the gates that own its rows.
        full: [rows, H] if true, else [rows].
        start: the initial value of all its elements; None to draw them like weights.
    """

    name: str
    gates: tuple[str, ...]
    full: bool = False
    start: float | None = None


@dataclass(frozen=True)
class Derived:
    """What a trace shows beside gates: `function` of the gate called `of`.

    It is given values [rows, N], a row for each sequence and step, and gives [rows, …]. No row may depend on another,
    and it must not write into what it is given.
    """

    name: str
    of: str
    function: Callable[[Tensor], Tensor]

    def shown(self, trace: Trace) -> Tensor:
        """Raises ArgumentError: the trace does not hold that gate, or `function` does not give a row for each of its own."""
        if self.of not in trace:
            rule, got = "must be what the step's trace holds", f"{self.of!r}, not in the trace"
            raise ArgumentError(f"Derived.of of {self.name}", rule, got, "Mend it")
        gate, found = trace[self.of], cast(Any, self.function(trace[self.of]))
        if isinstance(found, Tensor) and found.shape[:1] == gate.shape[:1]:
            return found
        got = str(list(found.shape)) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ArgumentError(f"Derived.function of {self.name}", "must give a row for each of its own", got, "Mend it")


@dataclass(frozen=True)
class Spec:
    """A cell of one size.

    Args:
        hidden_size: H.
        gates: in row order.
        states: names of the states; the first is the output h.
        recurrent_gates: how many leading gates receive U h' in `h_gates`; None for all (a GRU that resets before the
            product computes its last one in the step).
        extras: further parameters.
        derived: what a trace shows in addition to the gates of `step`.
        constants: names and values of numbers that the step reads, `spec.constant(name)`; an option may be one. An int, a float
            or a bool stays one; NumPy's numbers become Python's.
        normalised: whether the step normalises logits, so that no temperature or noise can be folded into them.
        equation: set by a layer: what says by which equation of a cell of one's own it computes (`compiler.outside.mark`).
        rows: R, the rows of weight_ih and weight_hh; follows from the gates.
        recurrent_rows: rows of U whose product the driver computes; follows from the gates.
    """

    hidden_size: int
    gates: tuple[Gate, ...]
    states: tuple[str, ...]
    recurrent_gates: int | None = None
    extras: tuple[Extra, ...] = ()
    derived: tuple[Derived, ...] = ()
    constants: tuple[tuple[str, float], ...] = ()
    normalised: bool = False
    equation: str = field(default="", kw_only=True, repr=False, compare=False)
    rows: int = field(init=False, repr=False, compare=False)
    recurrent_rows: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_kinds()
        self._check_names()
        for gate in self.gates:
            if gate.hard and not gate.perturbable:
                got = f"{gate.name} with squash={gate.squash!r}"
                rule = f"needs one of the squashes {', '.join(_PERTURBABLE)}"
                raise ArgumentError("Gate.hard", rule, got, "Leave hard out")
        if self.constants:
            object.__setattr__(self, "constants", tuple((name, _number(name, value)) for name, value in self.constants))
        object.__setattr__(self, "rows", sum(gate.rows for gate in self.gates))
        recurrent = self.gates[: self.recurrent_gates]
        object.__setattr__(self, "recurrent_rows", sum(gate.rows for gate in recurrent))

    def _check_kinds(self) -> None:
        """Raises ArgumentError: something is of another kind, or of another size, than a cell can have."""
        kinds = {"gates": Gate, "states": str, "extras": Extra, "derived": Derived, "constants": tuple}
        for owner, kind in kinds.items():
            given, what = getattr(self, owner), "pairs (name, number)" if kind is tuple else kind.__name__
            given = tuple(given) if isinstance(given, list) else given
            if owner == "constants" and isinstance(given, tuple):
                given = tuple(tuple(each) if isinstance(each, list) else each for each in given)
            object.__setattr__(self, owner, given)
            fits = isinstance(given, tuple) and all(isinstance(each, kind) for each in given)
            if not fits or (kind is tuple and any(len(each) != 2 for each in given)):
                advice = "Write a tuple, one of a single value with a comma: (…,)"
                raise ArgumentError(f"Spec.{owner}", f"must be a tuple of {what}", repr(given)[:60], advice)
        for gate in self.gates:
            rows = positive_int(f"Gate.rows of {gate.name}", gate.rows)
            if gate.units is not None and positive_int(f"Gate.units of {gate.name}", gate.units) > rows:
                raise ArgumentError(
                    f"Gate.units of {gate.name}", f"must be at most {rows}, its rows", gate.units, "Mend it"
                )
        leading = self.recurrent_gates
        if leading is not None and (not isinstance(leading, Integral) or not 0 <= leading <= len(self.gates)):
            rule = f"must be a number of leading gates, 0…{len(self.gates)}"
            raise ArgumentError("Spec.recurrent_gates", rule, repr(leading), "Leave it out for all")

    def _check_names(self) -> None:
        """Raises ArgumentError: a name that `text` could not write, or that is used twice, or a squash that there is not."""
        gates, extras = [gate.name for gate in self.gates], [extra.name for extra in self.extras]
        constants = [name for name, _ in self.constants]
        for name in (*gates, *extras, *self.states, *constants, *(gate.squash for gate in self.gates)):
            if not str(name).isidentifier():
                raise ArgumentError("Spec", "names must consist of letters, digits and _", repr(name), "Rename it")
        shown = [*gates, *[each.name for each in self.derived]]
        once = {"gates": gates, "states": self.states, "extras": extras, "constants": constants, "derived": shown}
        for owner, names in once.items():
            if len(set(names)) < len(names):
                got = next(name for k, name in enumerate(names) if name in names[:k])
                raise ArgumentError(f"Spec.{owner}", "must have a name for one only", repr(got), "Rename it")
        for name in extras:
            if name in _RESERVED:
                raise ArgumentError("Spec.extras", "must not have a name of the layer's own", repr(name), "Rename it")
        for gate in self.gates:
            if gate.squash not in SQUASHES:
                got = f"{gate.squash!r} of the gate {gate.name}"
                raise ArgumentError("Gate.squash", "unknown squash", got, f"Known: {', '.join(SQUASHES)}")

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each gate."""
        return tuple([sum(gate.rows for gate in self.gates[:k]) for k in range(len(self.gates))])

    def split(self, logits_BR: Tensor) -> tuple[Tensor, ...]:
        """Logits of each gate, in row order; as many gates as there are columns."""
        columns = logits_BR.shape[-1]
        sizes = [gate.rows for gate in self.gates]
        while sum(sizes) > columns:
            sizes.pop()
        return logits_BR.split(sizes, -1)

    def gate(self, name: str) -> Gate:
        """The gate called `name`."""
        for gate in self.gates:
            if gate.name == name:
                return gate
        raise ArgumentError("Spec.gate", "unknown gate", repr(name), f"Known: {', '.join(g.name for g in self.gates)}")

    def constant(self, name: str) -> float:
        """The number called `name`: an int, a float or a bool, as it was given."""
        return dict(self.constants)[name]

    def squash(self, name: str, logits: Tensor) -> Tensor:
        """Values of gate `name` [B, N] from its logits [B, rows]."""
        return self.gate(name)(logits)

    def perturbed(self, gates: Gates) -> tuple[str, ...]:
        """Names of the gates that `gates` perturbs.

        Raises: ArgumentError: a name is no sigmoid or cumax gate of this cell.
        """
        able = [gate for gate in self.gates if gate.perturbable and not self.normalised]
        if gates.names is None:
            return tuple(gate.name for gate in able if gate.memory)
        for name in gates.names:
            if name not in [gate.name for gate in able]:
                known = ", ".join(gate.name for gate in able) or "none in this cell"
                raise ArgumentError("Gates.names", "must name gates of the cell", repr(name), f"Known: {known}")
        return gates.names

    def with_gates(self, gates: Gates) -> "Spec":
        """This cell with the gates that `gates` makes straight-through marked as hard."""
        if not gates.straight_through:
            return self
        hard = self.perturbed(gates)
        return replace(self, gates=tuple(replace(gate, hard=gate.hard or gate.name in hard) for gate in self.gates))

    def complete(self, trace: Trace, wanted: Callable[[str], bool]) -> Trace:
        """What is wanted of a step's trace [rows, N], with what is derived from it, and of that first."""
        found = {each.name: each.shown(trace) for each in self.derived if wanted(each.name)}
        return found | {name: gate for name, gate in trace.items() if wanted(name)}

    def text(self) -> str:
        """All that a step may read of it, without a space; `of` reads it. The compiler refuses the rest: derived, Extra.start."""
        gates = [f"{g.name},{g.rows},{g.squash},{g.units or 0},{int(g.hard)},{int(g.memory)}" for g in self.gates]
        extras = ";".join([",".join([e.name, str(int(e.full)), *e.gates]) for e in self.extras])
        recurrent = "" if self.recurrent_gates is None else str(self.recurrent_gates)
        constants = ";".join([f"{name},{_number(name, value)!r}" for name, value in self.constants])
        states, normalised = ",".join(self.states), str(int(self.normalised))
        return "|".join([str(self.hidden_size), ";".join(gates), states, recurrent, extras, constants, normalised])

    @staticmethod
    def of(text: str) -> "Spec":
        """The Spec that `text` wrote, as far as it says. Texts in older graphs say nothing of memory and normalised."""
        hidden, gates, states, recurrent, extras, constants, *normalised = text.split("|")
        rest = [each.split(",") for each in extras.split(";") if each]
        pairs = [each.split(",") for each in constants.split(";") if each]
        return Spec(
            int(hidden),
            tuple(_gate_of(*gate.split(",")) for gate in gates.split(";")),
            tuple(states.split(",")),
            int(recurrent) if recurrent else None,
            tuple(Extra(name, tuple(owners), full == "1") for name, full, *owners in rest),
            constants=tuple((name, _number_of(value)) for name, value in pairs),
            normalised=normalised == ["1"],
        )

    def extra_shape(self, extra: Extra) -> tuple[int, ...]:
        """Shape of a further parameter."""
        rows = sum(self.gate(name).rows for name in extra.gates)
        return (rows, self.hidden_size) if extra.full else (rows,)


def _number(name: str, value: Any) -> float:
    """A constant as a number of Python's own, whose text is the same everywhere: a bool, an int or a float."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # NumPy's is no number to Python
        return bool(value)
    if isinstance(value, Integral) and abs(int(value)) <= 1 << 1000:
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Integral):
        return float(value)
    got = f"{name} = {str(value)[:20]!r}"
    raise ArgumentError("Spec.constants", "must be numbers", got, "Write a float")


def _number_of(text: str) -> float:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _gate_of(name: str, rows: str, squash: str, units: str, hard: str, memory: str = "1") -> Gate:
    return Gate(name, int(rows), squash, int(units) or None, memory == "1", hard == "1")


@dataclass(slots=True, eq=False)
class Params:
    """The tensors of one layer and direction: weight_ih [R, D], weight_hh [R, H], biases [R] or None, extras by name.

    With a projection of h to J units: weight_hr [J, H], and weight_hh is [R, J].
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    weight_hr: Tensor | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> list[Tensor]:
        """Those that there are, in order of registration."""
        given = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, self.weight_hr, *self.extras.values())
        return [tensor for tensor in given if tensor is not None]


ARGUMENTS = (
    "cell", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "device", "dtype",
    "gates", "weight_dropout", "backend", "proj_size",
)  # fmt: skip
"""What a layer of any cell takes, so that no option of a cell may be called so."""

Step = Callable[[Spec, Params, Tensor, Tensor, State], tuple[State, Trace]]
_STEP = "spec", "params", "x_gates", "h_gates", "state"


@dataclass(frozen=True)
class Cell:
    """A cell of any size: what the registry holds.

    Args:
        name: as in the registry and in a run's YAML.
        title: as in a paper.
        make_spec: hidden_size and options → Spec; raises ArgumentError on options that do not fit.
        step: (spec, params, x_gates [B, R], h_gates [B, recurrent rows], state) → (new state, trace). `x_gates` holds
            W x + b_ih with noise folded in, `h_gates` U h' + b_hh; state tensors are [B, H]. A function, or another callable
            that can be hashed.
        options: names and defaults of the options of `make_spec`.
        gates: the default perturbation of the cell, as of G²-LSTM; none for other cells.
        advised: options whose default in a language model differs from that of the layer.

    Raises: ArgumentError: `step` cannot be hashed, or called with these arguments; an option is named like a layer's argument.
    """

    name: str
    title: str
    make_spec: Callable[..., Spec]
    step: Step
    options: dict[str, Any] = field(default_factory=dict)
    gates: Gates = Gates()
    advised: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            hash(self.step)
        except TypeError as error:
            got, advice = type(self.step).__name__, "Write a function, or give the class @dataclass(eq=False)"
            raise ArgumentError("Cell.step", "must be hashable", got, advice) from error
        if not callable(self.step):
            raise ArgumentError("Cell.step", "must be callable", repr(self.step), "Write a function")
        taken = _signature(self.step)
        try:
            if taken is not None:
                taken.bind(*_STEP)
        except TypeError:
            rule, got = f"its step must take {', '.join(_STEP)}", f"a step that takes {taken}"
            raise ArgumentError(f"cell {self.name}", rule, got, "Mend the step") from None
        for name in self.options:
            if name in ARGUMENTS:
                rule = f"must not have the name of a layer's argument: {', '.join(ARGUMENTS)}"
                raise ArgumentError("Cell.options", rule, repr(name), "Rename the option")

    def example(self, options: dict[str, Any] | None = None, sizes: Iterable[int] = ()) -> Spec | None:
        """A Spec of some size that the cell has, to read the names of its gates off; None if it has none that is tried.

        Args:
            options: some, or None for the defaults. Where no size has these, the defaults are tried.
            sizes: tried first; then all from 1 to 1024.
        """
        for chosen in ({**self.options, **(options or {})}, self.options):
            for size in (*sizes, *range(1, _LARGEST_EXAMPLE + 1)):
                try:
                    return self.make_spec(size, **chosen)
                except Exception:  # a user's function may raise whatever it likes
                    continue
        return None


def _signature(step: Any) -> inspect.Signature | None:
    """What a step itself takes, not what it wraps; None where Python cannot tell."""
    try:
        return inspect.signature(step, follow_wrapped=False)
    except ValueError:  # written in another language
        return None
