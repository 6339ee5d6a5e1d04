"""What PyTorch does with the `cpu` backend's operators: checks, compilers, exporters, transforms, autocast."""

import copy
import pickle
import shutil
from dataclasses import replace

import pytest

pytest.importorskip("numba")

import torch
from harness import (
    KINDS,
    RAGGED,
    B,
    D,
    H,
    T,
    a_few_cells,
    call,
    equal,
    every_cell,
    inputs_for,
    leaf,
    make,
    measure,
    norm_error,
    ran_on_cpu,
    spied,
)  # fmt: skip
from torch.autograd import forward_ad
from torch.export import Dim
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from gatedrnn import Gates
from gatedrnn.core.errors import BackendError
from gatedrnn.models.loss import chunked_cross_entropy
from gatedrnn.sequence.backends.cpu.matmul.sizes import direct
from gatedrnn.sequence.backends.cpu.recurrence import operator as operators
from gatedrnn.sequence.backends.cpu.runtime.target import best, targets


def detached(arguments, grad):
    def one(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(grad and value.is_floating_point())

    return tuple(one(value) for value in arguments)


@pytest.mark.parametrize(
    ("variant", "hidden", "lengths"),
    [("lstm", 16, None), ("lstm", H, None), ("peephole", 16, RAGGED[B]), ("gru-after", 16, None)],
    ids=["lstm", "lstm-odd", "peephole-ragged", "gru-after"],
)
def test_opcheck_of_the_recurrence_and_its_backward(variant, hidden, lengths, monkeypatch):
    forward = spied(monkeypatch, torch.ops.gatedrnn, "recurrence")
    backward = spied(monkeypatch, operators, "recurrence_backward")
    layer = make(variant, D, hidden, dtype=torch.float32, gates=Gates(evaluation_temperature=0.7))
    measure(layer, "cpu", *inputs_for(layer), lengths=lengths, noise=[torch.randn(T, B, layer.spec.rows)])
    monkeypatch.undo()
    (forward,), (backward,) = forward, backward
    torch.library.opcheck(torch.ops.gatedrnn.recurrence.default, detached(forward, True))
    torch.library.opcheck(torch.ops.gatedrnn.recurrence_backward.default, detached(backward, False))


def test_opcheck_of_a_recurrence_that_draws_its_noise(monkeypatch):
    forward = spied(monkeypatch, torch.ops.gatedrnn, "recurrence")
    layer = make("g2lstm", D, 16, dtype=torch.float32, training=True)
    call(layer, *inputs_for(layer))
    monkeypatch.undo()
    assert forward[0][9] is not None  # the seed
    torch.library.opcheck(torch.ops.gatedrnn.recurrence.default, detached(forward[0], True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck_of_the_noise(dtype):
    arguments = (torch.tensor([5]), 6, 21, [0, 7, 14, 21], 0.3, 1.5, torch.empty(0, dtype=dtype))
    torch.library.opcheck(torch.ops.gatedrnn.logistic_noise.default, arguments)


@a_few_cells
def test_compiled_layer_equals_eager(variant):
    torch._dynamo.reset()
    layer = make(variant, D, H, 2, bidirectional=True, dtype=torch.float32)
    x, states = inputs_for(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = []
    for function in (layer, compiled):
        layer.zero_grad()
        given = leaf(x)
        output, _ = call(function, given, states)
        (output**2).sum().backward()
        gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
        found.append({"output": output.detach(), "x": given.grad, **gradients})
    equal(found[1], found[0], 1e-6)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler, which AOTInductor calls")
def test_a_package_of_aotinductor_takes_other_sizes_and_lengths(tmp_path):
    layer, B, T = make("gru-after", D, 16, dtype=torch.float32), Dim("B", min=2, max=64), Dim("T", min=2, max=64)
    sizes = {"input": {0: T, 1: B}, "lengths": {0: B}}
    given = {"input": torch.randn(5, 3, D), "lengths": torch.tensor([3, 5, 1])}
    program = torch.export.export(layer, (), given, dynamic_shapes=sizes)
    quickly = {"aot_inductor.compile_wrapper_opt_level": "O0"}
    path = str(tmp_path / "layer.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=quickly)
    given = {"input": torch.randn(9, 4, D), "lengths": torch.tensor([9, 1, 4, 2])}
    found = tree_leaves(torch._inductor.aoti_load_package(path)(**given))
    with torch.no_grad():
        expected = tree_leaves(layer(**given))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_compiled_training_layer_draws_its_noise():
    torch._dynamo.reset()
    layer = make("g2lstm", dtype=torch.float32, training=True)
    x, states = inputs_for(layer)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    outputs = []
    for function in (layer, compiled, compiled):
        torch.manual_seed(7)
        outputs.append(call(function, x, states)[0].detach())
    assert torch.equal(outputs[1], outputs[2])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-6)
    assert not torch.equal(call(compiled, x, states)[0], outputs[1])


@a_few_cells
def test_exported_layer_gives_the_same_output(variant):
    layer = make(variant, bidirectional=True, dtype=torch.float32)
    x, _ = inputs_for(layer)
    program = torch.export.export(layer, (x,))
    assert "gatedrnn.recurrence" in str(program.graph)
    for given in (x, x.flip(0)):
        torch.testing.assert_close(program.module()(given)[0], layer(given)[0], rtol=0, atol=0)


def test_second_derivatives_are_refused_and_name_the_reference():
    layer = make("lstm")
    x = leaf(inputs_for(layer)[0])
    (first,) = torch.autograd.grad((layer(x)[0] ** 2).sum(), x, create_graph=True)
    with pytest.raises((BackendError, RuntimeError), match="backend='reference'"):
        torch.autograd.grad(first.sum(), x)


def dual(function, x, tangent):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent))).tangent.clone()


TRANSFORMS = {
    "jvp": lambda function, x, v: torch.func.jvp(function, (x,), (v,))[1],
    "dual": dual,
    "grad": lambda function, x, v: torch.func.grad(lambda x: (function(x) ** 2).sum())(x),
    "vjp": lambda function, x, v: torch.func.vjp(function, x)[1](torch.ones_like(function(x)))[0],
    "vmap": lambda function, x, v: torch.func.vmap(function)(torch.stack([x, v])),
    "batched": lambda function, x, v: torch.autograd.functional.jacobian(
        lambda x: function(x).sum(0), x, vectorize=True
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_function_transforms_are_right_under_auto_and_refused_by_name(transform):
    layer = make("lstm")
    x, _ = inputs_for(layer)
    v = torch.randn_like(x)

    def found(backend):
        layer.backend = backend
        return TRANSFORMS[transform](lambda x: layer(x)[0], x, v).detach()

    expected = found("reference")
    assert torch.count_nonzero(expected)
    torch.testing.assert_close(found("auto"), expected, rtol=0, atol=1e-12)
    if transform == "batched":  # of which only the backward is transformed
        torch.testing.assert_close(found("cpu"), expected, rtol=0, atol=1e-12)
        return
    with pytest.raises(BackendError, match="a function transform or forward-mode differentiation is active"):
        found("cpu")


@pytest.mark.filterwarnings("ignore")  # Dynamo's, of batched calls
@pytest.mark.parametrize("transform", sorted(TRANSFORMS.keys() - {"dual", "batched"}))
def test_function_transforms_within_a_compiled_function_are_right(transform):
    layer = make("lstm")
    layer.backend = "auto"
    x, _ = inputs_for(layer)
    v = torch.randn_like(x)

    def found(x, v):
        return TRANSFORMS[transform](lambda x: layer(x)[0], x, v)

    expected = found(x, v)
    assert torch.count_nonzero(expected)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(found, backend="aot_eager")(x, v), expected, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transform", sorted(TRANSFORMS.keys() - {"batched"}))
def test_a_layer_compiled_before_runs_within_a_function_transform(transform):
    layer = make("lstm")
    layer.backend = "auto"
    x, _ = inputs_for(layer)
    v = torch.randn_like(x)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: layer(x)[0], backend="eager")
    compiled(x)
    expected = TRANSFORMS[transform](lambda x: layer(x)[0], x, v)
    torch.testing.assert_close(TRANSFORMS[transform](compiled, x, v), expected, rtol=0, atol=1e-12)


@every_cell
def test_backward_twice_gives_the_same_gradients(variant):
    layer = make(variant, dtype=torch.float32)
    x = leaf(inputs_for(layer)[0])
    loss = (layer(x)[0] ** 2).sum()
    given = [x, *layer.parameters()]
    first = torch.autograd.grad(loss, given, retain_graph=True)
    layer(torch.ones_like(x))[0].sum().backward()  # other work in the borrowed memory
    for ours, expected in zip(torch.autograd.grad(loss, given), first, strict=True):
        assert torch.equal(ours, expected)


@every_cell
def test_functional_call_takes_other_weights(variant):
    layer, other = make(variant, dtype=torch.float32), make(variant, dtype=torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    x, states = inputs_for(layer)
    parameters = {name: leaf(parameter) for name, parameter in other.named_parameters()}
    with torch.no_grad():
        own = call(layer, x, states)[0]
    output = functional_call(layer, parameters, (x, tuple(states) if len(states) > 1 else states[0]))[0]
    output.sum().backward()
    call(other, x, states)[0].sum().backward()
    assert not torch.equal(output, own)
    for name, parameter in other.named_parameters():
        assert torch.equal(parameters[name].grad, parameter.grad), name
    assert torch.equal(call(layer, x, states)[0], own)


@every_cell
def test_copies_and_pickles_after_a_forward(variant):
    layer = make(variant, dtype=torch.float32)
    x, states = inputs_for(layer)
    with torch.no_grad():
        expected = call(layer, x, states)[0]
        copied, unpickled = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
        for twin in (copied, unpickled):
            assert torch.equal(call(twin, x, states)[0], expected)
            for parameter in twin.parameters():
                parameter.mul_(2)
            assert not torch.equal(call(twin, x, states)[0], expected)
        assert torch.equal(call(layer, x, states)[0], expected)


def check_bfloat16(layer, sizes):
    for steps, size in sizes:
        x, states = inputs_for(layer, steps, size)
        for lengths in (None, [1 + 3 * row % steps for row in range(size)]):
            expected = measure(layer, "reference", x, states, lengths=lengths)
            with torch.autocast("cpu", torch.bfloat16):
                ours = measure(layer, "cpu", x, states, lengths=lengths)
            assert all(value.dtype == torch.float32 for value in ours.values())
            tokens = sum(lengths or [steps] * size)
            half = best().quick and direct(steps, size, tokens, half=True) != (True, True)
            assert (norm_error(ours, expected)["output"] > 1e-5) == half  # else float32 is faster
            for name, error in norm_error(ours, expected).items():
                assert error < 2e-2, f"{name}: {error:.1e}"


@pytest.mark.parametrize("variant", ["lstm", "gru-after", "gru-before", "onlstm-chunks"])  # every form of product
def test_bfloat16_products_keep_float32_results(variant):
    check_bfloat16(make(variant, 40, 35, bidirectional=True, dtype=torch.float32), [(6, 33), (5, 3), (5, 1), (3, 1)])


@pytest.mark.parametrize("size", [1, 2, 7, 33])
def test_bfloat16_weights_are_read_as_they_lie(size):
    layer = make("lstm", 45, 35, dtype=torch.bfloat16, gates=Gates(evaluation_temperature=0.5))
    wide = copy.deepcopy(layer).float()
    x, states = inputs_for(layer, 1, size)
    for weight in layer.parameters():
        weight.requires_grad_(False)
    found, finals = call(layer, x, states)
    expected, others = call(wide, x.float(), [state.float() for state in states])
    for ours, theirs in zip((found, *finals), (expected, *others), strict=True):
        torch.testing.assert_close(ours, theirs.bfloat16(), rtol=2**-8, atol=1e-6)


def test_autocast_takes_bfloat16_input():
    layer = make("lstm", dtype=torch.float32)
    x, states = inputs_for(layer)
    x = x.bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(call(layer, x, states)[0], call(layer, x.float(), states)[0])


@pytest.mark.parametrize("variant", KINDS)
def test_a_layer_in_bfloat16_is_as_exact_as_the_reference_and_keeps_its_type(variant):
    layer = make(variant, 40, 36, 2, bidirectional=True, dtype=torch.bfloat16)
    exact = copy.deepcopy(layer).double()
    for steps, size, lengths in ((6, 33, None), (T, B, RAGGED[B]), (1, 1, None)):
        x, states = inputs_for(layer, steps, size)
        doubles = [state.double() for state in states]
        expected = measure(exact, "reference", x.double(), doubles, lengths=lengths)
        theirs = measure(layer, "reference", x, states, lengths=lengths)
        ours = measure(layer, "cpu", x, states, lengths=lengths)
        for name, value in expected.items():
            assert ours[name].dtype == theirs[name].dtype == torch.bfloat16
            allowed = 2 * (theirs[name] - value).norm() + 2**-8 * value.norm()
            assert (ours[name] - value).norm() <= allowed, name
        with torch.no_grad():
            assert torch.equal(call(layer, x, states, lengths=lengths)[0], ours["output"])


def test_autocast_to_float16_is_pytorch_s(monkeypatch):
    layer = make("lstm", dtype=torch.float32)
    x, states = inputs_for(layer)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        with pytest.raises(BackendError, match=r"autocast to torch\.float16"):
            call(layer, x, states)
        layer.backend = "auto"
        output, here = ran_on_cpu(monkeypatch, lambda: call(layer, x, states)[0])
        layer.backend = "torch"
        assert not here and torch.equal(output, call(layer, x, states)[0])
        layer.backend = "reference"
        torch.testing.assert_close(output, call(layer, x, states)[0], atol=2e-3, rtol=0)
    layer.backend = "auto"
    assert ran_on_cpu(monkeypatch, lambda: call(layer, x, states))[1]


def test_bfloat16_products_where_they_take_less_time():
    wide = targets()["portable"]
    dot, quick = (replace(wide, half="dot", quick=quick) for quick in (False, True))
    read = operators.READ
    for steps, batch, size, expected in (
        (4, 1, read, "bf16"),
        (3, 1, read, "f32"),
        (4, 2, read, "f32"),
        (4, 1, 8, "f32"),
    ):
        x, weight = torch.empty(steps, batch, 3), torch.empty(4, size // 4)
        for target, kind in ((dot, expected), (quick, "bf16"), (wide, "f32")):
            assert operators.kind_for(weight, weight, "bf16", x, target) == (kind, 0)
        assert operators.kind_for(weight, weight, "float", x, quick) == ("f32", 0)


@pytest.mark.parametrize("quick", [False, True])
def test_the_loss_multiplies_in_bfloat16_where_that_takes_less_time(quick, monkeypatch):
    target = replace(best(), quick=quick)
    monkeypatch.setattr("gatedrnn.sequence.backends.cpu.runtime.target.best", lambda: target)
    torch.manual_seed(1)
    hidden, weight, bias = torch.randn(40, 16), torch.randn(60, 16), torch.randn(60)
    targets_N = torch.randint(0, 60, (40,))
    plain = chunked_cross_entropy(hidden, weight, bias, targets_N)
    with torch.autocast("cpu", torch.bfloat16):
        found = chunked_cross_entropy(hidden, weight, bias, targets_N)
    assert found.dtype == torch.float32 and torch.equal(found, plain) != quick
    assert abs(float(found - plain)) < 0.05
