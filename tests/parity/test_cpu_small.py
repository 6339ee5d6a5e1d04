"""Compressed weights: the kernels that read small forms against the dense matrix they stand for, on every target."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gatedrnn
from gatedrnn.core.errors import ArgumentError
from gatedrnn.gates import Gates
from gatedrnn.layers import Recurrent
from gatedrnn.weights.compressed import CompressedWeight, blocks_of
from gatedrnn.weights.forms import FORMS, SMALL, Block, grid, low_rank, part_of

CELLS = {
    "lstm": {},
    "gru": {},
    "onlstm": {"chunk_size": 3},
    "gru before": {"reset_after": False},
    "peephole": {},
    "coupled": {},
    "rnn": {},
}
EVERY = ["int8", "bf16", "int4", "binary", "factors", "grid4", "grid8", "float32"]


def in_form(form, rows):
    """Rows [R, C] in a form of the file."""
    if form == "factors":
        return low_rank(rows, min(3, *rows.shape))
    if form.startswith("grid"):
        name, parts = grid(rows, float(rows.abs().max()) / (6 if form == "grid4" else 100))
        assert name == form
        return name, parts
    return form, {"values": rows.clone()} if form == "float32" else SMALL[form](rows)


def small(matrix, sizes, forms):
    """The matrix with gate k in forms[k % len(forms)]."""
    blocks, start = [], 0
    for k, size in enumerate(sizes):
        blocks.append(
            Block(start, start + size, *in_form(forms[k % len(forms)], matrix[start : start + size].detach()))
        )
        start += size
    return CompressedWeight(blocks, matrix.shape[1])


def pair(cell, width, hidden, forms, **options):
    """A layer with compressed weights and the same layer with dense ones."""
    torch.manual_seed(0)
    name = cell.split()[0]
    layer = Recurrent(name, width, hidden, **CELLS[cell], **options).eval()
    dense = copy.deepcopy(layer)
    for weight in [n for n in layer._parameters if n.startswith("weight_") and "ch" not in n]:
        value = small(getattr(layer, weight) * 0.5, [gate.rows for gate in layer.spec.gates], forms)
        layer._parameters[weight] = nn.Parameter(value, requires_grad=False)
        dense._parameters[weight] = nn.Parameter(value.dense())
    return layer, dense


def close(found, expected, tolerance=3e-5):
    for a, b in zip(found, expected, strict=True):
        if isinstance(a, tuple):
            close(a, b, tolerance)
        else:
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def the_same_rows(found, value, index):
    """Bit for bit what the matrix holds; of factors, a product, nearly so: it may be rounded otherwise for fewer rows."""
    if not any(block.form == "factors" for block in value.blocks):
        assert torch.equal(found, value.dense()[index])
        return
    parts = [(b.form, {name: part.double() for name, part in b.parts.items()}) for b in value.blocks]
    exact = torch.cat([FORMS[form](of, value.shape[1]).double() for form, of in parts])
    allowed = 2 * (value.dense() - exact).abs().max() + 1e-7 * exact.abs().max()
    assert (found - exact[index]).abs().max() <= allowed


@pytest.mark.parametrize("form", EVERY)
@pytest.mark.parametrize("cell", ["lstm", "onlstm", "gru"])
def test_every_form_gives_what_its_matrix_gives(cell, form):
    for width, hidden, steps, batch in ((1, 3, 1, 1), (17, 39, 4, 1), (70, 33, 3, 5), (40, 300, 2, 1)):
        layer, dense = pair(cell, width, hidden, [form])
        x = torch.randn(steps, batch, width)
        with torch.no_grad():
            for _ in range(3):  # the second and third by the short way
                close(layer(x), dense(x))


@pytest.mark.parametrize("cell", list(CELLS))
def test_forms_mix_in_one_weight_with_lengths_states_gates_and_both_directions(cell):
    layer, dense = pair(cell, 21, 36, ["factors", "int8", "float32", "bf16", "int4", "binary"], bidirectional=True)
    x, lengths = torch.randn(6, 5, 21), [6, 1, 3, 6, 2]
    count = len(layer.spec.states)
    states = tuple(torch.randn(2, 5, 36) for _ in range(count))
    with torch.no_grad():
        for hx in (None, states if count > 1 else states[0]):
            *found, gates = layer(x, hx, lengths=lengths, return_gates=True)
            *expected, true_gates = dense(x, hx, lengths=lengths, return_gates=True)
            close(
                found[:1] + list(found[1] if count > 1 else found[1:]),
                expected[:1] + list(expected[1] if count > 1 else expected[1:]),
            )
            for a, b in zip(gates, true_gates, strict=True):
                close(a.values(), b.values())


def test_many_rows_at_once_and_one_row_over():
    layer, dense = pair("lstm", 33, 31, ["factors", "int8", "bf16"])
    with torch.no_grad():
        for batch in (12, 13, 96, 97, 200):  # blocks of M_BLOCK rows, and tiles
            close(layer(torch.ones(2, batch, 33)), dense(torch.ones(2, batch, 33)))
        x = torch.randn(200, 1, 33)
        close(layer(x), dense(x))


def test_every_form_is_read():
    layer, dense = pair("lstm", 19, 45, ["int8", "factors", "int4", "bf16"])
    other, other_dense = pair("lstm", 19, 45, ["binary", "grid8", "grid4", "float32"])
    for x in (torch.randn(1, 1, 19), torch.randn(4, 7, 19)):
        with torch.no_grad():
            close(layer(x), dense(x))
            close(other(x), other_dense(x))


def test_the_temperature_of_evaluation_scales_every_form():
    gates = Gates(evaluation_temperature=0.5)
    layer, dense = pair("onlstm", 9, 12, ["int8", "factors", "bf16", "binary", "int4"], gates=gates)
    x = torch.randn(3, 2, 9)
    with torch.no_grad():
        close(layer(x), dense(x))
        close(layer(x), dense(x))
        layer.gates = dense.gates = Gates(evaluation_temperature=2.0)
        close(layer(x), dense(x))


@pytest.mark.parametrize("options", [{"gates": Gates(evaluation_temperature=0.5)}, {"bias": False}])
def test_plain_inference_never_makes_the_matrix(options, monkeypatch):
    layer, dense = pair("onlstm", 20, 24, ["int8"], **options)
    x = torch.randn(3, 2, 20)
    with torch.no_grad():
        expected = dense(x)
        monkeypatch.setattr(CompressedWeight, "dense", None)
        for _ in range(2):
            close(layer(x), expected)


def test_small_sequences_of_many_threads_and_of_one():
    layer, dense = pair("lstm", 64, 300, ["factors", "int8"])
    x = torch.randn(3, 4, 64)
    threads = torch.get_num_threads()
    with torch.no_grad():
        expected = dense(x)
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            try:
                close(layer(x), expected)
            finally:
                torch.set_num_threads(threads)


def test_what_is_no_plain_inference_gets_the_dense_matrix():
    layer, dense = pair("lstm", 20, 33, ["int8", "factors"])
    x = torch.randn(3, 2, 20)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    layer(inputs[0])[0].sum().backward()
    dense(inputs[1])[0].sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    assert layer.weight_hh_l0.grad is None and layer.bias_hh_l0.grad is not None
    with torch.no_grad():
        expected = dense(x)
        close(torch.compile(layer, backend="eager")(x), expected)
        close(torch.export.export(layer, (x,)).module()(x), expected)
        close(torch.func.functional_call(layer, dict(layer.named_parameters()), (x,)), expected)
        layer.backend = "reference"
        close(layer(x), expected)
        with torch.autocast("cpu", torch.bfloat16):
            layer.backend = "auto"
            close(layer(x), expected, 0.02)


def test_a_compressed_layer_is_copied_moved_and_pickled_like_any_other():
    layer, dense = pair("lstm", 20, 33, ["int8", "bf16", "int4"])
    x = torch.randn(3, 2, 20)
    with torch.no_grad():
        expected = dense(x)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.to("cpu")):
            close(other(x), expected)
            assert isinstance(other.weight_hh_l0, CompressedWeight)
        twin = pair("lstm", 20, 33, ["bf16"])[0]
        twin.load_state_dict(layer.state_dict(), assign=True)
        close(twin(x), expected)
        assert copy.deepcopy(layer).to("meta").weight_hh_l0.is_meta
    assert repr(layer.weight_ih_l0).startswith("CompressedWeight([132, 20]: 0…32 int8, 33…65 bf16")
    assert all(part.is_contiguous() for block in blocks_of(layer.weight_ih_l0) for part in block.parts.values())


def test_a_compressed_weight_refuses_to_be_written_to_or_to_change_type():
    layer, dense = pair("lstm", 4, 5, ["int8"])
    with pytest.raises(ArgumentError, match=r"CompressedWeight: cannot be written to; got aten\.mul_"), torch.no_grad():
        layer.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="CompressedWeight: cannot be written to"):
        layer.load_state_dict(dense.state_dict())
    with pytest.raises(ArgumentError, match=r"CompressedWeight: stays float32; got torch\.float64"):
        layer.to(torch.float64)
    x = torch.randn(2, 1, 4)
    with torch.no_grad():
        close(layer(x), dense(x))


@pytest.mark.parametrize("form", EVERY)
@pytest.mark.parametrize(
    ("rows", "columns", "outputs"), [(1, 1, 1), (1, 37, 70), (3, 64, 33), (130, 20, 65), (0, 5, 4)]
)
def test_a_decoder_and_an_embedding_in_every_form(form, rows, columns, outputs):
    weight = torch.randn(outputs, columns, generator=torch.Generator().manual_seed(1)) * 0.1
    value = small(weight, [outputs // 2, outputs - outputs // 2] if outputs > 1 else [1], [form])
    x, bias = torch.randn(rows, columns), torch.randn(outputs)
    with torch.no_grad():
        held = nn.Parameter(value, requires_grad=False)
        bound = 1e-5 + float(value.dense().abs().sum(1).max()) * (float(x.abs().max()) if rows else 0.0) / 65534
        torch.testing.assert_close(F.linear(x, held, bias), F.linear(x, value.dense(), bias), atol=bound, rtol=1e-5)
        torch.testing.assert_close(F.linear(x, held), F.linear(x, value.dense()), atol=bound, rtol=1e-5)
    ids = torch.randint(0, outputs, (2, 3))
    the_same_rows(F.embedding(ids, held), value, ids)
    for wrong in (-1, outputs):
        with pytest.raises(IndexError, match="index out of range"):
            F.embedding(torch.tensor([0, wrong]), held)
    x.requires_grad_()
    F.linear(x, held, bias).sum().backward()
    torch.testing.assert_close(x.grad, value.dense().sum(0).expand(rows, -1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("form", ["int8", "int4", "bf16", "binary", "factors"])
def test_what_is_not_finite_is_the_dense_layer_s_or_nan(form, bad):
    """NaN for ∞ where one row is rounded to whole numbers, in a product of two factors, and in a panel with rows of two gates."""
    for hidden, rows in ((64, 1), (64, 3), (40, 1), (40, 3)):  # 64 rows are whole panels
        layer, dense = pair("lstm", 8, hidden, [form])
        dense.backend = "reference"
        x = torch.randn(1, rows, 8)
        x[0, 0, 3] = bad
        with torch.no_grad():
            found, expected = layer(x)[0], dense(x)[0]
        if hidden == 40 or form == "factors" or (rows == 1 and form in ("int8", "int4")):
            expected[0, 0] = torch.where(found[0, 0].isnan(), found[0, 0], expected[0, 0])
        torch.testing.assert_close(found, expected, atol=3e-5, rtol=3e-5, equal_nan=True)


def test_rows_of_blocks_are_cut_and_put_together():
    matrix = torch.randn(10, 6)
    value = small(matrix, [4, 6], ["int8", "factors"])
    blocks = part_of(value.blocks, 2, 7)
    assert [(block.first, block.last) for block in blocks] == [(0, 2), (2, 5)]
    cut = torch.cat([FORMS[block.form](block.parts, 6) for block in blocks])
    the_same_rows(cut, value, slice(2, 7))
    index = torch.tensor([9, 0, 4])
    the_same_rows(gatedrnn.weights.forms.rows(value.blocks, 6, index), value, index)


def test_a_compressed_weight_is_never_written_to_and_changed_parts_are_seen():
    layer, _ = pair("lstm", 20, 33, ["int8"])
    weight, x = layer.weight_hh_l0, torch.randn(3, 2, 20)
    ones = torch.ones_like(weight.dense())
    for write in (
        lambda: torch.mul(ones, 2, out=weight),
        lambda: torch._foreach_mul_([weight], 2.0),
        lambda: weight.__setitem__(0, 1.0),
        lambda: weight.mul_(2),
    ):
        with torch.no_grad(), pytest.raises(ArgumentError, match="cannot be written to"):
            write()
    with torch.no_grad():
        before = layer(x)[0]
        weight.blocks[0].parts["scale"].mul_(2)
        after = layer(x)[0]
        layer.backend = "reference"
        torch.testing.assert_close(after, layer(x)[0], rtol=0, atol=1e-4)
        assert not torch.allclose(after, before, atol=1e-3)
    assert torch.equal(torch.from_dlpack(weight), weight.dense())
    layer.share_memory()
    assert all(part.is_shared() for part in layer.weight_hh_l0.blocks[0].parts.values())
