"""A projection h = P m of what a cell puts out, for backends that have none: U h' = (U P) m'.

h is computed from m by one product after the loop.
Dimensions: T time, B batch, D input, H hidden, J units of a projected h, R rows of all gates.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from gatedrnn.sequence.plan import Plan, plan_for
from gatedrnn.sequence.request import Backend, Request, Result
from gatedrnn.weights.compressed import as_dense


def reason(backend: Backend, request: Request) -> str | None:
    """None, or why `backend`, which has no projections, cannot run `request`, which has one."""
    plan = plan_for(request.cell.step, request.spec)
    if isinstance(plan, Plan) and plan.u_column:
        return "the cell uses U h' separately from W x, which does not allow a projection"
    return request.misfit() or backend.supports(_outlined(request))


def run(backend: Backend, request: Request) -> Result:
    """Run `request` on `backend` without its projection, and project what it gives."""
    result, weight = backend.run(_unprojected(request)), request.params.weight_hr
    assert weight is not None
    output, h = (F.linear(value, as_dense(weight)) for value in (result.output_TBH, result.state[0]))
    dtype = request.state[0].dtype
    return Result(request.live(output).to(dtype), (h.to(dtype), *result.state[1:]), result.trace)


def _outlined(request: Request) -> Request:
    """As `_unprojected`, of tensors of the same types and shapes that hold nothing: to ask whether a backend supports it."""
    p, h_0, x_TBD, (T, B, D) = request.params, request.state[0], request.x_TBD, request.x_TBD.shape
    R, J = p.weight_hh.shape
    H = request.spec.hidden_size
    params = replace(
        p, weight_ih=p.weight_hh.new_empty(R, D + J), weight_hh=p.weight_hh.new_empty(R, H), weight_hr=None
    )
    state = (h_0.new_empty(B, H), *request.state[1:])
    return replace(request, params=params, x_TBD=x_TBD.new_empty(T, B, D + J), state=state)


def _unprojected(request: Request) -> Request:
    """The recurrence over m. Its first step adds U h_0, which is no U P m_0 of any m_0, as inputs of that step alone."""
    p, h_0, x_TBD, (T, B, _) = request.params, request.state[0], request.x_TBD, request.x_TBD.shape
    assert p.weight_hr is not None
    last: int | Tensor = T - 1 if request.lengths_B is None else request.lengths_B - 1
    begins = torch.arange(T, device=x_TBD.device)[:, None] == (last if request.reverse else 0)
    inputs = torch.where(begins.expand(T, B)[..., None], h_0.to(x_TBD.dtype), 0)
    with torch.autocast(x_TBD.device.type, enabled=False):
        U, P = as_dense(p.weight_hh), as_dense(p.weight_hr)
        params = replace(
            p, weight_ih=torch.cat((as_dense(p.weight_ih), U), 1), weight_hh=torch.matmul(U, P), weight_hr=None
        )
        m_0 = h_0.new_zeros(B, request.spec.hidden_size)
        state = (m_0, *request.state[1:])
        return replace(request, params=params, x_TBD=torch.cat((x_TBD, inputs), -1), state=state)
