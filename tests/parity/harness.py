"""Cells, inputs and comparisons that the parity tests of every backend share."""

import copy

import pytest
import torch

from gatedrnn import Recurrent
from gatedrnn.sequence.backends.cpu.backend import Cpu

SOME = "some"  # a chunk size above 1 that divides H
VARIANTS = {
    "rnn-tanh": ("rnn", {}),
    "rnn-relu": ("rnn", {"nonlinearity": "relu"}),
    "rnn-sigmoid": ("rnn", {"nonlinearity": "sigmoid"}),
    "lstm": ("lstm", {}),
    "g2lstm": ("g2lstm", {}),
    "coupled": ("coupled", {}),
    "peephole": ("peephole", {}),
    "peephole-full": ("peephole", {"peephole": "full"}),
    "gru-after": ("gru", {}),
    "gru-before": ("gru", {"reset_after": False}),
    "onlstm": ("onlstm", {}),
    "onlstm-chunks": ("onlstm", {"chunk_size": SOME}),
    "onlstm-free": ("onlstm", {"split_points": "free"}),
    "onlstm-chunks-free": ("onlstm", {"chunk_size": SOME, "split_points": "free"}),
    "mgu": ("mgu", {}),
    "layernorm": ("layernorm", {}),
    "slstm": ("slstm", {}),
}
KINDS = ("rnn-relu", "lstm", "gru-before", "peephole-full", "onlstm-chunks-free", "layernorm", "slstm")
"""One cell of each kind: one state, two, a product inside the step, its own matrices, scans over chunks, norms, exponentials."""
every_cell = pytest.mark.parametrize(
    "variant", [name if name in KINDS else pytest.param(name, marks=pytest.mark.alike) for name in VARIANTS]
)
"""Every cell; under the lesser sets of instructions one of each kind, where those have tests of every cell in float32."""
every_cell_in_every_set = pytest.mark.parametrize("variant", VARIANTS)
a_few_cells = pytest.mark.parametrize("variant", ["lstm", "gru-after", "onlstm-chunks"])
T, B, D, H = 5, 3, 7, 15
RAGGED = {1: [1], 3: [2, 5, 3], 33: [1 + 7 * k % 4 for k in range(33)]}
SIZES = [(5, 3, 7, 15), (1, 1, 1, 1), (4, 33, 40, 35)]


def make(variant, width=D, hidden=H, *args, dtype=torch.float64, training=False, backend="cpu", **kwargs):
    cell, options = VARIANTS[variant]
    if options.get("chunk_size") == SOME:
        options = {**options, "chunk_size": next((n for n in range(2, hidden + 1) if hidden % n == 0), 1)}
    torch.manual_seed(1)
    return Recurrent(cell, width, hidden, *args, dtype=dtype, backend=backend, **kwargs, **options).train(training)


def inputs_for(layer, steps=T, size=B):
    """x and the initial states, rounded to float32 so that both precisions see the same."""
    generator = torch.Generator().manual_seed(2)
    places = layer.num_layers * (2 if layer.bidirectional else 1)
    shapes = [(steps, size, layer.input_size)] + [(places, size, layer.hidden_size)] * len(layer.spec.states)
    x, *states = (torch.randn(shape, generator=generator).to(layer.weight_hh_l0) for shape in shapes)
    named = zip(layer.spec.states, states, strict=True)
    return x, [value.abs() + 1 if name == "n" else value for name, value in named]  # n is what others are divided by


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def call(layer, x, states=None, **kwargs):
    hx = None if states is None else tuple(states) if len(states) > 1 else states[0]
    return layer(x, hx, **kwargs)


def measure(layer, backend, x, states, *, noise=None, only=None, **kwargs):
    """Every output, final state and gate by name, and every gradient of a random combination of them (of `only`)."""
    layer.backend = backend
    x, states = leaf(x), [leaf(state) for state in states]
    noise = None if noise is None or None in noise else [leaf(entry) for entry in noise]
    output, finals, trace = call(layer, x, states, noise=noise, return_gates=True, **kwargs)
    values = {"output": output}
    values |= {f"final {n}": final for n, final in enumerate(finals if isinstance(finals, tuple) else [finals])}
    values |= {f"{name} {place}": gate for place, gates in enumerate(trace) for name, gate in gates.items()}
    generator = torch.Generator().manual_seed(3)
    probes = [torch.randn(value.shape, generator=generator).to(value) for value in values.values()]
    chosen = [(v, p) for (name, v), p in zip(values.items(), probes, strict=True) if only is None or name == only]
    given = {"x": x, **{f"state {n}": state for n, state in enumerate(states)}, **dict(layer.named_parameters())}
    given |= {f"noise {n}": entry for n, entry in enumerate(noise or [])}
    loss = sum((value * probe).sum() for value, probe in chosen)
    gradients = torch.autograd.grad(loss, list(given.values()), materialize_grads=only is not None)
    found = {f"gradient of {name}": gradient for name, gradient in zip(given, gradients, strict=True)}
    return {name: value.detach().cpu() for name, value in (values | found).items()}


def equal(ours, expected, relative=1e-11):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert ours[name].shape == value.shape and ours[name].dtype == value.dtype, name
        if value.numel():
            error, scale = (ours[name] - value).abs().max(), value.abs().max()
            assert error <= relative * scale + 1e-13, f"{name}: error {error:.1e} of {scale:.1e}"


def same_bits(ours, expected):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(ours[name], value), name


def norm_error(ours, expected):
    return {name: float((ours[name] - value).norm() / value.norm()) for name, value in expected.items()}


def float32_errors(layer, x, states, **kwargs):
    """The exact values by name, and what float32 may be excused for: an error in norm and one at most, by name.

    It is the largest of four: the float32 reference's own, and what the exact values move by when every input and weight is
    moved by half a unit in the last place, three times. The first alone is one draw of a random number, and may be small.
    """
    generator = torch.Generator().manual_seed(5)

    def moved(value):
        return value * (1 + 2**-24 * (2 * torch.randint(2, value.shape, generator=generator) - 1))

    exact = copy.deepcopy(layer).double()
    doubles = [x.double(), *(state.double() for state in states)]
    values = measure(exact, "reference", doubles[0], doubles[1:], **kwargs)
    weights = {name: weight.clone() for name, weight in exact.state_dict().items()}
    others = [measure(layer, "reference", x, states, **kwargs)]
    for _ in range(3):
        exact.load_state_dict({name: moved(weight) for name, weight in weights.items()})
        near, *rest = map(moved, doubles)
        others.append(measure(exact, "reference", near, rest, **kwargs))
    errors = {name: [other[name] - value for other in others] for name, value in values.items()}
    norms = {name: max(error.norm() for error in some) for name, some in errors.items()}
    return values, norms, {name: max(error.abs().max() for error in some) for name, some in errors.items()}


def check_float32(layer, steps, size, lengths=None, backend="cpu"):
    """The error in norm at most twice what float32 may be excused for, and no single value's three times.

    The floor is 1e-6 of the value's norm, 16 units in the last place: where the excuse happens to be nearly 0
    (a product of one term, a sum of one step), a polynomial's 3e-7 is still right.
    """
    x, states = inputs_for(layer, steps, size)
    expected, norms, worst = float32_errors(layer, x, states, lengths=lengths)
    ours = measure(layer, backend, x, states, lengths=lengths)
    for name, value in expected.items():
        assert ours[name].dtype == torch.float32
        error, most = ours[name] - value, value.abs().max()
        assert error.norm() <= 2 * norms[name] + 1e-6 * value.norm(), (
            f"{name}: {error.norm():.1e} for {norms[name]:.1e}"
        )
        error = error.abs().max()
        assert error <= 3 * worst[name] + 1e-6 * most, f"{name}: at most {error:.1e} for {worst[name]:.1e}"


def spied(monkeypatch, owner, name):
    """The arguments of every call of owner.name."""
    calls, function = [], getattr(owner, name)

    def spy(*arguments):
        calls.append(arguments)
        return function(*arguments)

    monkeypatch.setattr(owner, name, spy)
    return calls


def ran_on_cpu(monkeypatch, function):
    """What `function` returns, and whether the `cpu` backend ran."""
    calls = spied(monkeypatch, Cpu, "run")
    result = function()
    monkeypatch.undo()
    return result, bool(calls)
