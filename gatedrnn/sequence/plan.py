"""How a cell's rows are laid out in the kernel's columns of gates, and how the trace is read off them.

Dimensions: H hidden, G columns of gates.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from gatedrnn.cells import CELLS, Params, Spec, Trace
from gatedrnn.cells.spec import Step
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import split_above, split_below, straight_through

_ROWS = {CELLS[name].step: name for name in ("rnn", "lstm", "peephole", "coupled", "gru", "onlstm")}


@dataclass(frozen=True)
class Plan:
    """One cell's columns; see `loops` for columns_x, first_1, columns_1, columns_2 and shift.

    Args:
        kernel: which rows run it.
        hidden: H.
        columns: G.
        split_points, chunk: K and C of an ON-LSTM, else 0 and 1; of a compiled cell its second size and C.
        hard: bit k set where gate k of the Spec is straight-through.
        slots: rows of scratch that a compiled step needs.
        cells: whether the kernel keeps a second row of H a token: c, or r∘h'.
        carries: whether h' also reaches h past the product.
    """

    kernel: str
    hidden: int
    columns: int
    columns_x: int
    first_1: int
    columns_1: int
    columns_2: int = 0
    shift: int = 0
    split_points: int = 0
    chunk: int = 1
    hard: int = 0
    slots: int = 0
    cells: bool = True
    carries: bool = False
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = [getattr(self, each.name) for each in fields(self)[1:-1]]
        object.__setattr__(self, "_text", " ".join([self.kernel, *(str(int(n)) for n in numbers)]))

    def text(self) -> str:
        """As one string, which an operator can take."""
        return self._text

    @staticmethod
    @functools.lru_cache(maxsize=1024)
    def of(text: str) -> "Plan":
        """The plan that `text()` wrote."""
        kernel, *numbers = text.split()
        *sizes, cells, carries = map(int, numbers)
        plan = Plan(kernel, *sizes, cells=bool(cells), carries=bool(carries))
        if not max(plan.columns_x, plan.first_1 + plan.columns_1 + plan.columns_2) <= plan.columns or min(sizes) < 0:
            raise ArgumentError("Plan", "its columns must lie within the row of gates", text, "Take the text of a Plan")
        return plan

    def integers(self) -> dict[str, int]:
        """As the loops' arguments."""
        names = ("columns", "columns_x", "first_1", "columns_1", "columns_2", "shift", "hard", "cells", "carries")
        values = {name: int(getattr(self, name)) for name in names}
        return values | {"H": self.hidden, "K": self.split_points, "C": self.chunk}


_KNOWN: dict[tuple[Step, int], tuple[Spec, Plan | str]] = {}
"""By equation and by the Spec object, which is held, so that no other has its id; comparing Specs takes as long as planning."""
_MOST_KNOWN = 1024


def plan_for(step: Step, spec: Spec) -> Plan | str:
    """The plan of the cell whose equation is `step`, or the reason why there is none."""
    if torch.compiler.is_compiling():
        return _plan(step, spec)
    known = _KNOWN.get((step, id(spec)))
    if known is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[step, id(spec)] = spec, _plan(step, spec)
    return known[1]


def _plan(step: Step, spec: Spec) -> Plan | str:
    H, rows = spec.hidden_size, spec.rows
    name = _ROWS.get(step)
    hard = sum(gate.hard << k for k, gate in enumerate(spec.gates))
    if name is None or not _alike(spec, CELLS[name].make_spec(H), name == "rnn"):
        return (
            "a compiler would not see through its compilation"
            if torch.compiler.is_compiling()
            else _compiled(step, spec)
        )
    if any(extra.full for extra in spec.extras):
        return "a full peephole matrix is not in the kernels"
    if name == "rnn":
        if hard:
            return "a straight-through candidate is not in the kernels"
        return Plan(f"rnn_{spec.gates[0].squash}", H, rows, rows, 0, rows, cells=False)
    if name == "gru" and spec.recurrent_gates is None:
        return Plan("gru_after", H, 4 * H, rows, H, rows, shift=2 * H, hard=hard, cells=False, carries=True)
    if name == "gru":
        return Plan("gru_before", H, rows, rows, 0, 2 * H, H, hard=hard, carries=True)
    if name != "onlstm":
        return Plan(name, H, rows, rows, 0, rows, hard=hard)
    master = spec.gates[4]
    chunk = H // (master.units or master.rows)
    return Plan(name, H, rows, rows, 0, rows, split_points=master.rows, chunk=chunk, hard=hard)


def _compiled(step: Step, spec: Spec) -> Plan | str:
    """The plan of a cell whose kernels are compiled from its equation, or why they cannot be."""
    from gatedrnn.compiler import UnsupportedError, compile_cell
    from gatedrnn.sequence.backends.cpu.compiled import register

    try:
        found = compile_cell(step, spec)
    except UnsupportedError as error:
        return f"its step has {error}, which kernels have not"
    except Exception as error:  # whatever a user's step, or tracing it, may raise
        first = (str(error).strip().splitlines() or [""])[0]
        return f"its step cannot be traced: {type(error).__name__}: {first}"
    own, last = spec.recurrent_rows, spec.gates[-1].rows if found.apart else 0
    return Plan(
        register(found), spec.hidden_size, spec.rows + last, spec.rows, last, own, spec.rows - own,
        spec.rows - last if last else 0, found.logits, found.chunk, slots=found.slots, cells=found.cells, carries=found.carries,
    )  # fmt: skip


def _alike(spec: Spec, own: Spec, any_squash: bool) -> bool:
    """Whether a Spec has the gates and states of a registered cell's own."""
    gates, theirs = ([(g.name, any_squash or g.squash) for g in each.gates] for each in (spec, own))
    return gates == theirs and spec.states == own.states


def rotated(plan: Plan, rows: Tensor) -> Tensor:
    """Rows of W along the last dimension, as the kernel orders its columns."""
    return rows.roll(-plan.shift, -1) if plan.shift else rows


def in_columns(plan: Plan, rows_R: Tensor) -> Tensor:
    """A value for every row [R] as one for every column [G]: those of U's own columns are the candidate's."""
    return torch.cat((rotated(plan, rows_R), rows_R[plan.shift :])) if plan.shift else rows_R


def biases(plan: Plan, params: Params) -> Tensor:
    """b_ih and b_hh [R] in the kernel's columns [G]; zeros for one that there is not."""
    bias_ih, bias_hh = params.bias_ih, params.bias_hh
    if bias_ih is None or bias_hh is None:
        like = params.weight_hh
        zeros = torch.zeros(plan.columns_1 + plan.columns_2, dtype=like.dtype, device=like.device)
        bias_ih, bias_hh = zeros if bias_ih is None else bias_ih, zeros if bias_hh is None else bias_hh
    if not plan.shift:
        return bias_ih + bias_hh
    first = plan.shift  # the last gate's columns come first, and U's own last: n r z, then U's n
    return torch.cat((bias_ih[first:], bias_ih[:first] + bias_hh[:first], bias_hh[first:]))


def trace(plan: Plan, spec: Spec, gates: Tensor, wanted: Callable[[str], bool]) -> Trace:
    """The named gates [..., units], those that are wanted, of the kernel's gate values [..., G]."""
    coupled = plan.kernel == "coupled" and wanted("input_gate")  # what the forget gate leaves
    found: Trace = {}
    start = 0
    for gate in spec.gates:
        column = (start - plan.shift) % plan.columns_x
        y = gates[..., column : column + gate.rows]
        start += gate.rows
        if not wanted(gate.name) and not (coupled and gate.name == "forget_gate"):
            continue
        if gate.squash in ("cumax", "tail_cumax"):
            y = (split_below if gate.squash == "cumax" else split_above)(y, gate.hard)[..., : gate.units]
        elif gate.hard:
            y = straight_through(y, (y > 0.5).to(y.dtype))
        found[gate.name] = y
    if coupled:
        found = {"input_gate": 1 - found["forget_gate"], **found}
    return {name: gate for name, gate in found.items() if wanted(name)}
