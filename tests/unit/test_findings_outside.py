"""What meets other programs: tokenizers of transformers, the hub, Windows, Gradio, spaCy, the cards and pages of a run."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from test_levels import VOCABULARIES
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from gatedrnn import LanguageModel, LanguageModelConfig
from gatedrnn.cli.commands import compress, demo
from gatedrnn.core.checksums import CHECKSUMS_FILE
from gatedrnn.core.config import to_dict
from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.core.files import write_json
from gatedrnn.data import EOS, UNK, DataConfig, Vocabulary
from gatedrnn.data.prompt import prompt_tokens
from gatedrnn.data.subwords import Subwords
from gatedrnn.export import web
from gatedrnn.training.config import RunConfig
from gatedrnn.training.run import load_run, write_trained

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NONE = [("N", "o"), ("n", "e"), ("No", "ne")]


def byte_level(merges=(), special=(), **parts):
    """BPE of bytes, without an unknown token."""
    known = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for pair in merges:
        known["".join(pair)] = len(known)
    tokenizer = Tokenizer(models.BPE(known, list(merges)))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def bert():
    """WordPiece with a normalizer that makes spaces of new lines."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "the", "cat", *LETTERS, *(f"##{c}" for c in LETTERS), "<", ">"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]"])
    return tokenizer


def llama(prepended):
    """BPE with its bytes, a space before every line: by its normalizer, or by its pre-tokenizer."""
    pieces = [UNK, "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *f"▁{LETTERS}", "▁t", "he", "▁the"]
    known = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    tokenizer = Tokenizer(models.BPE(known, merges, unk_token=UNK, byte_fallback=True, fuse_unk=True))
    if prepended:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens([UNK, "<s>"])
    return tokenizer


def trimmed():
    """A Unigram whose normalizer removes what is at the end of a line."""
    scored = [("</s>", 0.0), (UNK, 0.0), ("▁", -2.0), ("▁the", -3.0), *((c, -5.0) for c in LETTERS)]
    tokenizer = Tokenizer(models.Unigram(scored, 1))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.Strip(left=False, right=True)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["</s>", UNK])
    return tokenizer


MADE = {
    "merged None": byte_level(NONE),
    "with <pad>": byte_level(special=["<pad>", "<|end|>"]),
    "with new lines": byte_level(special=["\n", "\n\n", EOS]),
    "composing": byte_level(normalizer=normalizers.NFC()),
    "BERT": bert(),
    "space by normalizer": llama(True),
    "space by pre-tokenizer": llama(False),
    "trimmed": trimmed(),
}
SUBWORDS = {name: VOCABULARIES[name] for name in ("subword", "words", "unigram", "gpt2", "prefixed")}
SUBWORDS |= {name: Vocabulary.of(Subwords(tokenizer)) for name, tokenizer in MADE.items()}
SUBWORDS["None of earlier versions"] = Vocabulary.of(Subwords(byte_level(NONE), "old", ["None"]))
TEXTS = [
    "", " ", "\n", "\n\n", "the\ncat", "the \r\n cat\r\n", "a\rb", "A\nB\n", "the\n\nThe\n", "  a  \n  b", "a\n\u0338b",
    UNK, EOS, "<pad>", "[UNK]", "<|end|>", f"a{UNK}b", f"a{EOS}b", f"{EOS}\n{UNK}", f"x <pad>{EOS} \n{EOS}<s>", "[PAD]a [UNK]b",
    "None\nNone of None", "日本 é 😀", "the <s> a</s>b", "▁a\n▁b", "\ta\u2028b\x85",
]  # fmt: skip


def own_ids(vocabulary, text):
    return [1, *vocabulary.encode(prompt_tokens(vocabulary, text))]


@pytest.fixture
def hf():
    pytest.importorskip("transformers", reason="needs transformers, of the extra hf")
    from gatedrnn import hf

    return hf


# ---------------------------------------------------------------- tokenizers of transformers


@pytest.mark.parametrize("name", SUBWORDS)
def test_a_folders_tokenizer_reads_every_text_as_the_run_does(hf, tmp_path, name):
    from transformers import AutoTokenizer

    vocabulary = SUBWORDS[name]
    hf.tokenizer_of(vocabulary).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == own_ids(vocabulary, text), text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer)) == (1, len(vocabulary), len(vocabulary) + 1)
    hf.vocabulary_of(tokenizer, "subword", len(vocabulary)).save(tmp_path / "vocabulary.json")
    again = Vocabulary.load(tmp_path / "vocabulary.json")
    assert again.words == vocabulary.words
    tokenizer = hf.tokenizer_of(again)
    for text in TEXTS:
        assert own_ids(again, text) == own_ids(vocabulary, text) == tokenizer(text)["input_ids"], text


def test_folders_of_earlier_versions_are_read(hf):
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({UNK: 0, EOS: 1, "dog": 2, "the": 3, "a": 4}, unk_token=UNK))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex("\r?\n"), EOS)])
    made.add_special_tokens([UNK, AddedToken(EOS, normalized=True), "<pad\ufdd0>"])
    old = PreTrainedTokenizerFast(tokenizer_object=made, unk_token=UNK, eos_token=EOS, pad_token="<pad\ufdd0>")
    found = hf.vocabulary_of(old, "subword", 5)
    assert found.words == SUBWORDS["words"].words
    for text in ("A Dog the", f"the {UNK} a", "the\nDog"):
        assert found.encode(prompt_tokens(found, text)) == old(text)["input_ids"]


def test_what_transformers_would_read_otherwise_is_refused(hf):
    inside = Tokenizer(models.WordLevel({UNK: 0, EOS: 1, "a": 2}, unk_token=UNK))  # <eos> is a word, and no added token
    inside.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with pytest.raises(
        DataError, match=r"tokenizer: must read texts .* as in the run; got other ids for 'a<eos>b<unk>c'"
    ):
        hf.tokenizer_of(Vocabulary.of(Subwords(inside)))
    with pytest.raises(DataError, match=r"vocabulary: must not have a token <pad>; got <pad>\. Train on"):
        hf.tokenizer_of(Vocabulary([UNK, EOS, "<pad>"]))
    taken = byte_level(special=["<pad\ufdd0>"])
    with pytest.raises(DataError, match=r"must not have a token <pad\ufdd0>; .* Give a tokenizer without it"):
        hf.tokenizer_of(Vocabulary.of(Subwords(taken)))


# ---------------------------------------------------------------- subwords


def test_a_subword_none_is_a_token():
    vocabulary = SUBWORDS["merged None"]
    assert vocabulary.encode(vocabulary.tokens("None")) == [vocabulary.ids["None"]]
    unigram = Subwords(Tokenizer(models.Unigram([("<x>", 0.0), ("None", -1.0), ("a", -2.0)], 0)))
    assert unigram.words == [UNK, EOS, "None", "a"]


def test_a_run_of_an_earlier_version_keeps_its_ids(tmp_path):
    now = SUBWORDS["merged None"]
    now.save(tmp_path / "vocabulary.json")
    saved = json.loads((tmp_path / "vocabulary.json").read_text())
    words = [word for word in now.words if word != "None"]
    (tmp_path / "vocabulary.json").write_text(json.dumps(saved | {"words": words, "counts": [0] * len(words)}))
    (tmp_path / CHECKSUMS_FILE).unlink(missing_ok=True)
    old = Vocabulary.load(tmp_path / "vocabulary.json")
    assert old.words == words
    assert old.encode(old.tokens("None No")) == [0, old.ids["Ġ"], old.ids["No"]]
    assert old.line_encoder()(["None No", "a"]).tolist() == [0, old.ids["Ġ"], old.ids["No"], 1, old.ids["a"], 1]
    (tmp_path / "vocabulary.json").write_text(json.dumps(saved | {"words": words[:-1], "counts": None}))
    with pytest.raises(DataError, match=r"tokenizer\.json: must have the tokens of vocabulary\.json"):
        Vocabulary.load(tmp_path / "vocabulary.json")


def test_the_error_names_both_extras(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ArgumentError, match=r"pip install 'gatedrnn\[hf\]' or 'gatedrnn\[mt\]'"):
        Subwords.load("t.json")


# ---------------------------------------------------------------- systems without forks

WITHOUT_FORKS = """
import os, sys
import torch
del os.register_at_fork, os.fork, os.sched_getaffinity
sys.modules.update(dict.fromkeys(("resource", "pwd", "grp", "termios")))
import gatedrnn, gatedrnn.export.writing
output, _ = gatedrnn.ONLSTM(3, 4)(torch.zeros(2, 1, 3))
assert output.shape == (2, 1, 4)
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="has no forks anyway")
def test_the_package_is_imported_where_there_are_no_forks():
    done = subprocess.run([sys.executable, "-c", WITHOUT_FORKS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- Gradio


@pytest.mark.parametrize("newer", [True, False])
def test_the_page_is_launched_by_early_and_later_releases(monkeypatch, newer):
    gradio, themes, given = ModuleType("gradio"), ModuleType("gradio.themes"), {}
    vars(gradio).update(Blocks=object, themes=themes)
    vars(themes).update(Default=lambda **how: None)
    for name, module in (("gradio", gradio), ("gradio.themes", themes)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")  # which the module sets
    spec: Any = find_spec("gatedrnn.app.page")
    page = module_from_spec(spec)  # of the fake, for this test alone
    spec.loader.exec_module(page)

    class Early:
        def launch(self, *, server_name, server_port, share, quiet, prevent_thread_lock, theme, footer_links, ssr_mode,
                   mcp_server, enable_monitoring):  # fmt: skip
            return None, f"http://{server_name}:{server_port}/", None

    class Later:
        def launch(self, *, run_history=True, **how):
            given.update(run_history=run_history)
            return Early().launch(**how)

    assert page.start(Later() if newer else Early(), 7) == "http://127.0.0.1:7/"
    assert given == ({"run_history": False} if newer else {})


# ---------------------------------------------------------------- runs, cards, pages

WORDS = [UNK, EOS, "the", "cat", "sleeps", "."]


def tiny(folder, **model):
    """A run that is written without a training."""
    options = {"cell": "onlstm", "embedding_size": 4, "hidden_sizes": (4,), "options": {"chunk_size": 2}} | model
    config = LanguageModelConfig(len(WORDS), **options)
    write_trained(folder, RunConfig(data=DataConfig(), model=config), LanguageModel(config), Vocabulary(WORDS))
    return load_run(folder)


class Hub:
    """The hub's client, without a network."""

    def __init__(self):
        self.uploaded = []

    def create_repo(self, name, **how):
        return SimpleNamespace(repo_id=name)

    def create_commit(self, *, operations, **how):
        self.uploaded += [operation.path_in_repo for operation in operations]


def test_what_is_pushed_has_the_file_for_trust_remote_code(hf, tmp_path, monkeypatch):
    from transformers import modeling_utils
    from transformers.utils import hub

    fake, run = Hub(), tiny(tmp_path / "run")
    for module in (modeling_utils, hub):
        monkeypatch.setattr(module, "hf_api", lambda: fake, raising=False)
        for name in ("create_repo", "create_commit"):
            monkeypatch.setattr(module, name, getattr(fake, name), raising=False)
    monkeypatch.setattr(modeling_utils, "create_and_tag_model_card", lambda *_, **how: SimpleNamespace(save=str))
    sections = to_dict(run.config)
    model = hf.GatedRNNForCausalLM(hf.GatedRNNConfig(sections["model"], sections["data"], sections["training"]))
    for _ in range(2):  # into a new folder, and again
        fake.uploaded.clear()
        model.save_pretrained(tmp_path / "hf", push_to_hub=True, repo_id="me/model")
        assert {"config.json", "model.safetensors", "modeling_gatedrnn.py"} <= {*fake.uploaded}
    hf.GatedRNNConfig().save_pretrained(tmp_path / "alone")
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["config.json"]


def test_the_card_says_how_to_install(hf, tmp_path):
    from gatedrnn import __version__
    from gatedrnn.hf.card import card

    text = card(tiny(tmp_path / "run"), "name")
    assert f"pip install 'gatedrnn-{__version__}-py3-none-any.whl[hf]'" in text and "pip install '.[hf]'" in text
    assert "pypi" not in text and "pip install 'gatedrnn[" not in text


def test_card_and_page_tell_what_compress_measured(hf, tmp_path):
    from gatedrnn.hf.card import card

    run = tiny(tmp_path / "run")
    assert "No scores were kept" in card(run, "name") and web._perplexity(run) == (None, "")
    record = {"method": "int8", "perplexity_before": 9.0, "perplexity_after": 9.25}
    write_json(run.folder / compress.COMPRESSION_FILE, record)
    told = "as gatedrnn compress measured it on the validation text or its --data"
    assert f"| perplexity per word, {told} | 9.25 |" in card(run, "name")
    assert web._perplexity(run) == (9.25, told)
    write_json(run.folder / compress.COMPRESSION_FILE, record | {"perplexity_after": None})
    assert "No scores were kept" in card(run, "name") and web._perplexity(run) == (None, "")
    (run.folder / compress.COMPRESSION_FILE).write_text("[]")
    assert "No scores were kept" in card(run, "name")


def test_the_demo_says_how_its_page_is_written(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "my demo"

    def refuse(*_, **how):
        raise ArgumentError("export --to web", "needs onnxruntime-web", "none", "Fetch it")

    monkeypatch.setattr(web, "export_run", refuse)
    demo._write_page(SimpleNamespace(folder=folder / "run"), folder / "page", Console())  # type: ignore[arg-type]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("the page of export --to web was left out: export --to web: needs onnxruntime-web")
    assert shown[1:] == [f"to write it later, run: gatedrnn export '{folder}/run' --to web --out '{folder}/page'"]


# ---------------------------------------------------------------- spaCy


def test_a_pipeline_is_loaded_where_the_first_folder_is_damaged(tmp_path):
    spacy = pytest.importorskip("spacy", reason="no spaCy")
    torch.manual_seed(1)
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("gatedrnn", config={"run": str(tiny(tmp_path / "run").folder)})
    wanted = [token._.surprisal for token in nlp("the cat sleeps.")]
    nlp.to_disk(tmp_path / "pipeline")
    (tmp_path / "run" / "model.safetensors").unlink()
    again = spacy.load(tmp_path / "pipeline")
    assert [token._.surprisal for token in again("the cat sleeps.")] == wanted
    shutil.rmtree(tmp_path / "pipeline")
    alone = spacy.blank("en")
    alone.add_pipe("sentencizer")
    alone.add_pipe("gatedrnn", config={"run": str(tmp_path / "run")})
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):  # once the run is needed
        alone("the cat sleeps.")
