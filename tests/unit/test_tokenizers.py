"""Tokenizers: a run's in transformers, one of transformers in a run, and the subwords of earlier versions."""

import json
import sys

import pytest
from test_levels import VOCABULARIES
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from gatedrnn.core.checksums import CHECKSUMS_FILE
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, UNK, Vocabulary
from gatedrnn.data.prompt import prompt_tokens
from gatedrnn.data.subwords import Subwords

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


def test_characters_of_a_written_eos_have_their_places(hf):
    text, vocabulary = "a<eos>b<e", VOCABULARIES["char"]
    found = hf.tokenizer_of(vocabulary)(text, return_offsets_mapping=True)
    assert found["offset_mapping"][1:] == [(k, k + 1) for k in range(len(text))]
    assert found["input_ids"][1:] == vocabulary.encode(list(text))


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


def test_white_space_at_the_end_of_a_line_is_one_piece_in_bulk_too():
    lines = ["b", "b\t ", "b\t b", "b\u00a0 ", "b \t \tb", "b  ", " "]
    subwords = Subwords(byte_level([("ĉ", "Ġ"), ("Ġ", "ĉ"), ("Ġ", "b"), ("Ġ", "Ġ"), ("Â", "ł"), ("Âł", "Ġ")]))
    ids = {word: k for k, word in enumerate(subwords.words)}
    assert subwords.encoder(ids)(lines).tolist() == subwords.encode(lines).tolist()
    assert subwords.tokens("b\t ") == ["b", "ĉĠ"] and subwords.tokens("b\u00a0 ") == ["b", "ÂłĠ"]


def test_a_tokenizer_s_special_tokens_are_never_added():
    plain, made = byte_level(), byte_level(special=["[CLS]"])
    place = made.token_to_id("[CLS]")
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", place)])
    assert made.encode("a").tokens == ["[CLS]", "a"]
    subwords = Subwords(made)
    assert subwords.tokens("a b") == Subwords(plain).tokens("a b") == ["a", "Ġ", "b"]
    assert len(subwords.encode(["a b", ""])) == 5


@pytest.mark.parametrize("kind", ["stripped", "spaced token", "left", "right"])
def test_what_a_cut_at_spaces_would_change_is_encoded_whole(kind):
    tokenizer = (
        byte_level([("Ġ", "b")], normalizer=normalizers.Strip()) if kind == "stripped" else byte_level([("Ġ", "b")])
    )
    if kind == "spaced token":
        tokenizer.add_tokens(["a b"])
    elif kind != "stripped":
        tokenizer.add_tokens([AddedToken("X", lstrip=kind == "left", rstrip=kind == "right")])
    subwords, lines = Subwords(tokenizer), ["a b", " b a b ", "a  X  b", "X b", "b X"]
    ids = {word: k for k, word in enumerate(subwords.words)}
    assert subwords.encoder(ids)(lines).tolist() == subwords.encode(lines).tolist()
