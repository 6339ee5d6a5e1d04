"""The `torch` backend, PyTorch's own kernels, against the reference: on a GPU where there is one, else on the CPU."""

import pytest
import torch
from harness import B, D, H, T, equal, inputs_for, leaf, make, norm_error

from gatedrnn import Gates
from gatedrnn.core.errors import BackendError
from gatedrnn.sequence import BACKENDS, backend_for
from gatedrnn.sequence.backends import pytorch

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
pytestmark = [pytest.mark.gpu] if GPU else []
its_cells = pytest.mark.parametrize("variant", ["rnn-tanh", "rnn-relu", "lstm", "g2lstm", "gru-after"])


def build(variant, *args, **kwargs):
    return make(variant, D, H, *args, backend="torch", device=DEVICE, **kwargs)


def measured(layer, backend, x, states):
    """Values and gradients of a layer without its trace."""
    layer.backend = backend
    x, states = leaf(x), [leaf(state) for state in states]
    output, finals = layer(x, tuple(states) if len(states) > 1 else states[0])
    values = [output, *(finals if isinstance(finals, tuple) else [finals])]
    given = {"x": x, **{f"state {n}": state for n, state in enumerate(states)}, **dict(layer.named_parameters())}
    generator = torch.Generator().manual_seed(3)
    loss = sum((value * torch.randn(value.shape, generator=generator).to(value)).sum() for value in values)
    gradients = torch.autograd.grad(loss, list(given.values()))
    found = {f"value {n}": value for n, value in enumerate(values)}
    found |= {f"gradient of {name}": gradient for name, gradient in zip(given, gradients, strict=True)}
    return {name: value.detach().cpu() for name, value in found.items()}


def both(layer, steps=T, size=B):
    x, states = inputs_for(layer, steps, size)
    return [measured(layer, backend, x, states) for backend in ("torch", "reference")]


@its_cells
@pytest.mark.parametrize(("steps", "size"), [(T, B), (1, 1), (4, 33)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_equal_the_reference_in_float64(variant, steps, size, bias):
    equal(*both(build(variant, 2, bidirectional=True, bias=bias), steps, size))


@its_cells
def test_a_temperature_is_in_the_weights(variant):
    equal(*both(build(variant, gates=Gates(evaluation_temperature=0.6))))


@its_cells
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)])
def test_smaller_types(variant, dtype, most, monkeypatch):
    monkeypatch.setattr(pytorch, "rounds_recurrences", lambda: False)
    ours, theirs = both(build(variant, dtype=dtype))
    if GPU and dtype == torch.float32:
        most = 1e-2  # cuDNN's TF32, which was just allowed
    assert max(norm_error(ours, theirs).values()) < most


@its_cells
def test_autocast(variant):
    layer = build(variant, dtype=torch.float32)
    x, states = inputs_for(layer)
    with torch.autocast(DEVICE, torch.bfloat16):
        ours = measured(layer, "torch", x, states)
    theirs = measured(layer, "reference", x, states)
    assert {name: value.dtype for name, value in ours.items()} == {name: value.dtype for name, value in theirs.items()}
    assert max(norm_error(ours, theirs).values()) < 0.05


@pytest.mark.parametrize("variant", ["rnn-sigmoid", "coupled", "peephole", "gru-before", "onlstm"])
def test_cells_that_pytorch_lacks_are_refused(variant):
    with pytest.raises(BackendError, match="backend='torch': cannot run this request; got PyTorch has no such cell"):
        build(variant)(torch.zeros(1, 1, D, dtype=torch.float64, device=DEVICE))


def test_what_pytorch_cannot_do_is_refused_by_name():
    layer, x = build("lstm"), torch.zeros(2, 2, D, dtype=torch.float64, device=DEVICE)
    for given, reason in (
        ({"lengths": [1, 2]}, "do not take or return lengths"),
        ({"return_gates": True}, "do not take or return gates"),
        ({"return_gates": ("input_gate",)}, "do not take or return gates"),
    ):
        with pytest.raises(BackendError, match=reason):
            layer(x, **given)
    with pytest.raises(BackendError, match="do not take or return noise"):
        build("g2lstm", training=True)(x)
    with pytest.raises(BackendError, match="no such cell"):
        build("lstm", gates=Gates(straight_through=True))(x)
    with pytest.raises(BackendError, match="the batch is empty"):
        layer(x[:, :0])
    with pytest.raises(BackendError, match="a function transform"):
        torch.func.jvp(lambda y: layer(y)[0], (x,), (x,))


def test_rounding_that_products_do_not_do_is_known():
    from gatedrnn.sequence.modes import rounds_recurrences

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert rounds_recurrences() == torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("high")
        assert not rounds_recurrences()
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_compiler_never_meets_it():
    layer = make("lstm", D, H, device=DEVICE, backend="auto", dtype=torch.float32)
    x = torch.randn(2, 2, D, device=DEVICE)
    request = layer.request(0, x, tuple(torch.zeros(1, 2, H, device=DEVICE).unbind(0) * 2))
    with torch.autocast(DEVICE, torch.float16):  # on a CPU no kernels of our own
        assert GPU or backend_for(request) is BACKENDS["torch"]
        graph = torch.export.export(layer, (x,)).graph
        assert not any("lstm" in str(node.target) for node in graph.nodes)
        found = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
        torch.testing.assert_close(found, layer(x), rtol=0, atol=2e-3)


def test_other_devices_are_left_to_the_reference():
    layer = make("lstm", D, H, backend="auto", device="meta")
    assert layer(torch.empty(2, 2, D, dtype=torch.float64, device="meta"))[0].shape == (2, 2, H)
    layer.backend = "torch"
    with pytest.raises(BackendError, match="tensors are on meta"):
        layer(torch.empty(2, 2, D, dtype=torch.float64, device="meta"))
