"""Every cell over time: ragged lengths, directions, odd shapes, carried states, precision, and gradcheck."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence

from gatedrnn import CELLS, Gates, Recurrent
from gatedrnn.core.errors import ArgumentError

VARIANTS = [
    ("rnn", {}),
    ("rnn", {"nonlinearity": "relu"}),
    ("rnn", {"nonlinearity": "sigmoid"}),
    ("lstm", {}),
    ("peephole", {}),
    ("peephole", {"peephole": "full"}),
    ("coupled", {}),
    ("gru", {}),
    ("gru", {"reset_after": False}),
    ("onlstm", {}),
    ("onlstm", {"chunk_size": 3}),
    ("onlstm", {"split_points": "free"}),
    ("onlstm", {"chunk_size": 3, "split_points": "free"}),
    ("g2lstm", {}),
    ("mgu", {}),
    ("layernorm", {}),
    ("slstm", {}),
]
every_cell = pytest.mark.parametrize(
    ("cell", "options"), VARIANTS, ids=["-".join([c, *map(str, o.values())]) for c, o in VARIANTS]
)
T, B, D, H = 6, 4, 5, 6
LENGTHS = [3, 6, 1, 4]


def make(cell, options, width=D, hidden=H, *args, dtype=torch.float64, **kwargs):
    """A layer; in float64 on the reference, which the tests of each backend compare it with."""
    torch.manual_seed(1)
    if dtype == torch.float64:
        kwargs.setdefault("backend", "reference")
    return Recurrent(cell, width, hidden, *args, dtype=dtype, **kwargs, **options).eval()


def states_for(layer, size=B, dtype=torch.float64):
    places = layer.num_layers * (2 if layer.bidirectional else 1)
    drawn = {name: torch.randn(places, size, layer.hidden_size, dtype=dtype) for name in layer.spec.states}
    return [
        value.abs() + 1 if name == "n" else value for name, value in drawn.items()
    ]  # n is what others are divided by


def run(layer, x, states, **kwargs):
    """Output, final states as a list, trace."""
    hx = None if states is None else tuple(states) if len(states) > 1 else states[0]
    output, finals, trace = layer(x, hx, return_gates=True, **kwargs)
    return output, list(finals) if isinstance(finals, tuple) else [finals], trace


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def parameter_gradients(layer):
    return {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}


def close(ours, expected, atol=1e-12):
    torch.testing.assert_close(ours, expected, rtol=0, atol=atol)


def test_variants_cover_every_registered_cell():
    assert {cell for cell, _ in VARIANTS} == set(CELLS)


@every_cell
def test_ragged_rows_equal_rows_alone_and_padding_never_leaks(cell, options):
    layer = make(cell, options, D, H, 2, bidirectional=True)
    x, states = torch.randn(T, B, D, dtype=torch.float64), states_for(layer)
    for row, length in enumerate(LENGTHS):
        x[length:, row] = torch.nan
    batch_x, batch_states = leaf(x), [leaf(state) for state in states]
    output, finals, trace = run(layer, batch_x, batch_states, lengths=LENGTHS)
    values = [output, *finals, *(gate for place in trace for gate in place.values())]
    assert all(torch.isfinite(value).all() for value in values)
    probes = [torch.randn_like(value) for value in values]
    sum((value * probe).sum() for value, probe in zip(values, probes, strict=True)).backward()
    together = parameter_gradients(layer)
    layer.zero_grad()
    for row, length in enumerate(LENGTHS):
        alone_x, alone_states = leaf(x[:length, row : row + 1]), [leaf(state[:, row : row + 1]) for state in states]
        alone_output, alone_finals, alone_trace = run(layer, alone_x, alone_states)
        alone = [alone_output, *alone_finals, *(gate for place in alone_trace for gate in place.values())]
        for index, (value, single) in enumerate(zip(values, alone, strict=True)):
            is_state = 1 <= index <= len(finals)
            close(value[slice(None) if is_state else slice(length), row : row + 1], single)
            if not is_state:
                assert torch.count_nonzero(value[length:, row]) == 0
        cut = [
            probe[:, row : row + 1] if 1 <= index <= len(finals) else probe[:length, row : row + 1]
            for index, probe in enumerate(probes)
        ]
        sum((value * probe).sum() for value, probe in zip(alone, cut, strict=True)).backward()
        close(batch_x.grad[:length, row : row + 1], alone_x.grad)
        assert torch.count_nonzero(batch_x.grad[length:, row]) == 0
        for batch_state, alone_state in zip(batch_states, alone_states, strict=True):
            close(batch_state.grad[:, row : row + 1], alone_state.grad)
    for name, gradient in parameter_gradients(layer).items():
        close(together[name], gradient)


@every_cell
def test_lengths_and_an_unsorted_packed_sequence_agree(cell, options):
    layer = make(cell, options, D, H, 2, bidirectional=True)
    x, states = torch.randn(T, B, D, dtype=torch.float64), states_for(layer)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    padded = run(layer, x, states, lengths=torch.tensor(LENGTHS))
    output, finals, trace = run(layer, packed, states)
    close(output.data, pack_padded_sequence(padded[0], torch.tensor(LENGTHS), enforce_sorted=False).data)
    for ours, expected in zip(finals, padded[1], strict=True):
        close(ours, expected)
    for ours, expected in zip(trace, padded[2], strict=True):
        assert ours.keys() == expected.keys()
        for name in ours:
            close(ours[name], expected[name])


def test_explicit_noise_of_an_unsorted_packed_sequence_stays_with_its_row():
    layer = make("lstm", {}, gates=Gates(noise_probability=1.0)).train()
    x, noise = torch.randn(T, B, D, dtype=torch.float64), layer.sample_noise(T, B)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    close(layer(packed, noise=noise)[1][0], layer(x, lengths=LENGTHS, noise=noise)[1][0])


@every_cell
def test_reverse_direction_equals_flipped_rows(cell, options):
    both, one = make(cell, options, bidirectional=True), make(cell, options)
    one.load_state_dict({name: getattr(both, f"{name}_reverse") for name in one.state_dict()})
    x, states = torch.randn(T, B, D, dtype=torch.float64), states_for(both)
    output, finals, trace = run(both, x, states, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS):
        flipped = x[:length, row : row + 1].flip(0)
        expected, expected_finals, (gates,) = run(one, flipped, [state[1:, row : row + 1] for state in states])
        close(output[:length, row : row + 1, H:], expected.flip(0))
        for final, expected_final in zip(finals, expected_finals, strict=True):
            close(final[1:, row : row + 1], expected_final)
        for name, gate in gates.items():
            close(trace[1][name][:length, row : row + 1], gate.flip(0))


@every_cell
@pytest.mark.parametrize(("batch", "width", "hidden"), [(1, 1, 3), (3, 7, 9), (2, 5, 15)])
def test_steps_of_one_carry_the_state(cell, options, batch, width, hidden):
    layer = make(cell, options, width, hidden)
    x, states = torch.randn(5, batch, width, dtype=torch.float64), states_for(layer, batch)
    output, finals, (trace,) = run(layer, x, states)
    for t in range(5):
        step, states, (gates,) = run(layer, x[t : t + 1], states)
        assert step.shape == (1, batch, hidden)
        close(output[t : t + 1], step)
        for name, gate in gates.items():
            close(trace[name][t : t + 1], gate)
    for final, state in zip(finals, states, strict=True):
        close(final, state)


@every_cell
def test_two_halves_equal_one_run_with_gradients(cell, options):
    layer = make(cell, options, D, H, 2)
    x, states = torch.randn(T, B, D, dtype=torch.float64), states_for(layer)
    probe = torch.randn(T, B, H, dtype=torch.float64)
    whole_x, whole_states = leaf(x), [leaf(state) for state in states]
    output, finals, _ = run(layer, whole_x, whole_states)
    (output * probe).sum().backward()
    whole = parameter_gradients(layer)
    layer.zero_grad()
    half_x, half_states = leaf(x), [leaf(state) for state in states]
    first, carried, _ = run(layer, half_x[:2], half_states)
    second, half_finals, _ = run(layer, half_x[2:], carried)
    halves = torch.cat([first, second])
    (halves * probe).sum().backward()
    close(halves, output)
    for ours, expected in zip(half_finals, finals, strict=True):
        close(ours, expected)
    close(half_x.grad, whole_x.grad)
    for ours, expected in zip(half_states, whole_states, strict=True):
        close(ours.grad, expected.grad)
    for name, gradient in parameter_gradients(layer).items():
        close(gradient, whole[name])


@every_cell
def test_non_contiguous_input_and_state(cell, options):
    layer = make(cell, options)
    wide = torch.randn(B, 2 * D, T, dtype=torch.float64)
    strided = wide.permute(2, 0, 1)[..., ::2]
    states = [state.transpose(1, 2).contiguous().transpose(1, 2) for state in states_for(layer)]
    assert not strided.is_contiguous() and not states[0].is_contiguous()
    results = []
    for x, given in ((strided, states), (strided.contiguous(), [state.contiguous() for state in states])):
        layer.zero_grad()
        x = x.detach().requires_grad_()
        output, finals, _ = run(layer, x, given)
        (output**2).sum().backward()
        results.append([output, *finals, x.grad, *parameter_gradients(layer).values()])
    for ours, expected in zip(*results, strict=True):
        close(ours, expected)


@every_cell
@pytest.mark.parametrize("lengths", [None, torch.empty(0, dtype=torch.int64)])
def test_empty_batch(cell, options, lengths):
    layer = make(cell, options, D, H, 2, bidirectional=True)
    x = torch.randn(T, 0, D, dtype=torch.float64, requires_grad=True)
    output, finals, trace = run(layer, x, states_for(layer, 0), lengths=lengths)
    assert output.shape == (T, 0, 2 * H)
    assert all(final.shape == (4, 0, H) for final in finals)
    assert all(gate.shape[:2] == (T, 0) for place in trace for gate in place.values())
    output.sum().backward()
    assert all(torch.count_nonzero(gradient) == 0 for gradient in parameter_gradients(layer).values())


def test_empty_batch_takes_an_empty_list_of_lengths():
    layer = make("lstm", {})
    assert layer(torch.randn(T, 0, D, dtype=torch.float64), lengths=[])[0].shape == (T, 0, H)


@every_cell
def test_float32_is_near_float64(cell, options):
    exact = make(cell, options, D, H, 2)
    single = make(cell, options, D, H, 2, dtype=torch.float32)
    single.load_state_dict(exact.state_dict())
    x, states = torch.randn(8, B, D, dtype=torch.float64), states_for(exact)
    measured = []
    for layer, dtype in ((exact, torch.float64), (single, torch.float32)):
        layer.load_state_dict({name: value.float() for name, value in exact.state_dict().items()})
        given = x.float().to(dtype).requires_grad_()
        output, finals, _ = run(layer, given, [state.float().to(dtype) for state in states])
        assert output.dtype == dtype and all(final.dtype == dtype for final in finals)
        output.square().mean().backward()
        measured.append([output, *finals, given.grad, *parameter_gradients(layer).values()])
    for expected, ours in zip(*measured, strict=True):
        error, scale = (ours.double() - expected).detach().abs().max(), expected.detach().abs().max()
        assert error <= 1e-5 * max(1.0, float(scale))


@every_cell
@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("given", [False, True])
def test_bfloat16_autocast_keeps_float32_states(cell, options, lengths, given):
    layer = make(cell, options, D, H, 2, dtype=torch.float32)
    x = torch.randn(T, B, D)
    states = states_for(layer, dtype=torch.float32) if given else None
    expected, expected_finals, _ = run(layer, x, states, lengths=lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, finals, _ = run(layer, x, states, lengths=lengths)
    assert [final.dtype for final in finals] == [torch.float32] * len(finals)
    close(output.float(), expected, atol=0.05)
    for final, expected_final in zip(finals, expected_finals, strict=True):
        close(final.float(), expected_final, atol=0.05)
    output.float().square().sum().backward()
    assert all(torch.isfinite(gradient).all() for gradient in parameter_gradients(layer).values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("backend", "cell", "options"),
    [("reference", *each) for each in VARIANTS] + [("auto", "lstm", {}), ("auto", "onlstm", {"chunk_size": 3})],
)
def test_autocast_leaves_float64_as_it_is(cell, options, backend, dtype):
    layer, x = make(cell, options, D, H, 2, backend=backend), torch.randn(T, B, D, dtype=torch.float64)
    for states in (None, states_for(layer)):
        expected, expected_finals, _ = run(layer, x, states)
        with torch.autocast("cpu", dtype):
            output, finals, _ = run(layer, x, states)
        close([output, *finals], [expected, *expected_finals])  # types included


@pytest.mark.parametrize(("weights", "given"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_autocast_does_not_mix_float64_with_another_type(weights, given):
    layer, x = make("lstm", {}, dtype=weights), torch.randn(T, B, D, dtype=given)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ArgumentError, match=f"weights' type {weights}; got {given}"),
    ):
        layer(x)


@every_cell
@pytest.mark.parametrize("perturbed", [False, True], ids=["plain", "temperature-and-noise"])
def test_gradcheck(cell, options, perturbed):
    gates = Gates(temperature=0.7, noise_probability=0.6) if perturbed else Gates()
    hidden = 6 if options.get("chunk_size") == 3 else 3
    layer = make(cell, options, 2, hidden, gates=gates).train()
    noise = layer.sample_noise(2, 2, torch.Generator().manual_seed(4)) if perturbed else None
    names = [name for name, _ in layer.named_parameters()]
    x = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
    states = [leaf(state) for state in states_for(layer, 2)]

    def function(x, *rest):
        given, parameters = rest[: len(states)], dict(zip(names, rest[len(states) :], strict=True))
        hx = given if len(given) > 1 else given[0]
        output, finals = functional_call(layer, parameters, (x, hx), {"lengths": [2, 1], "noise": noise})
        return (output, *(finals if isinstance(finals, tuple) else (finals,)))

    assert torch.autograd.gradcheck(function, (x, *states, *map(leaf, layer.parameters())))
