"""Options of a cell in a language model's configuration: whole, checked, and as earlier versions wrote them."""

import copy
import dataclasses

import pytest
import torch
import yaml

from gatedrnn import CELLS, ArgumentError
from gatedrnn.core.checksums import accept
from gatedrnn.models import LanguageModel, LanguageModelConfig

V, E = 11, 6
TOKENS = torch.randint(0, V, (7, 3), generator=torch.Generator().manual_seed(0))


def config(**changes):
    own = {"options": {"chunk_size": 2}} if changes.get("cell", "onlstm") == "onlstm" else {}
    fields = {"vocabulary_size": V, "embedding_size": E, "hidden_sizes": (8, E)} | own
    return LanguageModelConfig(**fields | changes)


def make(**changes):
    torch.manual_seed(0)
    return LanguageModel(config(**changes))


def rewrite(folder, change):
    values = yaml.safe_load((folder / "config.yaml").read_text())
    change(values["model"])
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    accept(folder, ["config.yaml"])


def test_options_are_whole_and_by_default_as_the_cell_advises():
    assert LanguageModelConfig().options == {"chunk_size": 10, "split_points": "paper"}
    assert LanguageModelConfig(options={"split_points": "free"}).options == {"chunk_size": 10, "split_points": "free"}
    assert LanguageModelConfig(cell="gru").options == {"reset_after": True}
    assert LanguageModelConfig(cell="lstm", options={"chunk_size": 10, "reset_after": True}).options == {
        "input_cap": False
    }
    assert hash(config()) == hash(config()) and copy.deepcopy(config()) == config()


OLD = {"chunk_size": 10, "split_points": "paper", "peephole": "diagonal", "reset_after": True, "nonlinearity": "tanh"}


@pytest.mark.parametrize(
    ("cell", "change", "options"),
    [
        ("onlstm", {"chunk_size": 2, "split_points": "free"}, {"chunk_size": 2, "split_points": "free"}),
        ("gru", {"reset_after": False}, {"reset_after": False}),
        ("peephole", {"peephole": "full"}, {"peephole": "full"}),
        ("rnn", {"nonlinearity": "relu"}, {"nonlinearity": "relu"}),
        ("lstm", {}, {}),
    ],
)
def test_files_and_pickles_with_the_old_keys_are_read(tmp_path, cell, change, options):
    model = make(cell=cell, options=options).eval()
    model.save_pretrained(tmp_path)

    def back(section):
        del section["options"]
        section |= OLD | change

    rewrite(tmp_path, back)
    loaded = LanguageModel.from_pretrained(tmp_path)
    assert loaded.config == model.config and torch.equal(loaded(TOKENS).logits, model(TOKENS).logits)
    pickled = copy.copy(model.config)
    state = {key: value for key, value in vars(pickled).items() if key != "options"} | OLD | change
    pickled.__dict__.clear()
    pickled.__setstate__(state)
    assert pickled == model.config


def test_an_old_file_without_a_chunk_size_means_ten(tmp_path):
    model = make(hidden_sizes=(20, 10), embedding_size=10, options={})
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda section: section.pop("options"))
    assert LanguageModel.from_pretrained(tmp_path).config.options["chunk_size"] == 10


def test_options_of_a_cell_of_one_s_own(monkeypatch):
    seen = []

    def make_spec(hidden_size, *, rate=0.5):
        seen.append(rate)
        return CELLS["lstm"].make_spec(hidden_size)

    own = dataclasses.replace(CELLS["lstm"], name="own", make_spec=make_spec, options={"rate": 0.5})
    monkeypatch.setitem(CELLS._entries, "own", own)
    model = make(cell="own", options={"rate": 0.25})
    assert [layer.options for layer in model.layers] == [{"rate": 0.25}] * 2
    assert seen[-2:] == [0.25] * 2  # by the layers; the configuration asks for an example before
    with pytest.raises(ArgumentError, match=r"^model\.options\.rate: must be a number; got 'fast'"):
        config(cell="own", options={"rate": "fast"})
