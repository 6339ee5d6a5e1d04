"""The tokenizers of exported runs: text is read as the run reads it, and written so that it can go on."""

import pytest
import torch
from transformers import AutoTokenizer, TextStreamer, pipeline
from transformers_runs import export_levels, loaded, loaded_to_change

from gatedrnn.data.levels import Words
from gatedrnn.data.prompt import prompt_tokens
from gatedrnn.data.vocabulary import Vocabulary
from gatedrnn.hf import tokenizer_of
from gatedrnn.training.run import load_run

TEXTS = [
    "the cat", "", " ", "\n", "the\ncat", "the\r\ncat", "the\r\n\r\ncat\r\n", "the\rcat", "a \n\n dog\n",
    "<unk> the <unk>", "foo<unk>bar", "foo<eos>bar", "the <eos> dog", "<eos>the", "<pad>", "the <pad> dog",
    "foo<pad>bar", "<unk><unk>", "<eos><eos>", "<eos> \n <eos>", "<\neos>", "<eo\n<eos>", "\nn<eos>n\n",
    "nn\nn\n", "<eos\n", "\x00a", "日本 é\u0301\u200b 😀", "a\u2028b\x85c",
]  # fmt: skip


@pytest.fixture(scope="module")
def exported(levels):
    """The folder with the runs, each with its folder of transformers `hf-…`."""
    return export_levels(levels)


@pytest.mark.parametrize("name", ["run", "char", "subword"])
class TestReading:
    def test_text_is_read_as_the_run_reads_it(self, exported, name):
        _, tokenizer, run = loaded(exported, name)
        for text in TEXTS:
            own = [1, *run.vocabulary.encode(prompt_tokens(run.vocabulary, text))]
            assert tokenizer(text)["input_ids"] == own, text
            assert tokenizer(["the dog", text], padding=True)["input_ids"][1][-len(own) :] == own, text

    def test_saved_again_it_reads_the_same(self, exported, name, tmp_path):
        _, tokenizer, _ = loaded_to_change(exported, name)
        tokenizer.save_pretrained(tmp_path)
        again = AutoTokenizer.from_pretrained(tmp_path)
        assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
        assert (again.pad_token_id, len(again)) == (tokenizer.pad_token_id, len(tokenizer))

    @pytest.mark.parametrize("sample", [False, True])
    def test_the_pipeline_writes_the_text_that_the_run_would(self, exported, name, sample):
        model, tokenizer, run = loaded_to_change(exported, name)
        write, vocabulary = pipeline("text-generation", model=model, tokenizer=tokenizer), run.vocabulary
        prompts = ["the dogs", "a dog that", "the", ""]
        how = {"max_new_tokens": 6, "do_sample": sample, "eos_token_id": None, "temperature": 1.0, "top_k": 0}
        torch.manual_seed(2)
        texts = [each[0]["generated_text"] for each in write(prompts, batch_size=4, **how)]
        torch.manual_seed(2)
        ids = [each[0]["generated_token_ids"] for each in write(prompts, batch_size=4, return_tensors=True, **how)]
        for prompt, text, row in zip(prompts, texts, ids, strict=True):
            new = [token for token in row[-6:] if token > 1]  # the pipeline leaves special tokens out
            whole = [*vocabulary.tokens(prompt), *(vocabulary.words[token] for token in new)]
            space = " " if name == "run" and not prompt else ""  # every new word has one before it
            assert text == space + vocabulary.text(whole)

    def test_whole_texts_streams_and_batches(self, exported, name, capsys):
        model, tokenizer, _ = loaded(exported, name)
        words = [word for word in load_run(exported / "run").vocabulary.words[2:] if word.isalpha()]
        texts, space = [" ".join(words[:2]), " ".join(words[2:5])], " " if name == "run" else ""
        assert tokenizer.decode(tokenizer(texts[0])["input_ids"]) == f"<eos>{space}{texts[0]}"
        given = tokenizer(texts, return_tensors="pt", padding=True)
        found = tokenizer.batch_decode(given["input_ids"], skip_special_tokens=True)
        assert found == [space + text for text in texts]
        one = tokenizer(texts[0], return_tensors="pt")
        how = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
        capsys.readouterr()
        ids = model.generate(**one, **how, streamer=TextStreamer(tokenizer))
        assert capsys.readouterr().out == tokenizer.decode(ids[0]) + "\n"


def test_characters_as_words():
    vocabulary = Vocabulary(["<unk>", "<eos>", "a", "b", "<"], None, Words("characters"))
    tokenizer = tokenizer_of(vocabulary)
    for text in [*TEXTS, "ab<eos>a<unk>", "a<pad>b"]:
        assert tokenizer(text)["input_ids"] == [1, *vocabulary.encode(prompt_tokens(vocabulary, text))], text
