"""What a call should give: by the reference, with its gradients; how near an answer must come, and when an error is one.

A result is right where its error is at most 16 times that of the reference in the layer's own type, or 64 units in the last
place of the largest value; NaN and infinities stand where the reference has them.
"""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from .calls_tensors import Finding, Values, bare


def weights_of(run: Any) -> dict[str, Tensor]:
    """What the layer computed with; a hook computes its weight once more where the call's own is of torch.func, or used up."""
    if run.call.wrap in ("func_grad", "jacrev", "reentrant"):
        with torch.enable_grad() if run.call.mode == "grad" else torch.no_grad():
            for hook in run.layer._forward_pre_hooks.values():
                hook(run.layer, ())
    return run.bench.weights(run.index)


def expected(run: Any, dtype: torch.dtype | None, weights: dict[str, Tensor]) -> Values:
    """By the reference: in float64, or (dtype None) in the layer's own types and under the same autocast."""
    call, same = run.call, dtype is None
    own = run.bench.dtype if dtype is None else dtype
    reference = run.bench.reference(run.index, own).train(call.training)
    given, rounding = {}, torch.Generator().manual_seed(run.probe_seed)
    for name, weight in weights.items():
        weight = bare(weight.detach())
        if same and weight.dtype in (torch.float64, torch.float32):  # rounded otherwise: what that changes is allowed
            shift = torch.finfo(weight.dtype).eps * torch.randn(weight.shape, generator=rounding)
            weight = weight * (1 + shift.to(weight))
        given[name] = (weight.clone() if same else weight.to(own)).requires_grad_(call.mode == "grad")
    for name in set(dict(reference.named_parameters())) - set(given):
        setattr(reference, name, None)
    with ExitStack() as stack:
        if call.autocast and same:
            stack.enter_context(torch.autocast("cpu", getattr(torch, call.autocast)))
        stack.enter_context(torch.enable_grad() if call.mode == "grad" else torch.no_grad())
        leaves, x, hx, keywords = run.inputs(own, exact=True)
        values = run.read(torch.func.functional_call(reference, given, (x, hx), keywords))
    found = {name: value.detach() for name, value in values.items()}
    if call.mode == "grad":
        found |= run.gradients(values, leaves | given)
    return found


def expected_gradients(run: Any, found: Values, weights: dict[str, Tensor]) -> Values:
    """Gradients of effective weights as those of the parameters behind them."""
    values = {n: v for n, v in found.items() if n.removeprefix("gradient of ") not in weights}
    if run.call.mode != "grad":
        return values
    parameters = dict(run.layer.named_parameters())
    frozen = set()
    if run.call.frozen in ("weights", "all", "some"):
        frozen = {n for k, n in enumerate(parameters) if run.call.frozen != "some" or k % 2}
    wanted = {n: p for n, p in parameters.items() if p.requires_grad and n not in frozen}
    pairs = [
        (w, found[f"gradient of {n}"]) for n, w in weights.items() if f"gradient of {n}" in found and w.requires_grad
    ]
    if not wanted or not pairs:
        return values
    with torch.enable_grad():
        gradients = torch.autograd.grad(
            [w for w, _ in pairs],
            list(wanted.values()),
            [g.to(w.dtype) for w, g in pairs],
            allow_unused=True,
            retain_graph=True,
        )
    return values | {
        f"gradient of parameter {n}": torch.zeros_like(bare(p.detach())) if g is None else bare(g).detach()
        for (n, p), g in zip(wanted.items(), gradients, strict=True)
    }


def precision(call_autocast: str, dtype: torch.dtype) -> float:
    """Units in the last place of the largest value that an error may have, as a number."""
    types = [dtype] + ([getattr(torch, call_autocast)] if call_autocast and dtype != torch.float64 else [])
    eps = max(torch.finfo(kind).eps for kind in types)
    return 1e7 * eps if eps < 1e-12 else 64 * eps if eps < 1e-5 else 6 * eps


def compare(
    found: Values, exact: Values, same: Values, floor: float, ragged: bool = False, whole_rows: bool = False
) -> None:
    """Raises Finding where `found` is not as near to `exact` as `same` allows; `whole_rows`: a NaN may reach its whole row."""
    if found.keys() != exact.keys():
        raise Finding("wrong names", f"{sorted(found.keys() ^ exact.keys())}")
    sizes = [
        float(v.nan_to_num(0, 0, 0).abs().max())
        for n, v in exact.items()
        if n.startswith("gradient") and v.numel() and not v.is_meta
    ]
    largest = max(sizes, default=0.0)
    overflowing = any(  # a part of a sum may be larger than all of it, and what follows an infinity is NaN
        v.is_floating_point() and not v.is_meta and bool((v.abs() > torch.finfo(same[n].dtype).max / 64).any())
        for n, v in exact.items()
    )
    for name, value in exact.items():
        mine, theirs = found[name], same[name]
        gate = name != "output" and not name.startswith(
            ("final", "gradient", "state", "loss", "logits")
        )  # its type may be wider
        if mine.shape != value.shape or (mine.dtype != theirs.dtype and not gate):
            raise Finding(
                "wrong shape", f"{name}: {mine.dtype} {list(mine.shape)}, not {theirs.dtype} {list(theirs.shape)}"
            )
        if not value.numel() or mine.is_meta:
            continue
        mine, theirs = mine.double(), theirs.double()
        finite = value.isfinite() & theirs.isfinite()
        gradient = name.startswith("gradient")
        bad = (mine.isfinite() != theirs.isfinite()) & (mine.isfinite() != value.isfinite())
        bad &= not overflowing
        if whole_rows and not gradient:
            bad &= ~(mine.isnan() & theirs.isnan().any(-1, keepdim=True))
        if gradient and ragged:  # the reference's masks multiply NaN by 0
            bad &= ~mine.isfinite()
        if bad.any():
            at = bad.nonzero()[0].tolist()
            raise Finding(
                "gradient not finite elsewhere" if gradient else "not finite elsewhere",
                f"{name} {at}: {float(mine[tuple(at)])}, not {float(theirs[tuple(at)])}; {int(bad.sum())} of {bad.numel()}",
            )
        nan = ~gradient & (mine.isnan() != theirs.isnan()) & (mine.isnan() != value.isnan()) & ~finite
        if not gradient and not overflowing and nan.any():
            raise Finding("NaN for infinity", name)
        finite &= mine.isfinite()
        if not finite.any():
            continue
        off = (mine - value).where(finite, 0).abs().max()
        rounding = float((theirs - value).where(finite, 0).abs().max())
        scale = float(value.where(finite, 0).abs().max())
        if gradient and rounding > scale / 10 and scale > 1e6:  # exploded over many steps, it is rounding alone
            continue
        allowed = 32 * rounding  # 16 times happens once in thousands of calls
        allowed += floor * max(scale, 1e-2 * largest if gradient else 0.0) + 1e-37
        if float(off) > allowed:
            raise Finding(
                "wrong gradient" if gradient else "wrong numbers",
                f"{name}: off by {float(off):.2g} of {scale:.2g}, allowed {allowed:.2g}",
            )


def refusal_is_fair(run: Any) -> bool:
    """Whether one of our errors is an answer to this call."""
    call, case = run.call, run.case
    unusual = ("double_backward", "jvp", "vmap", "vmap_in", "trace", "export", "func_grad", "jacrev")
    return bool(
        call.wrong
        or run.bench.lenient
        or call.wrap in unusual
        or run.layer.backend not in ("auto", "reference")
        or case.device == "meta"
        or call.strides in ("two_tensor", "subclass")
        or call.noise == "drawn64"
        or (call.autocast and run.bench.dtype in (torch.bfloat16, torch.float16))
    )
