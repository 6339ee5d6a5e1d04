"""A graph beside the module it was made of: checked by onnx, run by onnxruntime.

Dimensions: T time, B batch, S source.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from gatedrnn.core.errors import GatedRNNError, first_line
from gatedrnn.export.graphs import Graph, Input

TOLERANCE = 1e-5
"""Largest error of a float32 graph: absolute up to 1, relative above."""
OWN_ERRORS = 4
"""An error above the tolerance is accepted up to so many times the module's own in float32 beside float64: some trained models
amplify rounding from step to step, in every program that runs them."""
TOLERANCE_INT8 = 0.25
"""Largest error of an int8 graph: root mean square of the error over that of the values, by output."""
_SIZES = ({"T": 1, "B": 1, "S": 2}, {"T": 7, "B": 5, "S": 4}, {"T": 200, "B": 1, "S": 9})
_QUIET = 3  # onnxruntime's level of errors


def values(inputs: tuple[Input, ...], sizes: dict[str, int], seed: int) -> list[Tensor]:
    """Random values of each input; the first row has the full length."""
    generator = torch.Generator().manual_seed(seed)
    names = {size for each in inputs for size in each.sizes}
    found = []
    for each in inputs:
        shape = [sizes[size] if isinstance(size, str) else size for size in each.sizes]
        if each.kind == "real":  # not negative: some cells' states never are
            found.append(torch.rand(shape, generator=generator, dtype=torch.float32))
        elif each.kind == "ids":
            found.append(torch.randint(each.below, shape, generator=generator))
        elif each.kind == "flags":
            found.append(torch.arange(shape[1]).expand(shape) >= max(1, shape[1] - 1))
        else:
            longest = sizes["S" if each.name.startswith("right") or "T" not in names else "T"]
            lengths = torch.randint(1, longest + 1, shape, generator=generator)
            lengths[0] = longest
            found.append(lengths)
    return found


def check(graph: Graph, model: Any, int8: bool) -> None:
    """Raises: GatedRNNError: the file is not valid, computes something else than the module, or the module no finite numbers."""
    import onnxruntime
    from onnx import checker

    owner, advice = f"export.onnx {graph.name}", "This is a bug: please report it"
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = _QUIET, 1
    try:
        if not int8:  # onnx does not know the operators of onnxruntime
            checker.check_model(model, full_check=True)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception as error:  # each library has its own
        raise GatedRNNError(owner, "must be a valid graph", first_line(error), advice) from error
    if int8:
        advice = "Export it without int8"
    for seed, sizes in enumerate(_SIZES):
        given = values(graph.inputs, sizes, seed)
        feeds = {each.name: value.numpy() for each, value in zip(graph.inputs, given, strict=True)}
        found = dict(zip((output.name for output in session.get_outputs()), session.run(None, feeds), strict=True))
        with torch.no_grad():
            expected = graph.truth(*given)
        for name, value in expected.items():
            if not bool(value.isfinite().all()):
                got = f"NaN or infinity in {name}"
                raise GatedRNNError(owner, "must compute finite numbers", got, "The weights are damaged or too large")
            away = _error(value, torch.from_numpy(found[name]), int8)
            bound = TOLERANCE_INT8 if int8 else TOLERANCE
            if not away <= bound and not away <= OWN_ERRORS * _own_error(graph, given, expected, name, int8):
                got = f"{name} off by {away:.1g} at T = {sizes['T']}, B = {sizes['B']}"
                raise GatedRNNError(owner, "must compute what the module does", got, advice)


def _own_error(graph: Graph, given: list[Tensor], expected: dict[str, Tensor], name: str, int8: bool) -> float:
    """What an output of the module in float32 is away from that in float64.

    0 for int8, whose error has other reasons, and for a module that draws random numbers: that is not an error of rounding.
    """
    with torch.no_grad():
        if int8 or not torch.equal(graph.truth(*given)[name], expected[name]):
            return 0.0
        exact = copy.deepcopy(graph.truth).double()(*(v.double() if v.is_floating_point() else v for v in given))
    return _error(exact[name], expected[name], False)


def _error(expected: Tensor, found: Tensor, int8: bool) -> float:
    """As the tolerances measure it; infinite for another shape."""
    if expected.shape != found.shape:
        return float("inf")
    true, away = expected.double(), (expected.double() - found.double()).abs()
    if int8:
        return float(away.square().mean().sqrt() / true.square().mean().sqrt().clamp_min(1e-3))
    return float((away / true.abs().clamp_min(1)).max())
