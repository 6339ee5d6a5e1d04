"""AdvSoft: the loss and its gradients against the perturbed softmax written out, and where it applies."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from gatedrnn import ArgumentError
from gatedrnn.data import DataConfig
from gatedrnn.models import LanguageModel, LanguageModelConfig, loss
from gatedrnn.models.loss import chunked_cross_entropy
from gatedrnn.sequence.backends.cpu.availability import unavailable
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.language_modelling import LanguageModelling
from gatedrnn.tasks.task import check_read
from gatedrnn.tasks.translation import Translation

kernels = pytest.mark.skipif(unavailable(torch.empty(0)) is not None, reason="no kernels here")


def leaves(rows=23, words=41, width=6, dtype=torch.float64, scale=1.0):
    """hidden [N, E], weight [V, E], bias [V] and targets [N], some of which do not count."""
    generator = torch.Generator().manual_seed(5)
    shapes = [(rows, width), (words, width), (words,)]
    tensors = [scale * torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    targets = torch.randint(0, words, (rows,), generator=generator)
    targets[1::5] = -100
    return [tensor.to(dtype).requires_grad_() for tensor in tensors], targets


def written_out(hidden, weight, bias, targets, alpha, divisor=None):
    """The same with δ as a vector of each token, and all logits at once."""
    total = hidden.new_zeros(())
    for h, y in zip(hidden, targets.tolist(), strict=True):
        if y == -100:
            continue
        delta = (-alpha * weight[y].norm() * h / h.norm()).detach()
        logits = weight @ h + bias
        total = (
            total
            - F.log_softmax(torch.cat((logits[:y], (h @ (weight[y] + delta) + bias[y])[None], logits[y + 1 :])), 0)[y]
        )
    return total / ((targets != -100).sum() if divisor is None else divisor)


def with_gradients(function, tensors, *arguments):
    value = function(*tensors, *arguments)
    return [value.detach(), *torch.autograd.grad(value, tensors)]


@pytest.mark.parametrize("way", ["kernel", "no kernel", "at once"])
@pytest.mark.parametrize("divisor", [None, 7.0])
@pytest.mark.parametrize("alpha", [0.005, 0.1, 5.0])
def test_loss_and_gradients_are_those_of_the_perturbed_softmax(alpha, divisor, way, monkeypatch):
    if way == "no kernel":
        monkeypatch.setattr(loss, "unavailable", lambda like: "asked for")
    if way == "at once":
        monkeypatch.setattr(loss, "_chunkable", lambda *_: False)
    monkeypatch.setattr(loss, "_CHUNK_LOGITS", 41 * 7)
    monkeypatch.setattr(loss, "_FEWEST_ROWS", 1)  # so that there are several chunks
    tensors, targets = leaves()
    found = with_gradients(lambda *t: chunked_cross_entropy(*t, targets, divisor, alpha), tensors)
    expected = with_gradients(lambda *t: written_out(*t, targets, alpha, divisor), tensors)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


def test_it_follows_from_the_plain_losses():
    """adv = nll + m + log(1 − p (1 − e^−m)), m = α ‖w‖ ‖h‖, p = e^−nll."""
    (hidden, weight, bias), targets = leaves()
    kept = targets != -100
    nll = F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="none")[kept]
    margin = 0.3 * weight[targets[kept]].norm(dim=1) * hidden[kept].norm(dim=1)
    expected = (nll + margin + torch.log1p((-nll).exp() * torch.expm1(-margin))).mean()
    torch.testing.assert_close(chunked_cross_entropy(hidden, weight, bias, targets, None, 0.3), expected)


def test_no_other_noise_of_that_length_is_worse():
    (hidden, weight, bias), targets = leaves(rows=1, scale=0.5)
    h, y = hidden[0], int(targets[0])
    worst = chunked_cross_entropy(hidden, weight, bias, targets, None, 0.4)
    for _ in range(200):
        delta = F.normalize(torch.randn(6, dtype=torch.float64), dim=0) * 0.4 * weight[y].norm()
        moved = weight.detach().clone()
        moved[y] += delta
        assert -F.log_softmax(moved @ h + bias, 0)[y] <= worst


@pytest.mark.parametrize("way", ["kernel", "no kernel"])
@pytest.mark.parametrize("margin", [0.01, 1.0, 20.0, 60.0])
def test_sure_predictions_and_large_noise_in_float32(margin, way, monkeypatch):
    """p is 1 in float32 here; the loss still depends on what is left of 1 − p."""
    if way == "no kernel":
        monkeypatch.setattr(loss, "unavailable", lambda like: "asked for")
    words = 50
    hidden = torch.tensor([[6.0, 0.0], [5.0, 1.0]])
    weight = torch.randn(words, 2, generator=torch.Generator().manual_seed(0))
    weight[3] = torch.tensor([6.0, 0.0])
    targets, alpha = torch.tensor([3, 3]), margin / 36

    def run(dtype, function):
        tensors = [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight, torch.zeros(words))]
        return with_gradients(lambda *t: function(*t, targets), tensors)

    assert F.softmax(hidden @ weight.t(), 1)[0, 3] == 1
    found = run(torch.float32, lambda h, w, b, t: chunked_cross_entropy(h, w, b, t, None, alpha))
    torch_s = run(torch.float32, lambda *t: written_out(*t, alpha))
    exact = run(torch.float64, lambda *t: written_out(*t, alpha))
    for ours, theirs, truth in zip(found, torch_s, exact, strict=True):
        assert ours.isfinite().all()
        assert (ours - truth).abs().max() <= 3 * (theirs - truth).abs().max() + 1e-6 * truth.abs().max()


@pytest.mark.parametrize("way", ["kernel", "no kernel"])
def test_gradcheck(way, monkeypatch):
    """By hidden and bias; by weight the loss is differentiated as if ‖w‖ were a number, which no difference quotient shows."""
    if way == "no kernel":
        monkeypatch.setattr(loss, "unavailable", lambda like: "asked for")
    (hidden, weight, bias), targets = leaves(rows=7, words=9, width=3)

    def function(h, b):
        return chunked_cross_entropy(h, weight.detach(), b, targets, None, 0.2)

    assert torch.autograd.gradcheck(function, (hidden, bias))
    assert torch.autograd.gradgradcheck(function, (hidden, bias))


def test_zero_is_the_plain_loss_to_the_bit():
    tensors, targets = leaves(dtype=torch.float32)
    plain = with_gradients(lambda *t: chunked_cross_entropy(*t, targets), tensors)
    off = with_gradients(lambda *t: chunked_cross_entropy(*t, targets, None, 0.0), tensors)
    assert all(torch.equal(a, b) for a, b in zip(plain, off, strict=True))


def test_a_row_of_zeros_has_a_finite_gradient():
    (hidden, weight, bias), targets = leaves(dtype=torch.float32)
    with torch.no_grad():
        hidden[0] = 0
    found = with_gradients(lambda *t: chunked_cross_entropy(*t, targets, None, 0.1), [hidden, weight, bias])
    assert all(each.isfinite().all() for each in found)


def test_autocast():
    tensors, targets = leaves(rows=64, dtype=torch.float32)
    exact = with_gradients(lambda *t: written_out(*t, targets, 0.2), tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = chunked_cross_entropy(*tensors, targets, None, 0.2)
    assert value.dtype == torch.float32
    for ours, truth in zip([value.detach(), *torch.autograd.grad(value, tensors)], exact, strict=True):
        assert (ours - truth).abs().max() <= 0.03 * truth.abs().max()


def test_function_transforms_and_torch_compile():
    tensors, targets = leaves(dtype=torch.float32)

    def function(*t):
        return chunked_cross_entropy(*t, targets, None, 0.2)

    expected = torch.autograd.grad(function(*tensors), tensors)
    detached = [tensor.detach() for tensor in tensors]
    for ours, theirs in zip(torch.func.grad(function, argnums=(0, 1, 2))(*detached), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for ours, theirs in zip(torch.autograd.grad(compiled(*tensors), tensors), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@kernels
@pytest.mark.parametrize("wrong", [41, -1])
def test_a_target_out_of_range_is_refused(wrong):
    tensors, targets = leaves(dtype=torch.float32)
    targets[0] = wrong
    with pytest.raises(ArgumentError, match=rf"ids must lie in 0…40; got {wrong}\."):
        chunked_cross_entropy(*tensors, targets, None, 0.1)


@pytest.mark.parametrize("alpha", [-0.1, float("inf"), float("nan")])
def test_alpha_is_checked(alpha):
    tensors, targets = leaves()
    rule = rf"adversarial_softmax: must be a finite number of at least 0; got {alpha}\. Give"
    with pytest.raises(ArgumentError, match=f"chunked_cross_entropy.{rule} 0 to switch it off"):
        chunked_cross_entropy(*tensors, targets, None, alpha)
    with pytest.raises(ArgumentError, match=f"training.{rule} a number such as 0.03"):
        TrainingConfig(adversarial_softmax=alpha)


def test_other_tasks_refuse_it():
    with pytest.raises(ArgumentError, match=r"training.adversarial_softmax: has no effect for translation; got 0.1"):
        check_read(Translation, replace(Translation.training, adversarial_softmax=0.1))


@pytest.mark.parametrize("unit", ["stream", "sentence"])
def test_it_raises_the_training_loss_and_leaves_the_score_alone(unit, tmp_path):
    lines = ["the old pilot sleeps", "a nurse sees the pilot", "the nurse sleeps"] * 10
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("\n".join(lines))
    task = LanguageModelling.open(DataConfig(), tmp_path)
    torch.manual_seed(0)
    sizes = {"vocabulary_size": len(task.corpus.vocabulary), "embedding_size": 8, "hidden_sizes": (8,)}
    model = LanguageModel(LanguageModelConfig(cell="lstm", input_dropout=0.0, output_dropout=0.0, **sizes))
    plain = TrainingConfig(unit=unit, batch_size=4)
    noisy = replace(plain, adversarial_softmax=0.5)
    batch = task.batches(plain, 1)[0]
    losses = [task.loss(model, each, batch, None, 10.0, torch.device("cpu")).nats for each in (plain, noisy)]
    assert losses[1] > losses[0]
    model.eval()
    assert task.score(model, plain).loss == task.score(model, noisy).loss


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
