"""The kernel of the chunked loss against torch in float64, and against the way without kernels."""

import pytest
import torch
from torch.nn import functional as F

from gatedrnn.models import loss


def loss_and_gradients(function, dtype, rows, words, width):
    generator = torch.Generator().manual_seed(3)
    shapes = [(rows, width), (words, width), (words,)]
    leaves = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]
    targets = torch.randint(0, words, (rows,), generator=generator)
    targets[rows // 2] = -100 if rows > 1 else 0
    value = function(*leaves, targets)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


def plain(hidden, weight, bias, targets):
    return F.cross_entropy(F.linear(hidden, weight, bias), targets)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (33, 101, 16), (260, 10_007, 4)])
@pytest.mark.parametrize(("dtype", "floor"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_loss_and_gradients(dtype, floor, shape, kernels, monkeypatch):
    if not kernels:
        monkeypatch.setattr(loss, "unavailable", lambda like: "asked for")
    found = loss_and_gradients(loss.chunked_cross_entropy, dtype, *shape)
    expected = loss_and_gradients(plain, torch.float64, *shape)
    torch_s = loss_and_gradients(plain, dtype, *shape)
    for ours, theirs, exact in zip(found, torch_s, expected, strict=True):
        assert ours.dtype == dtype
        allowed = 3 * (theirs - exact).abs().max() + floor * exact.abs().max().clamp_min(1e-6)
        assert (ours - exact).abs().max() <= allowed


def test_no_gradient_leaves_the_loss_alone():
    hidden, weight, bias = torch.randn(9, 4), torch.randn(50, 4), torch.randn(50)
    targets = torch.randint(0, 50, (9,))
    with torch.no_grad():
        value = loss.chunked_cross_entropy(hidden, weight, bias, targets)
    assert torch.allclose(value, plain(hidden, weight, bias, targets), atol=1e-6)


def test_nan_is_seen():
    value = loss.chunked_cross_entropy(
        torch.full((3, 2), torch.nan), torch.randn(40, 2), torch.randn(40), torch.ones(3).long()
    )
    assert value.isnan()


def test_opcheck():
    import gatedrnn.sequence.backends.cpu.recurrence.operator  # noqa: F401 - registers the operator

    arguments = (torch.randn(5, 40), torch.randn(40), torch.randint(0, 40, (5,)), torch.rand(5), True)
    torch.library.opcheck(torch.ops.gatedrnn.cross_entropy_, arguments, test_utils=("test_schema", "test_faketensor"))
