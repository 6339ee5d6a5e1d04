"""Reading text, and the vocabulary built from it."""

import gzip
import json

import pytest

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import EOS, UNK, Vocabulary, read_batches, read_lines, read_sentences

PLAIN = "the cat sleeps\na dog\n"


@pytest.mark.parametrize(
    ("name", "raw", "lines"),
    [
        ("plain.txt", PLAIN.encode(), ["the cat sleeps", "a dog"]),
        ("packed.txt.gz", gzip.compress(PLAIN.encode(), mtime=0), ["the cat sleeps", "a dog"]),
        ("bom.txt", b"\xef\xbb\xbf" + PLAIN.encode(), ["the cat sleeps", "a dog"]),
        ("bom.txt.gz", gzip.compress(b"\xef\xbb\xbf" + PLAIN.encode(), mtime=0), ["the cat sleeps", "a dog"]),
        ("one.txt", b"a dog\r", ["a dog"]),
        ("crlf.txt", PLAIN.replace("\n", "\r\n").encode(), ["the cat sleeps", "a dog"]),
        ("unfinished.txt", PLAIN.rstrip().encode(), ["the cat sleeps", "a dog"]),
        ("gaps.txt", b"\nthe cat\n\n \na dog\n\n", ["", "the cat", "", " ", "a dog", ""]),
        ("accents.txt", "ein schöner Täg\n".encode(), ["ein schöner Täg"]),
        ("empty.txt", b"", []),
        ("empty.txt.gz", gzip.compress(b"", mtime=0), []),
    ],
)
def test_lines_are_numbered_from_one_and_carry_no_line_ending(tmp_path, name, raw, lines):
    (tmp_path / name).write_bytes(raw)
    assert list(read_lines(tmp_path / name)) == list(enumerate(lines, 1))
    assert [line for batch in read_batches(tmp_path / name) for line in batch] == lines


def test_sentences_skip_empty_lines_and_keep_the_line_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("\nthe  cat\tsleeps \n   \na dog")
    assert list(read_sentences(tmp_path / "a.txt")) == [(2, ["the", "cat", "sleeps"]), (4, ["a", "dog"])]


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("latin.txt", b"fine\nalso fine\ncaf\xe9 noir\n", r"latin\.txt:3: must be UTF-8.*0xe9 at column 4"),
        ("nul.txt", b"fine\nwo\x00rd\n", r"nul\.txt:2: must be text.*NUL"),
        ("utf16.txt", "ab\n".encode("utf-16"), r"utf16\.txt:1: must be"),
        (
            "old.txt",
            PLAIN.replace("\n", "\r").encode(),
            r"old\.txt: must be text in lines; got carriage returns and no line",
        ),
        ("plain.gz", b"not gzip at all", r"plain\.gz: must be a readable file.*[Nn]ot a gzip"),
    ],
)
def test_damaged_text_is_refused_with_its_place(tmp_path, name, raw, message):
    (tmp_path / name).write_bytes(raw)
    for read in (read_lines, read_batches):
        with pytest.raises(DataError, match=message):
            list(read(tmp_path / name))


def test_truncated_gzip_is_refused(tmp_path):
    packed = gzip.compress("\n".join(f"line {k * k}" for k in range(5000)).encode())
    (tmp_path / "cut.txt.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"cut\.txt\.gz: must be a readable file"):
        list(read_lines(tmp_path / "cut.txt.gz"))


def test_gzip_with_a_damaged_middle_is_refused(tmp_path):
    packed = bytearray(gzip.compress("\n".join(f"line {k * k}" for k in range(5000)).encode()))
    packed[len(packed) // 2 :] = bytes(len(packed) - len(packed) // 2)
    (tmp_path / "bad.txt.gz").write_bytes(packed)
    with pytest.raises(DataError, match=r"bad\.txt\.gz"):
        list(read_lines(tmp_path / "bad.txt.gz"))


def test_missing_file_and_folder_are_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: must be a readable file; got No such file"):
        list(read_lines(tmp_path / "none.txt"))
    with pytest.raises(DataError, match=r"must be a readable file; got Is a directory"):
        list(read_lines(tmp_path))


SENTENCES = [["b", "a", "a"], ["c", "b", "a"], ["d"]]


def test_vocabulary_is_ordered_by_count_then_alphabet():
    vocabulary = Vocabulary.build([["b", "a", "c"], ["c", "d", "b", "c"]], min_count=1)
    assert vocabulary.words == [UNK, EOS, "c", "b", "a", "d"]
    assert vocabulary.counts == [0, 2, 3, 2, 1, 1]
    assert vocabulary.encode(["d", "zebra", "c", "C"]) == [5, 0, 2, 0]
    assert vocabulary.decode([5, 0, 1]) == ["d", UNK, EOS]


@pytest.mark.parametrize(
    ("min_count", "words", "unknown"),
    [(1, ["a", "b", "c", "d"], 0), (2, ["a", "b"], 2), (3, ["a"], 4), (4, [], 7), (None, ["a", "b"], 2)],
)
def test_threshold_sends_rare_words_to_unknown(min_count, words, unknown):
    vocabulary = Vocabulary.build(SENTENCES, min_count)
    assert vocabulary.words[2:] == words
    assert vocabulary.counts[0] == unknown


def test_a_text_with_its_own_unknown_word_keeps_every_word():
    vocabulary = Vocabulary.build([*SENTENCES, [UNK, UNK]])
    assert vocabulary.words == [UNK, EOS, "a", "b", "c", "d"]
    assert vocabulary.counts == [2, 4, 3, 2, 1, 1]


def test_build_of_nothing_is_refused():
    with pytest.raises(DataError, match=r"at least one sentence; got 0"):
        Vocabulary.build([])


@pytest.mark.parametrize("words", [["a", "b"], [EOS, UNK], [UNK, EOS, "a", "a"], []])
def test_special_words_come_first_and_words_are_distinct(words):
    with pytest.raises(ArgumentError, match=r"Vocabulary\.words: must be distinct and start with <unk>, <eos>"):
        Vocabulary(words)


@pytest.mark.parametrize("index", [-1, 2])
def test_decode_refuses_ids_out_of_range(index):
    with pytest.raises(ArgumentError, match=rf"0…1; got {index}"):
        Vocabulary([UNK, EOS]).decode([0, index])


def test_vocabulary_survives_save_and_load(tmp_path):
    vocabulary = Vocabulary.build([["schön", "schön", '"quoted"'], ["日本", "(", ")"]], min_count=1)
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert (loaded.words, loaded.counts, loaded.ids) == (vocabulary.words, vocabulary.counts, vocabulary.ids)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1, 2]", "{}", '{"words": 5}', '{"words": ["a"]}', json.dumps({"words": [UNK, EOS, "a", "a"]}), "null"],
)
def test_damaged_vocabulary_is_refused(tmp_path, text):
    (tmp_path / "vocabulary.json").write_text(text)
    with pytest.raises(DataError, match=r"vocabulary\.json: is not a vocabulary"):
        Vocabulary.load(tmp_path / "vocabulary.json")


def test_missing_or_binary_vocabulary_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"must be a readable vocabulary; got No such file"):
        Vocabulary.load(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(DataError, match=r"is not a vocabulary"):
        Vocabulary.load(tmp_path / "binary.json")


@pytest.mark.parametrize(
    ("word", "found"),
    [("dog", "dog"), ("Dog", "dog"), ("Anna", "Anna"), ("ANNA", UNK), ("1,234", "N"), ("mid-1990s", "N"),
     ("42", "42"), ("zebra", UNK), ("N", "N"), ("n", "n")],
)  # fmt: skip
def test_foreign_words_try_lower_case_then_the_number_word(word, found):
    vocabulary = Vocabulary([UNK, EOS, "dog", "Anna", "N", "42", "n"])
    assert vocabulary.decode(vocabulary.encode_foreign([word])) == [found]


def test_foreign_numbers_are_unknown_without_a_number_word():
    assert Vocabulary([UNK, EOS, "dog"]).encode_foreign(["1990", "Dog"]) == [0, 2]


def test_penn_treebank_text_has_ten_thousand_words(shared_file):
    vocabulary = Vocabulary.build(words for _, words in read_sentences(shared_file("data/ptb-lm/train.txt")))
    assert len(vocabulary) == 10_000  # 9,999 of the text, its own <unk> among them, and <eos>
    assert sum(vocabulary.counts) == 929_589
    assert vocabulary.counts[1] == 42_068
    assert vocabulary.words[2:4] == ["the", "N"]
