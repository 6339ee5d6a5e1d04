"""Corpora in a folder, their cached token arrays, and the windows cut from a stream."""

import gzip
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, UNK, Corpus, Vocabulary, find_splits, windows
from gatedrnn.data.batching import PAD_TARGET, window_lengths

TEXTS = {"train": "a b a\n\nb c a\n", "valid": "a d\n", "test": "b\nzebra c\n"}


def write(folder, **texts):
    for split, text in {**TEXTS, **texts}.items():
        (folder / f"{split}.txt").write_text(text)
    return folder


def test_splits_are_found_by_name(tmp_path):
    write(tmp_path)
    assert find_splits(tmp_path) == {split: tmp_path / f"{split}.txt" for split in ("train", "valid", "test")}


def test_dev_serves_as_valid_gzip_is_found_and_test_is_optional(tmp_path):
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"a b\n"))
    (tmp_path / "dev.txt").write_text("a\n")
    found = find_splits(str(tmp_path))
    assert found == {"train": tmp_path / "train.txt.gz", "valid": tmp_path / "dev.txt"}
    assert Corpus(found, min_count=1)["train"].tolist() == [2, 3, 1]


@pytest.mark.parametrize("missing", ["train", "valid"])
def test_missing_split_is_named_with_what_is_there(tmp_path, missing):
    write(tmp_path)
    (tmp_path / f"{missing}.txt").unlink()
    with pytest.raises(DataError, match=rf"must hold {missing}\.txt or .*; got test\.txt"):
        find_splits(tmp_path)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: must be a folder"):
        find_splits(tmp_path / "nowhere")


def test_sizes_tokens_and_unknown_counts(tmp_path):
    corpus = Corpus(find_splits(write(tmp_path)), min_count=1)
    assert corpus.vocabulary.words == [UNK, EOS, "a", "b", "c"]
    assert corpus.sizes == {"train": 8, "valid": 3, "test": 5}
    assert corpus.lines == {"train": 2, "valid": 1, "test": 2}
    assert corpus.unknown == {"train": 0, "valid": 1, "test": 1}
    assert corpus["train"].dtype == np.int32
    assert corpus["train"].tolist() == [2, 3, 2, 1, 3, 4, 2, 1]
    assert corpus["test"].tolist() == [3, 1, 0, 4, 1]


def test_rare_training_words_count_as_unknown_by_default(tmp_path):
    corpus = Corpus(find_splits(write(tmp_path)))
    assert corpus.vocabulary.words == [UNK, EOS, "a", "b"]
    assert corpus.unknown == {"train": 1, "valid": 1, "test": 2}


def test_the_texts_own_unknown_words_count_as_unknown(tmp_path):
    corpus = Corpus(find_splits(write(tmp_path, valid="a <unk>\n")), min_count=1)
    assert corpus.unknown["valid"] == 1


def test_empty_lines_can_give_one_eos_each(tmp_path):
    corpus = Corpus(find_splits(write(tmp_path)), min_count=1, empty_lines="eos")
    assert corpus["train"].tolist() == [2, 3, 2, 1, 1, 3, 4, 2, 1]
    assert corpus.sizes["train"] == 9
    with pytest.raises(ArgumentError, match=r"data\.empty_lines: must be one of skip, eos; got 'drop'"):
        Corpus(find_splits(tmp_path), empty_lines="drop")


@pytest.mark.parametrize("text", ["", "\n \n"])
@pytest.mark.parametrize("empty_lines", ["skip", "eos"])
def test_a_split_without_a_word_is_refused(tmp_path, text, empty_lines):
    with pytest.raises(DataError, match=r"valid\.txt: must hold at least one sentence"):
        Corpus(find_splits(write(tmp_path, valid=text)), empty_lines=empty_lines)


def test_a_given_vocabulary_is_kept(tmp_path):
    vocabulary = Vocabulary([UNK, EOS, "zebra"])
    corpus = Corpus({"text": write(tmp_path) / "test.txt"}, vocabulary)
    assert corpus.vocabulary is vocabulary
    assert corpus["text"].tolist() == [0, 1, 2, 0, 1]


def cached(tmp_path, **options):
    corpus = Corpus(find_splits(tmp_path), min_count=1, **options)
    plain = {split: corpus[split].tolist() for split in corpus.files}
    corpus.cache(tmp_path / "tokens")
    assert {split: corpus[split].tolist() for split in corpus.files} == plain
    assert all(isinstance(corpus[split], np.memmap) for split in corpus.files)
    return corpus, (tmp_path / "tokens" / "train.int32").stat()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the size of files as Linux does")
def test_a_cache_that_cannot_be_written_says_why(tmp_path):
    write(tmp_path, train="a b c\n" * 20_000, valid="a b\n")
    script = (
        "import resource, sys\nfrom gatedrnn.data import Corpus, find_splits\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"from pathlib import Path\nCorpus(find_splits({str(tmp_path)!r})).cache(Path({str(tmp_path / 'cache')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "train.int32: must be writable; got File too large" in done.stderr, done.stderr


def test_cache_is_mapped_and_reused(tmp_path):
    write(tmp_path)
    _, first = cached(tmp_path)
    _, second = cached(tmp_path)
    assert (first.st_ino, first.st_mtime_ns) == (second.st_ino, second.st_mtime_ns)


def test_cache_is_rebuilt_for_a_changed_file_vocabulary_or_rule(tmp_path):
    write(tmp_path)
    _, first = cached(tmp_path)
    write(tmp_path, train="a b c d e\n")
    changed, second = cached(tmp_path)
    assert changed["train"].tolist() == [2, 3, 4, 5, 6, 1]
    assert second.st_ino != first.st_ino or second.st_mtime_ns != first.st_mtime_ns
    other = Corpus(find_splits(tmp_path), Vocabulary([UNK, EOS, "e"]))
    other.cache(tmp_path / "tokens")
    assert other["train"].tolist() == [0, 0, 0, 0, 2, 1]
    write(tmp_path)
    assert len(cached(tmp_path)[0]["train"]) == 8
    assert len(cached(tmp_path, empty_lines="eos")[0]["train"]) == 9


def test_cache_notices_a_change_of_the_same_size(tmp_path):
    write(tmp_path)
    cached(tmp_path)
    (tmp_path / "valid.txt").write_text("c d\n")
    os.utime(tmp_path / "valid.txt", ns=(1, 1))
    assert cached(tmp_path)[0]["valid"].tolist() == [4, 0, 1]


@pytest.mark.parametrize("damage", ["index", "brackets", "missing", "truncated", "ids"])
def test_damaged_cache_is_rebuilt(tmp_path, damage):
    write(tmp_path)
    cached(tmp_path)
    index, array = tmp_path / "tokens" / "tokens.json", tmp_path / "tokens" / "train.int32"
    if damage == "index":
        index.write_text('{"files":')
    elif damage == "brackets":
        index.write_text("[" * 100_000)
    elif damage == "ids":
        array.write_bytes(array.read_bytes()[::-1])
    elif damage == "missing":
        array.unlink()
    else:
        array.write_bytes(array.read_bytes()[:8])
    cached(tmp_path)


def read_side_by_side(n, batch_size, sequence_length):
    """The windows of the stream 100, 101, … as two matrices over the whole epoch, and the number of predictions."""
    found = list(windows(np.arange(100, 100 + n), batch_size, sequence_length, first_input=1))
    assert len(found) == len(window_lengths(n, batch_size, sequence_length))
    assert all(w.inputs_TB.shape == w.targets_TB.shape and w.inputs_TB.dtype == np.int64 for w in found)
    assert all(len(w.inputs_TB) == sequence_length for w in found[:-1])
    assert 1 <= len(found[-1].inputs_TB) <= sequence_length
    assert all(w.count == (w.targets_TB != PAD_TARGET).sum() for w in found)
    return (
        np.concatenate([w.inputs_TB for w in found]),
        np.concatenate([w.targets_TB for w in found]),
        sum(w.count for w in found),
    )


@given(n=st.integers(1, 60), batch_size=st.integers(1, 70), sequence_length=st.integers(1, 40))
def test_windows_predict_every_token_once_from_the_one_before(n, batch_size, sequence_length):
    inputs, targets, tokens = read_side_by_side(n, batch_size, sequence_length)
    stream = list(range(100, 100 + n))
    stretch = -(-n // batch_size)
    for b in range(batch_size):
        own = stream[b * stretch : (b + 1) * stretch]
        assert targets[:, b].tolist() == own + [PAD_TARGET] * (stretch - len(own))
        before = [1 if token == 100 else token - 1 for token in own]
        assert inputs[: len(own), b].tolist() == before
        assert (inputs[len(own) :, b] == 1).all()
    assert tokens == n
    assert sorted(targets[targets != PAD_TARGET].tolist()) == stream


def test_windows_by_hand():
    first, second = windows(np.array([5, 6, 7, 8, 9]), 2, 2, first_input=1)
    assert first.inputs_TB.tolist() == [[1, 7], [5, 8]]
    assert first.targets_TB.tolist() == [[5, 8], [6, 9]]
    assert second.inputs_TB.tolist() == [[6, 1]]
    assert second.targets_TB.tolist() == [[7, PAD_TARGET]]
    assert (first.count, second.count) == (4, 1)


@pytest.mark.parametrize(("batch_size", "sequence_length", "name"), [(0, 5, "batch_size"), (5, 0, "sequence_length")])
def test_windows_refuse_sizes_that_are_not_positive(batch_size, sequence_length, name):
    with pytest.raises(ArgumentError, match=rf"training\.{name}: must be a positive integer; got 0"):
        list(windows(np.arange(3), batch_size, sequence_length, 1))


def test_windows_refuse_an_empty_stream():
    with pytest.raises(DataError, match=r"at least one token; got 0"):
        list(windows(np.arange(0), 1, 1, 1))


def test_a_cache_of_an_earlier_rule_for_lines_is_written_again(tmp_path, monkeypatch):
    write(tmp_path, train="ab\n\u200b\nba\n")
    vocabulary = Corpus(find_splits(tmp_path), tokenize="characters", min_count=1).vocabulary
    with monkeypatch.context() as patched:  # as before: every line that is not empty was a sentence
        patched.setattr("gatedrnn.data.corpus.character_words", lambda line: [line])
        patched.setattr(
            Corpus,
            "_fingerprint",
            lambda self, whole=Corpus._fingerprint: {k: v for k, v in whole(self).items() if k != "lines"},
        )
        before = Corpus(find_splits(tmp_path), vocabulary)
        before.cache(tmp_path / "tokens")
        assert int((before["train"] == 1).sum()) == 3
    now = Corpus(find_splits(tmp_path), vocabulary)
    now.cache(tmp_path / "tokens")
    assert int((now["train"] == 1).sum()) == 2 == now.lines["train"]


def test_a_line_of_invisible_characters_is_no_sentence(tmp_path):
    (tmp_path / "train.txt").write_text("老人\n\u200b\n\n看\u200b报\n")
    corpus = Corpus({"train": tmp_path / "train.txt"}, tokenize="characters", min_count=1)
    eos = corpus.vocabulary.ids[EOS]
    assert (corpus.lines["train"], int((corpus["train"] == eos).sum()), corpus.vocabulary.counts[eos]) == (2, 2, 2)
    (tmp_path / "none.txt").write_text("\u200b\n")
    with pytest.raises(DataError, match="must hold at least one sentence"):
        Corpus({"test": tmp_path / "none.txt"}, corpus.vocabulary)
    plain = Corpus({"train": tmp_path / "train.txt"}, min_count=1)
    assert plain.lines["train"] == 3  # between white space it is a word


def test_a_line_of_which_a_given_tokenizer_makes_nothing_is_no_sentence(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    given = tokenizers.Tokenizer(tokenizers.models.BPE({letter: k for k, letter in enumerate("thedog")}, []))
    given.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    given.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "train.txt").write_text("the\n中文\n!!\ndog\n")
    corpus = Corpus({"train": tmp_path / "train.txt"}, level="subword", tokenizer=str(tmp_path / "tokenizer.json"))
    assert corpus.lines["train"] == 2 == int((corpus["train"] == 1).sum())


def test_a_cache_of_a_vocabulary_of_the_same_size_is_not_taken_for_another_s(tmp_path):
    write(tmp_path, train="a b c d e\n")
    for words, ids in (("ab", [2, 3, 0, 0, 0, 1]), ("ba", [3, 2, 0, 0, 0, 1]), ("de", [0, 0, 0, 2, 3, 1])):
        corpus = Corpus(find_splits(tmp_path), Vocabulary([UNK, EOS, *words]))
        corpus.cache(tmp_path / "tokens")
        assert corpus["train"].tolist() == ids


def test_a_cache_that_is_written_again_leaves_what_is_mapped(tmp_path):
    write(tmp_path, train="a b c d e\n")
    first, second = (Corpus(find_splits(tmp_path), Vocabulary([UNK, EOS, word])) for word in "ab")
    first.cache(tmp_path / "tokens")
    mapped, before = first["train"], first["train"].tolist()
    second.cache(tmp_path / "tokens")
    assert mapped.tolist() == before != second["train"].tolist()
