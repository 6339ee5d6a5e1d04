"""What the `cpu` backend must not read, must not overlook, refuses, and gives again in the same bits."""

import copy
from dataclasses import replace

import pytest

pytest.importorskip("numba")

import torch
from harness import (
    RAGGED,
    B,
    D,
    H,
    T,
    call,
    equal,
    every_cell,
    inputs_for,
    leaf,
    make,
    measure,
    ran_on_cpu,
    same_bits,
)  # fmt: skip
from torch.func import functional_call

from gatedrnn import CELLS, LSTM, Gates, Recurrent
from gatedrnn.core.errors import ArgumentError, BackendError
from gatedrnn.sequence.backends.cpu.recurrence import arguments, operator
from gatedrnn.sequence.backends.cpu.runtime import team


@pytest.mark.parametrize(("steps", "size"), [(3, 5_000), (1_500, 10)])
@pytest.mark.parametrize("variant", ["lstm", "peephole"])
def test_sums_over_many_tokens_of_one_sign_keep_their_digits(variant, steps, size):
    layer, x = make(variant, 3, 4, dtype=torch.float32), torch.rand(steps, size, 3)
    near, exact = copy.deepcopy(layer), copy.deepcopy(layer).double()
    near.backend = exact.backend = "reference"
    for each in (layer, near, exact):
        each(x.to(each.weight_ih_l0.dtype))[0].sum().backward()
    for name, weight in exact.named_parameters():
        ours, theirs = ((each.get_parameter(name).grad - weight.grad).norm() for each in (layer, near))
        assert ours <= 2 * theirs + 1e-6 * weight.grad.norm(), (name, ours, theirs)


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
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_nan_in_noise_beyond_a_row_s_length_is_never_read(variant, backend):
    layer = make(variant, gates=Gates(noise_probability=1.0), training=True)
    x, states = inputs_for(layer)
    noise, found = layer.sample_noise(T, B, torch.Generator().manual_seed(4)), []
    if None in noise:
        pytest.skip("a cell without noise")
    for filling in (torch.nan, 0.0):
        for row, length in enumerate(RAGGED[B]):
            noise[0][length:, row] = filling
        found.append(measure(layer, backend, x, states, lengths=RAGGED[B], noise=noise))
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


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@every_cell
@pytest.mark.parametrize(("size", "ragged"), [(9, True), (1, False)])
def test_threads_change_next_to_nothing_and_runs_nothing(variant, size, ragged, threads):
    layer = make(variant, 64, 70, bidirectional=True, dtype=torch.float32)
    x, states = inputs_for(layer, 12, size)
    lengths = [1 + 5 * row % 12 for row in range(size)] if ragged else None
    found = {}
    for count in (2, 1, 2):
        threads(count)
        found.setdefault(count, []).append(measure(layer, "cpu", x, states, lengths=lengths))
    same_bits(*found[2])
    equal(found[2][0], found[1][0], 1e-5)


@every_cell
def test_threads_that_keep_to_their_rows_of_the_batch(variant, threads, monkeypatch):
    _threads_apart(variant, 2, "float32", threads, monkeypatch)


@pytest.mark.parametrize("variant", ["lstm", "gru-before", "onlstm-chunks"])
@pytest.mark.parametrize(("count", "kind"), [(3, "float64"), (2, "bfloat16")])
def test_threads_that_keep_to_their_rows_in_other_precisions(variant, count, kind, threads, monkeypatch):
    _threads_apart(variant, count, kind, threads, monkeypatch)


def _threads_apart(variant, count, kind, threads, monkeypatch):
    """Where all sequences have all steps and U is small, no thread waits for another at a step."""
    dtype = torch.float64 if kind == "float64" else torch.float32
    layer = make(variant, 64, 70, bidirectional=True, dtype=dtype)
    x, states = inputs_for(layer, 12, 25)
    chosen, decide = [], arguments.by_rows
    monkeypatch.setattr(operator, "by_rows", lambda *given: (chosen.append(decide(*given)), chosen[-1])[1])
    found = []
    for rows in (8, 100, 8):
        monkeypatch.setattr(arguments, "OWN_ROWS", rows)
        operator.forward_loop.cache_clear()
        threads(count)
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bfloat16"):
            found.append(measure(layer, "cpu", x, states))
    operator.forward_loop.cache_clear()
    assert team.size() == 1 or (True in chosen and False in chosen)
    same_bits(found[0], found[2])
    equal(found[0], found[1], {"float32": 1e-5, "float64": 1e-12, "bfloat16": 2e-2}[kind])


def own_cell():
    lstm = CELLS["lstm"]

    def step(spec, params, x_gates, h_gates, state):
        (h, c), gates = lstm.step(spec, params, x_gates, h_gates, state)
        return (torch.sort(h).values, c), gates

    return replace(lstm, name="mine", step=step)


REFUSED = {
    "own cell": (lambda: Recurrent(own_cell(), D, H), "the operation sort"),
    "float16": (lambda: Recurrent("lstm", D, H, dtype=torch.float16), "torch.float16"),
    "meta": (lambda: Recurrent("lstm", D, H, device="meta"), "meta"),
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


def test_a_straight_through_candidate_is_the_references():
    gates = Gates(straight_through=True, names=("cell_candidate",))
    layer = Recurrent("rnn", D, H, nonlinearity="sigmoid", gates=gates, dtype=torch.float64)
    given = inputs_for(layer, T, B)
    equal(measure(layer, "cpu", *given), measure(layer, "reference", *given))


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


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_lengths_may_change_before_the_backward_pass(backend):
    layer, x, lengths = LSTM(3, 4, backend=backend), torch.randn(5, 2, 3), torch.tensor([5, 3])
    layer(x, lengths=[5, 3])[0].sum().backward()
    expected = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    output, _ = layer(x, lengths=lengths)
    lengths -= 2
    output.sum().backward()
    assert all(
        torch.equal(parameter.grad, truth) for parameter, truth in zip(layer.parameters(), expected, strict=True)
    )
