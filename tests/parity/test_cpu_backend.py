"""The `cpu` backend against the reference: values and every gradient, in float64 and float32, large, empty and short."""

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
    every_cell_in_every_set,
    float32_errors,
    inputs_for,
    leaf,
    make,
    measure,
    same_bits,
    spied,
)  # fmt: skip
from torch.func import functional_call

from gatedrnn import CELLS, Gates
from gatedrnn.sequence.backends.cpu.recurrence import operator as operators


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


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("lstm", "output_gate"),
        ("peephole", "output_gate"),
        *(pytest.param("lstm", name, marks=pytest.mark.alike) for name in ("input_gate", "forget_gate")),
    ],
)
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


@every_cell
@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("frozen", [("weight_ih_l0",), ("weight_hh_l0",), ("weight_ih_l0", "weight_hh_l0")])
def test_biases_learn_beside_frozen_weights_whose_gradients_are_not_computed(variant, frozen, hot, monkeypatch):
    layer = make(variant, gates=Gates(evaluation_temperature=0.7)) if hot else make(variant)
    x, states = inputs_for(layer)
    for name in frozen:
        getattr(layer, name).requires_grad_(False)
    calls, found = spied(monkeypatch, operators, "recurrence_backward"), {}
    for backend in ("cpu", "reference"):
        layer.backend = backend
        output, _ = call(layer, x, states, lengths=RAGGED[B])
        (output * torch.randn(output.shape, generator=torch.Generator().manual_seed(3))).sum().backward()
        found[backend] = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
        layer.zero_grad()
    equal(found["cpu"], found["reference"])
    assert found["cpu"].keys() == {name for name, _ in layer.named_parameters()} - set(frozen)
    ((*_, need_w, need_u, need_bias, _, _),) = calls
    learns = "weight_hh_l0" not in frozen or variant == "peephole-full"  # whose own matrix lies below U
    assert (need_w, need_u, need_bias) == ("weight_ih_l0" not in frozen, learns, True)


@every_cell_in_every_set
@pytest.mark.parametrize("times", [1.0, 5.0])
@pytest.mark.parametrize("sizes", [(12, 5, 9, 35), (5, 33, 40, 21)], ids=["long", "wide"])
def test_float32_errs_no_more_than_the_reference(variant, times, sizes):
    steps, size, width, hidden = sizes
    layer = make(variant, width, hidden, dtype=torch.float32)
    times = (
        min(times, 2.0) if variant in ("rnn-tanh", "peephole-full") else times
    )  # 5, and gains of 5, make a step chaotic
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.mul_(1.0 if name.startswith("gain") else times)
    check_float32(layer, steps, size)


@a_few_cells
def test_float32_in_both_directions(variant):
    for steps, size, width, hidden in ((5, 3, 7, 15), (4, 33, 40, 35)):
        layer = make(variant, width, hidden, bidirectional=True, dtype=torch.float32)
        for lengths in (None, RAGGED[size]):
            check_float32(layer, steps, size, lengths)


@every_cell_in_every_set
def test_saturated_gates_stay_within_their_bounds(variant):
    layer = make(variant, D, 21, dtype=torch.float32)
    x, states = inputs_for(layer)
    exact, _, worst = float32_errors(layer, 1e4 * x, states)
    for name, value in measure(layer, "cpu", 1e4 * x, states).items():
        error, most = (value - exact[name]).abs().max(), exact[name].abs().max()
        if name.startswith("gradient"):
            # sums of 5e4 are rounded by 1e-3 and more, and a gate between 0 and 1 shows it; weights meet an x of 1e4
            assert error <= 1e-3 * max(1.0, float(most)) * (1e4 if "weight_ih" in name else 1.0), name
        else:  # a gate that is not saturated is off by what rounds sums of 1e4
            assert error <= 3 * worst[name] + 2e-6 * most, name
        if name.endswith("gate 0"):
            assert value.min() >= 0 and value.max() <= 1 + 1e-6, name


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
