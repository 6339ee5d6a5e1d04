"""The language model: shapes, tying, carried state, loss, dropouts, a folder on disk and its faults, sampling."""

import dataclasses
import itertools

import pytest
import torch
import yaml
from torch.nn.utils import prune

from gatedrnn import CELLS, ArgumentError, CheckpointError, GatedRNNError, Gates
from gatedrnn.core.checksums import accept
from gatedrnn.core.config import from_dict, to_dict
from gatedrnn.models import LanguageModel, LanguageModelConfig, generate
from gatedrnn.models.saving import PretrainedModel
from gatedrnn.weights.compressed import CompressedWeight
from gatedrnn.weights.forms import Block

V, E = 11, 6
QUIET = {"embedding_dropout": 0.0, "input_dropout": 0.0, "hidden_dropout": 0.0, "output_dropout": 0.0}
TOKENS = torch.randint(0, V, (7, 3), generator=torch.Generator().manual_seed(0))


def config(**changes):
    own = {"options": {"chunk_size": 2}} if changes.get("cell", "onlstm") == "onlstm" else {}
    fields = {"vocabulary_size": V, "embedding_size": E, "hidden_sizes": (8, E)} | own | QUIET
    return LanguageModelConfig(**fields | changes)


def make(**changes):
    torch.manual_seed(0)
    return LanguageModel(config(**changes))


@pytest.mark.parametrize("cell", CELLS)
def test_shapes_and_traces(cell):
    model = make(cell=cell)
    output = model(TOKENS, return_gates=True)
    assert output.logits.shape == (7, 3, V)
    assert [[tuple(state.shape) for state in layer] for layer in output.states] == [
        [(1, 3, size)] * len(CELLS[cell].make_spec(size).states) for size in (8, E)
    ]
    assert len(output.gates) == 2 and all(gate.shape[:2] == (7, 3) for place in output.gates for gate in place.values())
    assert model(TOKENS).gates is None
    if cell == "onlstm":
        assert [place["master_forget"].shape[2] for place in output.gates] == [4, 3]


@pytest.mark.parametrize("cell", CELLS)
def test_carried_state_equals_one_long_run(cell):
    model = make(cell=cell).eval()
    whole = model(TOKENS)
    first = model(TOKENS[:3])
    second = model(TOKENS[3:], first.states)
    torch.testing.assert_close(torch.cat([first.logits, second.logits]), whole.logits)
    for ours, expected in zip(second.states, whole.states, strict=True):
        torch.testing.assert_close(ours, expected)
    assert (model(TOKENS[3:]).logits - second.logits).abs().max() > 1e-4


def test_trace_and_lengths():
    model, lengths = make().eval(), [7, 2, 4]
    output = model(TOKENS, lengths=lengths, return_gates=True)
    for layer in (1, 2):
        torch.testing.assert_close(model.trace(TOKENS, lengths, [layer]), [output.gates[layer - 1]])
    torch.testing.assert_close(model.trace(TOKENS, lengths, [1, 2]), output.gates)
    alone = model(TOKENS[:2, 1:2])
    torch.testing.assert_close(output.logits[:2, 1:2], alone.logits)
    for ours, expected in zip(output.states, alone.states, strict=True):
        torch.testing.assert_close(tuple(state[:, 1:2] for state in ours), expected)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_loss_is_the_mean_nats_of_the_targets_that_count(monkeypatch, tied, rows):
    monkeypatch.setattr("gatedrnn.models.loss._CHUNK_LOGITS", rows * V)
    model = make(tied=tied).eval()
    targets = TOKENS.roll(-1, 0).clone()
    targets[5:, 0] = -100
    output = model(TOKENS, targets=targets)
    plain = model(TOKENS)
    assert output.logits is None and plain.loss is None and len(output.states) == 2
    log_p = torch.log_softmax(plain.logits.double(), -1)
    nats = [-log_p[t, b, targets[t, b]] for t in range(7) for b in range(3) if targets[t, b] != -100]
    expected = sum(nats) / len(nats)
    assert len(nats) == 19
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=0)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(3 * output.loss, parameters), torch.autograd.grad(3 * expected, parameters)
    for ours, by_hand in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, by_hand, rtol=1e-4, atol=1e-6)


# tying


def test_tied_decoder_shares_the_embedding():
    tied, untied = make(), make(tied=False, hidden_sizes=(8, 4))
    assert tied.decoder.weight is tied.embedding.weight
    names = [name for name, _ in tied.named_parameters()]
    assert "decoder.weight" not in names and "decoder.bias" in names
    assert untied.decoder.weight is not untied.embedding.weight and untied.decoder.weight.shape == (V, 4)
    with torch.no_grad():
        tied.embedding.weight.zero_()
    assert torch.equal(tied(TOKENS).logits, torch.zeros(7, 3, V))


def test_tied_sizes_must_agree():
    with pytest.raises(ArgumentError) as caught:
        config(hidden_sizes=(8, 5))
    assert str(caught.value) == (
        "model.tied: the last hidden size must equal the embedding size; got hidden_sizes=[8, 5], embedding_size=6. "
        "End hidden_sizes with 6, or set tied: false."
    )


# dropouts


def reading(model, index):
    """What layer `index` is given, at the next forward."""
    seen = []
    model.layers[index].register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0].detach()))
    model(TOKENS)
    return seen[0]


def test_embedding_dropout_drops_a_word_everywhere():
    model = make(embedding_dropout=0.5)
    ratio = reading(model, 0) / model.embedding.weight[TOKENS].detach()
    by_word = {int(word): ratio[word == TOKENS] for word in TOKENS.unique()}
    for word, values in by_word.items():
        assert torch.allclose(values, torch.zeros(())) or torch.allclose(values, torch.tensor(2.0)), word
    assert {round(float(values.flatten()[0])) for values in by_word.values()} == {0, 2}


def test_input_dropout_is_locked_over_time():
    model = make(input_dropout=0.5)
    ratio = (reading(model, 0) / model.embedding.weight[TOKENS].detach()).round()
    assert torch.equal(ratio, ratio[:1].expand_as(ratio)) and set(ratio.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(ratio[0, 0], ratio[0, 1])


def test_hidden_dropout_is_locked_and_between_layers():
    model = make(hidden_dropout=0.5)
    torch.manual_seed(1)
    dropped = reading(model, 1) == 0
    assert torch.equal(dropped, dropped[:1].expand_as(dropped)) and 0 < dropped[0].sum() < dropped[0].numel()
    assert not (reading(make(hidden_dropout=0.5), 0) == 0).any()


def test_output_dropout_is_before_the_decoder():
    model = make(output_dropout=1.0)
    with torch.no_grad():
        model.decoder.bias.copy_(torch.arange(V))
    assert torch.equal(model(TOKENS).logits, torch.arange(V).float().expand(7, 3, V))


@pytest.mark.parametrize("field", [*QUIET, "weight_dropout"])
def test_each_dropout_acts_in_training_only(field):
    model, plain = make(**{field: 0.5}), make()
    assert not torch.equal(model(TOKENS).logits, plain(TOKENS).logits)
    assert torch.equal(model.eval()(TOKENS).logits, plain.eval()(TOKENS).logits)


# on disk


@pytest.mark.parametrize(("cell", "tied"), itertools.product(CELLS, [True, False]))
def test_save_and_load(tmp_path, cell, tied):
    model = make(cell=cell, tied=tied, input_dropout=0.2, weight_dropout=0.1)
    model.save_pretrained(tmp_path / "run")
    loaded = LanguageModel.from_pretrained(str(tmp_path / "run"))
    assert loaded.config == model.config and not loaded.training
    assert (loaded.decoder.weight is loaded.embedding.weight) is tied
    assert torch.equal(loaded(TOKENS).logits, model.eval()(TOKENS).logits)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.yaml",
        "model.safetensors",
        "checksums.json",
    }


@pytest.mark.parametrize("way", ["to_empty", "decoder", "resized", "pruned", "parametrised"])
def test_weights_that_reading_would_miss_are_not_written(tmp_path, way):
    model = make(tied=True)
    layer, name = model.layers[0], "layers.0.weight_hh_l0"
    rule = "must be as the configuration makes it"
    match way:
        case "to_empty":
            model, name, rule = (
                model.to("meta").to_empty(device="cpu"),
                "decoder.weight",
                "must be the parameter embedding",
            )
        case "decoder":
            model.decoder.weight = torch.nn.Parameter(model.embedding.weight.detach().clone())
            name, rule = "decoder.weight", "must be the parameter embedding.weight; got another one. Call tie_weights()"
        case "resized":
            model.embedding, name = torch.nn.Embedding(99, model.config.embedding_size), "embedding.weight"
        case "pruned":
            prune.l1_unstructured(layer, "weight_hh_l0", 0.5)
        case _:
            torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
            name = "layers.0.parametrizations.weight_hh_l0.original0"
    with pytest.raises(ArgumentError, match=f"LanguageModel.{name}: {rule}"):
        model.save_pretrained(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    match way:
        case "pruned":
            prune.remove(layer, "weight_hh_l0")
        case "parametrised":
            torch.nn.utils.parametrize.remove_parametrizations(layer, "weight_hh_l0")
        case "resized":
            return
        case _:
            torch.nn.init.normal_(model.embedding.weight, std=0.1)
            torch.nn.init.zeros_(model.decoder.bias)
            for parameter in model.layers.parameters():
                torch.nn.init.uniform_(parameter, -0.1, 0.1)
            model.tie_weights()
    before = torch.get_rng_state()
    model.save_pretrained(tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(LanguageModel.from_pretrained(tmp_path / "run")(TOKENS).logits, model.eval()(TOKENS).logits)


@pytest.mark.parametrize("left_out", [None, "decoder.weight", "embedding.weight"])
def test_weights_that_are_assigned_stay_tied(left_out):
    model = make(tied=True)
    with torch.device("meta"):
        other = LanguageModel(model.config)
    state = {name: value.clone() for name, value in model.state_dict().items() if name != left_out}
    other.load_state_dict(state, strict=left_out is None, assign=True)
    assert other.decoder.weight is other.embedding.weight
    assert torch.equal(other.eval()(TOKENS).logits, model.eval()(TOKENS).logits)


class OfNumbers(PretrainedModel):
    """A model of one's own, which cannot be built without numbers."""

    kind = LanguageModelConfig

    def __init__(self, config, backend):
        super().__init__()
        self.config = config
        self.weight = torch.nn.Parameter(torch.full((2,), float(torch.tensor(1.5))))


def test_a_model_of_one_s_own_is_saved(tmp_path):
    OfNumbers(make().config, "auto").save_pretrained(tmp_path)
    assert OfNumbers.from_pretrained(tmp_path).weight.tolist() == [1.5, 1.5]


def test_no_gate_is_no_choice():
    with pytest.raises(ArgumentError, match=r"return_gates: must be True, False or a tuple of gate names; got \[\]"):
        make()(TOKENS, return_gates=[])
    assert make()(TOKENS, return_gates=None).gates is None


def test_save_and_load_keeps_gates_and_options(tmp_path):
    gates = Gates(0.7, 0.8, 0.1, True, ("master_forget",))
    model = make(gates=gates, options={"chunk_size": 2, "split_points": "free"})
    model.save_pretrained(tmp_path)
    loaded = LanguageModel.from_pretrained(tmp_path)
    assert loaded.config == model.config and loaded.layers[0].gates == gates
    assert torch.equal(loaded(TOKENS).logits, model.eval()(TOKENS).logits)


@pytest.fixture
def saved(tmp_path):
    make(tied=False).save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder, change):
    values = yaml.safe_load((folder / "config.yaml").read_text())
    change(values["model"])
    (folder / "config.yaml").write_text(yaml.safe_dump(values))


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: b"\x00" * 64, lambda data: data[: len(data) // 2], lambda data: data[:5]],
    ids=["empty", "zeros", "half", "five bytes"],
)
def test_damaged_weights(saved, damage):
    path = saved / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: is damaged; got .+\. Restore the file or train again"
    ):
        LanguageModel.from_pretrained(saved)


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml"])
def test_missing_file(saved, name):
    (saved / name).unlink()
    with pytest.raises(GatedRNNError, match=rf"{name}: must ") as caught:
        LanguageModel.from_pretrained(saved)
    assert isinstance(caught.value, CheckpointError), type(caught.value)


def test_config_without_a_model(saved):
    (saved / "config.yaml").write_text("data: {}\n")
    with pytest.raises(CheckpointError, match=r"config\.yaml: must have a section 'model'"):
        LanguageModel.from_pretrained(saved)


def test_weights_of_another_shape(saved):
    rewrite(saved, lambda model: model.update(vocabulary_size=V + 1))
    with pytest.raises(
        CheckpointError, match=r"got embedding\.weight of shape \[11, 6\] in the file and \[12, 6\] by the conf"
    ):
        LanguageModel.from_pretrained(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_sizes": [8]}, r"'layers\.1\..+', which is not in the model"),
        ({"hidden_sizes": [8, 8, E]}, r"'layers\.2\..+', which is not in the file"),
    ],
)
def test_weights_of_another_depth(saved, change, message):
    rewrite(saved, lambda model: model.update(change))
    with pytest.raises(CheckpointError, match=message):
        LanguageModel.from_pretrained(saved)


def test_an_untied_model_needs_decoder_weights_in_its_file(tmp_path):
    make(tied=True).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda model: model.update(tied=False))
    with pytest.raises(CheckpointError, match=r"'decoder\.weight', which is not in the file"):
        LanguageModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(tmp_path, value):
    model = make()
    with torch.no_grad():
        model.layers[1].weight_hh_l0[0, 0] = value
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"must hold finite weights; got layers\.1\.weight_hh_l0 with NaN"):
        LanguageModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optoins": {}}, r"^model\.optoins: unknown key\. Did you mean 'options'\?"),
        ({"options": {"chunk_sise": 2}}, r"^model\.options\.chunk_sise: unknown key\. Did you mean 'chunk_size'\?"),
        ({"options": {"chunk_size": "2"}}, r"^model\.options\.chunk_size: must be an integer; got '2'"),
        ({"options": {"split_points": True}}, r"^model\.options\.split_points: must be text; got True"),
        ({"options": {"split_points": "any"}}, r"split_points: must be one of paper, free; got 'any'"),
        ({"options": [2]}, r"^model\.options: must be a mapping of keys to values; got \[2\]"),
        ({"cell": "mgu", "options": {"depth": 2}}, r"^model\.options\.depth: unknown key\. mgu has no options"),
        (
            {"chunk_size": 3},
            r"^model\.chunk_size: must equal model\.options\.chunk_size where both are given; got 3 and 2",
        ),
        ({"gates": {"temprature": 0.5}}, r"^model\.gates\.temprature: unknown key\. Did you mean 'temperature'\?"),
        ({"hidden_sizes": "300"}, r"^model\.hidden_sizes: must be a list; got '300'\. Write \[300, 300\]"),
        ({"tied": "yes please"}, r"^model\.tied: must be true or false; got 'yes please'"),
        ({"embedding_size": 6.5}, r"^model\.embedding_size: must be an integer; got 6\.5"),
        ({"input_dropout": 1.5}, r"^model\.input_dropout: must be a probability between 0 and 1; got 1\.5"),
        ({"cell": "onlsmt"}, r"^model\.cell: must be a registered cell; got 'onlsmt'. Did you mean 'onlstm'"),
        ({"hidden_sizes": []}, r"^model\.hidden_sizes: must have at least one layer"),
        ({"hidden_sizes": [8, 0]}, r"^model\.hidden_sizes: must be a positive integer; got 0"),
        ({"vocabulary_size": None}, r"^model\.vocabulary_size: must be set"),
        ({"options": {"chunk_size": 4}}, r"must divide hidden_size; got hidden_size=6, chunk_size=4\. Try 2 or 3\."),
        ({"cell": [1], "gates": {}}, r"^model\.cell: must be text; got \[1\]"),
    ],
)
def test_wrong_configuration(saved, change, message):
    rewrite(saved, lambda model: model.update(change))
    with pytest.raises(ArgumentError, match=message):
        LanguageModel.from_pretrained(saved)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"cell": "gru", "options": {"chunk_size": 7}},
            r"^model\.options\.chunk_size: applies only to onlstm; got 7 with cell=gru\. Leave it",
        ),
        (
            {"options": {"chunk_size": 2, "reset_after": False}},
            r"^model\.options\.reset_after: applies only to gru; got False with cell=onlstm\.",
        ),
        (
            {"cell": "rnn", "gates": Gates(0.5)},
            r"^model\.gates: needs a cell with gates to perturb; got Gates\(.*cell=rnn",
        ),
    ],
)
def test_what_the_cell_does_not_read_is_refused_and_may_stand_in_a_folder(tmp_path, fields, message):
    with pytest.raises(ArgumentError, match=message):
        LanguageModelConfig(**fields)
    odd = {key: to_dict(value) if key == "gates" else value for key, value in fields.items()}
    with pytest.raises(ArgumentError, match=message):
        from_dict(LanguageModelConfig, odd, "model")
    model = make(cell=fields.get("cell", "onlstm"))
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda section: section.update(odd))
    accept(tmp_path, ["config.yaml"])
    assert LanguageModel.from_pretrained(tmp_path).config == model.config


# what a forward refuses


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (
            torch.tensor([[V]]),
            "LanguageModel.tokens: ids must lie in 0…10; got 11. Encode with the model's vocabulary.",
        ),
        (
            torch.tensor([[-1]]),
            "LanguageModel.tokens: ids must lie in 0…10; got -1. Encode with the model's vocabulary.",
        ),
        (torch.tensor([1]), "LanguageModel.tokens: must be integers [T, B]; got torch.int64 [1]. Time comes first."),
        (
            torch.ones(2, 2),
            "LanguageModel.tokens: must be integers [T, B]; got torch.float32 [2, 2]. Time comes first.",
        ),
    ],
)
def test_tokens_out_of_range(tokens, message):
    with pytest.raises(ArgumentError) as caught:
        make()(tokens)
    assert str(caught.value) == message


def test_states_that_do_not_fit():
    model = make()
    states = model(TOKENS).states
    with pytest.raises(ArgumentError, match=r"^LanguageModel\.states: must have 2 layers; got 1\."):
        model(TOKENS, states[:1])
    with pytest.raises(ArgumentError, match=r"h_0 must have shape \[1, 2, 8\]; got \[1, 3, 8\]"):
        model(TOKENS[:, :2], states)


def test_a_layers_only_state_may_stand_without_its_tuple():
    model = make(cell="gru")
    states = model(TOKENS).states
    expected = model(TOKENS, states).logits
    assert torch.equal(model(TOKENS, [h for (h,) in states]).logits, expected)
    assert torch.equal(model(TOKENS, [None, None]).logits, model(TOKENS).logits)


# sampling


def sample(model, count=12, seed=0, prompt=(1, 2), **kwargs):
    return list(
        itertools.islice(generate(model, list(prompt), generator=torch.Generator().manual_seed(seed), **kwargs), count)
    )


def test_generation_follows_its_generator():
    model = make().eval()
    first = sample(model)
    torch.rand(3)
    assert sample(model) == first and sample(model, seed=1) != first
    assert all(0 <= token < V for token in first)


def test_cold_generation_is_greedy_with_the_state_carried():
    model = make(tied=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    text = [1, 2]
    for token in sample(model, 6, temperature=1e-6):
        assert token == int(model(torch.tensor(text)[:, None]).logits[-1, 0].argmax())
        text.append(token)


@pytest.mark.parametrize(
    ("prompt", "temperature", "message"),
    [
        ([1], 0.0, r"^generate\.temperature: must be a finite number above 0; got 0\.0"),
        ([1, V], 1.0, r"^LanguageModel\.tokens: ids must lie in 0…10; got 11"),
        ([], 1.0, r"^\w+\.\w+: .+; got "),
    ],
)
def test_generation_refuses(prompt, temperature, message):
    with pytest.raises(ArgumentError, match=message):
        sample(make().eval(), prompt=prompt, temperature=temperature)


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().cell = "gru"


def test_a_checkpoint_of_a_compressed_model_loads_weights_only(tmp_path):
    dense = make()
    small = CompressedWeight(
        [Block(0, V, "float32", {"values": dense.decoder.weight.detach()})], dense.decoder.in_features
    )
    torch.save({"state_dict": {"decoder.weight": small}, "hyper_parameters": dense.config}, tmp_path / "last.ckpt")
    loaded = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert loaded["hyper_parameters"] == dense.config
    assert torch.equal(loaded["state_dict"]["decoder.weight"].dense(), dense.decoder.weight)


@pytest.mark.parametrize("layer", [0, -1, 3])
def test_trace_of_a_layer_that_does_not_exist(layer):
    with pytest.raises(ArgumentError, match=rf"LanguageModel\.layers: must lie in 1…2; got \[{layer}\]\."):
        make().trace(torch.zeros(2, 1, dtype=torch.long), None, [1, layer])


def test_what_advance_gives_is_what_the_decoder_reads_in_training_too():
    config = LanguageModelConfig(11, cell="lstm", embedding_size=6, hidden_sizes=(8, 6), output_dropout=0.5)
    model, tokens = LanguageModel(config).train(), torch.randint(0, 11, (7, 3))
    torch.manual_seed(1)
    output = model(tokens)
    torch.manual_seed(1)
    read, states = model.advance(tokens)
    assert torch.equal(read, output.dropped) and (read == 0).any()
    torch.testing.assert_close(model.decoder(read), output.logits)
    torch.testing.assert_close(states, output.states)
