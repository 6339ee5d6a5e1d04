"""CoNLL-U in and out of `surprisal` and `parse`: the same numbers, valid rows, everything else as it was."""

import gzip
import io
import re
import sys

import conllu
import pytest
from terminal import call, fails, records, works
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from gatedrnn.cli.commands import parse, surprisal
from gatedrnn.core.errors import DataError
from gatedrnn.data import Vocabulary, align, align_words, plain_lines, read_conllu

TEXT = "the pilot laughs\n\nMary thinks that the zebra sleeps\n"
FILE = """# newdoc id = a
# text = Am Morgen don't laughs.
# sent_id = s-1
# eos_surprisal = 99
1-2	Am	_	_	_	_	_	_	_	_
1	An	an	ADP	_	_	3	case	_	Surprisal=of a part
2	dem	der	DET	_	_	3	det	_	_
3	the	Morgen	NOUN	_	Case=Dat	0	root	_	Gloss=morning|Surprisal=99|Distance=99
3.1	gone	go	VERB	_	_	_	_	3:dep	CopyOf=3
4-5	don't	_	_	_	_	_	_	_	_
4	do	do	AUX	_	_	3	aux	_	_
5	n't	not	PART	_	_	3	dep	_	_
6	laughs	laugh	VERB	_	_	3	dep	_	SpaceAfter=No
7	.	.	PUNCT	_	_	3	punct	_	_

# sent_id = s-2
1	old pilot	old	DET	_	_	0	root	_	_
"""
SURFACE = [["Am", "the", "don't", "laughs", "."], ["old pilot"]]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.conllu").write_text(FILE)
    return tmp_path


def parsed(text):
    """Sentences by the library, after what it forgives: ten columns, no empty cell, one blank line after each sentence."""
    assert text.endswith("\n\n") and "\n\n\n" not in text
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(len(row.split("\t")) == 10 and all(row.split("\t")) for row in rows)
    return conllu.parse(text)


def of_surface(sentence):
    """Surface tokens, by their IDs alone."""
    ranges = [token["id"] for token in sentence if isinstance(token["id"], tuple) and token["id"][1] == "-"]
    inside = {k for first, _, last in ranges for k in range(first, last + 1)}
    return [
        token
        for token in sentence
        if token["id"] in ranges or (isinstance(token["id"], int) and token["id"] not in inside)
    ]


def test_a_text_becomes_conllu_with_the_numbers_of_the_commands(work, files):
    told, trees = (
        parsed(works(command, work / "run", files / "a.txt", "--conllu")) for command in ("surprisal", "parse")
    )
    lines = [line for line in TEXT.splitlines() if line]
    assert [s.metadata["text"] for s in told] == [s.metadata["text"] for s in trees] == lines
    assert [s.metadata["sent_id"] for s in told] == [s.metadata["sent_id"] for s in trees] == ["1", "2"]
    assert [[t["form"] for t in s] for s in told] == [line.split() for line in lines]
    for sentence, found in zip(told, records("surprisal", work / "run", files / "a.txt"), strict=True):
        bits = [*(float(t["misc"]["Surprisal"]) for t in sentence), float(sentence.metadata["eos_surprisal"])]
        assert bits == pytest.approx(found["surprisal_bits"], abs=1e-6)
        assert [float(t["misc"]["Distance"]) for t in sentence] == pytest.approx(found["distances"][:-1], abs=1e-6)
        assert [t["misc"].get("Unknown") == "Yes" for t in sentence] == found["unknown"][:-1]
    found = [one for one in records("parse", work / "run", files / "a.txt") if one["words"]]
    assert [s.metadata["parse"] for s in trees] == [one["tree"] for one in found]
    for sentence, one in zip(trees, found, strict=True):
        assert [float(t["misc"]["Distance"]) for t in sentence] == pytest.approx(one["distances"], abs=1e-6)


@pytest.mark.parametrize("command", ["surprisal", "parse"])
@pytest.mark.parametrize(
    ("tokenize", "line", "forms"),
    [
        ("penn", 'The pilot  said: "don\'t (sleep)."', "The pilot said : `` do n't ( sleep ) . ''"),
        ("characters", "der Pilot\u200b schläft.", "der Pilot schläft ."),
        ("none", "the pilot's dog", "the pilot's dog"),
    ],
)
def test_the_sentence_of_a_text_stays_as_it_is_written(tmp_path, command, tokenize, line, forms):
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "text" / name).write_text(f"{line}\nthe pilot sleeps\n" * 20)
    settings = [
        "--data.tokenize",
        tokenize,
        "--data.min_count",
        "1",
        "--model.hidden_sizes",
        "[8]",
        "--training.epochs",
        "1",
    ]
    settings += ["--model.embedding_size", "8", "--model.options.chunk_size", "1", "--training.sequence_length", "5"]
    works("train", "--data", tmp_path / "text", *settings, "--out", tmp_path / "run")
    (tmp_path / "a.txt").write_text(f"\n{line}\n")
    (sentence,) = parsed(works(command, tmp_path / "run", tmp_path / "a.txt", "--conllu"))
    assert sentence.metadata["text"] == " ".join(line.split())
    written = "".join(
        token["form"] + ("" if (token["misc"] or {}).get("SpaceAfter") == "No" else " ") for token in sentence
    )
    assert written.replace(" ", "") == forms.replace(" ", "")
    expected = "The pilot said: ``don't (sleep).''" if tokenize == "penn" else line.replace("\u200b", "")
    assert written.split() == expected.split()


@pytest.mark.parametrize("ending", ["conllu", "conllu.gz"])
def test_conllu_keeps_all_but_what_it_adds_to_surface_tokens(work, files, ending):
    path = files / "b.conllu"
    if ending.endswith("gz"):
        path = files / "b.conllu.gz"
        path.write_bytes(gzip.compress(FILE.encode()))
    text = works("surprisal", work / "run", path, "--conllu")
    before, after = parsed(FILE + "\n"), parsed(text)
    assert [[t["form"] for t in of_surface(s)] for s in after] == SURFACE
    found = records("surprisal", work / "run", path)
    assert [one["words"][:-1] for one in found] == SURFACE
    for sentence, one in zip(after, found, strict=True):
        bits = [float(t["misc"].pop("Surprisal")) for t in of_surface(sentence)]
        far = [float(t["misc"].pop("Distance")) for t in of_surface(sentence)]
        unknown = [t["misc"].pop("Unknown", None) == "Yes" for t in of_surface(sentence)]
        assert float(sentence.metadata.pop("eos_surprisal")) == pytest.approx(one["surprisal_bits"][-1], abs=1e-6)
        assert bits == pytest.approx(one["surprisal_bits"][:-1], abs=1e-6) and unknown == one["unknown"][:-1]
        assert far == pytest.approx(one["distances"][:-1], abs=1e-6)
    for sentence in before:
        sentence.metadata.pop("eos_surprisal", None)
    for name in ("Surprisal", "Distance"):
        next(t for t in before[0] if t["form"] == "the")["misc"].pop(name)
    assert [s.metadata for s in after] == [s.metadata for s in before]
    plain = lambda s: [{**t, "misc": t["misc"] or None} for t in s]  # noqa: E731
    assert [plain(s) for s in after] == [plain(s) for s in before]
    again = files / "c.conllu"
    again.write_text(text)
    assert works("surprisal", work / "run", again, "--conllu") == text


def test_surprisal_of_conllu_is_that_of_its_tokens_as_text(work, files):
    (files / "b.txt").write_text("Am the don't laughs .\n")
    one, *_ = records("surprisal", work / "run", files / "b.conllu")
    (other,) = records("surprisal", work / "run", files / "b.txt")
    assert one == other
    tree, *_ = records("parse", work / "run", files / "b.conllu")
    (other,) = records("parse", work / "run", files / "b.txt")
    assert tree == other


@pytest.mark.parametrize("level", ["char", "subword"])
def test_other_levels_read_the_text_with_its_spaces(levels, files, level):
    (files / "b.txt").write_text("Am the don't laughs.\n")
    one, *_ = records("surprisal", levels / level, files / "b.conllu")
    (other,) = records("surprisal", levels / level, files / "b.txt")
    assert one["words"] == (*SURFACE[0], "<eos>") or one["words"] == [*SURFACE[0], "<eos>"]
    bits = one["surprisal_bits"]
    assert [*bits[:3], bits[3] + bits[4], bits[5]] == pytest.approx(other["surprisal_bits"], abs=1e-6)
    parsed(works("surprisal", levels / level, files / "b.conllu", "--conllu"))


def test_a_line_that_a_tokenizer_makes_nothing_of_moves_no_number(work, files):
    tokenizer = Tokenizer(models.WordLevel({"the": 0, "pilot": 1, "laughs": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizers.Whitespace(), normalizers.BertNormalizer()
    tokenizer.save(str(files / "tokenizer.json"))
    small = ["--model.embedding_size", 8, "--model.hidden_sizes", "[8]", "--training.epochs", 1]
    level = ["--data.level", "subword", "--data.tokenizer", files / "tokenizer.json"]
    works(
        "train", "--data", work / "text", *level, *small, "--model.options", "{chunk_size: 2}", "--out", files / "run"
    )
    (files / "b.txt").write_text("the pilot\nlaughs the pilot\n")
    (files / "c.txt").write_text("\u200b\nthe pilot\n\u200b\nlaughs the pilot\n")
    expected = works("surprisal", files / "run", files / "b.txt", "--conllu")
    assert works("surprisal", files / "run", files / "c.txt", "--conllu") == expected and "\tlaughs\t" in expected


def test_without_master_gates_there_is_no_distance(work, files):
    for sentence in parsed(works("surprisal", work / "lstm", files / "b.conllu", "--conllu")):
        assert not any("Distance" in (t["misc"] or {}) for t in of_surface(sentence))


ROW = "1\tthe\t_\t_\t_\t_\t_\t_\t_\t_"
WRONG = {
    "columns": ("1\tthe\n", 1, "must have 10 columns"),
    "an empty cell": (ROW.replace("\t_\t", "\t\t", 1) + "\n", 1, "must have 10 columns"),
    "spaces for tabs": (ROW.replace("\t", " ") + "\n", 1, "must have 10 columns"),
    "no number": ("# c\n" + ROW.replace("1", "x", 1) + "\n", 2, "IDs must be consecutive; the next one is 1; got 'x'"),
    "a long number": ("9" * 5000 + ROW[1:] + "\n", 1, "IDs must be consecutive; the next one is 1; got '999"),
    "a number twice": (f"{ROW}\n{ROW}\n", 2, "the next one is 2; got '1'"),
    "a range that overlaps": (f"1-2{ROW[1:]}\n{ROW}\n2-3{ROW[1:]}\n2{ROW[1:]}\n", 3, "got '2-3'"),
    "a range backwards": (f"1-0{ROW[1:]}\n", 1, "got '1-0'"),
    "a range without its words": (f"1-3{ROW[1:]}\n{ROW}\n\n", 2, "must hold all words that its IDs announce"),
    "comments alone": ("# a\n\n", 1, "must hold all words that its IDs announce"),
    "a comment too late": (f"{ROW}\n# a\n", 2, "a comment must come before"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_malformed_file_is_one_line_with_its_place(work, tmp_path, name):
    text, line, told = WRONG[name]
    (tmp_path / "a.conllu").write_text(text)
    message = fails("surprisal", work / "run", tmp_path / "a.conllu", "--conllu")
    assert f"a.conllu:{line}: " in message and told in message
    with pytest.raises(DataError, match=re.escape(told)):
        list(read_conllu(tmp_path / "a.conllu"))


def test_what_cannot_be_is_refused(work, files):
    assert "--conllu: cannot be combined with --json" in fails(
        "parse", work / "run", files / "a.txt", "--conllu", "--json"
    )
    assert "cannot be combined with --tokens" in fails(
        "surprisal", work / "run", files / "a.txt", "--conllu", "--tokens"
    )
    (files / "none.conllu").write_text("\n\n")
    for command in ("parse", "surprisal"):
        assert "at least one sentence" in fails(command, work / "run", files / "none.conllu", "--conllu")


def test_given_words_are_aligned_as_a_line_is_where_they_agree(levels):
    for name in ("run", "char", "subword"):
        vocabulary = Vocabulary.load(levels / name / "vocabulary.json")
        line = "the old pilot laughs"
        assert align_words(vocabulary, line.split(), [True] * 4) == align(vocabulary, line)
    assert align_words(vocabulary, ["", " ", "a"], [False] * 3).owners[0] in (1, 2)
    words = Vocabulary.load(levels / "run" / "vocabulary.json")
    assert align_words(words, ["the", "\n", "pilot"], [True] * 3).owners == [0, 2]
    assert align_words(words, [], []).ids == []


@pytest.mark.parametrize("command", ["surprisal", "parse"])
def test_conllu_without_its_name_is_refused(work, monkeypatch, command):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FILE.encode())))
    line = fails(command, work / "run", "-")
    assert "-:5: must be text, one sentence a line; got a row of CoNLL-U" in line
    assert "ends in .conllu" in line


def test_translate_reads_no_conllu(tmp_path):
    (tmp_path / "a.conllu").write_text(FILE)
    with pytest.raises(DataError, match=r"a\.conllu:5: must be text, one sentence a line; got a row of CoNLL-U"):
        list(plain_lines(str(tmp_path / "a.conllu")))
    assert "CoNLL-U" not in call("translate", "--help")[1] and "CoNLL-U" in call("surprisal", "--help")[1]


def test_trees_of_conllu_need_no_conllu_as_output(work, files):
    trees = works("parse", work / "run", files / "b.conllu").splitlines()
    assert trees and all(trees)
    assert [each["tree"] for each in records("parse", work / "run", files / "b.conllu")] == trees


@pytest.mark.parametrize("command", [surprisal, parse])
def test_sentences_of_conllu_are_kept_for_conllu_alone(work, files, command):
    how = (
        {"run": str(work / "run"), "file": str(files / "b.conllu")}
        if command is surprisal
        else {"runs": (str(work / "run"), str(files / "b.conllu"))}
    )
    assert command.run(command.Options(**how)).more is None
    assert command.run(command.Options(**how, conllu=True)).more is not None


def test_space_after_is_one_of_the_attributes_of_misc(tmp_path):
    misc = [
        "SpaceAfter=No",
        "Gloss=a|SpaceAfter=No",
        "SpaceAfter=No|Gloss=a",
        "SpaceAfter=Now",
        "Gloss=SpaceAfter=No",
        "_",
    ]
    rows = [f"{k}\tw{k}" + "\t_" * 7 + f"\t{each}\n" for k, each in enumerate(misc, 1)]
    (tmp_path / "a.conllu").write_text("".join(rows) + "\n")
    (sentence,) = read_conllu(tmp_path / "a.conllu")
    assert sentence.spaces == [False, False, False, True, True, True]
