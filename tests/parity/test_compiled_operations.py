"""Operations of a step: read with all their arguments and compiled for rows, chunks and special numbers, or refused by name."""

import functools

import pytest
import torch
from test_compiled_cells import results
from torch.nn import functional as F

from gatedrnn import Recurrent
from gatedrnn.cells import Cell, Extra, Gate, Spec, repeat_chunks
from gatedrnn.core.errors import BackendError

H, T, B, D = 6, 3, 4, 3
ONE = Spec(H, (Gate("n", H, "tanh"),), ("h",))
TWO = Spec(H, (Gate("a", H), Gate("n", H, "tanh")), ("h",))


@pytest.fixture
def interpreter(monkeypatch):
    """Lets the `triton` backend run, on a GPU or in Triton's interpreter."""
    pytest.importorskip("triton", minversion="3.4", reason="needs Triton 3.4 or later")
    if torch.cuda.is_available():
        pytest.skip("the interpreter's tests are for a machine without a GPU")
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def layer_of(spec, step, **options):
    return Recurrent(Cell("own", "own", lambda hidden_size: spec, step), D, spec.hidden_size, **options)


def check(spec, step, backend, lengths=None, **options):
    """Hold all values and gradients of a backend to the reference's."""
    layer = layer_of(spec, step, dtype=torch.float64, **options)
    x = torch.randn(T, B, D, dtype=torch.float64)
    both = (results(layer, x, lengths, None, each) for each in (backend, "reference"))
    for found, expected in zip(*both, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


def of_n(function):
    """A step whose new h is n times what `function` makes of n."""

    def step(spec, params, x_gates, h_gates, state):
        n = spec.squash("n", x_gates + h_gates)
        return (n * function(n),), {"n": n}

    return step


# Arguments that change a value.


def cut_sum(n):
    return (3 * n).detach().sum(-1, keepdim=True, dtype=torch.int32)


def cut_sums(n):
    return (3 * n).detach().cumsum(-1, dtype=torch.int64)


def rounded_sum(n):
    return n.sum(-1, keepdim=True, dtype=torch.bfloat16)


def any_of(n):
    return (n > 0).sum(-1, keepdim=True, dtype=torch.bool)


def wrapped(n):
    return (n > 0).sum(-1, keepdim=True, dtype=torch.int8)


def rounded_number(n):
    return torch.full_like(n, 0.1, dtype=torch.float16)


def cut_number(n):
    return torch.scalar_tensor(1.7, dtype=torch.int64)


def cut_filling(n):
    return (n > 0).cumsum(-1).masked_fill(n > 0.1, 0.5)


def truth_filling(n):
    return (n > 0).masked_fill(n > 0.1, 0.5)


def scaled_number(n):
    return torch.ops.aten.add.Scalar(n, 1.0, 2)


def scaled_truth(n):
    return (n > 0).float() * 0.1


def thirds(n):
    return (n > 0).sum(-1, keepdim=True) / 3


def spread(n):
    return torch.var_mean((n > 0).float(), -1, keepdim=True)[1]


def large_truth(n):
    return (n > 0).float() * 16777217


def large_count(n):
    return ((n > 0) * 16777217).float()


def other_bits(n):
    return n.detach().view(torch.int32).view(-1, 1, n.shape[-1]).sum(1)


@pytest.mark.parametrize(
    "function, words",
    [
        (cut_sum, r"the operation sum that gives torch.int32 \(test_compiled_operations.py:"),
        (cut_sums, "the operation cumsum that gives torch.int64"),
        (rounded_sum, "the operation sum that gives torch.bfloat16"),
        (any_of, "the operation sum that gives torch.bool"),
        (wrapped, "the operation sum that gives torch.int8"),
        (rounded_number, "the operation full_like that gives torch.float16"),
        (cut_number, "the number 1.7 as torch.int64"),
        (cut_filling, "the number 0.5 as torch.int64"),
        (truth_filling, "the number 0.5 as torch.bool"),
        (
            scaled_number,
            "the operation add .* of such values|too many positional arguments",
        ),  # the latter by PyTorch 2.8
        (
            scaled_truth,
            r"the operation mul \(test_compiled_operations.py:.*\), which rounds to float32 in a layer of float64",
        ),
        (thirds, "the operation div .*, which rounds to float32"),
        (spread, "the operation var_mean|which rounds to float32"),
        (large_truth, "the operation mul .*, which rounds to float32"),
        (large_count, "which rounds to float32"),
        (other_bits, "its step "),
    ],
)
def test_an_argument_that_changes_a_value_is_refused(function, words):
    layer = layer_of(ONE, of_n(function), dtype=torch.float64, backend="cpu")
    with pytest.raises(BackendError, match=words) as caught:
        layer(torch.randn(T, B, D, dtype=torch.float64))
    assert "\n" not in str(caught.value)


def counted(n):
    return (n > 0).sum(-1, keepdim=True, dtype=torch.int32) + (n > 0.2).cumsum(-1)


def filled(n):
    return (n > 0).cumsum(-1).masked_fill(n > 0.1, 5)


def varied(n):
    return n.var(-1, keepdim=True, correction=2) + n.var(-1, True, True)


def summed_from_the_end(n):
    return n.flip(-1).cumsum(-1).flip(-1) - n


def tenths(n):
    """Tensors of float32 in a layer of float64 too."""
    return torch.where(n > 0, 0.1, 0.2) + torch.full((1,), 1 / 3) * torch.full_like(n, 1 / 7)


def large(n):
    return torch.where(n > 0.1, 16777217.0, 1e-46) * n


def truths(n):
    return (n > 0).float() + 2 * (n > 0.2).float().sum(-1, keepdim=True)


def halves(n):
    """Exact in float32, however it is computed."""
    mask = (n > 0).float()
    unread = mask.mean()  # noqa: F841 - a step may
    return (
        mask / 2 + 0.25 * mask.square() + (mask - 0.5).relu() + n * torch.maximum(-torch.where(n > 0, 0.1, 0.2), -mask)
    )


def counts(n):
    return counted(n) + 2 * filled(n) + 3 * truths(n)


def sums(n):
    return varied(n) + 2 * summed_from_the_end(n)


def numbers(n):
    return tenths(n) + 2 * halves(n)


@pytest.mark.parametrize("function", [counts, sums, numbers, large])
def test_an_argument_that_is_read_is_compiled(function):
    check(ONE, of_n(function), "cpu")


def test_the_default_type_of_new_tensors_is_followed():
    """It decides how numbers are rounded; another one makes kernels stale."""

    def own_tenths(n):
        return torch.where(n > 0, 0.1, 0.2)

    check(ONE, of_n(own_tenths), "cpu")
    torch.set_default_dtype(torch.float64)
    try:
        check(ONE, of_n(own_tenths), "auto")  # on the reference: in a layer of float32, its numbers would be float64
    finally:
        torch.set_default_dtype(torch.float32)
    check(ONE, of_n(own_tenths), "cpu")


# Numbers of a row, and gates cut out of it.


def scaled_mean(spec, params, x_gates, h_gates, state):
    """An extra of two gates that is read as one number a row."""
    s = x_gates + h_gates
    m = (s + params.extras["w"]).mean(-1, keepdim=True)
    a, n = (spec.squash(gate.name, part) for gate, part in zip(spec.gates, spec.split(s), strict=True))
    return (a * state[0] + n * m,), {"a": a, "n": n}


def mean_of_all(spec, params, x_gates, h_gates, state):
    """A number a row of all gates' logits, read through slices."""
    s = x_gates + h_gates
    m = s[:, : 2 * H].mean(-1, keepdim=True)
    a, n = spec.squash("a", s[:, :H]), spec.squash("n", s[:, -H:])
    return (a * state[0] + n * m,), {"a": a, "n": n}


def sliced(spec, params, x_gates, h_gates, state):
    """Gates as authors' code cuts them, and a part of an extra."""
    s = x_gates + h_gates
    a, both = spec.squash("a", s[:, :H]), s[:, H : 3 * H]
    b, n = spec.squash("b", both[:, :H]), spec.squash("n", both[:, H:] + params.extras["w"][2 * H :] * state[0])
    return (a * state[0] + b * n,), {"a": a, "b": b, "n": n}


def one_of_two(spec, params, x_gates, h_gates, state):
    """The second of two gates alone, of two sizes."""
    s = x_gates + h_gates
    m, n = spec.squash("m", s[:, :3]), spec.squash("n", s[:, 3:] * 0.5)
    return (n + s[:, 3:].sum(-1, keepdim=True),), {"m": m, "n": n}


def apart_sliced(spec, params, x_gates, h_gates, state):
    """A GRU's gates, cut out of W x and U h'."""
    r = spec.squash("a", x_gates[:, :H] + h_gates[:, :H])
    n = spec.squash("n", x_gates[:, H:] + r * h_gates[:, H:])
    return (r * n + (1 - r) * state[0],), {"a": r, "n": n}


def beside_the_state(spec, params, x_gates, h_gates, state):
    """Gates cut out of a row that the step itself put together."""
    s = torch.cat((state[0], x_gates + h_gates), -1)
    a, n = spec.squash("a", s[:, H : 2 * H]), spec.squash("n", s[:, 2 * H :])
    return (a * n + s[:, :H],), {"a": a, "n": n}


THREE = Spec(H, (Gate("a", H), Gate("b", H), Gate("n", H, "tanh")), ("h",), extras=(Extra("w", ("a", "b", "n")),))
CUT = {
    "an extra's number": (Spec(H, TWO.gates, ("h",), extras=(Extra("w", ("a", "n")),)), scaled_mean),
    "a number of all": (TWO, mean_of_all),
    "slices": (THREE, sliced),
    "two sizes": (Spec(H, (Gate("m", 3, "cumax"), Gate("n", H, "tanh")), ("h",)), one_of_two),
    "apart": (TWO, apart_sliced),
    "beside the state": (TWO, beside_the_state),
}


@pytest.mark.parametrize("name", CUT)
def test_rows_of_several_gates(name):
    check(*CUT[name], "cpu", lengths=[3, 1, 2, 3])


@pytest.mark.parametrize("name", CUT)
def test_rows_of_several_gates_on_a_gpu(name, interpreter):
    check(*CUT[name], "triton")


def cut_alike(spec, params, x_gates, h_gates, state):
    """Of six elements, three: once of two gates, once of the state."""
    s = x_gates + h_gates
    first = s[:, :6]
    m, k, n = (spec.squash(gate.name, part) for gate, part in zip(spec.gates, spec.split(s), strict=True))
    return (n * repeat_chunks(torch.tanh(first[:, :3]) + state[0][:, :3] + m * k, H),), {"m": m, "k": k, "n": n}


def test_slices_that_cannot_be_told_apart_name_their_lines():
    spec = Spec(H, (Gate("m", 3, "cumax"), Gate("k", 3), Gate("n", H, "tanh")), ("h",))
    layer = layer_of(spec, cut_alike, backend="cpu")
    words = r"slices \(test_compiled_operations.py:[\d, ]+\) of several kinds .* not by spec.split"
    with pytest.raises(BackendError, match=words):
        layer(torch.randn(T, B, D))


# Functions where their arguments are special.


NAMES = (
    "exp", "log", "sqrt", "tanh", "sigmoid", "softplus", "log1p", "expm1", "relu", "rsqrt", "reciprocal", "logsigmoid", "silu",
    "pow", "bounds", "choices",
)  # fmt: skip


def of_states(spec, params, x_gates, h_gates, state):
    """Each state but the first, which alone is multiplied, becomes a function of itself, in the order of NAMES."""
    n = spec.squash("n", x_gates + h_gates)
    _, a, b, c, d, e, f, g, h, i, j, k, m, o, p, q, r = state
    new = [torch.exp(a), torch.log(b), torch.sqrt(c), torch.tanh(d), torch.sigmoid(e), F.softplus(f), torch.log1p(g)]
    new += [
        torch.expm1(h),
        torch.relu(i),
        torch.rsqrt(j),
        torch.reciprocal(k),
        F.logsigmoid(m),
        F.silu(o),
        p**3 + p**-1,
    ]
    new += [torch.maximum(q, 0.5 * q) + torch.minimum(q, 2 * q) + q.clamp(min=0.1)]
    new += [torch.where(torch.isnan(r), 2.0, r) + torch.where(r == 0, 1.0, r) + r.abs() * r.sign()]
    return (n, *new), {"n": n}


TIMES = (1e-9, 1e-6, 1e-3, 0.3, 0.4999, 0.5, 0.9999999, 1.0, 1.0001, 2.0, 9.02, 20.0, 50.0, 87.2, 88.3, 100.0, 1e5)


def special(dtype):
    """Numbers where functions have ends, poles or formulas of their own."""
    info = torch.finfo(dtype)
    ends = [0.0, torch.inf, info.tiny, info.tiny / 1024, info.max, info.eps]
    ends += [700.0, 709.7, 710.0, 750.0, 1e-39, 1e-37, 1e38, 1e40] if dtype == torch.float64 else [1e-38, 1e-37, 1e38]
    return torch.tensor([sign * value for value in (*TIMES, *ends) for sign in (1, -1)] + [torch.nan], dtype=dtype)


@functools.cache
def of_special(dtype):
    """The functions' values and slopes: the kernels', then the reference's."""
    values, found = special(dtype), []
    size, states = len(values), ("h", *NAMES)
    layer = layer_of(Spec(size, (Gate("n", size, "tanh"),), states), of_states, dtype=dtype)
    for layer.backend in ("cpu", "reference"):
        given = [values.clone()[None, None].requires_grad_() for _ in NAMES]
        _, (_, *new) = layer(torch.zeros(1, 1, D, dtype=dtype), (torch.zeros(1, 1, size, dtype=dtype), *given))
        slopes = torch.autograd.grad(sum(each.sum() for each in new), given)
        found.append([(value.detach()[0, 0], slope[0, 0]) for value, slope in zip(new, slopes, strict=True)])
    return dict(zip(NAMES, zip(*found, strict=True), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_functions_of_special_numbers(name, dtype):
    info, values = torch.finfo(dtype), special(dtype)
    for ours, expected, absolute in zip(*of_special(dtype)[name], (info.tiny, 4 * info.eps), strict=True):
        finite = ours.isfinite() & expected.isfinite()
        far = (ours - expected).abs() > 8 * info.eps * expected.abs() + absolute
        odd = torch.where(finite, far, (ours != expected) & ~(ours.isnan() & expected.isnan()))
        assert not odd.any(), (values[odd], ours[odd], expected[odd])


# Hard gates in narrow types.


def held(spec, params, x_gates, h_gates, state):
    """A hard gate that is the state too, so that the trace and the output tell both sides of it."""
    a, n = (spec.squash(gate.name, part) for gate, part in zip(spec.gates, spec.split(x_gates + h_gates), strict=True))
    return (a + 0 * n,), {"a": a, "n": n}


HARD = Spec(H, (Gate("a", H, hard=True), Gate("n", H, "tanh")), ("h",))
LOGITS = [0.003, -0.003, 0.0009, 0.0, 0.5, -2.0]
"""Gates of the first and the third are nearer to ½ than bfloat16's, or float16's, next number above it."""


def hard_gates(backend, dtype):
    """Output, gate and the gradient of the gate's logits."""
    layer = layer_of(HARD, held, dtype=dtype, backend=backend)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.bias_ih_l0[:H] = torch.tensor(LOGITS, dtype=dtype)
    output, _, traces = layer(torch.zeros(2, B, D, dtype=dtype), return_gates=True)
    output.float().sum().backward()
    return output.detach(), traces[0]["a"].detach(), layer.bias_ih_l0.grad[:H]


def check_hard_gates(backend, dtype):
    output, gate, slope = hard_gates(backend, dtype)
    expected = (torch.tensor(LOGITS) > 0).to(dtype).expand(2, B, H)
    assert torch.equal(gate, expected) and torch.equal(output, expected)
    torch.testing.assert_close(slope, hard_gates("reference", dtype)[2], atol=0.1, rtol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_hard_gate_is_the_same_before_and_after_it_is_stored(dtype, interpreter):
    check_hard_gates("triton", dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_hard_gate_of_the_cpu_is_the_reference_s(dtype):
    check_hard_gates("cpu", dtype)


# Numbers of a row, and constants, for each unit of a chunk.


def masters(spec, x_gates, h_gates):
    return [spec.squash(gate.name, part) for gate, part in zip(spec.gates, spec.split(x_gates + h_gates), strict=True)]


def number_for_chunks(spec, params, x_gates, h_gates, state):
    """The gradient of a mean of chunks' sums is a number, and so is what all chunks get."""
    m, n = masters(spec, x_gates, h_gates)
    number = repeat_chunks(m.mean(-1, keepdim=True).expand(-1, 3), H)
    return (n * n.view(-1, 3, 2).sum(-1).mean(-1, keepdim=True) + number * state[0],), {"m": m, "n": n}


def ones_for_chunks(spec, params, x_gates, h_gates, state):
    """Constants in the place of values of chunks and of units."""
    m, n = masters(spec, x_gates, h_gates)
    ones = torch.ones(n.shape[0], 3, dtype=n.dtype)
    return (n * repeat_chunks(ones, H) + repeat_chunks(m + torch.zeros_like(m), H),), {"m": m, "n": n}


def of_constants(spec, params, x_gates, h_gates, state):
    """Functions of constants, in full precision."""
    m, n = masters(spec, x_gates, h_gates)
    one = torch.ones_like(n)
    share = (one / one.sum(-1, keepdim=True)).abs() + torch.log1p(one) / (3 * one)
    return (n * torch.tanh(one) * torch.sigmoid(0.3 * one) + share * repeat_chunks(m, H),), {"m": m, "n": n}


def chunks_of_one(spec, params, x_gates, h_gates, state):
    """Sums over chunks that are single units."""
    m, n = masters(spec, x_gates, h_gates)
    return (n * m.view(-1, H, 1).sum(-1) + n.view(-1, H, 1).mean(-1) * state[0],), {"m": m, "n": n}


MASTERS = Spec(H, (Gate("m", 3, "cumax"), Gate("n", H, "tanh")), ("h",))
each_of_numbers = pytest.mark.parametrize("step", [number_for_chunks, ones_for_chunks, of_constants])


@each_of_numbers
def test_numbers_where_a_row_is_read(step):
    check(MASTERS, step, "cpu")


@each_of_numbers
def test_numbers_where_a_row_is_read_on_a_gpu(step, interpreter):
    check(MASTERS, step, "triton")


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_chunks_of_one_unit(backend, interpreter):
    check(Spec(H, (Gate("m", H + 1, "cumax", H), Gate("n", H, "tanh")), ("h",)), chunks_of_one, backend)


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda n: repeat_chunks(n.view(-1, 3, 2).amax(-1), H), "operation over chunks other than a sum or a mean"),
        (lambda n: repeat_chunks(n.view(-1, 3, 2).var(-1), H), "operation over chunks other than a sum or a mean"),
        (lambda n: torch.softmax(n.view(-1, 3, 2), -1).view(-1, H), "operation over chunks other than a sum or a mean"),
        (lambda n: n.view(-1, 3, 2).cumsum(-1).view(-1, H), "operation over chunks other than a sum or a mean"),
        (lambda n: n.flip(-1), r"operation flip \(test_compiled_operations.py:\d+\) other than around"),
        (lambda n: torch.log(torch.full_like(n, -1.0)), "log of the number -1.0, which is NaN"),
    ],
)
def test_what_is_not_compiled_names_itself(function, words):
    def step(spec, params, x_gates, h_gates, state):
        m, n = masters(spec, x_gates, h_gates)
        return (n * function(n) + repeat_chunks(m, spec.hidden_size),), {"m": m, "n": n}

    with pytest.raises(BackendError, match=words):
        layer_of(MASTERS, step, backend="cpu")(torch.randn(T, B, D))
