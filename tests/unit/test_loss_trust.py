"""The loss of a language model in every call: types, ranges, values that are not finite, transforms, devices."""

import itertools

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

from gatedrnn import ArgumentError, LanguageModel, LanguageModelConfig
from gatedrnn.models import loss
from gatedrnn.models.loss import chunked_cross_entropy
from gatedrnn.sequence.backends.cpu.availability import unavailable

V, N, E = 11, 10, 4
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
kernels = pytest.mark.skipif(unavailable(torch.empty(0)) is not None, reason="no kernels here")


def model(**changes):
    torch.manual_seed(0)
    config = LanguageModelConfig(cell="lstm", vocabulary_size=V, embedding_size=E, hidden_sizes=(E,), tied=False)
    return LanguageModel(config, **changes).eval()


def batch(low=0):
    ids = torch.randint(low, V, (6, 2), generator=torch.Generator().manual_seed(1))
    return ids[:-1], ids[1:]


def leaves(dtype=torch.float32, words=V, rows=N):
    generator = torch.Generator().manual_seed(2)
    shapes = [(rows, E), (words, E), (words,)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def some_targets(words=V, rows=N):
    targets = torch.randint(0, words, (rows,), generator=torch.Generator().manual_seed(3))
    targets[1::4] = -100
    return targets


def at_once(hidden, weight, bias, targets):
    return F.cross_entropy(F.linear(hidden, weight, bias), targets)


def agree(tensors, targets, **tolerance):
    """Loss and gradients are torch's."""
    ours, theirs = chunked_cross_entropy(*tensors, targets), at_once(*tensors, targets)
    torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    gradients = zip(torch.autograd.grad(ours, wanted), torch.autograd.grad(theirs, wanted), strict=True)
    for our, their in gradients:
        torch.testing.assert_close(our, their, equal_nan=True, **tolerance)


# types and ranges of ids


@pytest.mark.parametrize("dtype", INTEGERS)
def test_ids_of_any_integer_type_are_ids(dtype):
    tokens, targets = batch()
    with torch.no_grad():
        found = model()(tokens.to(dtype), targets=targets.to(dtype)).loss
        assert torch.equal(found, model()(tokens, targets=targets).loss)
    flat = leaves()
    whole = some_targets().clamp_min(0)
    assert torch.equal(chunked_cross_entropy(*flat, whole.to(dtype)), chunked_cross_entropy(*flat, whole))


def test_a_byte_is_never_taken_for_a_target_that_does_not_count():
    tokens, targets = batch()
    with pytest.raises(ArgumentError, match=r"LanguageModel\.targets: ids must lie in 0…10; got 156\."):
        model()(tokens, targets=torch.full_like(targets, 156, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.complex64])
def test_ids_that_are_no_integers_are_refused(dtype):
    tokens, targets = batch()
    with pytest.raises(
        ArgumentError, match=rf"LanguageModel\.targets: must be integers \[T, B\]; got {dtype} \[5, 2\]"
    ):
        model()(tokens, targets=targets.to(dtype))
    with pytest.raises(ArgumentError, match=r"LanguageModel\.tokens: must be integers \[T, B\]; got"):
        model()(tokens.to(dtype))
    with pytest.raises(ArgumentError, match=r"chunked_cross_entropy\.targets: must be integers \[N\]; got"):
        chunked_cross_entropy(*leaves(), some_targets().to(dtype))


def test_ids_in_a_list_are_refused():
    tokens, targets = batch()
    with pytest.raises(ArgumentError, match=r"LanguageModel\.tokens: must be integers \[T, B\]; got list\."):
        model()(tokens.tolist())
    with pytest.raises(ArgumentError, match=r"LanguageModel\.targets: must be integers \[T, B\]; got list\."):
        model()(tokens, targets=targets.tolist())


@pytest.mark.parametrize("change", [lambda t: t[1:], lambda t: t.to("meta")], ids=["shape", "device"])
def test_targets_are_where_the_tokens_are(change):
    tokens, targets = batch()
    rule = r"LanguageModel\.targets: must have the tokens' shape \[5, 2\] and device cpu; got"
    with pytest.raises(ArgumentError, match=rule):
        model()(tokens, targets=change(targets))


@pytest.mark.parametrize("rows", [N - 1, N + 1])
def test_every_row_has_a_target(rows):
    with pytest.raises(
        ArgumentError, match=rf"targets: must be one for each row of hidden \[10, 4\]; got \[{rows}\]\."
    ):
        chunked_cross_entropy(*leaves(), some_targets(rows=rows))


@kernels
@pytest.mark.parametrize("wrong", [V, -1, 2**40])
def test_a_target_out_of_range_is_refused_in_a_compiled_graph_too(wrong):
    compiled = torch.compile(chunked_cross_entropy, backend="aot_eager", fullgraph=True)
    tensors, targets = leaves(), some_targets()
    assert torch.equal(compiled(*tensors, targets), chunked_cross_entropy(*tensors, targets))
    targets[4] = wrong
    for function in (compiled, chunked_cross_entropy):
        with pytest.raises(ArgumentError, match=rf"ids must lie in 0…10; got {wrong}\."):
            function(*tensors, targets)


@kernels
def test_a_compiled_model_refuses_targets_out_of_range():
    tokens, targets = batch()
    compiled = torch.compile(model(), backend="aot_eager")
    torch.testing.assert_close(compiled(tokens, targets=targets).loss, model()(tokens, targets=targets).loss)
    with pytest.raises(ArgumentError, match=r"ids must lie in 0…10; got 10\d\d\."):
        compiled(tokens, targets=targets + 1000)


# what the operators take


def given():
    return [torch.randn(5, V), torch.randn(V), torch.randint(0, V, (5,)), torch.rand(5)]


CHANGES = {
    "dtype": lambda x: x.half(),
    "other dtype": lambda x: x.int(),
    "rows": lambda x: x[1:],
    "dimensions": lambda x: x[None],
    "device": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
}


@kernels
@pytest.mark.parametrize(("change", "place"), itertools.product(CHANGES, range(4)))
def test_the_loss_operator_refuses_what_its_kernel_would_misread(change, place):
    arguments = given()
    arguments[place] = CHANGES[change](arguments[place])
    with pytest.raises(ArgumentError, match=r"^cross_entropy_"):
        torch.ops.gatedrnn.cross_entropy_(*arguments, True)


@kernels
def test_the_loss_operator_writes_only_to_contiguous_memory():
    _, *rest = given()
    with pytest.raises(ArgumentError, match="must be contiguous"):
        torch.ops.gatedrnn.cross_entropy_(torch.randn(V, 5).t(), *rest, True)


@kernels
@pytest.mark.parametrize(
    "change",
    [
        {"seed": torch.tensor([1.0])},
        {"seed": torch.tensor([1, 2])},
        {"seed": torch.empty(1, dtype=torch.int64, device="meta")},
        {"rows": -1},
        {"columns": 5},
        {"blocks": [0, 9]},
        {"blocks": [-1, 3]},
        {"blocks": [4, 2]},
        {"blocks": [0, 4, 2, 6]},
        {"blocks": [0, 4, 6]},
        {"chance": 0.0},
        {"chance": 1.5},
        {"chance": float("nan")},
        {"scale": float("inf")},
        {"like": torch.empty(0, dtype=torch.bfloat16)},
        {"like": torch.empty(0, device="meta")},
    ],
    ids=str,
)
def test_the_noise_operator_refuses_what_its_kernel_would_misread(change):
    options = {"rows": 3, "columns": 8, "blocks": [0, 2, 4, 6], "chance": 0.5, "scale": 1.0, "like": torch.empty(0)}
    options = {"seed": torch.tensor([1])} | options
    noise = torch.ops.gatedrnn.logistic_noise(**options)
    assert noise.shape == (3, 8) and not noise[:, [2, 3, 6, 7]].any()
    with pytest.raises(ArgumentError, match=r"^logistic_noise"):
        torch.ops.gatedrnn.logistic_noise(**options | change)


# values that are not finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [[0], [36], [5], [8, 20], list(range(37))], ids=str)
@pytest.mark.parametrize("on_kernels", [True, False])
def test_a_logit_that_is_not_finite_gives_torchs_loss_and_gradients(dtype, value, place, on_kernels, monkeypatch):
    if not on_kernels:
        monkeypatch.setattr(loss, "unavailable", lambda like: "asked for")
    hidden, weight, bias = leaves(dtype, 37)
    targets = some_targets(37)
    targets[0] = 5
    agree([hidden, weight, bias.detach().index_fill(0, torch.tensor(place), value).requires_grad_()], targets)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_does_not_count_is_not_in_the_loss(value):
    hidden, weight, bias = (tensor.detach() for tensor in leaves())
    hidden[1] = value
    agree([hidden.requires_grad_(), weight.requires_grad_(), bias], some_targets())


def test_a_batch_of_nothing_gives_torchs_loss_and_gradients():
    agree(leaves(rows=0), some_targets(rows=0))
    agree(leaves(), torch.full((N,), -100))


# types, strides, what needs a gradient


@pytest.mark.parametrize("needs", list(itertools.product([True, False], repeat=3))[:-1])
def test_only_what_needs_a_gradient_gets_one(needs):
    tensors = [tensor.requires_grad_(need) for tensor, need in zip(leaves(), needs, strict=True)]
    agree(tensors, some_targets())


def test_strided_arguments():
    hidden, weight, bias = leaves()
    wide, tall = torch.randn(2 * N, 2 * E)[::2, 1::2], torch.randn(E, V).t()
    agree([wide.requires_grad_(), tall.requires_grad_(), bias], torch.stack([some_targets()] * 2, 1)[:, 1])
    agree([hidden, weight, torch.randn(1).expand(V).requires_grad_()], some_targets())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_types_come_near_float32(dtype, tolerance, autocast):
    exact, small = leaves(torch.float64), leaves(torch.float32 if autocast else dtype)
    with torch.autocast("cpu", dtype, enabled=autocast):
        value = chunked_cross_entropy(*small, some_targets())
    wanted = at_once(*exact, some_targets())
    assert value.dtype == torch.float32
    found = zip([value, *torch.autograd.grad(value, small)], [wanted, *torch.autograd.grad(wanted, exact)], strict=True)
    for ours, theirs in found:
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def test_autocast_leaves_float64_as_it_is():
    exact, targets = leaves(torch.float64), some_targets()
    expected = chunked_cross_entropy(*exact, targets)
    with torch.autocast("cpu", torch.bfloat16):
        value = chunked_cross_entropy(*exact, targets)
    found = zip(
        [value, *torch.autograd.grad(value, exact)], [expected, *torch.autograd.grad(expected, exact)], strict=True
    )
    for ours, theirs in found:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_a_scaled_loss_in_float16_neither_overflows_nor_vanishes():
    """A GradScaler starts at 65,536, above float16's largest number; a gradient divided by N is below its least."""
    targets = torch.randint(0, 5000, (2000,), generator=torch.Generator().manual_seed(3))
    exact = leaves(torch.float32, 5000, 2000)
    for autocast in (True, False):
        small = leaves(torch.float32 if autocast else torch.float16, 5000, 2000)
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            value = chunked_cross_entropy(*small, targets)
        wanted = torch.autograd.grad(65_536 * at_once(*exact, targets), exact)
        for ours, theirs in zip(torch.autograd.grad(65_536 * value, small), wanted, strict=True):
            assert ours.isfinite().all() and (ours - theirs).norm() <= 3e-3 * theirs.norm()


def test_tensors_without_numbers_of_their_own():
    tensors, targets = [tensor.detach() for tensor in leaves()], some_targets()
    plain = chunked_cross_entropy(*tensors, targets)
    for place in range(4):
        arguments = [*tensors, targets]
        arguments[place] = TwoTensor(arguments[place], arguments[place].clone())
        found = chunked_cross_entropy(*arguments)
        assert isinstance(found, TwoTensor)
        torch.testing.assert_close(found.a, plain)
        torch.testing.assert_close(found.b, plain)


def test_a_model_on_meta_has_a_loss_on_meta():
    tokens, targets = (ids.to("meta") for ids in batch())
    assert model().to("meta")(tokens, targets=targets).loss.is_meta


# transforms


def loss_of(module, tokens, targets):
    return lambda parameters: functional_call(module, parameters, (tokens,), {"targets": targets}).loss


def test_func_grad_of_a_model_is_its_gradient():
    module, (tokens, targets) = model(), batch()
    module(tokens, targets=targets).loss.backward()
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    for name, gradient in torch.func.grad(loss_of(module, tokens, targets))(parameters).items():
        torch.testing.assert_close(gradient, module.get_parameter(name).grad)


def test_vmap_over_a_batch_gives_each_columns_gradient():
    module, (tokens, targets) = model(), batch()
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}

    def one(parameters, tokens_T, targets_T):
        return loss_of(module, tokens_T[:, None], targets_T[:, None])(parameters)

    found = torch.func.vmap(torch.func.grad(one), in_dims=(None, 1, 1))(parameters, tokens, targets)
    for column in range(2):
        for name, gradient in torch.func.grad(one)(parameters, tokens[:, column], targets[:, column]).items():
            torch.testing.assert_close(found[name][column], gradient)


def test_jvp_is_the_gradient_along_a_direction():
    tensors, targets = [tensor.detach() for tensor in leaves(torch.float64)], some_targets()

    def value(*given):
        return chunked_cross_entropy(*given, targets)

    _, along = torch.func.jvp(value, tuple(tensors), tuple(tensors))
    gradients = torch.func.grad(value, argnums=(0, 1, 2))(*tensors)
    torch.testing.assert_close(along, sum((g * t).sum() for g, t in zip(gradients, tensors, strict=True)))


def test_a_transform_compiles():
    (hidden, *rest), targets = [tensor.detach() for tensor in leaves()], some_targets()
    gradient = torch.func.grad(lambda hidden: chunked_cross_entropy(hidden, *rest, targets))
    torch.testing.assert_close(torch.compile(gradient, backend="aot_eager")(hidden), gradient(hidden))


@pytest.mark.parametrize("divisor", [None, 7.0])
def test_the_gradient_can_be_differentiated_again(divisor):
    targets = some_targets()

    def value(*tensors):
        return chunked_cross_entropy(*tensors, targets, divisor)

    tensors = leaves(torch.float64)
    assert torch.autograd.gradcheck(value, tensors) and torch.autograd.gradgradcheck(value, tensors)
    hidden, weight, bias = tensors
    assert torch.autograd.gradgradcheck(lambda weight: value(hidden.detach(), weight, bias.detach()), [weight])


def test_a_trace_holds_for_other_numbers_of_targets():
    _, weight, bias = (tensor.detach() for tensor in leaves())
    traced = torch.jit.trace(
        lambda hidden, targets: chunked_cross_entropy(hidden, weight, bias, targets),
        (torch.randn(N, E), some_targets()),
    )
    hidden, targets = torch.randn(2 * N + 1, E), some_targets(rows=2 * N + 1)
    torch.testing.assert_close(traced(hidden, targets), at_once(hidden, weight, bias, targets))


def test_gradients_of_a_tied_model_may_be_differentiated_again():
    config = LanguageModelConfig(vocabulary_size=11, cell="lstm", embedding_size=6, hidden_sizes=(6,), tied=True)
    model = LanguageModel(config, backend="reference").double().eval()
    tokens, targets = torch.randint(11, (4, 3)), torch.randint(11, (4, 3))
    weight = model.embedding.weight

    def chunked():
        return model(tokens, targets=targets).loss

    def at_once():
        return torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())

    found = []
    for way in (chunked, at_once):
        (first,) = torch.autograd.grad(way(), weight, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), weight)
        found.append((first.detach(), second))
    torch.testing.assert_close(*found)


def test_gradients_of_half_weights_do_not_depend_on_the_chunks(monkeypatch):
    monkeypatch.setattr(loss, "_CHUNK_LOGITS", 1)  # of 32 rows
    generator = torch.Generator().manual_seed(2)
    half = [torch.randn(s, generator=generator).bfloat16().requires_grad_() for s in ((4096, 4), (5, 4), (5,))]
    targets = torch.randint(0, 5, (4096,), generator=generator)
    exact = [each.detach().double().requires_grad_() for each in half]
    ours = torch.autograd.grad(chunked_cross_entropy(*half, targets), half[1:])
    theirs = torch.autograd.grad(F.cross_entropy(F.linear(*exact), targets), exact[1:])
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.bfloat16
        assert (one - other).abs().max() <= 2**-8 * other.abs().max()  # one rounding, not one a chunk
