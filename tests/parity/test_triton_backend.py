"""The `triton` backend against the reference: on a GPU where there is one, else in Triton's interpreter on the CPU."""

import copy
import importlib
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", minversion="3.4", reason="needs Triton 3.4 or later")

import harness
import torch
from harness import (
    D,
    a_few_cells,
    call,
    check_float32,
    equal,
    inputs_for,
    leaf,
    make,
    measure,
    norm_error,
    same_bits,
)  # fmt: skip
from torch.func import functional_call, jvp

from gatedrnn import Gates, Recurrent
from gatedrnn.cells import CELLS
from gatedrnn.core.errors import BackendError
from gatedrnn.sequence.dispatch import BACKENDS
from gatedrnn.sequence.plan import kernel_of

VARIANTS = {
    name: variant for name, variant in harness.VARIANTS.items() if name != "peephole-full"
}  # which has no kernels here
every_cell = pytest.mark.parametrize("variant", VARIANTS)
each_kind = pytest.mark.parametrize("variant", ["rnn-relu", "gru-before", "onlstm-chunks-free", "slstm"])
"""What a loop can meet: one state, a product inside, scans over chunks, more states. The interpreter is slow."""
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
pytestmark = [pytest.mark.gpu] if GPU else []
T, B, H = 3, 2, 6  # the interpreter is slow
LENGTHS = [1, 3]
SIZES = [(3, 2, 7, 15), (1, 1, 1, 1), (2, 2, 3, 260)]  # the last has more than one program a row
GATES = {
    "noise": Gates(temperature=0.7, noise_probability=0.6),
    "all-of-it": Gates(temperature=0.7, evaluation_temperature=0.8, noise_probability=0.6, straight_through=True),
}


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Lets the backend run on the CPU here, and nowhere else."""
    if not GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def build(variant, width=D, hidden=H, *args, **kwargs):
    return make(variant, width, hidden, *args, backend="triton", device=DEVICE, **kwargs)


def both(layer, x, states, **kwargs):
    return [measure(layer, backend, x, states, **kwargs) for backend in ("triton", "reference")]


@every_cell
@pytest.mark.parametrize("sizes", SIZES, ids=["odd", "one", "wide"])
def test_values_and_gradients_equal_the_reference_in_float64(variant, sizes):
    steps, size, width, hidden = sizes
    ragged = hidden == 15
    layer = build(variant, width, hidden, bidirectional=hidden == 15)
    x, states = inputs_for(layer, steps, size)
    generator = torch.Generator().manual_seed(4)
    noise = [torch.randn(steps, size, layer.spec.rows, generator=generator).to(x) for _ in layer._places()]
    equal(*both(layer, x, states, noise=noise, lengths=range(steps, steps - size, -1) if ragged else None))


@each_kind
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("kind", GATES)
def test_perturbed_gates_equal_the_reference(variant, kind, training):
    layer = build(variant, gates=GATES[kind], training=training)
    x, states = inputs_for(layer, T, B)
    torch.manual_seed(5)
    noise = layer.sample_noise(T, B)
    noise = None if noise[0] is None else noise
    for lengths in (None, LENGTHS):
        equal(*both(layer, x, states, noise=noise, lengths=lengths))


@pytest.mark.parametrize("name", ["output_gate", "input_gate", "forget_gate"])
@pytest.mark.parametrize("variant", ["lstm", "peephole", "onlstm"])
def test_one_hard_gate(variant, name):
    layer = build(variant, gates=Gates(straight_through=True, names=(name,)))
    equal(*both(layer, *inputs_for(layer, T, B)))


@each_kind
def test_without_biases(variant):
    layer = build(variant, bias=False, gates=Gates(evaluation_temperature=0.6))
    equal(*both(layer, *inputs_for(layer, T, B)))


@each_kind
def test_layers_upon_layers_whose_longest_row_ends_early(variant):
    layer = build(variant, D, H, 2, bidirectional=True)
    x, states = inputs_for(layer, 4, 3)
    equal(*both(layer, x, states, lengths=[2, 3, 1]))


@each_kind
def test_each_result_alone_has_its_gradients(variant):
    layer = build(variant)
    x, states = inputs_for(layer, 2, B)
    for name in [name for name in measure(layer, "triton", x, states) if not name.startswith("gradient")]:
        equal(*both(layer, x, states, only=name))


@each_kind
def test_padding_never_leaks_in(variant):
    layer = build(variant)
    x, states = inputs_for(layer, T, B)
    clean = measure(layer, "triton", x, states, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS):
        x[length:, row] = torch.nan
    same_bits(measure(layer, "triton", x, states, lengths=LENGTHS), clean)


@every_cell
def test_float32_errs_no_more_than_the_reference(variant):
    layer = build(variant, 5, 21, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.mul_(1.0 if name.startswith("gain") else 5.0)  # gains of 5 make a step chaotic
    check_float32(layer, 4, B, backend="triton")


@each_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_storage_errs_as_its_rounding(variant, dtype):
    layer = build(variant, 9, 12, dtype=torch.float32)
    x, states = inputs_for(layer, T, B)
    expected = measure(copy.deepcopy(layer).double(), "reference", x.double(), [state.double() for state in states])
    with torch.autocast(DEVICE, dtype):
        ours, theirs = both(layer, x, states)
    rounding = torch.finfo(dtype).eps
    allowed = norm_error(theirs, expected)
    for name, error in norm_error(ours, expected).items():
        assert ours[name].isfinite().all()
        assert error <= 2 * allowed[name] + 2 * rounding, f"{name}: {error:.1e}, the reference's {allowed[name]:.1e}"


@every_cell
def test_weights_in_bfloat16(variant):
    layer = build(variant, 4, 6, dtype=torch.bfloat16)
    x, states = inputs_for(layer, T, B)
    ours, theirs = both(layer, x, states)
    for name, error in norm_error(ours, {name: value.double() for name, value in theirs.items()}).items():
        assert ours[name].dtype == theirs[name].dtype and error < 0.1, (name, error)


@each_kind
def test_saturated_gates_stay_finite(variant):
    layer = build(variant, dtype=torch.float32)
    x, states = inputs_for(layer, T, B)
    for name, value in measure(layer, "triton", 1e4 * x, states).items():
        assert value.isfinite().all(), name
        if name.endswith("gate 0"):
            assert value.min() >= 0 and value.max() <= 1 + 1e-6, name


@each_kind
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_goes_on_as_in_the_reference(variant, value, hard):
    if hard and variant.startswith("rnn"):
        pytest.skip("an RNN has no gate to be hard")
    layer = build(variant, 2, 4, gates=Gates(straight_through=hard), training=hard)
    for place in ("input", "state", "weight"):
        x, states = inputs_for(layer, 2, 1)
        found = []
        with torch.no_grad():
            layer.bias_ih_l0.zero_()
            {"input": x[0, 0], "state": states[-1][0, 0], "weight": layer.bias_ih_l0}[place][1] = value
            for layer.backend in ("triton", "reference"):
                output, finals, trace = call(layer, x, states, return_gates=True)
                found.append([output, *(finals if isinstance(finals, tuple) else [finals]), *trace[0].values()])
        for ours, expected in zip(*found, strict=True):
            torch.testing.assert_close(ours, expected, equal_nan=True, msg=place)


@pytest.mark.parametrize("variant", ["lstm", "gru-before"])
def test_tensors_that_are_not_contiguous_are_read_by_their_strides(variant):
    layer = build(variant)
    x, states = inputs_for(layer, T, B)
    wide = torch.tensor([1, 1, 3, 1], device=DEVICE)
    apart = torch.stack([torch.stack([state, state + 1], -1) for state in states])[..., 0]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.set_(torch.stack([parameter, parameter + 1], -1)[..., 0])
    for lengths in (wide[::2], torch.tensor([3], device=DEVICE).expand(2)):
        assert not lengths.is_contiguous()
        equal(*both(layer, x.mT.contiguous().mT, list(apart), lengths=lengths))


def test_operators_refuse_what_their_kernels_would_misread():
    layer = build("peephole")
    x, states = inputs_for(layer, T, B)
    call(layer, x, states)
    operator, kernel = torch.ops.gatedrnn.recurrence_triton, kernel_of(layer.cell.step, CELLS["peephole"].make_spec(H))
    like = {"dtype": torch.float64, "device": DEVICE}
    good = {
        "x_TBR": torch.randn(T, B, 4 * H, **like),
        "weight_hh": torch.randn(4 * H, H, **like),
        "extra": torch.randn(3 * H, **like),
        "h0_BH": torch.zeros(B, H, **like),
        "s0_BS": torch.zeros(B, H, **like),
        "lengths_B": torch.tensor([2, 3], device=DEVICE),
    }
    fixed = {"bias_R": None, "kernel": kernel, "reverse": False, "keep": False}
    operator(**good, **fixed)
    for name, tensor in good.items():
        for bad in (tensor[:, :-1] if tensor.dim() > 1 else tensor[:-1], tensor.to(torch.float16)):
            with pytest.raises(BackendError, match="must be torch"):
                operator(**{**good, name: bad}, **fixed)
    x, U = leaf(good["x_TBR"]), leaf(good["weight_hh"])
    h_all, *_ = operator(**{**good, "x_TBR": x, "weight_hh": U}, **fixed)  # nothing kept: there is no way back
    with pytest.raises(BackendError, match=r"s_all must be torch.float64 of \[4, 2, 6\] on .*; got .* of \[1, 2, 6\]"):
        h_all.sum().backward()


@each_kind
def test_gradcheck(variant):
    layer = build(variant, 2, 4, gates=Gates(temperature=0.7))
    x, states = inputs_for(layer, 2, 2)
    given = [x, *states, *layer.parameters()]
    names = [name for name, _ in layer.named_parameters()]

    def function(flat):
        parts = flat.split([tensor.numel() for tensor in given])
        x, *rest = [part.view_as(tensor) for part, tensor in zip(parts, given, strict=True)]
        hx, parameters = rest[: len(states)], dict(zip(names, rest[len(states) :], strict=True))
        options = {"lengths": [1, 2], "return_gates": True}
        output, finals, trace = functional_call(layer, parameters, (x, tuple(hx) if len(hx) > 1 else hx[0]), options)
        finals = finals if isinstance(finals, tuple) else (finals,)
        return torch.cat([value.flatten() for value in (output, *finals, *trace[0].values())])

    flat = torch.cat([tensor.detach().flatten() for tensor in given])
    assert torch.autograd.gradcheck(function, leaf(flat), fast_mode=True)


@each_kind
def test_inference_keeps_one_slot_and_equals_training(variant):
    layer = build(variant)
    x, states = inputs_for(layer, T, B)
    for lengths in (None, LENGTHS):
        output, finals = call(layer, x, states, lengths=lengths)
        with torch.no_grad():
            again, final_again = call(layer, x, states, lengths=lengths)
        assert torch.equal(output, again)
        for one, other in zip(finals, final_again, strict=True):
            assert torch.equal(one, other)


@a_few_cells
def test_operators_are_registered_as_pytorch_wants(variant, monkeypatch):
    from gatedrnn.sequence.backends.triton import operators

    calls = {"recurrence": [], "recurrence_backward": []}
    for name, found in calls.items():
        function = getattr(operators, name)
        if name == "recurrence":
            monkeypatch.setattr(
                torch.ops.gatedrnn, "recurrence_triton", lambda *a, f=function, s=found: s.append(a) or f(*a)
            )
        else:
            monkeypatch.setattr(operators, name, lambda *a, f=function, s=found: s.append(a) or f(*a))
    layer = build(variant)
    x, states = inputs_for(layer, T, B)
    output, _ = call(layer, leaf(x), states, lengths=LENGTHS)
    output.sum().backward()
    monkeypatch.undo()
    if not GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name, (arguments,) in calls.items():
        plain = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in arguments]
        checks = ("test_schema", "test_faketensor") if name == "recurrence_backward" else None
        torch.library.opcheck(getattr(operators, name), tuple(plain), **({"test_utils": checks} if checks else {}))


@a_few_cells
def test_compiled_as_one_graph(variant):
    layer = build(variant)
    x, states = inputs_for(layer, T, B)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = []
    for run in (layer, compiled):
        given = leaf(x)
        output, _ = call(run, given, states, lengths=torch.tensor(LENGTHS, device=DEVICE))
        found.append((output.detach(), *torch.autograd.grad(output.square().sum(), [given, *layer.parameters()])))
    for ours, expected in zip(*found, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_transforms_within_a_compiled_function_are_refused(backend):
    layer = build("lstm")
    x, _ = inputs_for(layer, T, B)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: jvp(lambda x: layer(x)[0], (x,), (x,))[1], backend=backend)
    with pytest.raises(Exception, match="a function transform or forward-mode differentiation is active"):
        compiled(x)


def test_exported_with_its_operator():
    layer = build("onlstm").eval()
    x, _ = inputs_for(layer, T, B)
    program = torch.export.export(layer, (x,))
    assert "recurrence_triton" in str(program.graph)
    assert torch.equal(program.module()(x)[0], layer(x)[0])


def test_a_second_derivative_is_refused():
    layer = build("onlstm")
    x, states = inputs_for(layer, T, B)
    x = leaf(x)
    (gradient,) = torch.autograd.grad(call(layer, x, states)[0].square().sum(), x, create_graph=True)
    with pytest.raises(BackendError, match="backend='triton': supports first derivatives only"):
        gradient.sum().backward()


@a_few_cells
def test_empty_batch(variant):
    layer = build(variant)
    x = torch.zeros(4, 0, D, dtype=torch.float64, device=DEVICE, requires_grad=True)
    output, _ = layer(x)
    output.sum().backward()
    assert output.shape == (4, 0, H) and x.grad.shape == x.shape
    assert all(torch.count_nonzero(p.grad) == 0 for p in layer.parameters())


def test_reasons(monkeypatch):
    layer = build("lstm", dtype=torch.float32)
    x = torch.zeros(1, 1, D, device=DEVICE)
    layer.spec  # noqa: B018 - built
    request = layer.request(0, x, tuple(torch.zeros(1, H, device=DEVICE) for _ in range(2)))
    assert BACKENDS["triton"].supports(request) is None
    from gatedrnn import PeepholeLSTM
    from gatedrnn.sequence.backends.triton import backend

    full = PeepholeLSTM(D, H, peephole="full", device=DEVICE, backend="triton")
    with pytest.raises(BackendError, match="a matrix of the cell's own"):
        full(x)
    monkeypatch.setattr(backend, "_missing", lambda kind, index: "triton is 2.1, older than 3.4")
    with pytest.raises(BackendError, match=r"triton is 2\.1, older than 3\.4"):
        layer(x)
    monkeypatch.undo()
    monkeypatch.setattr(backend, "_LARGEST_TILE", 16)
    if not GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(BackendError, match="a row of 6 units is more than one program's tile of 4"):
        build("onlstm", dtype=torch.float32)(x)
    with pytest.raises(BackendError, match="a row of 6 units is more than one program's tile of 2"):
        build("onlstm", dtype=torch.float64)(x.double())


def test_a_compiler_is_looked_for_as_triton_does(monkeypatch):
    from gatedrnn.sequence.backends.triton import backend

    missing = backend._no_compiler.__wrapped__
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert "no C compiler (gcc or clang)" in missing()
    monkeypatch.setenv("CC", "cc")
    assert missing() is None


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_a_cpu_needs_the_interpreter_to_be_asked_for(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(BackendError, match="tensors are on cpu"):
        build("lstm", dtype=torch.float32)(torch.zeros(1, 1, D))


class Replay:
    """What a CUDA graph does, on a CPU: run again on the buffers that it was captured with."""

    def __init__(self, function, buffers, device, pool):
        self.function, self.buffers = function, buffers

    def replay(self):
        self.function(self.buffers)

    def pool(self):
        return "a pool"


@pytest.fixture
def graphs(monkeypatch):
    """Captured loops, or on a CPU their stand-in; and what was captured."""
    from gatedrnn.sequence.backends.triton import graphs

    graphs.drop()
    captured, capture = [], graphs._capture
    if not GPU:
        capture = Replay
        monkeypatch.setattr(graphs, "_stream", lambda device: "here")
    monkeypatch.setattr(graphs, "_capture", lambda *given: captured.append(given) or capture(*given))
    yield captured
    graphs.drop()


@pytest.fixture
def dirty(monkeypatch):
    """Memory that nobody has written holds NaN."""
    fresh = torch.Tensor.new_empty

    def new_empty(*given, **kwargs):
        made = fresh(*given, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)


def pads(*names):
    """What follows the units in the rows of a graph's buffers of these names."""
    from gatedrnn.sequence.backends.triton import graphs

    for kept in graphs._KEPT.values():
        for name in names:
            tensor = kept.buffers.get(name)
            if tensor is not None:
                assert tensor.stride(-2) % 64 == 0
                yield tensor.as_strided((*tensor.shape[:-1], tensor.stride(-2)), tensor.stride())[
                    ..., tensor.shape[-1] :
                ]


@pytest.mark.parametrize(
    ("variant", "hidden"),
    [("rnn-relu", 5), ("gru-before", 70), ("onlstm-chunks-free", 70), ("onlstm-chunks-free", 5), ("slstm", 5)],
)
def test_captured_loops_equal_the_reference(variant, hidden, graphs, dirty):
    small = hidden == 5
    layer = build(variant, 2, hidden, bidirectional=small)
    for _ in range(3):  # as it is, on the graph's buffers, replayed
        for steps in (3, 2):  # fewer steps on the buffers of more
            x, states = inputs_for(layer, steps, B)
            equal(*both(layer, x, states, lengths=[steps, 1] if small else None))
    assert graphs, "nothing was captured"
    found = list(pads("h_all", "weight_hh", "work", "dh_u", "dU"))
    assert len(found) >= 6 and all(pad.numel() and not pad.any() for pad in found)


@each_kind
def test_every_call_of_a_shape_gives_the_same_bits(variant, graphs):
    """The first one, which nothing was captured for, too: a resumed training begins with it."""
    layer = build(variant, 2, 70)
    x, states = inputs_for(layer, 3, B)
    first, *others = [measure(layer, "triton", x, states) for _ in range(3)]
    for found in others:
        same_bits(found, first)
    assert graphs


def test_a_graph_is_of_one_way_to_round_products(graphs):
    layer = build("lstm")
    before = torch.get_float32_matmul_precision()
    try:
        with torch.no_grad():
            for precision in ("highest", "high", "highest", "high"):
                torch.set_float32_matmul_precision(precision)
                twice(layer, 2)
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(graphs) == 2


@each_kind
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_row_beside_pads(variant, value, graphs, dirty):
    layer = build(variant, 2, 5)
    x, states = inputs_for(layer, 2, B)
    bad = x.clone()
    bad[0, 0] = value
    clean = [measure(layer, "triton", x, states) for _ in range(2)][1]
    found = measure(layer, "triton", bad, states)
    for name in ("output", "final 0", "gradient of x", "gradient of state 0"):
        assert torch.equal(found[name][:, 1], clean[name][:, 1]), name
    assert not any(pad.any() for pad in pads("h_all", "weight_hh", "work"))
    same_bits(measure(layer, "triton", x, states), clean)


@pytest.mark.parametrize("variant", ["lstm", "gru-before"])
def test_rows_of_64_units_need_no_pads(variant, graphs):
    layer = build(variant, 2, 64)
    for _ in range(3):
        equal(*both(layer, *inputs_for(layer, 2, B)))
    assert not any(pad.numel() for pad in pads("h_all", "weight_hh", "work", "dh_u", "dU"))


def test_a_replay_leaves_earlier_results_alone(graphs):
    layer = build("onlstm")
    x, states = inputs_for(layer, T, B)
    outputs = [call(layer, factor * x, states) for factor in (1, 1, 1, 2)]
    assert torch.equal(outputs[0][0], outputs[2][0]) and not torch.equal(outputs[2][0], outputs[3][0])
    assert torch.equal(outputs[1][1][1], outputs[2][1][1])


def few_bytes(monkeypatch, most):
    from gatedrnn.sequence.backends.triton import graphs

    monkeypatch.setattr(graphs, "_limit", lambda device: most)
    return graphs


def twice(layer, *sizes, steps=2):
    for size in sizes:
        for _ in range(2):
            layer(torch.ones(steps, size, D, dtype=torch.float64, device=DEVICE))


def test_buffers_of_all_shapes_together_stay_below_a_limit(graphs, monkeypatch):
    layer = build("lstm")
    with torch.no_grad():
        twice(layer, 4)
        module = sys.modules["gatedrnn.sequence.backends.triton.graphs"]
        (kept,) = module._KEPT.values()
        assert kept.size_bytes == sum(
            tensor.untyped_storage().nbytes() for tensor in kept.buffers.values() if tensor is not None
        )
        few_bytes(monkeypatch, 2 * kept.size_bytes)
        twice(layer, 5, 3, 4)  # those of 5 do not fit beside those of 4, and go when those of 4 come back
        assert [key[0][4] for key in module._KEPT] == [3, 4] and len(graphs) == 4
        few_bytes(monkeypatch, kept.size_bytes - 1)
        module.drop()
        twice(layer, 4, 3)  # 4 would be too much alone, and drops nothing
        twice(layer, 4)
        assert [key[0][4] for key in module._KEPT] == [3]


def test_graphs_of_many_lengths_stay_below_a_limit(graphs, monkeypatch):
    from gatedrnn.sequence.backends.triton import graphs as module

    monkeypatch.setattr(module, "_STEPS", 6)
    monkeypatch.setattr(module, "_SHAPES", 4)
    layer = build("lstm")
    with torch.no_grad():
        for steps in (1, 2, 3, 1, 2):
            twice(layer, 2, steps=steps)
        assert [list(kept.graphs) for kept in module._KEPT.values()] == [[3, 1, 2]]
        twice(layer, 2, steps=4)
        twice(layer, 3, steps=1)
        assert [list(kept.graphs) for kept in module._KEPT.values()] == [[4], [1]] and len(module._SEEN) == 4


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_without_memory_for_a_graph_a_call_runs_as_it_is(error, graphs, monkeypatch):
    from gatedrnn.sequence.backends.triton import graphs as module

    def full(*given):
        raise error("CUDA error: out of memory")

    layer = build("onlstm")
    x, states = inputs_for(layer, T, B)
    capture = module._capture
    monkeypatch.setattr(module, "_capture", full)
    for _ in range(3):
        equal(*both(layer, x, states))
    monkeypatch.setattr(module, "_capture", capture)
    error = torch.OutOfMemoryError  # the allocator's
    monkeypatch.setattr(torch, "inference_mode", full)  # in which buffers are made
    module.drop()
    for _ in range(2):
        equal(*both(layer, x, states))
    assert not graphs and not module._KEPT


def test_without_memory_for_pads_a_call_runs_without_them(graphs, monkeypatch):
    from gatedrnn.sequence.backends.triton import graphs as module

    def full(*given):
        raise torch.OutOfMemoryError("no room")

    layer = build("lstm")
    monkeypatch.setattr(module, "_pitched", full)
    equal(*both(layer, *inputs_for(layer, T, B)))


def test_graphs_of_two_streams_are_captured_on_two(monkeypatch):
    from gatedrnn.sequence.backends.triton import graphs as module

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    made = [module._capture_stream(torch.device("cuda", 0), stream) for stream in (1, 2, 1)]
    module._capture_stream.cache_clear()
    assert made[0] is made[2] is not made[1]


def test_what_inference_mode_left_serves_later_calls(graphs):
    layer = build("onlstm")
    x, states = inputs_for(layer, T, B)
    with torch.inference_mode():
        expected, *again = [call(layer, x, states, return_gates=True)[0].clone() for _ in range(3)]
    with torch.no_grad():
        again.append(call(layer, x, states, return_gates=True)[0])
    assert all(torch.equal(output, expected) for output in again)
    equal(*both(layer, x, states))
    assert len(graphs) == 1


def test_launches_and_captures_are_on_the_device_of_their_tensors(graphs, monkeypatch):
    from gatedrnn.sequence.backends.triton import graphs as module

    module = importlib.reload(module)  # as it is on a GPU, without the stand-ins
    here = []

    class On:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            here.append(self.device.index)

        def __exit__(self, *error):
            here.pop()

    class Graph(On):
        def __init__(self, graph, *, pool, stream, capture_error_mode):
            assert stream == f"stream of cuda:{here[-1]}" and capture_error_mode == "thread_local"
            pools.append(pool)
            super().__init__(torch.device("cuda", here[-1]))

    class Captured:
        def pool(self):
            return id(self)

        def replay(self):
            at.append(("replay", here[-1]))

    class Buffer(SimpleNamespace):
        def numel(self):
            return 1

        def new_empty(self, shape):
            return self

        def copy_(self, other):
            at.append(("copy", here[-1]))

        def element_size(self):
            return 8

    at, pools = [], []
    for name, stand_in in {
        "device": On,
        "graph": Graph,
        "CUDAGraph": Captured,
        "Stream": lambda device: f"stream of {device}",
        "is_current_stream_capturing": lambda: bool(at.append(("capturing?", here[-1]))),
        "current_stream": lambda device: SimpleNamespace(cuda_stream=here[-1]),
        "stream": lambda stream: nullcontext(),
        "get_device_properties": lambda device: SimpleNamespace(total_memory=1 << 30),
        "synchronize": lambda device: at.append(("wait", device.index)),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    try:
        for index in (1, 0, 1, 0, 1, 0):
            at.clear()
            tensor = Buffer(device=torch.device("cuda", index), shape=torch.Size([1]))
            module.run(
                lambda b: at.append(("run", here[-1])), ("key",), 1, module.Layout({}), {"x": tensor}, {"h": tensor}
            )
            assert {place for _, place in at} == {index} and not here
        assert [what for what, _ in at] == ["capturing?", "copy", "replay", "copy"]
        assert pools == [None, None]  # one device's graphs have no scratch in common with another's
    finally:
        module.drop()
        monkeypatch.undo()
        importlib.reload(module)


def test_a_backend_that_lost_frees_its_buffers(graphs):
    from gatedrnn.sequence import dispatch
    from gatedrnn.sequence.backends.triton import graphs as module

    for _ in range(2):
        build("lstm")(torch.ones(2, 2, D, dtype=torch.float64, device=DEVICE))
    dispatch._lost("torch")
    assert module._KEPT
    dispatch._lost("triton")
    assert not module._KEPT


@pytest.fixture
def measured(monkeypatch):
    """Lets choices of launches be measured on a CPU too, by a clock on which each is faster than the one before."""
    from gatedrnn.sequence.backends.triton import loops, tuning

    calls = []

    def clock(call, quantiles):
        call()
        calls.append(None)
        return [1.0 / len(calls)] * len(quantiles)

    tuned, kernels = tuning.tuned.__wrapped__, {}
    monkeypatch.setattr(
        loops, "tuned", lambda kernel, *how: kernels.setdefault((id(kernel), *how), tuned(kernel, *how, clock))
    )
    monkeypatch.setattr(loops, "measurable", lambda device: True)
    monkeypatch.setattr(loops, "_CHOSEN", {})
    return calls, kernels


@pytest.mark.skipif(GPU, reason="there the clock is real")
@pytest.mark.parametrize("variant", ["rnn-tanh", "peephole", "coupled", "gru-after", "gru-before", "onlstm-chunks"])
def test_choices_are_measured_once_and_change_no_value(variant, measured):
    (calls, kernels), counts = measured, []
    layer = build(variant, D, 260)
    x, states = inputs_for(layer, 2, 3)
    for _ in range(2):
        for lengths in (None, [2, 1, 2]):
            equal(*both(layer, x, states, lengths=lengths))
        with torch.no_grad():
            found = call(layer, x, states)[0]  # nothing kept: the state's one slot is read and written
            layer.backend = "reference"
            torch.testing.assert_close(found, call(layer, x, states)[0])
            layer.backend = "triton"
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0
    assert all(kernel.best_config == kernel.configs[-1] for kernel in kernels.values())


def test_where_nothing_can_be_measured_the_usual_choice_serves():
    from gatedrnn.sequence.backends.triton.compiled import shape_of
    from gatedrnn.sequence.backends.triton.tuning import choices, measurable

    def choices_for(name, hidden, **options):
        cell = CELLS[name]
        return choices(shape_of(kernel_of(cell.step, cell.make_spec(hidden, **options))))

    assert not measurable(torch.device("cpu"))
    for hidden, block in ((6, 8), (256, 256), (1150, 256)):
        found = choices_for("lstm", hidden)
        assert found[0] == (block, 4) and len(set(found)) == len(found)
    assert choices_for("onlstm", 1150, chunk_size=10) == [
        (None, 8),
        (None, 4),
        (None, 16),
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_ten_thousand_steps_neither_leak_nor_hang():
    layer = build("onlstm-chunks", 64, 64, dtype=torch.float32, training=True)
    x = torch.randn(35, 8, 64, device=DEVICE)
    used = []
    for step in range(10_000):
        layer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            layer(x[: 30 + step % 6])[0].square().mean().backward()
        if step in (100, 9_999):
            torch.cuda.synchronize()
            used.append(torch.cuda.memory_allocated())
    assert used[1] <= used[0] + (1 << 20)


def test_kernels_compile_for_gpus_without_one(pytestconfig, tmp_path):
    script = Path(__file__).with_name("triton_compile.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    kept = pytestconfig.cache.mkdir("triton") if pytestconfig.pluginmanager.has_plugin("cacheprovider") else tmp_path
    environment["TRITON_CACHE_DIR"] = str(kept)  # by sources, options and versions
    done = subprocess.run(
        [sys.executable, str(script), "80", "rnn-relu", "lstm", "gru-before", "onlstm-chunks"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    built = {tuple(line.split()[:2]) for line in done.stdout.splitlines()}
    assert {("onlstm-chunks", "backward"), ("gru-before", "forward_second"), ("rnn-relu", "forward")} <= built
    assert {name for name, _ in built} == set(VARIANTS)


@pytest.mark.parametrize("cell", ["lstm", "gru", "mgu"])
def test_no_two_gradients_lie_in_one_memory(cell):
    layer = Recurrent(cell, D, H, backend="triton", device=DEVICE)
    found = torch.autograd.grad(layer(torch.randn(T, B, D, device=DEVICE))[0].sum(), list(layer.parameters()))
    assert len({each.data_ptr() for each in found}) == len(found)
