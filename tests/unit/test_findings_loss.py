"""The loss at the edges: a row of zeros, and adversarial noise of any length."""

import pytest
import torch

from gatedrnn.models.loss import chunked_cross_entropy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("alpha", [0.1, 5.0, 1e30])
def test_adversarial_softmax_of_a_row_of_zeros(alpha, dtype):
    """Nothing is moved along a hidden vector of zeros; its gradient is the plain one, and finite."""
    torch.manual_seed(0)
    hidden = torch.zeros(1, 8, dtype=dtype, requires_grad=True)
    weight, bias = (10 * torch.randn(11, 8)).to(dtype), torch.randn(11).to(dtype)
    (plain,) = torch.autograd.grad(chunked_cross_entropy(hidden, weight, bias, torch.tensor([3])), hidden)
    (found,) = torch.autograd.grad(chunked_cross_entropy(hidden, weight, bias, torch.tensor([3]), None, alpha), hidden)
    assert torch.equal(found, plain)
