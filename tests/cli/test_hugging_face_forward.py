"""What `GatedRNNForCausalLM` computes: losses as Trainer counts them, states by every name, and what it refuses."""

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DynamicCache,
    Trainer,
    TrainingArguments,
)  # fmt: skip
from transformers.trainer_pt_utils import LabelSmoother
from transformers_runs import export_levels, loaded, loaded_to_change

from gatedrnn.core.errors import ArgumentError
from gatedrnn.training.run import load_run

SENTENCES = ["the dogs that a cat chases sleep .", "a dog barks .", "the"]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def exported(levels):
    """The folder with the runs, each with its folder of transformers `hf-…`."""
    return export_levels(levels)


def _batch(tokenizer, side):
    given = tokenizer(SENTENCES, return_tensors="pt", padding=True, padding_side=side)
    return given | {"labels": given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)}


def _truth(model, tokenizer):
    """The mean loss of every token but the first of a sentence, a sentence at a time."""
    losses = []
    for sentence in SENTENCES:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        scores = model(ids).logits[0, :-1].double().log_softmax(-1)
        losses += (-scores.gather(1, ids[0, 1:, None])[:, 0]).tolist()
    return sum(losses) / len(losses)


class TestLoss:
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_of_one_batch_is_the_mean_however_trainer_counts(self, exported, side, tmp_path):
        model, _, _ = loaded_to_change(exported, "run")
        tokenizer = AutoTokenizer.from_pretrained(exported / "hf-run", padding_side=side)
        truth, given = _truth(model, tokenizer), _batch(tokenizer, side)
        items = (given["labels"][:, 1:] != -100).sum()
        assert float(model(**given).loss) == pytest.approx(truth, rel=1e-5)
        assert float(model(**given, num_items_in_batch=items).loss) == pytest.approx(truth, rel=1e-5)
        assert float(model(**given, num_items_in_batch=2 * int(items)).loss) == pytest.approx(truth / 2, rel=1e-5)
        how = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True)
        rows, collate = (
            [dict(tokenizer(text)) for text in SENTENCES],
            DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )
        trainer = Trainer(model, how, eval_dataset=rows, data_collator=collate)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(truth, rel=1e-5)

    def test_of_a_batch_without_labels_adds_nothing(self, exported):
        model, tokenizer, _ = loaded(exported, "run")
        given = _batch(tokenizer, "left")
        nothing = torch.full_like(given["labels"], -100)
        assert float(model(**given | {"labels": nothing}, num_items_in_batch=torch.tensor(7)).loss) == 0

    def test_shifted_labels_are_labels(self, exported):
        model, tokenizer, _ = loaded(exported, "run")
        given = _batch(tokenizer, "left")
        shifted = torch.nn.functional.pad(given["labels"][:, 1:], (0, 1), value=-100)
        assert torch.equal(model(**given, shift_labels=shifted).loss, model(**given).loss)
        assert torch.equal(model(**given, logits_to_keep=1).loss, model(**given).loss)

    def test_of_a_model_whose_embedding_has_the_padding_s_row(self, exported):
        model, tokenizer, _ = loaded_to_change(exported, "run")
        given = _batch(tokenizer, "right")
        ids = given["input_ids"][:2, :2]
        before = model(ids, labels=ids).loss
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with torch.no_grad():
            model.model.decoder.weight[-1], model.model.decoder.bias[-1] = 0, -1e3
        found = model(ids, labels=ids)
        torch.testing.assert_close(found.loss, before, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("name", ["run", "char"])
    def test_smoothed_labels(self, exported, name):
        model, tokenizer, run = loaded(exported, name)
        given, truth = _batch(tokenizer, "right"), []
        smooth = LabelSmoother(0.1)(model(**given), given["labels"], shift_labels=True)
        for sentence in SENTENCES:
            ids = tokenizer(sentence, return_tensors="pt")["input_ids"][0]
            scores = run.model(ids[:-1, None]).logits[:, 0].double().log_softmax(-1)
            every = torch.cat([scores, scores.amin(-1, keepdim=True) - 50], -1)  # as far below them is the padding's
            truth.append(-0.9 * scores.gather(1, ids[1:, None])[:, 0] - 0.1 * every.mean(-1))
        assert float(smooth) == pytest.approx(float(torch.cat(truth).mean()), rel=1e-5)

    def test_float16(self, exported):
        model, tokenizer, _ = loaded(exported, "run")
        half = AutoModelForCausalLM.from_pretrained(exported / "hf-run", dtype=torch.float16)
        given = _batch(tokenizer, "left")
        found = half(**given)
        torch.testing.assert_close(found.logits.float(), model(**given).logits, rtol=0, atol=0.1)
        assert float(found.loss) == pytest.approx(float(model(**given).loss), rel=0.01)


def after(generated):
    """The state at the end of `generate`."""
    return generated.cache if hasattr(generated, "cache") else generated.past_key_values  # the latter before 5.24


@pytest.mark.filterwarnings("ignore:.(past_key_values|cache_params). is deprecated")
class TestStates:
    @pytest.mark.parametrize("name", ["cache", "past_key_values", "cache_params"])
    @pytest.mark.parametrize("cached", [True, False])
    def test_generation_goes_on_from_one(self, exported, name, cached):
        model, tokenizer, _ = loaded(exported, "run")
        given = tokenizer(SENTENCES, return_tensors="pt", padding=True)
        how = {"do_sample": False, "eos_token_id": None}
        whole = model.generate(**given, **how, max_new_tokens=9)
        first = model.generate(**given, **how, max_new_tokens=4, return_dict_in_generate=True)
        mask = torch.cat([given["attention_mask"], torch.ones(3, 4, dtype=torch.long)], 1)
        more = {"attention_mask": mask, name: after(first), "max_new_tokens": 5, "use_cache": cached}
        assert torch.equal(model.generate(first.sequences, **more, **how), whole)
        one = model.generate(given["input_ids"][:1], **how, max_new_tokens=4, return_dict_in_generate=True)
        rest = model.generate(one.sequences, **{name: after(one)}, **how, max_new_tokens=5)
        assert torch.equal(rest, whole[:1])

    def test_guidance_reads_its_own_text_on(self, exported):
        """transformers keeps the state of the text without a prompt itself, by the other name."""
        model, tokenizer, _ = loaded_to_change(exported, "run")
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.normal_()
        model.model.decoder.bias.zero_()
        given = tokenizer(SENTENCES[0], return_tensors="pt")
        how = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 12, "guidance_scale": 3.0}
        cached = model.generate(**given, **how)
        assert torch.equal(cached, model.generate(**given, **how, use_cache=False))
        assert not torch.equal(cached, model.generate(**given, **how | {"guidance_scale": 1}))

    @pytest.mark.parametrize("cut", [4, 7])
    def test_new_tokens_alone_are_refused(self, exported, cut):
        model, tokenizer, _ = loaded(exported, "run")
        ids = tokenizer(" ".join(SENTENCES), return_tensors="pt")["input_ids"][:, :12]
        state = model(ids[:, :cut]).cache
        how = {"cache": state, "max_new_tokens": 2, "do_sample": False}
        for given in ({}, {"attention_mask": torch.ones(1, 12 - cut, dtype=torch.long)}):
            with pytest.raises(ArgumentError, match=f"must be the {cut} tokens that the state has read, and more"):
                model.generate(ids[:, cut:], **how, **given)
        with pytest.raises(ArgumentError, match="must have the 1 rows of the state; got 3"):
            model.generate(ids, **how, num_beams=3)

    def test_forward_takes_and_gives_it_by_any_name(self, exported):
        model, tokenizer, _ = loaded(exported, "run")
        ids = tokenizer(SENTENCES[0], return_tensors="pt")["input_ids"]
        first = model(ids[:, :3])
        state = first.cache
        assert state.get_seq_length() == 3 and first.to_tuple()[1] is state
        for name in ("cache", "past_key_values", "cache_params"):
            assert getattr(first, name) is first[name] is first.get(name) is state and name in first
            setattr(first, name, state)
            first[name] = state
            assert [*first] == ["logits", "cache"]
            found = model(ids[:, 3:], **{name: state})
            torch.testing.assert_close(found.logits, model(ids).logits[:, 3:], rtol=0, atol=1e-6)
            assert found.cache.get_seq_length() == ids.shape[1]

    def test_refusals(self, exported):
        model, tokenizer, _ = loaded(exported, "run")
        ids = tokenizer(SENTENCES[0], return_tensors="pt")["input_ids"]
        one, other = (model(ids).cache for _ in range(2))
        with pytest.raises(ArgumentError, match="must be a RecurrentState; got DynamicCache"):
            model(ids, past_key_values=DynamicCache())
        with pytest.raises(ArgumentError, match="must be one state; got another one by its former name"):
            model(ids, past_key_values=one, cache_params=other)
        with pytest.raises(ArgumentError, match=f"must be the {ids.shape[1]} tokens that the state has read, and more"):
            model.generate(ids, past_key_values=one, max_new_tokens=2)


class TestOptions:
    def test_a_model_without_memory(self, exported):
        for places in ("meta", torch.device("meta"), {"": "meta"}):
            model = AutoModelForCausalLM.from_pretrained(exported / "hf-run", device_map=places)
            assert all(parameter.is_meta for parameter in model.parameters())

    def test_places_to_keep(self, exported):
        model, tokenizer, _ = loaded(exported, "run")
        given = tokenizer(SENTENCES, return_tensors="pt", padding=True)
        places = torch.tensor([0, 2])
        assert torch.equal(model(**given, logits_to_keep=places).logits, model(**given).logits[:, places])

    def test_the_configuration_is_followed(self, exported):
        config = AutoConfig.from_pretrained(exported / "hf-run", return_dict=False, output_hidden_states=True)
        model = AutoModelForCausalLM.from_pretrained(exported / "hf-run", config=config)
        ids = torch.tensor([[1, 2, 3]])
        assert isinstance(model(ids), tuple)
        found = model(ids, return_dict=True)
        assert found.hidden_states[0].shape == (1, 3, 16)
        assert model(ids, return_dict=True, output_hidden_states=False).hidden_states is None

    def test_ids_that_are_no_tokens(self, exported):
        model, _, run = loaded(exported, "run")
        size = len(run.vocabulary)
        assert torch.equal(model(torch.tensor([[1, size]])).logits, model(torch.tensor([[1, 1]])).logits)
        for wrong in (size + 1, -5):
            with pytest.raises(ArgumentError, match=f"must lie in 0…{size - 1}; got {wrong}"):
                model(torch.tensor([[1, wrong]]))

    def test_masks_of_other_shapes(self, exported):
        model, tokenizer, _ = loaded(exported, "run")
        given = tokenizer(SENTENCES, return_tensors="pt", padding=True)
        ids, mask = given["input_ids"], given["attention_mask"]
        for wrong in (mask[:, 1:], mask[:2], mask[0], torch.ones_like(mask)[:, :2]):
            with pytest.raises(ArgumentError, match=r"attention_mask: must be \[B, T\] or longer; got \["):
                model(ids, attention_mask=wrong)
        more = torch.cat([ids, ids[:, :3]], 1)
        with pytest.raises(ArgumentError, match="Lengthen it with the ids"):
            model.generate(more, attention_mask=mask, max_new_tokens=2)

    def test_what_there_is_not(self, exported):
        model, _, _ = loaded(exported, "run")
        for wrong, got in (
            (torch.tensor([1, 2]), r"torch.int64 \[2\]"),
            (torch.ones(1, 2, dtype=torch.bool), r"torch.bool \[1, 2\]"),
            ([[1]], "list"),
        ):
            with pytest.raises(
                ArgumentError, match=rf"input_ids: must be integers \[B, T\]; got {got}. The batch comes first"
            ):
                model(wrong)
        with pytest.raises(ArgumentError, match="input_ids: must be given; got inputs_embeds"):
            model(inputs_embeds=torch.randn(1, 3, 16))
        with pytest.raises(ArgumentError, match="output_attentions: must be False"):
            model(torch.tensor([[1]]), output_attentions=True)
        with pytest.raises(ValueError, match="inputs_embeds"):
            model.generate(inputs_embeds=torch.randn(1, 3, 16), max_new_tokens=2)


def test_only_embeddings_are_said_to_be_given(work):
    pytest.importorskip("transformers")
    from gatedrnn.hf.folder import wrapped

    model = wrapped(load_run(work / "run"))
    for how, got in (({"num_items_in_batch": 3}, ""), ({"inputs_embeds": torch.ones(1, 1, 16)}, "; got inputs_embeds")):
        with pytest.raises(ValueError, match=rf"input_ids: must be given{got}\. Give ids"):
            model(**how)
