"""Small forms against the matrices they stand for, schemes against the equations by hand, files that do not fit."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gatedrnn.core.errors import ArgumentError, CheckpointError
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.models.saving import WEIGHTS_FILE, save_tensors
from gatedrnn.studies.compression import METHODS, Projection, Scheme, compressed, published
from gatedrnn.training.state import check_same
from gatedrnn.weights.compressed import as_dense, gather
from gatedrnn.weights.forms import FORMS, SMALL, grid, low_rank

SHAPES = [(1, 1), (3, 7), (8, 8), (5, 16), (12, 33)]


def matrix(rows, columns, seed=0, size=1.0):
    return size * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("form", "largest", "bits"), [("int8", 127, 8), ("int4", 7, 4)])
def test_whole_codes_lie_within_half_a_step_of_each_value(shape, form, largest, bits):
    w = matrix(*shape)
    w[0] = 0  # a row of zeros
    parts = SMALL[form](w)
    found = FORMS[form](parts, shape[1])
    step = w.abs().amax(1, keepdim=True) / largest
    assert ((found - w).abs() <= step / 2 + 1e-7).all() and found.dtype == torch.float32
    assert parts["codes"].nbytes == shape[0] * math.ceil(shape[1] * bits / 8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_binary_is_signs_times_the_mean_size(shape):
    w = matrix(*shape)
    parts = SMALL["binary"](w)
    np.testing.assert_allclose(FORMS["binary"](parts, shape[1]), np.sign(w) * w.abs().mean(1, keepdim=True), rtol=1e-6)
    assert parts["bits"].nbytes == shape[0] * math.ceil(shape[1] / 8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("step", "form"), [(0.8, "grid4"), (0.05, "grid8"), (0.001, "float32")])
def test_a_grid_holds_the_rounded_matrix_in_the_fewest_bits(shape, step, form):
    w = matrix(*shape).clamp(-5, 5)
    w[0, 0] = 5.0
    name, parts = grid(w, step)
    assert name == form
    torch.testing.assert_close(FORMS[name](parts, shape[1]), step * torch.round(w / step))


@pytest.mark.parametrize("step", [1e-45, 1e-300, 1e39, 1e300])
def test_a_step_beyond_float32_is_refused_as_such(step):
    with pytest.raises(
        ArgumentError, match=rf"compress\.step: must lie within float32's range.*; got {re.escape(str(step))}"
    ):
        grid(matrix(3, 4), step)


def test_factors_are_the_nearest_matrix_of_their_rank():
    w = matrix(12, 33)
    name, parts = low_rank(w, 4)
    u, s, v = np.linalg.svd(w.numpy().astype(np.float64), full_matrices=False)
    np.testing.assert_allclose(FORMS[name](parts, 33), (u[:, :4] * s[:4]) @ v[:4], atol=1e-5)
    assert parts["left"].shape == (12, 4) and parts["right"].shape == (4, 33)
    torch.testing.assert_close(FORMS["bf16"](SMALL["bf16"](w), 33), w.bfloat16().float())


def make(cell="onlstm", tied=True):
    torch.manual_seed(0)
    own = {"options": {"chunk_size": 4}} if cell == "onlstm" else {}
    config = LanguageModelConfig(30, cell=cell, embedding_size=8, hidden_sizes=(12, 8), tied=tied, **own)
    return LanguageModel(config).eval()


def loaded(folder, model, kept):
    model.save_pretrained(folder)
    save_tensors(folder, kept)
    return LanguageModel.from_pretrained(folder)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("cell", ["lstm", "gru", "onlstm", "peephole"])
@pytest.mark.parametrize("method", METHODS)
def test_a_scheme_changes_its_gates_rows_and_nothing_else(tmp_path, method, cell, tied):
    model = make(cell, tied)
    gates = ("update", "reset_gate") if cell == "gru" else ("forget", "input_gate")
    found = loaded(tmp_path, model, compressed(model, Scheme(method, gates, rank=2))).state_dict()
    for name, value in model.state_dict().items():
        if not name.split(".")[-1].startswith("weight_ih") and "weight_hh" not in name:
            assert torch.equal(found[name], value), name
            continue
        start = 0
        for gate in model.layers[int(name.split(".")[1])].spec.gates:
            rows = slice(start, start + gate.rows)
            start += gate.rows
            same = torch.equal(found[name][rows], value[rows])
            assert same == (gate.name not in {g if g.endswith("_gate") else f"{g}_gate" for g in gates}), (name, gate)
    assert (tmp_path / WEIGHTS_FILE).stat().st_size < 30_000


@pytest.mark.parametrize(("method", "most"), [("int8", 0.5), ("int4", 0.45), ("bf16", 0.65)])
def test_whole_models_shrink_and_say_nearly_the_same(tmp_path, method, most):
    model = make()
    small = loaded(tmp_path, model, compressed(model, Scheme(method)))
    before = sum(v.nbytes for name, v in model.state_dict().items() if name != "decoder.weight")
    assert sum(v.nbytes for v in load_file(tmp_path / WEIGHTS_FILE).values()) < most * before
    tokens = torch.randint(0, 30, (9, 3))
    difference = (small(tokens).logits - model(tokens).logits).abs().max()
    assert 0 < difference < (0.05 if method == "int4" else 0.005)


@pytest.mark.parametrize("cell", ["lstm", "gru", "mgu", "onlstm", "layernorm"])
@pytest.mark.parametrize("method", ["int8", "bf16"])
def test_the_reference_takes_them_in_inference_mode(tmp_path, method, cell):
    """In which PyTorch does not cut rows of a tensor subclass."""
    small = loaded(tmp_path, model := make(cell), compressed(model, Scheme(method)))
    for layer in small.layers:
        layer.backend = "reference"
    tokens = torch.randint(0, 30, (9, 3))
    with torch.no_grad():
        expected = small(tokens).logits
    with torch.inference_mode():
        assert torch.equal(small(tokens).logits, expected)


def test_factors_are_multiplied_in_float32_under_autocast(tmp_path):
    small = loaded(tmp_path, model := make("lstm"), compressed(model, Scheme("svd", rank=2)))
    whole = make("lstm")
    whole.load_state_dict({name: as_dense(value) for name, value in small.state_dict().items()})
    for layer in (*small.layers, *whole.layers):
        layer.backend = "reference"
    tokens = torch.randint(0, 30, (9, 3))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(small(tokens).logits, whole(tokens).logits, atol=0, rtol=0)


def test_round_and_clip_are_the_papers():
    w = make().state_dict()["layers.0.weight_hh_l0"][:12]
    for method, expected in (("round", w), ("clip", w.clamp(-0.4, 0.4))):
        kept = as_dense(compressed(make(), Scheme(method, ("input",)))["layers.0.weight_hh_l0"])
        torch.testing.assert_close(kept[:12], 0.2 * torch.round(expected / 0.2))
    table = published(1150)
    assert [scheme.rank for scheme in table.values()] == [None, None, 128, 64]
    assert list(table) == ["round", "round & clip", "SVD", "SVD+"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "zip"}, r"compress\.method: must be one of round, .*; got 'zip'"),
        ({"method": "svd", "rank": 0}, r"compress\.rank: must be a positive integer; got 0"),
        ({"method": "svd", "rank": 8}, r"compress\.rank: must be below 8; got rank=8 for layers\.0\.weight_ih_l0"),
        ({"method": "round", "step": 0.0}, r"compress\.step: must be a finite number above 0; got 0\.0"),
        ({"method": "clip", "clip": math.nan}, r"compress\.clip: must be .*; got nan"),
        (
            {"method": "round", "gates": ("reset",)},
            r"compress\.gates: must name gates of the cell: input_gate, .*; got 'reset'",
        ),
        ({"method": "int8", "weights": "some"}, r"compress\.weights: must be one of recurrent, all; got 'some'"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_choices(options, message):
    with pytest.raises(ArgumentError, match=message):
        compressed(make(), Scheme(**options))


def damaged(kept, kind):
    name = next(name for name in kept if name.endswith("int8/codes"))
    block = name.rsplit("/", 1)[0]
    if kind == "missing part":
        del kept[f"{block}/scale"]
    elif kind == "other size":
        kept[name] = kept[name][:, :-1].contiguous()
    elif kind == "missing rows":
        for part in [part for part in kept if part.startswith(block)]:
            del kept[part]
    elif kind == "unknown form":
        kept[name.replace("int8", "int3")] = kept.pop(name)
    elif kind == "unknown weight":
        kept["other.weight/0-30/int8/codes"] = kept[name].clone()
    return kept


@pytest.mark.parametrize("kind", ["missing part", "other size", "missing rows", "unknown form", "unknown weight"])
def test_a_small_file_that_does_not_fit_is_one_line(tmp_path, kind):
    model = make()
    model.save_pretrained(tmp_path)
    save_tensors(tmp_path, compressed(model, Scheme("int8")))
    save_file(damaged(load_file(tmp_path / WEIGHTS_FILE), kind), tmp_path / WEIGHTS_FILE)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*; got ") as error:
        LanguageModel.from_pretrained(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", METHODS)
def test_a_projection_is_what_would_be_stored_and_projecting_twice_changes_nothing(method):
    model, scheme = make(), Scheme(method, ("input", "forget"), rank=3)
    weights = dict(model.named_parameters())
    project = Projection(model, scheme)
    found = project(weights)
    assert set(found) == {f"layers.{k}.weight_{kind}_l0" for k in (0, 1) for kind in ("ih", "hh")}
    stored = compressed(model, scheme)
    for name, value in found.items():
        torch.testing.assert_close(value, as_dense(stored[name]), atol=1e-5, rtol=1e-4)
    again = project({**weights, **found})
    for name, value in found.items():
        torch.testing.assert_close(again[name], value, atol=1e-5, rtol=1e-4)
    assert not any(torch.equal(value, weights[name]) for name, value in found.items())


def test_a_low_rank_follows_weights_that_change():
    model = make("lstm")
    project, generator = Projection(model, Scheme("svd", ("input",), rank=3)), torch.Generator().manual_seed(0)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(60):
        for value in weights.values():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.002)
        found = project(weights)
    for name, value in found.items():
        rows = weights[name][: len(weights[name]) // 4]
        best = torch.linalg.svdvals(rows)[3:].norm()
        assert torch.linalg.matrix_rank(value[: len(rows)], rtol=1e-4) == 3
        assert best <= (value[: len(rows)] - rows).norm() * 1.0001 and (value[: len(rows)] - rows).norm() < 1.02 * best


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_low_rank_goes_on_bit_for_bit_from_a_checkpoint(rank, aligned):
    model = make("lstm")
    generator, scheme = torch.Generator().manual_seed(0), Scheme("svd", rank=rank)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    whole, resumed = Projection(model, scheme), Projection(model, scheme)
    for _ in range(20):
        for value in weights.values():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.01)
        expected, found = whole(weights), resumed(weights)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        for place, space in resumed.memory.items():  # a file keeps neither layout nor alignment
            resumed.memory[place] = torch.empty(space.numel() + 1)[1 - aligned :][: space.numel()].view(space.shape)
            resumed.memory[place].copy_(space)


@pytest.mark.parametrize("tied", [True, False])
def test_expand_makes_a_compressed_model_trainable(tmp_path, tied):
    model = make(tied=tied)
    small = loaded(tmp_path, model, compressed(model, Scheme("int8")))
    tokens = torch.randint(0, 30, (6, 2))
    expected = small(tokens).logits
    assert not any(p.requires_grad for p in small.parameters() if p.dim() == 2)
    assert small.expand() is small and all(p.requires_grad for p in small.parameters())
    torch.testing.assert_close(small(tokens).logits, expected, atol=1e-5, rtol=1e-5)
    small(tokens, targets=tokens).loss.backward()
    assert (
        all(p.grad is not None for p in small.parameters()) and (small.decoder.weight is small.embedding.weight) == tied
    )


def test_schemes_add_up_and_a_compressed_model_is_saved_as_it_is(tmp_path):
    model = make("lstm")
    first = loaded(tmp_path / "a", model, compressed(model, Scheme("svd", ("input=2", "forget=4"))))
    second = loaded(tmp_path / "b", model, compressed(first, Scheme("int8", ("output",))))
    weight = second.layers[0].weight_hh_l0
    assert [(block.form, *map(len, list(block.parts.values())[1:])) for block in weight.blocks] == [
        ("factors", 2), ("factors", 4), ("float32",), ("int8", 12),
    ]  # fmt: skip
    second.save_pretrained(tmp_path / "c")
    assert (tmp_path / "c" / WEIGHTS_FILE).read_bytes() == (tmp_path / "b" / WEIGHTS_FILE).read_bytes()
    again = LanguageModel.from_pretrained(tmp_path / "c")
    tokens = torch.randint(0, 30, (6, 2))
    assert torch.equal(again(tokens).logits, second(tokens).logits)


def test_codes_of_a_vector_are_refused():
    saved = {"X.bias/0-4/int8/codes": torch.zeros(4, dtype=torch.int8)}
    with pytest.raises(ArgumentError, match=r"^X\.bias: must be a matrix to have a small form; got shape \[4\]\."):
        gather(saved, {"X.bias": torch.Size([4])})


@pytest.mark.parametrize("embedding_size", [1, 2, 4, 30])
def test_the_published_ranks_stay_below_the_sides_of_small_weights(embedding_size):
    config = LanguageModelConfig(9, cell="lstm", embedding_size=embedding_size, hidden_sizes=(48,), tied=False)
    model = LanguageModel(config)
    table = published(48)
    assert table["SVD"].rank == 5
    kept = compressed(model, table["SVD"])
    ranks = {name: kept[f"layers.0.weight_{name}_l0"].blocks[0].parts["left"].shape[1] for name in ("ih", "hh")}
    assert ranks == {"ih": max(1, min(5, embedding_size - 1)), "hh": 5}
    if embedding_size <= 5:
        with pytest.raises(ArgumentError, match=r"compress\.rank: must be below \d; got rank=5"):
            compressed(model, Scheme("svd", rank=5))


def test_a_checkpoint_knows_a_scheme_by_the_name_that_it_had():
    model = LanguageModel(LanguageModelConfig(9, cell="lstm", embedding_size=8, hidden_sizes=(8,)))
    name = "Scheme(method='svd', gates=None, weights=None, step=0.2, clip=0.4, rank=2)"
    assert Projection(model, Scheme("svd", rank=2)).name == name
    assert Projection(model, replace(Scheme("svd", rank=2), capped=True)).name == name
    now = SimpleNamespace(
        project=Projection(model, Scheme("svd", rank=2), "weights 1f").name, text=None, valid_text=None, processes=1
    )
    check_same({}, {"project": name, "processes": 1}, now)  # of a version that did not know the weights
    named = Projection(model, Scheme("svd", weights="all"), "weights 1f").name
    now.project, before = named, named.partition(", ranks")[0]  # of a version that gave embeddings another rank
    with pytest.raises(ArgumentError, match="must project the weights as at the start of the run"):
        check_same({}, {"project": before, "processes": 1}, now)
    now.project = f"{name} of weights 1f"
    for other in (name[:-1] + ", capped=True)", f"{name} of weights 2e", ""):
        with pytest.raises(
            ArgumentError, match="must project the weights as at the start of the run, and begin with the same"
        ):
            check_same({}, {"project": other, "processes": 1}, now)


@pytest.mark.parametrize(("words", "width", "rank"), [(3000, 40, 4), (10, 300, 9), (30, 20, 2), (3000, 2, 1)])
def test_the_rank_of_an_embedding_follows_its_columns(words, width, rank):
    config = LanguageModelConfig(words, cell="lstm", embedding_size=width, hidden_sizes=(8, width))
    kept = compressed(LanguageModel(config), Scheme("svd", weights="all"))
    assert kept["embedding.weight"].blocks[0].parts["left"].shape == (words, rank)


def test_a_named_rank_is_that_of_embeddings_too():
    model = LanguageModel(LanguageModelConfig(50, cell="lstm", embedding_size=40, hidden_sizes=(8, 40)))
    kept = compressed(model, Scheme("svd", weights="all", rank=3))
    assert kept["embedding.weight"].blocks[0].parts["left"].shape == (50, 3)


def test_a_gate_is_named_once():
    model = LanguageModel(LanguageModelConfig(9, cell="gru", embedding_size=8, hidden_sizes=(8,)))
    for gates in (("reset=3", "reset_gate=5"), ("reset", "reset")):
        with pytest.raises(ArgumentError, match=r"must name each gate once; got 'reset.*Leave one reset_gate out"):
            compressed(model, Scheme("svd", gates))


def test_the_rank_of_svd_is_that_of_the_table_unless_one_is_named():
    model = LanguageModel(LanguageModelConfig(9, cell="lstm", embedding_size=40, hidden_sizes=(230, 40)))
    ranks = []
    for scheme in (published(230)["SVD"], Scheme("svd")):
        kept = compressed(model, scheme)
        names = ("layers.0.weight_ih_l0", "layers.0.weight_hh_l0")
        ranks.append([kept[name].blocks[0].parts["left"].shape[1] for name in names])
    assert ranks == [[26, 26], [26, 26]]
