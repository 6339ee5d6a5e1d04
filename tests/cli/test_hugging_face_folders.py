"""Folders of transformers that are not as exported: read whole, or refused in one line."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from terminal import fails, works
from transformers import AutoModelForCausalLM
from transformers_runs import copied, export_levels, loaded_to_change

from gatedrnn.core.errors import ArgumentError, CheckpointError
from gatedrnn.hf import GatedRNNForCausalLM
from gatedrnn.training.run import load_run

WEIGHT = "model.layers.1.bias_hh_l0"


@pytest.fixture(scope="module")
def exported(levels):
    """The folder with the runs, each with its folder of transformers `hf-…`."""
    return export_levels(levels)


def _changed(exported, folder, change):
    """A copy of the folder of `run` with other weights."""
    path = copied(exported, folder) / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})
    return folder


CHANGES = {
    "missing": (lambda w: w.pop(WEIGHT), f"{WEIGHT}, which is not in the file"),
    "no embedding": (lambda w: w.pop("model.embedding.weight"), "model.embedding.weight, which is not in the file"),
    "unknown": (lambda w: w.update({"model.more": torch.zeros(3)}), "model.more, which is not in the model"),
    "another shape": (lambda w: w.update({WEIGHT: torch.zeros(3)}), f"{WEIGHT}, which has another shape"),
    "NaN": (lambda w: w[WEIGHT].fill_(float("nan")), "layers.1.bias_hh_l0 with NaN or infinity"),
}


class TestWeights:
    @pytest.mark.parametrize("name", CHANGES)
    def test_odd_ones_are_refused(self, exported, tmp_path, name, capfd):
        change, told = CHANGES[name]
        folder = _changed(exported, tmp_path / "hf", change)
        assert told in fails("import", folder, "--out", tmp_path / "out")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"] and not capfd.readouterr().err

    def test_may_be_read_by_whoever_may_read_the_rest(self, exported):
        assert len({path.stat().st_mode for path in (exported / "hf-run").iterdir()}) == 1

    def test_a_pickle_is_not_read(self, exported, tmp_path):
        folder = copied(exported, tmp_path / "hf")
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        told = "must hold model.safetensors; nothing is unpickled; got only pytorch_model.bin"
        assert told in fails("import", folder, "--out", tmp_path / "out")
        with pytest.raises(OSError, match="safetensors"):
            AutoModelForCausalLM.from_pretrained(folder)

    def test_several_files_are_read(self, exported, tmp_path):
        model, tokenizer, run = loaded_to_change(exported, "run")
        model.save_pretrained(tmp_path / "hf", max_shard_size="5KB")
        tokenizer.save_pretrained(tmp_path / "hf")
        assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
        works("import", tmp_path / "hf", "--out", tmp_path / "back")
        for name, value in load_run(tmp_path / "back").model.state_dict().items():
            assert torch.equal(value, run.model.state_dict()[name])

    def test_missing_ones_are_drawn(self, exported, tmp_path):
        def change(weights):
            for name in (WEIGHT, "model.layers.0.weight_ih_l0", "model.decoder.bias"):
                del weights[name]

        folder = _changed(exported, tmp_path / "hf", change)
        model, kept = GatedRNNForCausalLM.from_pretrained(folder).model, load_run(exported / "run").model.state_dict()
        drawn = {"layers.1.bias_hh_l0", "layers.0.weight_ih_l0", "decoder.bias"}
        for name, value in model.state_dict().items():
            assert torch.equal(value, kept[name]) != (name in drawn)
        for name, bound in (("layers.1.bias_hh_l0", 16**-0.5), ("layers.0.weight_ih_l0", 20**-0.5)):
            found = model.state_dict()[name].abs().max()
            assert 0.8 * bound < found <= bound
        assert not model.decoder.bias.any()

    def test_a_missing_bias_of_gates_is_set(self, exported, tmp_path):
        model, _, _ = loaded_to_change(exported, "run")
        model.config.model["forget_bias"] = 2.0
        model.save_pretrained(tmp_path / "hf")
        weights = load_file(tmp_path / "hf" / "model.safetensors")
        del weights["model.layers.0.bias_ih_l0"]
        save_file(weights, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
        again = GatedRNNForCausalLM.from_pretrained(tmp_path / "hf").model.state_dict()
        assert (again["layers.0.bias_ih_l0"] == 2).sum() == 20
        for name in ("layers.0.bias_hh_l0", "layers.1.bias_ih_l0"):
            assert torch.equal(again[name], model.model.state_dict()[name])

    def test_an_embedding_that_is_missing(self, exported, tmp_path):
        folder = _changed(exported, tmp_path / "hf", CHANGES["no embedding"][0])
        with pytest.raises(CheckpointError, match=r"model\.embedding\.weight, which is not in the file"):
            AutoModelForCausalLM.from_pretrained(folder)


class TestSizes:
    @pytest.mark.parametrize("name", ["run", "char", "subword"])
    def test_a_row_of_the_padding_is_left_out(self, exported, tmp_path, name):
        model, tokenizer, run = loaded_to_change(exported, name)
        model.resize_token_embeddings(len(tokenizer))
        for each in (model, tokenizer):
            each.save_pretrained(tmp_path / "hf")
        works("import", tmp_path / "hf", "--out", tmp_path / "back")
        weights, again = (folder / "model.safetensors" for folder in (exported / name, tmp_path / "back"))
        assert again.read_bytes() == weights.read_bytes()
        assert load_run(tmp_path / "back").vocabulary.words == run.vocabulary.words
        works("export", tmp_path / "back", "--to", "hf", "--out", tmp_path / "hf2")

    @pytest.mark.parametrize(("name", "more"), [("run", 5), ("run", -3), ("char", 2), ("subword", 2)])
    def test_others_are_refused(self, exported, tmp_path, name, more):
        model, tokenizer, run = loaded_to_change(exported, name)
        if more > 1 and name != "run":
            tokenizer.add_tokens(["wombat"])
        rows = len(run.vocabulary) + more
        model.resize_token_embeddings(rows)
        for each in (model, tokenizer):
            each.save_pretrained(tmp_path / "hf")
        told = fails("import", tmp_path / "hf", "--out", tmp_path / "out")
        assert f"a row of weights for each of the {len(run.vocabulary)} tokens" in told and f"got {rows} rows" in told


class TestRemoteCode:
    CODE = """
import os, sys
from transformers import AutoModelForCausalLM, PreTrainedModel
for old, new in zip(sys.argv[1:], sys.argv[2:]):
    child = os.fork()  # a process that has seen no remote code, and has not imported gatedrnn
    if child == 0:
        assert "gatedrnn" not in sys.modules
        AutoModelForCausalLM.from_pretrained(old, trust_remote_code=True).save_pretrained(new)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""

    def test_is_saved_by_a_model_that_came_with_it(self, exported, tmp_path):
        folders = [exported / "hf-run", tmp_path / "one", tmp_path / "two"]
        done = subprocess.run(
            [sys.executable, "-c", self.CODE, *map(str, folders)], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        for new in folders[1:]:
            names = sorted(path.name for path in new.iterdir())
            assert names == ["config.json", "generation_config.json", "model.safetensors", "modeling_gatedrnn.py"]
            assert (new / "modeling_gatedrnn.py").read_text() == (folders[0] / "modeling_gatedrnn.py").read_text()


class TestCompressed:
    def test_another_dtype_is_refused(self, exported):
        with pytest.raises(ArgumentError, match=r"must be float32 for compressed weights; got torch\.bfloat16"):
            AutoModelForCausalLM.from_pretrained(exported / "hf-int8", dtype=torch.bfloat16)
        assert AutoModelForCausalLM.from_pretrained(exported / "hf-int8", dtype="auto").dtype == torch.float32

    def test_a_small_shard_is_one_file(self, exported, tmp_path):
        model = AutoModelForCausalLM.from_pretrained(exported / "hf-int8")
        model.save_pretrained(tmp_path / "hf", max_shard_size="5KB")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
        ids = torch.tensor([[1, 3, 4]])
        assert torch.equal(again(ids).logits, model(ids).logits)

    def test_loading_info(self, exported):
        model, found = AutoModelForCausalLM.from_pretrained(exported / "hf-int8", output_loading_info=True)
        assert isinstance(model, GatedRNNForCausalLM) and not any(found.values())
