"""The `cpu` backend against the reference: values, every gradient, precision, and what PyTorch does with its operators."""

import copy
import gc
import pickle
from dataclasses import replace

import pytest

pytest.importorskip("numba")

import torch
from harness import (
    RAGGED,
    SIZES,
    VARIANTS,
    B,
    D,
    H,
    T,
    a_few_cells,
    call,
    check_float32,
    equal,
    every_cell,
    inputs_for,
    leaf,
    make,
    measure,
    norm_error,
    same_bits,
)  # fmt: skip
from torch.autograd import forward_ad
from torch.func import functional_call

from gatedrnn import CELLS, Gates, Recurrent
from gatedrnn.core.errors import ArgumentError, BackendError
from gatedrnn.sequence.backends.cpu import operators, packs
from gatedrnn.sequence.backends.cpu.backend import Cpu
from gatedrnn.sequence.backends.cpu.target import targets

# a machine's targets with vectors of their own: a wider product for bfloat16 leaves float32 as it is
SHAPES = {(t.lanes, t.rows, t.vectors): name for name, t in reversed(targets().items())}
OTHERS = [name for name in SHAPES.values() if targets()[name].lanes != next(iter(targets().values())).lanes]


# 1. Values and gradients in float64.


def test_variants_cover_every_registered_cell():
    assert {cell for cell, _ in VARIANTS.values()} == set(CELLS)


@every_cell
@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("ragged", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("sizes", SIZES, ids=["odd", "one", "large"])
def test_values_and_gradients_equal_the_reference_in_float64(variant, sizes, ragged, bidirectional):
    steps, size, width, hidden = sizes
    layer = make(variant, width, hidden, bidirectional=bidirectional)
    x, states = inputs_for(layer, steps, size)
    generator = torch.Generator().manual_seed(4)
    shape = (steps, size, layer.spec.rows)
    noise = [torch.randn(shape, generator=generator, dtype=x.dtype) for _ in range(1 + bidirectional)]
    given = {"noise": noise, "lengths": RAGGED[size] if ragged else None}
    equal(measure(layer, "cpu", x, states, **given), measure(layer, "reference", x, states, **given))


GATES = {
    "noise": Gates(temperature=0.7, noise_probability=0.6),
    "hot-evaluation": Gates(temperature=0.5, evaluation_temperature=1.7),
    "straight-through": Gates(straight_through=True),
    "all-of-it": Gates(temperature=0.7, evaluation_temperature=0.8, noise_probability=0.6, straight_through=True),
}


@every_cell
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("kind", GATES)
def test_perturbed_gates_equal_the_reference(variant, kind, training):
    layer = make(variant, bidirectional=True, gates=GATES[kind], training=training)
    x, states = inputs_for(layer)
    noise = layer.sample_noise(T, B, torch.Generator().manual_seed(4))
    noise = None if noise[0] is None else noise
    for lengths in (None, RAGGED[B]):
        ours = measure(layer, "cpu", x, states, noise=noise, lengths=lengths)
        equal(ours, measure(layer, "reference", x, states, noise=noise, lengths=lengths))


@pytest.mark.parametrize("variant", ["lstm", "onlstm", "gru-before"])
@pytest.mark.parametrize("lengths", [None, RAGGED[B]], ids=["whole", "ragged"])
@pytest.mark.parametrize("straight_through", [False, True])
def test_noise_drawn_by_the_layer_is_the_reference_s(variant, lengths, straight_through):
    gates = Gates(temperature=0.7, noise_probability=0.6, straight_through=straight_through)
    layer = make(variant, bidirectional=True, gates=gates, training=True)
    x, states = inputs_for(layer)
    found = []
    for backend in ("cpu", "reference"):
        torch.manual_seed(5)
        found.append(measure(layer, backend, x, states, lengths=lengths))
    equal(*found)
    torch.manual_seed(6)
    other = measure(layer, "cpu", x, states, lengths=lengths)
    assert not torch.equal(other["output"], found[0]["output"])


@pytest.mark.parametrize("name", ["output_gate", "input_gate", "forget_gate"])
@pytest.mark.parametrize("variant", ["lstm", "peephole"])
def test_one_named_gate_is_perturbed(variant, name):
    gates = Gates(temperature=0.7, noise_probability=1.0, straight_through=True, names=(name,))
    layer = make(variant, gates=gates, training=True)
    x, states = inputs_for(layer)
    noise = layer.sample_noise(T, B, torch.Generator().manual_seed(4))
    equal(*(measure(layer, backend, x, states, noise=noise) for backend in ("cpu", "reference")))


@every_cell
def test_without_biases(variant):
    layer = make(variant, bias=False, bidirectional=True, gates=Gates(evaluation_temperature=0.6))
    x, states = inputs_for(layer)
    equal(*(measure(layer, backend, x, states) for backend in ("cpu", "reference")))


@every_cell
def test_layers_upon_layers_whose_longest_row_ends_early(variant):
    layer = make(variant, D, H, 2, bidirectional=True)
    x, states = inputs_for(layer, 6)
    equal(*(measure(layer, backend, x, states, lengths=[2, 4, 1]) for backend in ("cpu", "reference")))


@every_cell
def test_each_result_alone_has_its_gradients(variant):
    layer = make(variant)
    x, states = inputs_for(layer)
    names = [name for name in measure(layer, "cpu", x, states) if not name.startswith("gradient")]
    for only in names:
        equal(*(measure(layer, backend, x, states, only=only) for backend in ("cpu", "reference")))


@every_cell
def test_frozen_weights_and_input(variant):
    layer = make(variant)
    x, states = inputs_for(layer)
    whole = measure(layer, "reference", x, states)
    layer.backend = "cpu"
    layer.weight_ih_l0.requires_grad_(False)
    output, _, trace = call(layer, x, states, return_gates=True)
    (output.sum() + sum(gate.sum() for gate in trace[0].values())).backward()
    layer.zero_grad()
    layer.requires_grad_(False)
    given = leaf(x)
    output, _ = call(layer, given, states)
    generator = torch.Generator().manual_seed(3)
    (output * torch.randn(output.shape, generator=generator)).sum().backward()
    layer.requires_grad_(True)
    expected = measure(layer, "reference", x, states, only="output")
    equal({"x": given.grad, "output": output.detach()}, {"x": expected["gradient of x"], "output": whole["output"]})
    assert all(parameter.grad is None for parameter in layer.parameters())


# 2. Precision in float32.


@every_cell
@pytest.mark.parametrize("times", [1.0, 5.0])
@pytest.mark.parametrize("sizes", [(12, 5, 9, 35), (5, 33, 40, 21)], ids=["long", "wide"])
def test_float32_errs_no_more_than_the_reference(variant, times, sizes):
    steps, size, width, hidden = sizes
    layer = make(variant, width, hidden, dtype=torch.float32)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(times)
    check_float32(layer, steps, size)


@pytest.mark.skipif(not OTHERS, reason="one vector width only")
@pytest.mark.parametrize("name", OTHERS or [None])
@a_few_cells
def test_float32_on_other_targets(variant, name, monkeypatch):
    monkeypatch.setenv("GATEDRNN_CPU", name)
    for steps, size, width, hidden in ((5, 3, 7, 15), (4, 33, 40, 35)):
        layer = make(variant, width, hidden, bidirectional=True, dtype=torch.float32)
        for lengths in (None, RAGGED[size]):
            check_float32(layer, steps, size, lengths)


@every_cell
def test_saturated_gates_stay_within_their_bounds(variant):
    layer = make(variant, D, 21, dtype=torch.float32)
    x, states = inputs_for(layer)
    ours, expected = (measure(layer, backend, 1e4 * x, states) for backend in ("cpu", "reference"))
    for name, value in ours.items():
        if name.startswith(
            "gradient"
        ):  # a slope 1 - y² next to 0 is off by what rounds y = 1; weights meet an x of 1e4
            scale = max(1.0, float(expected[name].abs().max())) * (1e4 if "weight_ih" in name else 1.0)
            assert (value - expected[name]).abs().max() <= 1e-5 * scale, name
        else:
            equal({name: value}, {name: expected[name]}, 2e-6)
        if name.endswith("gate 0"):
            assert value.min() >= 0 and value.max() <= 1 + 1e-6, name


# 3. Derivatives against differences.


@every_cell
def test_gradcheck(variant):
    layer = make(variant, 2, 4, gates=Gates(temperature=0.7, noise_probability=0.6), training=True)
    x, states = inputs_for(layer, 3, 2)
    names = [name for name, _ in layer.named_parameters()]
    noise = layer.sample_noise(3, 2, torch.Generator().manual_seed(4))
    noise = [None if entry is None else leaf(entry) for entry in noise]

    def function(x, *rest):
        given, parameters = rest[: len(states)], dict(zip(names, rest[len(states) :], strict=True))
        hx = tuple(given) if len(given) > 1 else given[0]
        kwargs = {"lengths": [2, 3], "noise": noise, "return_gates": True}
        output, finals, trace = functional_call(layer, parameters, (x, hx), kwargs)
        return output, *(finals if isinstance(finals, tuple) else (finals,)), *trace[0].values()

    assert torch.autograd.gradcheck(function, (leaf(x), *map(leaf, states), *map(leaf, layer.parameters())))


# 4. The operators' registrations.


def spied(monkeypatch, owner, name):
    """The arguments of every call of owner.name."""
    calls, function = [], getattr(owner, name)

    def spy(*arguments):
        calls.append(arguments)
        return function(*arguments)

    monkeypatch.setattr(owner, name, spy)
    return calls


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


# 5. What PyTorch does with a layer.


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
def test_function_transforms_are_right_under_auto_and_never_wrong_by_name(transform):
    layer = make("lstm")
    x, _ = inputs_for(layer)
    v = torch.randn_like(x)
    layer.backend = "reference"
    expected = TRANSFORMS[transform](lambda x: layer(x)[0], x, v).detach()
    assert torch.count_nonzero(expected)
    layer.backend = "cpu"
    try:
        found = TRANSFORMS[transform](lambda x: layer(x)[0], x, v).detach()
    except (RuntimeError, NotImplementedError):
        found = expected
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    layer.backend = "auto"
    found = TRANSFORMS[transform](lambda x: layer(x)[0], x, v).detach()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


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


# 6. What must not be read, and what must not be overlooked.


@every_cell
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_beyond_a_row_s_length_is_never_read(variant, dtype):
    layer = make(variant, D, H, 2, bidirectional=True, dtype=dtype)
    x, states = inputs_for(layer)
    found = []
    for filling in (torch.nan, 0.0):
        for row, length in enumerate(RAGGED[B]):
            x[length:, row] = filling
        found.append(measure(layer, "cpu", x, states, lengths=RAGGED[B]))
    assert all(torch.isfinite(value).all() for value in found[0].values())
    same_bits(*found)


@every_cell
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_in_the_input_is_seen_where_the_reference_sees_it(variant, dtype):
    layer = make(variant, D, 35, dtype=dtype)
    x, states = inputs_for(layer)
    x[2, 1, 3] = torch.nan
    with torch.no_grad():
        found = []
        for backend in ("cpu", "reference"):
            layer.backend = backend
            output, finals, (trace,) = call(layer, x, states, return_gates=True)
            finals = finals if isinstance(finals, tuple) else (finals,)
            found.append({"output": output, **trace, **{f"final {n}": final for n, final in enumerate(finals)}})
    assert found[0]["output"][2:, 1].isnan().all()
    for name, value in found[1].items():
        assert torch.equal(found[0][name].isnan(), value.isnan()), name


def test_nan_in_the_input_is_seen_by_bfloat16_products():
    layer = make("lstm", dtype=torch.float32)
    x, states = inputs_for(layer)
    x[2, 1, 3] = torch.nan
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        output = call(layer, x, states)[0]
    assert output[2:, 1].isnan().all() and output[:2].isfinite().all() and output[:, 0].isfinite().all()


@every_cell
def test_expanded_gradients(variant):
    layer = make(variant)
    x, states = inputs_for(layer)
    for total in (torch.sum, lambda output: (output * torch.ones_like(output)).sum()):
        found = []
        for backend in ("cpu", "reference"):
            layer.backend, given = backend, leaf(x)
            output, finals, trace = call(layer, given, states, return_gates=True)
            loss = total(output) + sum(total(gate) for gate in trace[0].values())
            loss = loss + sum(total(final) for final in (finals if isinstance(finals, tuple) else (finals,)))
            names, parameters = zip(*layer.named_parameters(), strict=True)
            gradients = torch.autograd.grad(loss, [given, *parameters])
            found.append(dict(zip(["x", *names], gradients, strict=True)))
        equal(*found)


@every_cell
def test_non_contiguous_input_states_weights_and_gradients(variant):
    layer = make(variant)
    x, states = inputs_for(layer)

    def strided(tensor):
        wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), torch.nan, dtype=tensor.dtype)
        wide[..., 1::2] = tensor.detach()
        return wide[..., 1::2].requires_grad_()

    def transposed(tensor):
        return tensor.detach().transpose(-1, -2).contiguous().transpose(-1, -2).requires_grad_()

    probe = strided(torch.randn(H, B, T, dtype=x.dtype)).permute(2, 1, 0).detach()
    found = []
    for way in (strided, lambda value: transposed(value) if value.dim() > 1 else strided(value), leaf):
        given = {name: way(parameter) for name, parameter in layer.named_parameters()}
        own_x, own_states = way(x), [way(state) for state in states]
        hx = tuple(own_states) if len(states) > 1 else own_states[0]
        output = functional_call(layer, given, (own_x, hx))[0]
        inputs = [own_x, *own_states, *given.values()]
        gradients = torch.autograd.grad(output, inputs, probe if way is not leaf else probe.contiguous())
        found.append({"output": output.detach(), **dict(enumerate(gradients))})
    assert not probe.is_contiguous()
    equal(found[0], found[2])
    equal(found[1], found[2])


# 7. Repeatability.


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@every_cell
@pytest.mark.parametrize(("size", "ragged"), [(9, True), (9, False), (1, False)])
def test_threads_change_next_to_nothing_and_runs_nothing(variant, size, ragged, threads):
    layer = make(variant, 64, 70, bidirectional=True, dtype=torch.float32)
    x, states = inputs_for(layer, 20, size)
    lengths = [1 + 5 * row % 20 for row in range(size)] if ragged else None
    found = {}
    for count in (1, 2, 1, 2):
        threads(count)
        found.setdefault(count, []).append(measure(layer, "cpu", x, states, lengths=lengths))
    for first, second in found.values():
        same_bits(first, second)
    equal(found[2][0], found[1][0], 1e-5)


# 8. Autocast.


def check_bfloat16(layer, sizes):
    for steps, size in sizes:
        x, states = inputs_for(layer, steps, size)
        for lengths in (None, [1 + 3 * row % steps for row in range(size)]):
            expected = measure(layer, "reference", x, states, lengths=lengths)
            with torch.autocast("cpu", torch.bfloat16):
                ours = measure(layer, "cpu", x, states, lengths=lengths)
            assert all(value.dtype == torch.float32 for value in ours.values())
            assert norm_error(ours, expected)["output"] > 1e-5  # or autocast did nothing
            for name, error in norm_error(ours, expected).items():
                assert error < 2e-2, f"{name}: {error:.1e}"


@pytest.mark.parametrize("variant", ["lstm", "gru-after", "gru-before", "onlstm-chunks"])  # every form of product
def test_bfloat16_products_keep_float32_results(variant):
    check_bfloat16(make(variant, 40, 35, bidirectional=True, dtype=torch.float32), [(6, 33), (5, 3)])


@pytest.mark.parametrize("name", targets())
def test_bfloat16_products_on_every_target(name, monkeypatch):
    monkeypatch.setenv("GATEDRNN_CPU", name)
    check_bfloat16(make("lstm", 40, 35, bidirectional=True, dtype=torch.float32), [(6, 33), (5, 3)])


def test_autocast_takes_bfloat16_input():
    layer = make("lstm", dtype=torch.float32)
    x, states = inputs_for(layer)
    x = x.bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(call(layer, x, states)[0], call(layer, x.float(), states)[0])


def ran_on_cpu(monkeypatch, function):
    calls = spied(monkeypatch, Cpu, "run")
    result = function()
    monkeypatch.undo()
    return result, bool(calls)


def test_autocast_to_float16_is_the_reference_s(monkeypatch):
    layer = make("lstm", dtype=torch.float32)
    x, states = inputs_for(layer)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        with pytest.raises(BackendError, match=r"autocast to torch\.float16"):
            call(layer, x, states)
        layer.backend = "auto"
        output, here = ran_on_cpu(monkeypatch, lambda: call(layer, x, states)[0])
        layer.backend = "reference"
        assert not here and torch.equal(output, call(layer, x, states)[0])
    layer.backend = "auto"
    assert ran_on_cpu(monkeypatch, lambda: call(layer, x, states))[1]


# 9. Packs kept in inference.


def check_inference(layer, x, mode=torch.no_grad):
    """Two calls, of which the second may use a pack, equal the reference."""
    with mode():
        backend, layer.backend = layer.backend, "reference"
        expected = layer(x)[0]
        layer.backend = backend
        for _ in range(2):
            torch.testing.assert_close(layer(x)[0], expected, rtol=0, atol=1e-5)
    return expected


def add_in_place(layer):
    with torch.no_grad():
        layer.weight_ih_l0.add_(0.1)


def add_in_place_recurrent(layer):
    with torch.no_grad():
        layer.weight_hh_l0.add_(0.1)


def step_of_an_optimiser(layer):
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)
    layer(torch.ones(2, 2, layer.input_size, dtype=layer.weight_hh_l0.dtype))[0].sum().backward()
    optimiser.step()


def load_other_weights(layer):
    layer.load_state_dict({name: value * -1.5 for name, value in layer.state_dict().items()})


def assign_other_weights(layer):
    layer.load_state_dict({name: value * -1.5 for name, value in layer.state_dict().items()}, assign=True)


def multiply_data(layer):
    layer.weight_hh_l0.data.mul_(2)


def replace_data(layer):
    layer.weight_ih_l0.data = layer.weight_ih_l0.data + 0.1


def replace_data_often(layer):
    for n in range(20):  # the allocator hands out an address again
        layer.weight_hh_l0.data = torch.full_like(layer.weight_hh_l0, 0.01 * n)


def to_float64_and_back(layer):
    layer.double()
    with torch.no_grad():
        layer(torch.ones(2, 2, layer.input_size, dtype=torch.float64))
        layer.weight_hh_l0.data.mul_(0.5)
    layer.float()


def silence_a_unit(layer):
    layer.weight_hh_l0.data[:, 3] = 0


def silence_an_input(layer):
    layer.weight_ih_l0.data[:, 5].mul_(3)


CHANGES = [
    add_in_place,
    add_in_place_recurrent,
    step_of_an_optimiser,
    load_other_weights,
    assign_other_weights,
    multiply_data,
    replace_data,
    replace_data_often,
    to_float64_and_back,
    silence_a_unit,
    silence_an_input,
]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("sizes", [(7, 15), (64, 64)], ids=["odd", "even"])
def test_a_changed_weight_is_packed_again(change, mode, sizes):
    packs.drop()
    layer = make("lstm", *sizes, dtype=torch.float32)
    x, _ = inputs_for(layer)
    before = check_inference(layer, x, mode)
    assert len(packs._PACKS) == 1
    change(layer)
    assert not torch.allclose(check_inference(layer, x, mode), before, atol=1e-4)


def test_a_pack_is_used_and_belongs_to_its_copy_alone():
    packs.drop()
    layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    check_inference(layer, x)
    (pack,) = packs._PACKS.values()
    check_inference(layer, x)
    assert next(iter(packs._PACKS.values())) is pack
    twin = copy.deepcopy(layer)
    multiply_data(twin)
    check_inference(twin, x)
    assert len(packs._PACKS) == 2
    check_inference(layer, x)


def test_training_keeps_no_packs():
    packs.drop()
    layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    layer(x)[0].sum().backward()
    assert not packs._PACKS


def test_dropped_or_given_weights_are_not_kept():
    packs.drop()
    layer = make("lstm", dtype=torch.float32, weight_dropout=0.5, training=True)
    x, _ = inputs_for(layer)
    with torch.no_grad():
        layer(x)
        functional_call(layer, {name: value.clone() for name, value in layer.state_dict().items()}, (x,))
    assert not packs._PACKS


def test_layers_that_come_and_go_never_get_another_s_pack():
    packs.drop()
    x = torch.randn(3, 2, D)
    for n in range(60):
        layer = Recurrent("lstm", D, 9, backend="cpu").eval()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-1, 1, generator=torch.Generator().manual_seed(n))
        check_inference(layer, x)
        del layer
    gc.collect()
    assert not packs._PACKS


def test_packs_die_with_a_layer_of_many():
    packs.drop()
    layer, kept = make("onlstm", D, H, 2, bidirectional=True, dtype=torch.float32), make("gru-before")
    check_inference(layer, inputs_for(layer)[0])
    check_inference(kept, inputs_for(kept)[0])
    assert len(packs._PACKS) == 5
    del layer
    gc.collect()
    assert len(packs._PACKS) == 1


def test_weights_made_in_inference_mode_are_not_kept():
    packs.drop()
    with torch.inference_mode():
        layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    check_inference(layer, x, torch.inference_mode)
    with torch.inference_mode():
        layer.weight_hh_l0.mul_(2)
    check_inference(layer, x, torch.inference_mode)
    assert not packs._PACKS


@every_cell
def test_packed_inference_equals_training_s_forward(variant):
    layer = make(variant, D, H, 2, bidirectional=True, dtype=torch.float32)
    x, states = inputs_for(layer)
    expected = call(layer, x, states, lengths=RAGGED[B])[0].detach()
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(call(layer, x, states, lengths=RAGGED[B])[0], expected)


def test_packs_of_float32_and_bfloat16_products_are_two():
    packs.drop()
    layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    outputs = []
    with torch.no_grad():
        for half in (False, True, False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                outputs.append(layer(x)[0])
    assert len(packs._PACKS) == 2
    assert torch.equal(outputs[0], outputs[2]) and torch.equal(outputs[1], outputs[3])
    assert not torch.equal(outputs[0], outputs[1])


# 10. What is refused.


def own_cell():
    lstm = CELLS["lstm"]
    return replace(lstm, name="mine", step=lambda *arguments: lstm.step(*arguments))


REFUSED = {
    "full peephole": (lambda: Recurrent("peephole", D, H, peephole="full"), "full peephole matrix"),
    "own cell": (lambda: Recurrent(own_cell(), D, H), "the cell has no kernel"),
    "float16": (lambda: Recurrent("lstm", D, H, dtype=torch.float16), "torch.float16"),
    "bfloat16": (lambda: Recurrent("gru", D, H, dtype=torch.bfloat16), "torch.bfloat16"),
    "meta": (lambda: Recurrent("lstm", D, H, device="meta"), "meta"),
    "hard candidate": (
        lambda: Recurrent(
            "rnn", D, H, nonlinearity="sigmoid", gates=Gates(straight_through=True, names=("cell_candidate",))
        ),
        "straight-through candidate",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_kernel_runs_on_the_reference_or_says_why(case, monkeypatch):
    build, reason = REFUSED[case]
    layer = build()
    x = torch.randn(T, B, D).to(layer.weight_hh_l0)
    states = [torch.zeros(1, B, H).to(x) for _ in layer.spec.states]
    (output, _), here = ran_on_cpu(monkeypatch, lambda: call(layer, x, states))
    assert output.shape == (T, B, H) and not here
    layer.backend = "cpu"
    with pytest.raises(BackendError, match=f"backend='cpu'.*{reason}.*Use backend='auto'"):
        call(layer, x, states)


MISFITS = {
    "narrow W": ("weight_ih_l0", torch.zeros(4 * H, D - 1), rf"weight_ih .*\[{4 * H}, {D - 1}\]"),
    "short U": ("weight_hh_l0", torch.zeros(3 * H, H), rf"weight_hh .*\[{3 * H}, {H}\]"),
    "short bias": ("bias_hh_l0", torch.zeros(4 * H - 1), "bias_hh"),
    "float64 bias": ("bias_ih_l0", torch.zeros(4 * H, dtype=torch.float64), r"bias_ih .*torch\.float64"),
    "float64 W": ("weight_ih_l0", torch.zeros(4 * H, D, dtype=torch.float64), r"weight_ih .*torch\.float64"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_given_weights_that_do_not_fit_are_never_read(case):
    name, value, reason = MISFITS[case]
    layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    weights = {**dict(layer.named_parameters()), name: value}
    with pytest.raises(BackendError, match=reason):
        functional_call(layer, weights, (x,))
    layer.backend = "auto"
    with pytest.raises(RuntimeError):  # torch's own
        functional_call(layer, weights, (x,))


@every_cell
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_of_another_type_under_autocast(variant, dtype):
    layer = make(variant, dtype=torch.float32)
    x, states = inputs_for(layer)
    results = []
    for backend in ("cpu", "reference"):
        layer.backend = backend
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            output, finals = call(layer, x, [state.to(dtype) for state in states])
        results.append((output, *(finals if isinstance(finals, tuple) else (finals,))))
    for ours, expected in zip(*results, strict=True):
        assert ours.dtype == expected.dtype == dtype
        torch.testing.assert_close(ours, expected, rtol=0, atol=5e-2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_states_of_a_foreign_type_under_autocast_are_refused(dtype):
    layer = make("lstm", dtype=torch.float32)
    x, states = inputs_for(layer)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ArgumentError, match=r"h_0 must be torch.float32 or torch.bf"),
    ):
        call(layer, x, [state.to(dtype) for state in states])


def test_noise_of_another_type():
    layer = make("g2lstm", dtype=torch.float32, training=True)
    x, _ = inputs_for(layer)
    noise = torch.randn(T, B, 4 * H, dtype=torch.float64)
    results = []
    for layer.backend in ("cpu", "reference"):
        results.append(layer(x, noise=[noise])[0])
    torch.testing.assert_close(*results, rtol=0, atol=1e-5)


@every_cell
def test_auto_is_the_cpu_backend(variant, monkeypatch):
    layer = make(variant)
    layer.backend = "auto"
    assert ran_on_cpu(monkeypatch, lambda: layer(inputs_for(layer)[0]))[1]


# 11. Empty and short.


@every_cell
@pytest.mark.parametrize("lengths", [None, []])
def test_empty_batch(variant, lengths):
    layer = make(variant, D, H, 2, bidirectional=True)
    x, states = inputs_for(layer, T, 0)
    ours, expected = (measure(layer, backend, x, states, lengths=lengths) for backend in ("cpu", "reference"))
    same_bits(ours, expected)
    with torch.no_grad():
        assert call(layer, x, states, lengths=lengths)[0].shape == (T, 0, 2 * H)


@every_cell
def test_one_step_and_one_row(variant):
    layer = make(variant, bidirectional=True)
    for steps, size in ((1, B), (T, 1), (1, 1)):
        x, states = inputs_for(layer, steps, size)
        for lengths in (None, [1] * size):
            equal(*(measure(layer, backend, x, states, lengths=lengths) for backend in ("cpu", "reference")))
