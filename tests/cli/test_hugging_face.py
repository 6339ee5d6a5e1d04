"""Runs as folders of transformers, and back: the same numbers, however they are asked for."""

import json
import math

import pytest
import torch
from terminal import fails, works
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, pipeline
from transformers_runs import LEVELS, export_levels, loaded, loaded_to_change

from gatedrnn.cells import CELLS
from gatedrnn.data import write_corpus
from gatedrnn.data.vocabulary import Vocabulary
from gatedrnn.hf import GatedRNNConfig, GatedRNNForCausalLM, tokenizer_of, vocabulary_of
from gatedrnn.models import surprisals
from gatedrnn.training.run import load_run

SENTENCES = ["the cat that the dogs chase sleeps .", "a dog barks .", "the unheardof cat"]


@pytest.fixture(scope="module")
def exported(levels):
    """The folder with the runs `LEVELS`, each with its folder of transformers `hf-…`."""
    return export_levels(levels)


@pytest.mark.parametrize("name", LEVELS)
class TestEveryLevel:
    def test_there_and_back_with_the_same_bytes(self, exported, name, tmp_path):
        works("import", exported / f"hf-{name}", "--out", tmp_path / "back")
        weights, again = (folder / "model.safetensors" for folder in (exported / name, tmp_path / "back"))
        assert again.read_bytes() == weights.read_bytes()
        before, after = load_run(exported / name), load_run(tmp_path / "back")
        assert after.vocabulary.words == before.vocabulary.words
        assert after.config.model == before.config.model and after.config.training == before.config.training
        for sentence in SENTENCES:
            assert after.vocabulary.tokens(sentence) == before.vocabulary.tokens(sentence)

    def test_logits_are_ours(self, exported, name):
        model, tokenizer, run = loaded(exported, name)
        for sentence in SENTENCES:
            ids = [1, *run.vocabulary.encode(run.vocabulary.tokens(sentence))]
            given = tokenizer(sentence, return_tensors="pt")
            assert given["input_ids"][0].tolist() == ids
            with torch.no_grad():
                theirs, ours = model(**given).logits[0], run.model(torch.tensor(ids)[:, None]).logits[:, 0]
            torch.testing.assert_close(theirs[:, : len(run.vocabulary)], ours, rtol=0, atol=1e-6)
            torch.testing.assert_close(theirs.softmax(-1)[:, :-1], ours.softmax(-1))
            assert theirs.softmax(-1)[:, -1].max() < 1e-21
            torch.testing.assert_close(theirs.log_softmax(-1)[:, :-1], ours.log_softmax(-1), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_padding_changes_nothing(self, exported, name, side):
        model, tokenizer, _ = loaded(exported, name)
        given = tokenizer(SENTENCES, return_tensors="pt", padding=True, padding_side=side)
        with torch.no_grad():
            together = model(**given)
        for row, sentence in enumerate(SENTENCES):
            alone = tokenizer(sentence, return_tensors="pt")
            with torch.no_grad():
                found = model(**alone)
            there = given["attention_mask"][row].bool()
            torch.testing.assert_close(together.logits[row, there], found.logits[0], rtol=0, atol=1e-6)
            for layer, own in zip(together.cache.states, found.cache.states, strict=True):
                for state, other in zip(layer, own, strict=True):
                    torch.testing.assert_close(state[:, row], other[:, 0])

    @pytest.mark.parametrize("how", [{}, {"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 2}], ids=str)
    def test_generation_by_batch_and_cache_is_that_of_one_without(self, exported, name, how):
        model, tokenizer, _ = loaded(exported, name)
        prompts = ["the cat", "a dog that the"]
        how = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None} | how
        many = model.generate(**tokenizer(prompts, return_tensors="pt", padding=True), **how)
        right = model.generate(**tokenizer(prompts, return_tensors="pt", padding=True, padding_side="right"), **how)
        assert torch.equal(right[:, -8:], many[:, -8:])
        each = how.get("num_return_sequences", 1)
        for row, prompt in enumerate(prompts):
            given = tokenizer(prompt, return_tensors="pt")
            size = given["input_ids"].shape[1]
            for cached in (True, False):
                alone = model.generate(**given, **how, use_cache=cached)
                assert torch.equal(alone[:, size:], many[row * each : (row + 1) * each, -8:])


class TestBatches:
    def test_a_row_without_any_token_keeps_its_state(self, exported):
        model, tokenizer, _ = loaded(exported, "run")
        given = tokenizer(["the cat", "a dog"], return_tensors="pt")
        with torch.no_grad():
            before = model(**given).cache
            mask = torch.tensor([[1, 1], [0, 0]])
            after = model(given["input_ids"][:, :2], mask, cache=before).cache
            fresh = model(given["input_ids"][:, :2], mask).cache
        for layer, old, none in zip(after.states, before.states, fresh.states, strict=True):
            for state, earlier, zero in zip(layer, old, none, strict=True):
                assert torch.equal(state[:, 1], earlier[:, 1]) and not torch.equal(state[:, 0], earlier[:, 0])
                assert not zero[:, 1].any()

    def test_state_carries_a_text_on(self, exported):
        model, tokenizer, _ = loaded(exported, "run")
        ids = tokenizer(SENTENCES[0], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            whole = model(ids).logits
            first = model(ids[:, :3])
            rest = model(ids[:, 3:], cache=first.cache, attention_mask=torch.ones_like(ids))
        torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), whole, rtol=0, atol=1e-6)
        last = model(ids, logits_to_keep=1).logits
        torch.testing.assert_close(last, whole[:, -1:], rtol=0, atol=1e-6)

    def test_sampling_is_seeded_and_stays_among_the_tokens(self, exported):
        model, tokenizer, run = loaded(exported, "run")
        given = tokenizer(["the", "a dog"], return_tensors="pt", padding=True)
        torch.manual_seed(3)
        one = model.generate(**given, do_sample=True, max_new_tokens=30, num_return_sequences=3)
        torch.manual_seed(3)
        two = model.generate(**given, do_sample=True, max_new_tokens=30, num_return_sequences=3)
        assert torch.equal(one, two)
        ended = (one[:, given["input_ids"].shape[1] :] == 1).cumsum(1) > 0
        assert (one[:, given["input_ids"].shape[1] :][~ended] < len(run.vocabulary)).all()

    def test_labels_give_the_loss_of_the_text(self, exported):
        model, tokenizer, run = loaded(exported, "run")
        given = tokenizer(SENTENCES, return_tensors="pt", padding=True)
        labels = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)
        with torch.no_grad():
            loss = float(model(**given, labels=labels).loss)
        ids = [run.vocabulary.encode(run.vocabulary.tokens(sentence)) for sentence in SENTENCES]
        bits = [each[:-1] for each in surprisals(run.model, ids, 1)]  # without that of the end
        assert loss == pytest.approx(sum(map(sum, bits)) * math.log(2) / sum(map(len, bits)), rel=1e-5)

    def test_bfloat16(self, exported):
        model = AutoModelForCausalLM.from_pretrained(exported / "hf-run", dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(exported / "hf-run")
        given = tokenizer(SENTENCES, return_tensors="pt", padding=True)
        assert model.dtype == torch.bfloat16 and torch.isfinite(model(**given).logits).all()


class TestWhatPeopleDo:
    def test_pipeline(self, exported):
        model, tokenizer, _ = loaded_to_change(exported, "run")
        made = pipeline("text-generation", model=model, tokenizer=tokenizer)
        found = made(["the cat", "a dog that"], max_new_tokens=5, do_sample=False, batch_size=2)
        assert [
            each[0]["generated_text"].startswith(p) for each, p in zip(found, ["the cat", "a dog that"], strict=True)
        ]

    def test_trained_on_saved_and_a_run_again(self, exported, tmp_path):
        model, tokenizer, _ = loaded_to_change(exported, "run")
        rows = [dict(tokenizer(s)) | {"labels": tokenizer(s)["input_ids"]} for s in SENTENCES[:2] * 4]
        rows = [{key: value[:4] for key, value in row.items()} for row in rows]
        how = {"max_steps": 3, "report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
        how |= {"per_device_train_batch_size": 4, "learning_rate": 0.01, "logging_strategy": "no"}
        trainer = Trainer(model, TrainingArguments(str(tmp_path / "t"), **how), train_dataset=rows, eval_dataset=rows)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        assert trainer.evaluate()["eval_loss"] < before
        trainer.save_model(str(tmp_path / "trained"))
        tokenizer.save_pretrained(tmp_path / "trained")
        works("import", tmp_path / "trained", "--out", tmp_path / "run")
        again = load_run(tmp_path / "run")
        assert torch.equal(again.model.decoder.weight, model.model.decoder.weight.detach())
        works("evaluate", tmp_path / "run", "--data", exported / "text" / "valid.txt")

    def test_more_tokens(self, exported, tmp_path):
        model, tokenizer, run = loaded_to_change(exported, "run")
        tokenizer.add_tokens(["wombat"])
        model.resize_token_embeddings(len(tokenizer))
        given = tokenizer("the wombat", return_tensors="pt")
        logits = model(**given).logits
        assert given["input_ids"][0, -1] == len(run.vocabulary) + 1 and logits.shape[-1] == len(tokenizer)
        for each in (model, tokenizer):
            each.save_pretrained(tmp_path / "more")
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "more")
        torch.testing.assert_close(again(**given).logits, logits)
        works("import", tmp_path / "more", "--out", tmp_path / "run")
        assert load_run(tmp_path / "run").vocabulary.words[-1] == "wombat"

    def test_remote_code_is_the_package(self, exported):
        config = AutoConfig.from_pretrained(exported / "hf-run", trust_remote_code=True)
        assert isinstance(config, GatedRNNConfig)
        text = (exported / "hf-run" / "modeling_gatedrnn.py").read_text()
        assert config.auto_map["AutoModelForCausalLM"] == "modeling_gatedrnn.GatedRNNForCausalLM"
        compile(text, "modeling_gatedrnn.py", "exec")

    def test_the_tied_weight_is_stored_once_and_the_text_stays_private(self, exported):
        from safetensors import safe_open

        with safe_open(exported / "hf-run" / "model.safetensors", "pt") as file:
            assert "model.embedding.weight" in file.keys() and "model.decoder.weight" not in file.keys()  # noqa: SIM118
        config = (exported / "hf-run" / "config.json").read_text()
        assert str(exported) not in config and json.loads(config)["tie_word_embeddings"] is True

    def test_the_card_tells_scores_and_use(self, exported):
        card = (exported / "hf-run" / "README.md").read_text()
        best = min(
            json.loads(line)["valid_perplexity"]
            for line in (exported / "run" / "metrics.jsonl").read_text().splitlines()
        )
        assert card.startswith("---\nlibrary_name: transformers") and f"{best:.2f}" in card and "onlstm" in card


@pytest.mark.parametrize("cell", sorted(name for name, _ in CELLS.items()))
def test_every_cell_there_and_back(cell, tmp_path):
    write_corpus(tmp_path / "text", seed=1, train=20, valid=5, test=5)
    sizes = ["--model.hidden_sizes", "[20, 10]", "--model.embedding_size", 10, "--training.epochs", 1]
    where = ["--data", tmp_path / "text", "--out", tmp_path / "run"]
    works("train", *where, "--model.cell", cell, *sizes, "--model.tied", "false")
    works("export", tmp_path / "run", "--to", "hf", "--out", tmp_path / "hf")
    works("import", tmp_path / "hf", "--out", tmp_path / "back")
    assert (tmp_path / "back/model.safetensors").read_bytes() == (tmp_path / "run/model.safetensors").read_bytes()
    model, run = GatedRNNForCausalLM.from_pretrained(tmp_path / "hf"), load_run(tmp_path / "run")
    ids = torch.randint(len(run.vocabulary), (3, 7))
    with torch.no_grad():
        theirs, ours = model(ids).logits[..., :-1], run.model(ids.t()).logits.transpose(0, 1)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-6)


ODD = {
    "no such run": ("export nowhere --to hf --out OUT", "no such folder"),
    "another form": ("export RUN --to hv --out OUT", "must be one of hf, onnx, web; got 'hv'"),
    "files there": ("export RUN --to hf --out RUN", "must be a new or empty folder"),
    "no such folder": ("import nowhere --out OUT", "config.json"),
    "a run": ("import RUN --out OUT", "config.json"),
}


class TestRefusals:
    @pytest.mark.parametrize("name", ODD)
    def test_one_line(self, exported, tmp_path, name):
        given, told = ODD[name]
        words = {"RUN": exported / "run", "OUT": tmp_path / "out"}
        assert told in fails(*(words.get(word, word) for word in given.split()))
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
    @pytest.mark.parametrize("damage", ["missing", "empty", "cut", "other"])
    def test_a_damaged_folder(self, exported, tmp_path, file, damage):
        folder = tmp_path / "hf"
        folder.mkdir()
        for path in (exported / "hf-run").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        content = (folder / file).read_bytes()
        (folder / file).unlink()
        if damage != "missing":
            changed = {"empty": b"", "cut": content[: len(content) // 2], "other": b'{"model_type": "gpt2"}'}[damage]
            (folder / file).write_bytes(changed)
        assert fails("import", folder, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_a_word_that_is_the_padding(self):
        with pytest.raises(Exception, match="<pad>"):
            tokenizer_of(Vocabulary(["<unk>", "<eos>", "<pad>"]))

    def test_another_tokenizer(self, exported):
        tokenizer = AutoTokenizer.from_pretrained(exported / "hf-run")
        with pytest.raises(Exception, match="must have 5000 tokens"):
            vocabulary_of(tokenizer, "word", 5000)
