"""Tokens that are words, characters or subwords: the same in bulk and one by one, on disk, and through the commands."""

import contextlib
import io
import json
import math
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scripts import ROOT, run_script
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from gatedrnn.cli.main import main
from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, UNK, Corpus, DataConfig, Vocabulary, find_splits, read_batches, read_lines, text
from gatedrnn.data.subwords import Subwords

TRAIN = "the cat  sees the dogs\n\n a dog's 42 naïve cats sleep \r\nthe dog sees a cat\n" * 9
VALID = "the dog sleeps\n日本 cats \t 4\n"
PARTS = st.sampled_from([*"ab'sN4é日.,\t\xa0\x1c\u2003   ", "😀", "<unk>", "<eos>", "the", "dog"])
LINES = st.lists(st.lists(PARTS).map("".join), max_size=4)


def folder_with(folder: Path, train: str = TRAIN, valid: str = VALID) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.txt").write_bytes(train.encode())
    (folder / "valid.txt").write_bytes(valid.encode())
    return folder


def learn(**options) -> Vocabulary:
    return Vocabulary.learn(iter([[line] for line in TRAIN.splitlines()]), DataConfig(**options))


def given_tokenizer(kind: str) -> Tokenizer:
    """A tokenizer that was not learned here: ids in another order, names of its own for the unknown token."""
    if kind == "words":
        tokenizer = Tokenizer(models.WordLevel({"dog": 0, "a": 3, "[UNK]": 7, "the": 1}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.normalizer = normalizers.Lowercase()
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram([("a", -1.0), ("<x>", 0.0), ("▁the", -2.0), ("b", -3.0), ("▁", -2.5)], 1))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    else:
        vocab = {"<|endoftext|>": 300} | {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        tokenizer = Tokenizer(models.BPE(vocab | {"Ġa": 301, "ĠĠ": 302}, [("Ġ", "a"), ("Ġ", "Ġ")], dropout=0.5))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "prefixed")
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=20)
    return tokenizer


VOCABULARIES = {
    "word": learn(),
    "char": learn(level="char"),
    "subword": learn(level="subword", vocabulary_size=280),
    **{k: Vocabulary.of(Subwords(given_tokenizer(k))) for k in ("words", "unigram", "gpt2", "prefixed")},
}


# ---------------------------------------------------------------- encoding


@pytest.mark.parametrize("name", VOCABULARIES)
@given(batches=st.lists(LINES, max_size=3))
def test_bulk_and_line_by_line_agree(name, batches):
    vocabulary = VOCABULARIES[name]
    encode = vocabulary.line_encoder()
    for lines in batches:
        found = encode(lines)
        assert found.dtype == np.int32
        assert found.tolist() == [i for line in lines for i in [*vocabulary.encode(vocabulary.tokens(line)), 1]]


@pytest.mark.parametrize("name", ["subword", "gpt2"])
@given(lines=LINES)
def test_remembered_pieces_give_the_librarys_own_ids(name, lines):
    subwords = VOCABULARIES[name].splitter
    assert isinstance(subwords, Subwords)
    assert subwords.encoder({}) != subwords.encode
    assert subwords.encoder({})(lines).tolist() == subwords.encode(lines).tolist()


def test_memory_of_pieces_is_bounded(monkeypatch):
    monkeypatch.setattr("gatedrnn.data.subwords._REMEMBERED_PIECES", 5)
    subwords = VOCABULARIES["subword"].splitter
    encode = subwords.encoder({})
    for line in TRAIN.splitlines():
        assert encode([line]).tolist() == [*VOCABULARIES["subword"].encode(subwords.tokens(line)), 1]
    assert len(encode.__self__.rows) < 12


@pytest.mark.parametrize("name", ["char", "subword", "gpt2"])
@given(line=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0")))
def test_text_comes_back_from_tokens(name, line):
    assume(UNK not in line and EOS not in line)  # these mean the tokens
    vocabulary = VOCABULARIES[name]
    assert vocabulary.text([*vocabulary.tokens(line), EOS, *vocabulary.tokens("a b")]) == f"{line}\na b"


@pytest.mark.parametrize("level", ["word", "char"])
def test_a_line_is_no_list_of_lines(level):
    with pytest.raises(ArgumentError, match=r"Vocabulary\.learn: takes lists of lines; got 'мышь'\. Write \[lines\]"):
        Vocabulary.learn(["мышь"], DataConfig(level=level))


def test_tokens_of_bytes_are_shown_as_text():
    vocabulary, line = VOCABULARIES["gpt2"], "a naïve 日\t"
    shown = vocabulary.readable(vocabulary.tokens(line))
    assert shown == ["a", "▁", "n", "a", "\\xc3", "\\xaf", "v", "e", "▁", "\\xe6", "\\x97", "\\xa5", "\t"]
    learned = Vocabulary.learn(iter([["кошка кошка мышь"] * 9]), DataConfig(level="subword", vocabulary_size=300))
    assert learned.readable(learned.tokens("кошка кошка")) == ["кошка", "▁кошка"]
    for name in ("word", "char", "words", "unigram"):
        tokens = VOCABULARIES[name].tokens("the dog Ġa")
        assert VOCABULARIES[name].readable(tokens) == tokens
    assert vocabulary.readable([UNK, EOS, "<|endoftext|>", "日"]) == [UNK, EOS, "<|endoftext|>", "日"]


def test_text_of_words():
    assert VOCABULARIES["word"].text(["the", "cat", EOS, EOS, "a", EOS]) == "the cat\n\na\n"
    assert VOCABULARIES["word"].tokens(" the\u2003cat ") == ["the", "cat"]


# ---------------------------------------------------------------- characters


def test_character_vocabulary_by_hand():
    batches = [["ab a", "b"], ["é"]]
    vocabulary = Vocabulary.learn(iter(batches), DataConfig(level="char", min_count=1))
    assert vocabulary.words == [UNK, EOS, "a", "b", " ", "é"]
    assert vocabulary.counts == [0, 3, 2, 2, 1, 1]
    assert vocabulary.line_encoder()(["b é", "x"]).tolist() == [3, 4, 5, 1, 0, 1]
    rare = Vocabulary.learn(iter(batches), DataConfig(level="char"))
    assert rare.words == [UNK, EOS, "a", "b"] and rare.counts == [2, 3, 2, 2]


@pytest.mark.parametrize("level", ["char", "subword"])
def test_single_words_are_refused(level):
    with pytest.raises(
        ArgumentError, match=rf"encode_foreign: needs a vocabulary of words; got level {level}\. .*word"
    ):
        VOCABULARIES[level].encode_foreign(["dog"])


# ---------------------------------------------------------------- subwords


def test_learned_subwords_hold_the_bytes_and_the_special_tokens():
    vocabulary = VOCABULARIES["subword"]
    assert len(vocabulary) == 280 and vocabulary.words[:2] == [UNK, EOS]
    assert vocabulary.encode(vocabulary.tokens(f"{UNK}a{EOS}")) == [0, vocabulary.ids["a"], 1]
    assert 0 not in vocabulary.line_encoder()(["never seen: Ünïcödé 😀"])
    assert learn(level="subword", vocabulary_size=280).words == vocabulary.words


def test_a_given_tokenizer_is_mapped_to_our_ids_and_cut_short_by_nothing():
    words = VOCABULARIES["words"]
    assert words.words == [UNK, EOS, "dog", "the", "a"]
    assert words.line_encoder()(["A Dog the Dog zebra a", ""]).tolist() == [4, 2, 3, 2, 0, 4, 1, 1]
    assert VOCABULARIES["unigram"].words == [UNK, EOS, "a", "▁the", "b", "▁"]
    assert VOCABULARIES["unigram"].line_encoder()(["the aq"]).tolist() == [3, 5, 2, 0, 1]
    gpt2 = VOCABULARIES["gpt2"]
    assert all(gpt2.tokens("a a") == ["a", "Ġa"] for _ in range(50))  # dropout is off


@pytest.mark.parametrize("name", VOCABULARIES)
def test_vocabulary_survives_save_and_load(tmp_path, name):
    vocabulary = VOCABULARIES[name]
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert (loaded.words, loaded.counts, loaded.level) == (vocabulary.words, vocabulary.counts, vocabulary.level)
    assert loaded.fingerprint() == vocabulary.fingerprint()
    lines = TRAIN.splitlines()
    assert loaded.line_encoder()(lines).tolist() == vocabulary.line_encoder()(lines).tolist()
    assert (tmp_path / "tokenizer.json").exists() == (vocabulary.level == "subword")


def test_fingerprints_differ():
    words = VOCABULARIES["char"].words
    merged = Vocabulary.of(Subwords(given_tokenizer("prefixed")))
    same_words = [Vocabulary(words), VOCABULARIES["char"], VOCABULARIES["gpt2"], merged]
    assert len({vocabulary.fingerprint() for vocabulary in same_words}) == 4
    assert merged.words == VOCABULARIES["gpt2"].words


def test_older_vocabularies_are_of_words(tmp_path):
    (tmp_path / "vocabulary.json").write_text(json.dumps({"words": [UNK, EOS, "a"]}))
    assert Vocabulary.load(tmp_path / "vocabulary.json").level == "word"
    (tmp_path / "vocabulary.json").write_text(json.dumps({"words": [UNK, EOS, "a"], "level": "byte"}))
    with pytest.raises(DataError, match=r"vocabulary\.json: is not a vocabulary; got KeyError: 'byte'"):
        Vocabulary.load(tmp_path / "vocabulary.json")


DAMAGED = ["", "{", "[]", "{}", '{"model": {}}', '{"words": ["<unk>"]}', '{"version": "1.0", "model": {"type": "BPE"}}']


@pytest.mark.parametrize("damage", [*(text.encode() for text in DAMAGED), b"\xff\xfe\x00"])
def test_a_damaged_tokenizer_is_one_clear_line(tmp_path, damage):
    VOCABULARIES["subword"].save(tmp_path / "vocabulary.json")
    (tmp_path / "tokenizer.json").write_bytes(damage)
    with pytest.raises(
        DataError, match=r"tokenizer\.json: is not a tokenizer; got [^\n]+ Give a tokenizer\.json"
    ) as told:
        Vocabulary.load(tmp_path / "vocabulary.json")
    assert "\n" not in str(told.value)


def test_a_missing_or_foreign_tokenizer_is_named(tmp_path):
    VOCABULARIES["subword"].save(tmp_path / "vocabulary.json")
    VOCABULARIES["words"].splitter.save(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match=r"tokenizer\.json: must have the tokens of vocabulary\.json.* got 5 and 280"):
        Vocabulary.load(tmp_path / "vocabulary.json")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json: must be a readable file; got No such file"):
        Vocabulary.load(tmp_path / "vocabulary.json")


def test_tokenizers_that_cannot_serve_are_refused():
    with pytest.raises(
        DataError, match=r"mine: must give each of its tokens an id of its own; got 2 tokens with 1 ids"
    ):
        Subwords(Tokenizer(models.WordLevel({"a": 1, "b": 1}, unk_token="a")), "mine")
    nameless = Subwords(Tokenizer(models.WordLevel({"a": 1}, unk_token="none")), "mine")
    with pytest.raises(DataError, match=r"mine: cannot read the text; got .*UNK"):
        nameless.tokens("b")


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ArgumentError, match=r"needs the library tokenizers.*pip install 'gatedrnn\[hf\]'"):
        Corpus(find_splits(folder_with(tmp_path)), level="subword")
    VOCABULARIES["subword"].save(tmp_path / "vocabulary.json")
    with pytest.raises(ArgumentError, match=r"pip install 'gatedrnn\[hf\]'"):
        Vocabulary.load(tmp_path / "vocabulary.json")
    assert Corpus(find_splits(tmp_path), level="char").sizes["valid"] == 27


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"level": "byte"}, r"data\.level: must be one of word, char, subword; got 'byte'"),
        (
            {"tokenizer": "t.json"},
            r"data\.tokenizer: has no effect at level word; got tokenizer=t\.json with level=word",
        ),
        ({"level": "char", "vocabulary_size": 300}, r"data\.vocabulary_size: has no effect at level char"),
        ({"level": "subword", "min_count": 2}, r"data\.min_count: has no effect at level subword; got min_count=2"),
        ({"level": "subword", "vocabulary_size": 257}, r"data\.vocabulary_size: .* at least 258; got 257"),
        ({"level": "subword", "vocabulary_size": 300, "tokenizer": "t"}, r"vocabulary_size=300, tokenizer=t\."),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options, told):
    with pytest.raises(ArgumentError, match=told):
        DataConfig(**options)


# ---------------------------------------------------------------- corpora

SETTINGS = {"word": {}, "char": {}, "subword": {"vocabulary_size": 280}}


@pytest.mark.parametrize("level", SETTINGS)
@pytest.mark.parametrize("empty_lines", ["skip", "eos"])
def test_a_corpus_counts_and_encodes(tmp_path, level, empty_lines):
    corpus = Corpus(find_splits(folder_with(tmp_path)), level=level, empty_lines=empty_lines, **SETTINGS[level])
    vocabulary = corpus.vocabulary
    assert vocabulary.level == level
    for split, path in corpus.files.items():
        lines = [line for _, line in read_lines(path) if line.strip() or empty_lines == "eos"]
        ids = [i for line in lines for i in [*vocabulary.encode(vocabulary.tokens(line)), 1]]
        assert corpus[split].tolist() == ids
        assert corpus.sizes[split] == len(ids) and corpus.unknown[split] == ids.count(0)
        assert corpus.lines[split] == len(lines)
        assert corpus.characters[split] == sum(map(len, lines)) + len(lines)


@pytest.mark.parametrize("level", SETTINGS)
def test_the_size_of_a_batch_changes_nothing(tmp_path, monkeypatch, level):
    files = find_splits(folder_with(tmp_path))
    whole = Corpus(files, level=level, **SETTINGS[level])
    expected = whole["train"].tolist(), whole.vocabulary.words, whole.vocabulary.counts
    monkeypatch.setattr(text, "_BATCH_BYTES", 7)
    cut = Corpus(files, level=level, **SETTINGS[level])
    assert (cut["train"].tolist(), cut.vocabulary.words, cut.vocabulary.counts) == expected


@pytest.mark.parametrize("level", SETTINGS)
def test_a_cache_is_reused_by_its_own_level_only(tmp_path, level):
    files = find_splits(folder_with(tmp_path))
    options = {"level": level, **SETTINGS[level]}
    Corpus(files, **options).cache(tmp_path / "tokens")
    first = (tmp_path / "tokens" / "train.int32").stat()
    again = Corpus(files, Corpus(files, **options).vocabulary)
    again.cache(tmp_path / "tokens")
    second = (tmp_path / "tokens" / "train.int32").stat()
    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)
    fresh = Corpus(files, **options)
    assert (again.sizes, again.unknown) == (fresh.sizes, fresh.unknown)
    other = Corpus(files, level="word" if level == "char" else "char")
    other.cache(tmp_path / "tokens")
    assert other["valid"].tolist() == Corpus(files, other.vocabulary)["valid"].tolist() != again["valid"].tolist()


def test_a_given_tokenizer_serves_a_corpus(tmp_path):
    VOCABULARIES["words"].splitter.save(tmp_path / "mine.json")
    files = find_splits(folder_with(tmp_path, "The dog\nzebra\n"))
    corpus = Corpus(files, level="subword", tokenizer=str(tmp_path / "mine.json"))
    assert corpus["train"].tolist() == [3, 2, 1, 0, 1]
    assert corpus.unknown["train"] == 1 and corpus.lines["train"] == 2


@pytest.mark.parametrize("batch_bytes", [1, 5, 1 << 20])
@pytest.mark.parametrize("raw", [b"", b"\n", b"a", b"\xef\xbb\xbfa\r\n\r\n b\r\r\nc", "é\n\n\u2028x\n".encode()])
def test_batches_hold_the_lines(tmp_path, monkeypatch, raw, batch_bytes):
    monkeypatch.setattr(text, "_BATCH_BYTES", batch_bytes)
    (tmp_path / "a.txt").write_bytes(raw)
    found = [line for lines in read_batches(tmp_path / "a.txt") for line in lines]
    assert found == [line for _, line in read_lines(tmp_path / "a.txt")]


@pytest.mark.parametrize("level", SETTINGS)
@pytest.mark.parametrize(
    ("bad", "told"), [(b"caf\xe9 au", "must be UTF-8 text; got byte 0xe9 at column 4"), (b"\0", "NUL")]
)
def test_damage_is_told_with_its_line_at_every_level(tmp_path, monkeypatch, level, bad, told):
    monkeypatch.setattr(text, "_BATCH_BYTES", 30)
    folder_with(tmp_path)
    (tmp_path / "train.txt").write_bytes(b"the dog\n" * 11 + bad + b"\nthe end\n")
    with pytest.raises(DataError, match=rf"train\.txt:12: .*{told}"):
        Corpus(find_splits(tmp_path), level=level, **SETTINGS[level])


def test_no_text_and_no_tokens_are_held_in_memory(tmp_path):
    megabytes = 20
    folder_with(tmp_path, "the old pilot near the guards sleeps, or so\n" * (megabytes * 10**6 // 44))
    tracemalloc.start()
    corpus = Corpus(find_splits(tmp_path), level="char")
    corpus.cache(tmp_path / "tokens")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(corpus["train"]) > (megabytes - 1) * 10**6
    assert peak < 18e6  # mostly two tables over Unicode; the tokens are 80 MB


def test_a_full_temporary_folder_is_named(tmp_path, monkeypatch):
    corpus = Corpus(find_splits(folder_with(tmp_path)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"gone: must have room for the tokens; got No such file"):
        corpus["train"]


# ---------------------------------------------------------------- commands


def call(*arguments):
    """(exit code, stdout, stderr) of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module", params=["char", "subword"])
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    sizes = ["--model.embedding_size", 8, "--model.hidden_sizes", "[8]", "--model.options.chunk_size", 4]
    options = ["--data.level", request.param, "--training.epochs", 1, "--training.device", "cpu", *sizes]
    extra = ["--data.vocabulary_size", 280] if request.param == "subword" else []
    code, out, err = call("train", "--data", folder_with(folder / "text"), "--out", folder / "run", *options, *extra)
    assert code == 0, err
    assert f"{'280 subwords' if extra else '20 characters'} (" in " ".join(out.split())
    return folder / "run", request.param


def test_evaluate_tells_bits_per_character(run):
    folder, level = run
    data = folder.parent / "text" / "valid.txt"
    found = json.loads(call("evaluate", folder, "--data", data, "--json")[1])
    assert list(found) == ["loss_nats", "perplexity", "tokens", "bits_per_character"]
    bits = found["loss_nats"] * found["tokens"] / math.log(2)
    assert found["bits_per_character"] == pytest.approx(bits / 27)
    assert (found["tokens"] == 27) == (level == "char")
    told = call("evaluate", folder, "--data", data)[1]
    assert f"{found['bits_per_character']:.4f} bits per character  27 characters, line ends included" in told


def test_generate_writes_text(run):
    folder, _ = run
    arguments = ["generate", folder, "--prompt", "the dog", "--words", 30]
    code, out, err = call(*arguments)
    assert code == 0 and out.startswith("the dog"), err
    found = json.loads(call(*arguments, "--json")[1])
    vocabulary = Vocabulary.load(folder / "vocabulary.json")
    assert found["prompt_words"] == len(vocabulary.tokens("the dog"))
    assert len(found["text"]) == found["prompt_words"] + 30
    assert vocabulary.text(found["text"]) + "\n" == out


def test_trees_need_words(run, tmp_path):
    folder, level = run
    (tmp_path / "a.trees").write_text("(S (NP (NN dogs)) (VP (VBP sleep)))\n")
    for command in (["parse", folder, folder.parent / "text" / "valid.txt"], ["eval-parsing", folder]):
        extra = ["--treebank", tmp_path / "a.trees"] if command[0] == "eval-parsing" else []
        code, out, err = call(*command, *extra)
        assert (code, out) == (1, "")
        assert err.startswith(f"gatedrnn: {command[0]}: needs a vocabulary of words; got level {level}. ")
        assert err.count("\n") == 1


def test_a_runs_damaged_tokenizer_is_one_line(run):
    folder, level = run
    assert (folder / "tokenizer.json").exists() == (level == "subword")
    if level == "subword":
        whole = (folder / "tokenizer.json").read_text()
        (folder / "tokenizer.json").write_text(whole[:99])
        code, _, err = call("generate", folder)
        (folder / "tokenizer.json").write_text(whole)
        assert code == 1 and "tokenizer.json: is not a tokenizer" in err and err.count("\n") == 1


def test_benchmark_runs(capfd):
    options = ("--megabytes", "0.1", "--level", "char", "--train")
    code, _, err = run_script(ROOT / "benchmarks" / "tokenise.py", *options)
    assert code == 0, err
    assert capfd.readouterr().out.splitlines()[-1].split(" | ")[:2] == ["| char", "0.0"]  # of a process of its own
