"""Inference after anything that changes a weight, and next to anything that shares its memory: the numbers of now, always.

Few tokens are multiplied with a weight as it lies, many with one that the call packs: every test runs both.
"""

import copy
import gc
import os
import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest

pytest.importorskip("numba")

import torch
import torch.nn.utils.prune
from harness import RAGGED, B, D, H, call, every_cell, inputs_for, make
from torch import nn
from torch.func import functional_call, vmap
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from gatedrnn import CELLS, GRU, LSTM, CoupledLSTM, Gates, Recurrent
from gatedrnn.core.errors import ArgumentError, BackendError
from gatedrnn.sequence.backends.cpu.matmul.sizes import DIRECT_TOKENS
from gatedrnn.sequence.backends.cpu.runtime import memory
from gatedrnn.sequence.plan import plan_for

WIDE = 300  # more columns than any sample of a weight would look at
few_and_many = pytest.mark.parametrize("steps", [2, DIRECT_TOKENS // 3 + 1], ids=["few", "many"])
both_modes = pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])


def check(layer, x, mode=torch.no_grad, **kwargs):
    """Two calls, the second of which could use what the first left, equal the reference."""
    with mode():
        backend, layer.backend = layer.backend, "reference"
        expected = layer(x, **kwargs)[0]
        layer.backend = backend
        for _ in range(2):
            torch.testing.assert_close(layer(x, **kwargs)[0], expected, rtol=0, atol=2e-5)
    return expected


def in_place(layer):
    with torch.no_grad():
        layer.weight_ih_l0.add_(0.1)
        layer.weight_hh_l0.add_(0.1)


def in_one_column(layer):
    layer.weight_ih_l0.data[3, WIDE - 2] += 5


def one_bias_by_data(layer):
    layer.bias_hh_l0.data[1] += 3


def one_unit_by_data(layer):
    layer.weight_hh_l0.data[:, 3] = 7


def by_numpy(layer):
    layer.weight_hh_l0.detach().numpy()[5] += 1


def load_others(layer):
    layer.load_state_dict({name: value * -1.5 for name, value in layer.state_dict().items()})


def assign_others(layer):
    layer.load_state_dict({name: value * -1.5 for name, value in layer.state_dict().items()}, assign=True)


def new_parameters(layer):
    layer.weight_hh_l0 = nn.Parameter(torch.ones_like(layer.weight_hh_l0))


def replace_data_often(layer):
    for n in range(20):  # the allocator hands out an address again
        layer.weight_hh_l0.data = torch.full_like(layer.weight_hh_l0, 0.01 * n)


def to_float64_and_back(layer):
    layer.double()
    with torch.no_grad():
        layer(torch.ones(2, 2, layer.input_size, dtype=torch.float64))
        layer.weight_hh_l0.data.mul_(0.5)
    layer.float()


def to_meta_and_back(layer):
    state = {name: -value for name, value in layer.state_dict().items()}
    layer.to("meta").to_empty(device="cpu").load_state_dict(state)


def swap(layer):
    other = copy.deepcopy(layer)
    load_others(other)
    torch.utils.swap_tensors(layer.weight_hh_l0, other.weight_hh_l0)


def prune(layer):
    nn.utils.prune.random_unstructured(layer, "weight_hh_l0", 0.9)


def prune_for_good(layer):
    prune(layer)
    nn.utils.prune.remove(layer, "weight_hh_l0")


def weight_norm(layer):
    nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    layer.parametrizations.weight_hh_l0.original0.data.mul_(4)


def old_spectral_norm(layer):
    nn.utils.spectral_norm(layer, "weight_hh_l0")


CHANGES = [
    in_place, in_one_column, one_bias_by_data, one_unit_by_data, by_numpy, load_others, assign_others, new_parameters,
    replace_data_often, to_float64_and_back, to_meta_and_back, swap, prune, prune_for_good, weight_norm, old_spectral_norm,
]  # fmt: skip


@both_modes
@few_and_many
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_changed_weight_is_seen(change, steps, mode):
    layer = make("lstm", WIDE, 16, dtype=torch.float32)
    x, _ = inputs_for(layer, steps)
    before = check(layer, x, mode)
    change(layer)
    assert not torch.allclose(check(layer, x, mode), before, atol=1e-4)


@few_and_many
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}], ids=["fused", "foreach", "plain"])
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_an_optimiser_s_step_is_seen(optimiser, options, steps):
    layer = make("lstm", WIDE, 16, dtype=torch.float32)
    layer.weight_hh_l0.requires_grad_(False)
    layer.bias_hh_l0.requires_grad_(False)
    x, _ = inputs_for(layer, steps)
    x[..., : WIDE - 20] = 0  # only the last columns have a gradient
    before = check(layer, x)
    chosen = optimiser(layer.parameters(), lr=0.5, **options)
    layer(x)[0].sum().backward()
    chosen.step()
    assert not torch.allclose(check(layer, x), before, atol=1e-4)


@pytest.mark.parametrize("variant", ["lstm", "gru-after", "gru-before", "onlstm-chunks"])  # every form of product
@pytest.mark.parametrize("steps, size", [(1, 3), (1, 16), (1, 64), (2, 16), (2, 9), (4, 1), (64, 1), (65, 1), (1, 65)])
@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
def test_every_way_of_reading_a_weight(variant, steps, size, ragged):
    layer = make(variant, 50, 52, gates=Gates(evaluation_temperature=0.7))
    x, states = inputs_for(layer, steps, size)
    lengths = [1 + 3 * row % steps for row in range(size)] if ragged else None
    found = {}
    for layer.backend in ("cpu", "reference"):
        with torch.no_grad():
            output, finals = call(layer, x, states, lengths=lengths)
        found[layer.backend] = [output, *(finals if isinstance(finals, tuple) else [finals])]
    for ours, expected in zip(found["cpu"], found["reference"], strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_rows_are_borrowed_once_at_a_time():
    with memory.borrowed([(2, 3), (0, 4)], torch.float32) as (rows, nothing):
        rows.fill_(1)
        assert nothing.shape == (0, 4)
        with memory.borrowed([(2, 3)], torch.float32) as (inner,):
            inner.fill_(2)
        assert bool((rows == 1).all())
    with memory.borrowed([(memory.KEPT_BYTES, 1)], torch.uint8) as (large,):
        large.fill_(3)
    assert memory._LENT.rows is None or memory._LENT.rows.nbytes <= memory.KEPT_BYTES // 2


def test_ragged_calls_do_not_share_what_they_give():
    layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    with torch.no_grad():
        first = layer(x, lengths=[3, 2, 1, 4][: x.shape[1]] + [1] * max(0, x.shape[1] - 4))[0]
        kept = first.clone()
        layer(torch.randn_like(x), lengths=[1] * x.shape[1])
    assert torch.equal(first, kept)


@few_and_many
def test_a_parameter_shared_by_layers_of_other_layouts(steps):
    after, before = GRU(6, 8).eval(), GRU(6, 8, reset_after=False).eval()
    whole, coupled = LSTM(6, 6).eval(), CoupledLSTM(6, 8).eval()
    for other in (before, coupled, whole):
        other.weight_ih_l0 = after.weight_ih_l0
    before.weight_hh_l0 = coupled.weight_hh_l0 = after.weight_hh_l0
    x = torch.randn(steps, 3, 6)
    for layer in (after, before, coupled, whole, after, before, coupled, whole):
        check(layer, x)


@few_and_many
def test_a_layer_that_forks_keeps_on(steps):
    layer = make("onlstm", dtype=torch.float32)
    x, _ = inputs_for(layer, steps)
    expected = check(layer, x)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with torch.no_grad():
            in_place(layer)
            layer.backend = "cpu"
            found = layer(x)[0]
            layer.backend = "reference"
            os.write(writer, b"1" if torch.allclose(found, layer(x)[0], atol=1e-5) else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"
    assert torch.equal(check(layer, x), expected)


@few_and_many
def test_weights_that_another_thread_changes_give_old_or_new_numbers(steps):
    layer = make("lstm", 8, 16, dtype=torch.float32)
    x, _ = inputs_for(layer, steps)
    states = [{name: value * factor for name, value in layer.state_dict().items()} for factor in (0.0, 1.0)]
    stop, wrong = threading.Event(), []

    def infer():
        with torch.no_grad():
            while not stop.is_set():
                try:
                    found = layer(x)[0]
                except Exception as error:
                    wrong.append(error)
                    return
                if not torch.isfinite(found).all():
                    wrong.append(found)

    threads = [threading.Thread(target=infer) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(200):
        layer.load_state_dict(states[n % 2])
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    check(layer, x)


def test_threads_share_a_layer():
    layer = make("onlstm", D, H, 2, dtype=torch.float32)
    inputs = [torch.randn(steps, 2, D) for steps in (1, 3, 40, 50)]
    with torch.no_grad():
        expected = [layer(x)[0] for x in inputs]
    wrong = []

    def work(x, want):
        with torch.no_grad():
            for _ in range(100):
                if not torch.equal(layer(x)[0], want):
                    wrong.append(1)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@few_and_many
def test_a_weight_of_another_kind_of_tensor_runs_on_the_reference(steps):
    layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer, steps)
    expected = check(layer, x)
    layer.backend = "auto"
    pair = TwoTensor(layer.weight_hh_l0.detach(), layer.weight_hh_l0.detach())
    with torch.no_grad():
        found = functional_call(layer, {"weight_hh_l0": pair}, (x,))[0]
    torch.testing.assert_close(found.a, expected)
    layer.backend = "cpu"
    with torch.no_grad(), pytest.raises(Exception, match="TwoTensor"):
        functional_call(layer, {"weight_hh_l0": pair}, (x,))


class Named(torch.Tensor):
    """Does nothing of its own."""


class NamedParameter(nn.Parameter):
    """Nor does this."""


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_subclass_that_changes_nothing_runs_on_kernels_and_in_checkpoints(batch_first):
    layer = LSTM(D, H, 2, batch_first=batch_first, bidirectional=True)
    layer.weight_hh_l1 = NamedParameter(layer.weight_hh_l1.detach())
    plain = torch.randn(B, B, D, requires_grad=True)
    expected = torch.autograd.grad(layer(plain)[0].square().sum(), [plain, *layer.parameters()])
    named = plain.detach().as_subclass(Named).requires_grad_()
    output = checkpoint(lambda x: layer(x)[0], named, use_reentrant=False)
    assert type(output) is Named
    found = torch.autograd.grad(output.square().sum(), [named, *layer.parameters()])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.as_subclass(torch.Tensor), theirs)
    layer.backend = "cpu"
    with torch.no_grad():
        inference = layer(named)[0]
        torch.testing.assert_close(inference.as_subclass(torch.Tensor), layer(plain)[0])
    assert type(inference) is Named


@few_and_many
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_the_reference_s(steps, bad):
    layer = make("lstm", dtype=torch.float32)
    with torch.no_grad():
        layer.weight_hh_l0[3, 2] = bad
    x, _ = inputs_for(layer, steps)
    with torch.no_grad():
        found = [layer(x)[0] for _ in range(2)][-1]
        layer.backend = "reference"
        torch.testing.assert_close(found, layer(x)[0], equal_nan=True, rtol=0, atol=1e-5)


@every_cell
@few_and_many
def test_inference_equals_training_s_forward(variant, steps):
    layer = make(variant, D, H, 2, bidirectional=True, dtype=torch.float32)
    x, states = inputs_for(layer, steps)
    for lengths in (None, [max(1, steps - k) for k in range(B)]):
        expected = call(layer, x, states, lengths=lengths)[0].detach()
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(call(layer, x, states, lengths=lengths)[0], expected)


@few_and_many
def test_frozen_layers_need_no_gradient_and_give_the_input_its_own(steps):
    layer = make("gru-after", dtype=torch.float32)
    x, _ = inputs_for(layer, steps)
    expected = layer(x)[0]
    (full,) = torch.autograd.grad(expected.square().sum(), layer.weight_ih_l0)
    layer.requires_grad_(False)
    with torch.profiler.profile() as profile:  # gradients on, but nothing asks for one: nothing is saved
        assert torch.equal(layer(x)[0], expected)
    assert "gatedrnn::recurrence" in {event.name for event in profile.events()}
    assert layer(x)[0].grad_fn is None
    x.requires_grad_()
    (given,) = torch.autograd.grad(layer(x)[0].square().sum(), x)
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        layer.requires_grad_(False)
        getattr(layer, name).requires_grad_()
        x.grad = None
        layer.zero_grad()
        layer(x)[0].square().sum().backward()
        torch.testing.assert_close(x.grad, given)
        assert [n for n, p in layer.named_parameters() if p.grad is not None] == [name]
        if name == "weight_ih_l0":
            torch.testing.assert_close(layer.weight_ih_l0.grad, full)


@few_and_many
def test_views_of_every_kind_are_read_as_they_stand(steps):
    layer = make("lstm", dtype=torch.float32)
    x, states = inputs_for(layer, steps)
    expected = call(layer, x, states)[0].detach()
    with torch.no_grad():
        minus = torch._neg_view(-x), [torch._neg_view(-state) for state in states]
        assert torch.equal(call(layer, *minus)[0], expected)
        layer.weight_hh_l0 = nn.Parameter(torch._neg_view(-layer.weight_hh_l0.data))
        assert torch.equal(call(layer, x, states)[0], expected)
        for bad in (x.to_sparse(), x.to_mkldnn()):
            with pytest.raises(ArgumentError, match=r"input.*strided"):
                layer(bad)
        with pytest.raises(ArgumentError, match=r"hx.*strided"):
            call(layer, x, [states[0].to_sparse(), states[1]])


@every_cell
@few_and_many
@pytest.mark.parametrize("missing", ["bias_ih_l0", "bias_hh_l0"])
def test_one_bias_without_the_other(variant, missing, steps):
    layer = make(variant, dtype=torch.float32)
    setattr(layer, missing, None)
    x, _ = inputs_for(layer, steps)
    check(layer, x)
    layer.backend = "auto"
    check(layer, x)


def test_circumstances_are_seen():
    layer, x = make("lstm", D, H, 2, dropout=0.5, dtype=torch.float32), torch.randn(40, 3, D)
    with torch.no_grad():
        plain = layer(x)[0]
        layer.train()
        assert not torch.equal(layer(x)[0], plain)
        layer.eval()
        layer.gates = Gates(evaluation_temperature=0.5)
        check(layer, x)
        assert not torch.allclose(layer(x)[0], plain, atol=1e-4)
        layer.gates = Gates()
        assert torch.equal(layer(x)[0], plain)


@few_and_many
@pytest.mark.parametrize("default", [{"device": "meta"}, {"dtype": torch.float64}], ids=["meta", "float64"])
def test_defaults_of_new_tensors_change_nothing(default, steps):
    layer = make("gru-after", dtype=torch.float32)
    x, states = inputs_for(layer, steps)
    lengths = torch.tensor([max(1, steps - k) for k in range(B)])
    expected = [call(layer, x, states)[0], call(layer, x, states, lengths=lengths)[0]]
    # what set_default_device enters; PyTorch 2.8 never quite leaves that
    with torch.device(default["device"]) if "device" in default else nullcontext():
        try:
            torch.set_default_dtype(default.get("dtype", torch.float32))
            found = [call(layer, x, states)[0], call(layer, x, states, lengths=lengths)[0]]
            with torch.no_grad():
                again = call(layer, x, states)[0]
        finally:
            torch.set_default_dtype(torch.float32)
    for ours, want in zip([*found, again], [*expected, expected[0]], strict=True):
        assert torch.equal(ours, want)


def test_results_are_the_caller_s_own():
    layer, x = make("lstm", D, 64, dtype=torch.float32), torch.randn(1, 2, D)
    with torch.no_grad():
        results = [layer(x) for _ in range(4)]
        results[2][0].fill_(7)
    assert torch.equal(results[1][0], results[3][0]) and not torch.equal(results[2][0], results[3][0])
    assert len({t.data_ptr() for output, (h, c) in results for t in (output, h, c)}) == 12


def test_a_large_result_that_is_shared_or_saved_stays_as_it_is(tmp_path):
    layer, x = make("lstm", D, 128, dtype=torch.float32), torch.randn(200, 20, D)
    with torch.no_grad():
        output = layer(x)[0]
        assert output.nbytes > 1 << 20
        kept = output.clone()
        shared = output.share_memory_()
        for _ in range(4):
            layer(torch.randn(200, 20, D))
        assert torch.equal(shared, kept)
        torch.save(layer(x)[0], tmp_path / "output.pt")
    assert (tmp_path / "output.pt").stat().st_size < 1.02 * kept.nbytes


def test_one_large_batch_leaves_little_behind():
    layer = make("lstm", 64, 512, dtype=torch.float32)
    with torch.no_grad():
        layer(torch.randn(100, 100, 64))
    gc.collect()
    assert memory._LENT.room.nbytes <= memory.KEPT_BYTES


def test_another_way_to_call_is_right():
    layer, x = make("lstm", dtype=torch.float32), torch.randn(3, 2, D)
    with torch.no_grad():
        output = layer(x)[0]
        assert len(layer(x, return_gates=True)) == 3
        assert not torch.equal(layer(x, lengths=[1, 3])[0], output)
        other = {name: torch.zeros_like(value) for name, value in layer.state_dict().items()}
        assert not functional_call(layer, other, (x,))[0].any()
        layer.backend = "auto"
        torch.testing.assert_close(vmap(lambda one: layer(one)[0], 1, 1)(x), output, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_traced_layer_takes_any_number_of_steps(layers):
    layer, x = make("lstm", D, H, layers, dtype=torch.float32), torch.randn(4, 3, D)
    traced = torch.jit.trace(layer, (x,))
    for steps in (1, 4, 9, 100):
        given = torch.randn(steps, 3, D)
        torch.testing.assert_close(traced(given)[0], layer(given)[0], rtol=0, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.trace(layer, (x,))(2 * x)[0], layer(2 * x)[0])
        given = torch.randn(4, 5, D)
        torch.testing.assert_close(traced(given)[0], layer(given)[0], rtol=0, atol=1e-6)
        h, c = torch.zeros(layers, 3, H), torch.zeros(layers, 3, H)
        layer.requires_grad_(False)
        fixed = torch.jit.trace(lambda x: layer(x, (h, c)), (x,))
        with pytest.raises(Exception, match=r"h_0.*shape \[4, 5"):
            fixed(given)


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"proj_size": 4}], ids=["both directions", "projected"])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_traced_layer_shows_its_gates_at_any_size(options, ragged):
    layer = make("lstm", D, H, dtype=torch.float32, **options)

    class Shown(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, lengths=None):
            output, _, traces = self.layer(x, lengths=lengths, return_gates=True)
            return [output, *(gate for trace in traces for gate in trace.values())]

    shown = Shown()
    given = torch.randn(5, 3, D), *[torch.tensor([5, 2, 3])] * ragged
    traced = torch.jit.trace(shown, given)  # which checks itself without gradients
    for steps, size in ((5, 3), (9, 4), (1, 1)):
        given = torch.randn(steps, size, D), *[torch.randint(1, steps + 1, (size,))] * ragged
        for found, expected in zip(traced(*given), shown(*given), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("way", ["compile", "export"])
def test_a_graph_refuses_lengths_out_of_range(way):
    layer, x = make("lstm", dtype=torch.float32), torch.randn(5, B, D)
    lengths = torch.tensor([2, 5, 3])
    if way == "compile":
        run = torch.compile(layer, fullgraph=True, backend="aot_eager")
    else:
        run = torch.export.export(layer, (x,), {"lengths": lengths}).module()
    expected = layer(x, lengths=lengths)
    torch.testing.assert_close(run(x, lengths=lengths), expected)
    for bad in ([2, 6, 3], [2, 0, 3], [2, -4, 3], [1 << 40, 1, 1]):
        with torch.no_grad(), pytest.raises(Exception, match=r"must lie in 1…5"):
            run(x, lengths=torch.tensor(bad))


@pytest.mark.parametrize("variant", ["rnn-relu", "gru-before", "onlstm-chunks", "slstm"])
def test_compiled_training_with_lengths_and_gates_is_one_graph(variant):
    torch._dynamo.reset()
    layer = make(variant, dtype=torch.float32, training=True)
    x, lengths = torch.randn(5, B, D), torch.tensor(RAGGED[B])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found, expected = (
        run(x, lengths=lengths, return_gates=True, noise=[None]) for run in (compiled, layer)
    )  # fmt: skip
    for name, gate in expected[2][0].items():
        torch.testing.assert_close(found[2][0][name], gate)
    torch.testing.assert_close(found[0], expected[0])
    gradients = [
        torch.autograd.grad(
            output.sum() + sum(gate.square().sum() for gate in trace[0].values()), list(layer.parameters())
        )
        for output, _, trace in (found, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_noise_on_another_device_is_refused():
    layer = make("g2lstm", dtype=torch.float32, training=True)
    x, _ = inputs_for(layer)
    with pytest.raises(ArgumentError, match=r"noise.*meta"):
        layer(x, noise=[torch.zeros(*x.shape[:2], layer.spec.rows, device="meta")])


def test_what_does_not_fit_is_said():
    layer, x = make("lstm", dtype=torch.float32), torch.randn(3, 2, D)
    h, c = torch.randn(1, 2, H), torch.randn(1, 2, H)
    with torch.no_grad():
        layer(x, (h, c))
        for bad in (h, (h,), (h, c[:, :1]), (h, c.double()), (h, None), "hc", (h, c.to("meta"))):
            with pytest.raises(ArgumentError, match=r"LSTM\.hx|hx"):
                layer(x, bad)
        with pytest.raises(ArgumentError, match="input"):
            layer(x.double())


def test_a_stream_is_its_sequence():
    layer, x = make("onlstm-chunks", D, H, 2, dtype=torch.float32), torch.randn(9, 2, D)
    with torch.no_grad():
        whole, last = layer(x)
        states, outputs = None, []
        for step in x:
            output, states = layer(step[None], states)
            outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs), whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(states, last, rtol=0, atol=1e-6)


@few_and_many
@pytest.mark.parametrize("batch_first", [False, True])
def test_layouts_of_input_and_states(batch_first, steps):
    layer = Recurrent("gru", D, H, 2, batch_first=batch_first).eval()
    size = (3, steps) if batch_first else (steps, 3)
    x, h = torch.randn(*size, D), torch.randn(2, 3, H)
    expected = layer(x, h)[0].detach()
    spread = torch.randn(*size, 2 * D)[..., ::2].copy_(x)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    across = h.transpose(1, 2).contiguous().transpose(1, 2)
    with torch.no_grad():
        for given in (x, spread, turned):
            for state in (h, across):
                assert torch.equal(layer(given, state)[0], expected)
        torch.testing.assert_close(
            layer(x[:, 0] if not batch_first else x[0], h[:, 0])[0],
            (expected[:, 0] if not batch_first else expected[0]), rtol=0, atol=1e-5,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("seed", lambda given: {**given, "seed": torch.zeros(1)}),
        ("blocks", lambda given: {**given, "blocks": [0, 10_000_000]}),
        ("blocks", lambda given: {**given, "blocks": [-4, 4]}),
        ("chance", lambda given: {**given, "chance": [0.0, 1.0]}),
        ("products", lambda given: {**given, "products": "half"}),
        ("Plan", lambda given: {**given, "plan": given["plan"].replace("/0,0,64,0,0", "/0,0,64,5000,0")}),
        ("Plan", lambda given: {**given, "plan": given["plan"].replace("/0,0,64,0,0", "/0,0,64,0,7")}),
        ("weight_hh", lambda given: {**given, "weight_hh": given["weight_hh"].double()}),
        ("h_0", lambda given: {**given, "h0_BH": torch.zeros(4, 16)}),
    ],
)
def test_the_operator_refuses_what_its_kernel_would_misread(name, change):
    layer = make("g2lstm", 8, 16, dtype=torch.float32, training=True)
    plan = plan_for(layer.cell.step, layer.spec)
    given = {
        **{"x_TBD": torch.randn(5, 3, 8), "weight_ih": layer.weight_ih_l0, "weight_hh": layer.weight_hh_l0},
        **{"bias_G": layer.bias_ih_l0, "scale_G": None, "extra": None},
        **{"h0_BH": torch.zeros(3, 16), "c0_BH": torch.zeros(3, 16), "noise_TBR": None, "seed": torch.tensor([3])},
        **{"blocks": [0, 32], "chance": [0.5, 1.0], "lengths_B": None, "plan": plan.text(), "reverse": False},
        "products": "float",
    }
    torch.ops.gatedrnn.recurrence(**given)
    with torch.no_grad(), pytest.raises(ArgumentError, match=name):
        torch.ops.gatedrnn.recurrence(**change(given))


@pytest.mark.parametrize("variant", ["lstm", "gru-after", "rnn-tanh"])
@pytest.mark.parametrize("lengths", [None, RAGGED[B]])
def test_saved_tensors_that_a_hook_changed_are_read_as_they_are_or_refused(variant, lengths):
    layer = make(variant, dtype=torch.float32)
    x, states = inputs_for(layer)
    expected = torch.autograd.grad(call(layer, x, states, lengths=lengths)[0].square().sum(), list(layer.parameters()))

    def spread(tensor):
        return (
            torch.stack([tensor, torch.full_like(tensor, torch.nan)], -1)[..., 0]
            if tensor.is_floating_point()
            else tensor
        )

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, spread):
        found = torch.autograd.grad(call(layer, x, states, lengths=lengths)[0].square().sum(), list(layer.parameters()))
    torch.testing.assert_close(found, expected)
    for change in (lambda t: t.bfloat16() if t.is_floating_point() else t, lambda t: t[:-1]):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, change):
            loss = call(layer, x, states, lengths=lengths)[0].square().sum()
        with pytest.raises((ArgumentError, RuntimeError), match=r"must be|type|shape|size"):
            torch.autograd.grad(loss, list(layer.parameters()))


def test_noise_under_another_default_device():
    layer = make("g2lstm", dtype=torch.float32, training=True, weight_dropout=0.5)
    x, _ = inputs_for(layer)
    torch.manual_seed(5)
    expected = layer(x)[0]
    torch.manual_seed(5)
    with torch.device("meta"):
        found = layer(x)[0]
    assert torch.equal(found, expected)


def test_a_cell_of_one_s_own_never_gets_another_s_kernel():
    own = CELLS["lstm"]

    def make_spec(hidden_size):
        spec = own.make_spec(hidden_size)
        gates = tuple(replace(g, squash="relu") if g.name == "cell_candidate" else g for g in spec.gates)
        return replace(spec, gates=gates)

    layer = Recurrent(replace(own, name="relu-lstm", make_spec=make_spec, options={}), 4, 8).eval()
    x = torch.randn(5, 2, 4)
    found = layer(x)[0]
    layer.backend = "reference"
    torch.testing.assert_close(found, layer(x)[0], atol=1e-5, rtol=1e-5)


def test_a_named_gate_keeps_no_others_alive():
    layer = make("lstm", dtype=torch.float32)
    x, _ = inputs_for(layer)
    with torch.no_grad():
        gate = layer(x, return_gates=("forget_gate",))[2][0]["forget_gate"]
    assert gate.untyped_storage().nbytes() == gate.nbytes


@few_and_many
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_relu_takes_what_is_not_finite_as_pytorch_does(steps, bad):
    layer = make("rnn-relu", D, 16, dtype=torch.float32)
    with torch.no_grad():
        layer.weight_ih_l0.abs_()  # so that an infinity stays one
        layer.weight_hh_l0.zero_()
    x, _ = inputs_for(layer, steps)
    x[0, 1, 2] = bad
    found = []
    for backend in ("cpu", "reference"):
        layer.backend = backend
        given = x.clone().requires_grad_()
        output = layer(given)[0]
        found.append([output.detach(), torch.autograd.grad(output.sum(), given)[0]])
    torch.testing.assert_close(*found, equal_nan=True, rtol=0, atol=1e-5)
    assert bad > 0 or torch.isnan(found[0][0]).any() or (found[0][0][0, 1] == 0).all()


@few_and_many
@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"])
@pytest.mark.parametrize("backend", ["auto", "reference", "cpu"])
def test_a_parameter_on_another_device_is_refused(name, backend, steps):
    layer = make("lstm", dtype=torch.float32, backend=backend)
    setattr(layer, name, nn.Parameter(getattr(layer, name).detach().to("meta")))
    x, states = inputs_for(make("lstm", dtype=torch.float32), steps)
    with torch.no_grad(), pytest.raises((ArgumentError, BackendError), match="meta"):
        call(layer, x, states)


def test_a_traced_layer_drops_other_weights_in_every_call():
    layer = make("lstm", D, H, dtype=torch.float32, weight_dropout=0.5).train()
    traced = torch.jit.trace(layer, (torch.randn(4, 3, D),), check_trace=False)
    x = torch.randn(7, 2, D)
    assert not torch.equal(traced(x)[0], traced(x)[0])
    torch.testing.assert_close(torch.jit.trace(layer.eval(), (x,))(x)[0], layer(x)[0])
