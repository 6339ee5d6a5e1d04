"""Which layout of columns (`Plan`) a cell's CPU kernels have, what goes into its columns, and how the trace is read off them.

Dimensions: H hidden, G columns of gates.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.cells import CELLS, PACKAGED, Params, Spec, Trace
from gatedrnn.cells.spec import Step
from gatedrnn.compiler.plan import Plan, read_plan
from gatedrnn.core.errors import BackendError
from gatedrnn.core.torch_internals import constant_in_graphs
from gatedrnn.gates import split_above, split_below, straight_through
from gatedrnn.weights.compressed import as_dense

_KNOWN: dict[tuple[Step, int], tuple[Spec, Plan | str]] = {}
"""By equation and by the Spec object, which is held, so that no other has its id; comparing Specs takes as long as planning."""
_MOST_KNOWN = 1024
_OWN: dict[str, tuple[Step, Spec]] = {}
"""Cells of one's own by the names of their kernels, whatever is in the registry later."""


def plan_for(step: Step, spec: Spec) -> Plan | str:
    """The plan of the cell whose equation is `step`, or the reason why there is none."""
    if torch.compiler.is_compiling():
        return _plan_or_reason(kernel_of(step, spec))
    known = _KNOWN.get((step, id(spec)))
    if known is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[step, id(spec)] = spec, _plan_or_reason(kernel_of(step, spec))
    return known[1]


def kernel_of(step: Step, spec: Spec) -> str:
    """A cell's name and Spec, or a reason after "!". What names its kernels is `Plan.kernel`, with a mark of the equation."""
    for name, cell in CELLS.items():
        if cell.step is step:
            return f"{name}{spec.equation}:{spec.text()}"
    if torch.compiler.is_compiling():
        return "!a compiler would not see through the compilation of a cell that is not registered"
    kernel = f"step-{id(step)}{spec.equation}:{spec.text()}"
    _OWN[kernel] = step, spec
    return kernel


def _plan_or_reason(kernel: str) -> Plan | str:
    text = kernel if kernel.startswith("!") else _planned(kernel)
    return text[1:] if text.startswith("!") else read_plan(text)


@constant_in_graphs
def _planned(kernel: str) -> str:
    """The text of a cell's plan, or a reason after "!"."""
    from gatedrnn.compiler.kept import kept
    from gatedrnn.compiler.outside import mark

    step, spec = cell_of(kernel)
    found = kept(step, spec)
    if isinstance(found, str):
        _OWN.pop(kernel, None)
        return f"!{found}"
    name, _, text = kernel.partition(":")
    equation = mark(step)
    plan = replace(found.plan, kernel=f"{name.partition('#')[0]}{equation}:{text}")
    if equation:
        _OWN[plan.kernel] = step, spec
    return plan.text()


def cell_of(kernel: str) -> tuple[Step, Spec]:
    """The equation and the Spec of a cell that `plan_for` named.

    Raises: BackendError: this process does not know it, or knows another equation of that name.
    """
    from gatedrnn.compiler.outside import mark, place

    name, _, text = kernel.partition(":")
    name, changeable, digest = name.partition("#")
    known = [_OWN[kernel]] if kernel in _OWN else []
    if not changeable:  # the package's own keep their names, whoever takes them
        known += [(cell.step, Spec.of(text)) for cell in PACKAGED if cell.name == name]
    if name in CELLS:
        known.append((CELLS[name].step, Spec.of(text)))
    if not known:
        advice = "Register the cell under a name, before the graph is made and before it runs"
        raise BackendError("kernels", "a graph's cell must be known to this process", name, advice)
    for step, spec in known:
        if not digest or mark(step) == f"#{digest}":
            return step, spec
    named = f"{getattr(known[0][0], '__name__', name)}{place(known[0][0])}"
    rule, advice = "the equation of a cell must not change after its layer was made", "Create the layer again"
    raise BackendError("kernels", rule, f"a changed equation, or a changed number that it reads: {named}", advice)


def rotated(plan: Plan, rows: Tensor) -> Tensor:
    """Rows of W along the last dimension, as the kernel orders its columns."""
    return rows.roll(-plan.shift, -1) if plan.shift else rows


def in_columns(plan: Plan, rows_R: Tensor) -> Tensor:
    """A value for every row [R] as one for every column [G]: those of U's own columns are its rows'."""
    parts = [rotated(plan, rows_R), rows_R[len(rows_R) - plan.u_column :]]
    parts += [rows_R[first : first + count] for first, count in plan.own]
    return torch.cat(parts) if plan.columns > plan.columns_x else rows_R


def biases(plan: Plan, params: Params) -> Tensor:
    """b_ih and b_hh [R] in the kernel's columns [G]; zeros for one that there is not."""
    bias_ih, bias_hh = params.bias_ih, params.bias_hh
    if bias_ih is None or bias_hh is None:
        like = params.weight_hh
        zeros = torch.zeros(plan.columns_x, dtype=like.dtype, device=like.device)
        bias_ih, bias_hh = zeros if bias_ih is None else bias_ih, zeros if bias_hh is None else bias_hh
    if plan.u_column:
        first = plan.shift  # the last gate's columns come first, and U's own last: n r z, then U's n; or all apart
        found = torch.cat((bias_ih[first:], bias_ih[:first] + bias_hh[:first], bias_hh[first:]))
    else:
        found = summed(bias_ih, bias_hh)
    return F.pad(found, (0, plan.columns - len(found))) if plan.own else found


def summed(one: Tensor, other: Tensor) -> Tensor:
    """Their sum. Each has a gradient of its own: PyTorch's addition gives both one and the same tensor."""
    return one + (other * 1 if other.requires_grad else other)


def recurrent(spec: Spec, params: Params) -> Tensor:
    """The recurrent matrix: U, with the rows of the cell's own matrices below it."""
    own = [params.extras[extra.name] for extra in spec.extras if extra.full]
    return torch.cat((as_dense(params.weight_hh), *own)) if own else params.weight_hh


def starts(plan: Plan, spec: Spec) -> list[int]:
    """The first column of each gate's values."""
    return [plan.kept + (first - plan.shift) % plan.columns_x for first in spec.starts]


def trace(
    spec: Spec, starts: Sequence[int], gates: Tensor, wanted: Callable[[str], bool], laid: Callable[[Tensor], Tensor]
) -> Trace:
    """The named gates [rows, N], those that are wanted, of the kernel's gate values [rows, G] from these columns on.

    Args: laid: gives a gate its type and its rows, of which others are derived.
    """
    sources = {each.of for each in spec.derived if wanted(each.name)}
    found: Trace = {}
    for gate, column in zip(spec.gates, starts, strict=True):
        if not wanted(gate.name) and gate.name not in sources:
            continue
        y = gates[..., column : column + gate.rows]
        if gate.squash in ("cumax", "tail_cumax"):
            y = (split_below if gate.squash == "cumax" else split_above)(y, gate.hard)[..., : gate.units]
        elif gate.hard:
            y = straight_through(y, (y > 0.5).to(y.dtype))
        found[gate.name] = laid(y)
    return spec.complete(found, wanted)
