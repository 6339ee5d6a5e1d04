"""`surprisal` through `main`, on tiny runs of words, characters and subwords."""

import io
import math
import sys

import pytest
import torch
from terminal import by_steps, call, copy_of, fails, record, records, works

from gatedrnn.studies.parsing import GATES, align_lines, parse_sentences, surprisal_records
from gatedrnn.training.run import load_run

SENTENCES = "the pilot laughs\n\nMary thinks that the zebra sleeps\nyes\n"
SPACED = "  the old  pilot laughs \n\n \t\nMary sleeps\n日本 runs\tthe\n"
COLUMNS = ["sentence", "word_index", "word", "token", "surprisal_bits", "distance", "known"]


@pytest.fixture
def sentences(tmp_path):
    (tmp_path / "a.txt").write_text(SENTENCES)
    return tmp_path / "a.txt"


def rows_of(*arguments):
    """Rows of the table, as dictionaries."""
    header, *rows = [line.split("\t") for line in works("surprisal", *arguments).splitlines()]
    assert header == COLUMNS
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


@pytest.mark.parametrize("source", ["file", "-", "default"])
def test_surprisal_gives_a_row_a_word(work, sentences, monkeypatch, source):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SENTENCES.encode())))
    where = {"file": [sentences], "-": ["-"], "default": []}[source]
    code, out, err = call("surprisal", work / "run", *where)
    told = "gatedrnn: 2 of 10 words are unknown, looked up as written; --mapping number tries lower case and N for numbers too"
    assert (code, err.splitlines()) == (0, ["gatedrnn: state reset at each sentence", told])
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert header == COLUMNS
    texts = [[*line.split(), "<eos>"] for line in SENTENCES.splitlines() if line]
    places = [(str(s), str(p), word) for s, text in enumerate(texts, 1) for p, word in enumerate(text, 1)]
    assert [(s, p, word) for s, p, word, *_ in rows] == places
    unknown = {"zebra", "yes"}
    assert [(token, known) for _, _, _, token, *_, known in rows] == [
        ("<unk>", "0") if word in unknown else (word, "1") for *_, word in places
    ]
    assert all(float(bits) > 0 for *_, bits, _, _ in rows)
    assert [distance == "" for *_, distance, _ in rows] == [word == "<eos>" for *_, word in places]


def test_what_follows_two_dashes_is_a_file_whatever_its_name(work, sentences, monkeypatch):
    monkeypatch.chdir(sentences.parent)
    expected = works("surprisal", work / "run", sentences, "--tokens")
    sentences.rename(sentences.with_name("--tokens"))
    assert works("surprisal", work / "run", "--tokens", "--", "--tokens") == expected
    assert works("surprisal", "--tokens", "--", work / "run", "--tokens") == expected
    sentences.with_name("--tokens").rename("--import=x.py")
    assert works("surprisal", "--tokens", "--", work / "run", "--import=x.py") == expected


@pytest.mark.parametrize(("carried", "state"), [([], "reset"), (["--carried"], "carried")])
def test_surprisal_adds_up_to_evaluate(work, carried, state):
    found = records("surprisal", work / "run", work / "text" / "test.txt", *carried)
    keys = ["words", "surprisal_bits", "unknown", "word_index", "tokens", "distances", "state"]
    assert all(list(r) == keys and len({len(r[key]) for key in keys[:-1]}) == 1 for r in found)
    assert {r["state"] for r in found} == {state}
    assert all(r["words"][-1] == "<eos>" and r["unknown"][-1] is False and r["distances"][-1] is None for r in found)
    reset = [] if carried else ["--reset"]
    evaluation = record("evaluate", work / "run", "--data", work / "text" / "test.txt", *reset)
    bits = sum(sum(r["surprisal_bits"]) for r in found)
    assert bits == pytest.approx(evaluation["tokens"] * evaluation["loss_nats"] / math.log(2), rel=1e-5)
    table = rows_of(work / "run", work / "text" / "test.txt", *carried)
    assert sum(float(row["surprisal_bits"]) for row in table) == pytest.approx(bits, rel=1e-5)


@pytest.mark.parametrize("options", [[], ["--tokens"]])
@pytest.mark.parametrize("level", ["char", "subword"])
def test_words_and_tokens_of_other_levels_add_up_to_evaluate(levels, tmp_path, level, options):
    (tmp_path / "a.txt").write_text(SPACED)
    found = records("surprisal", levels / level, tmp_path / "a.txt", *options)
    bits = sum(sum(one["surprisal_bits"]) for one in found)
    evaluation = record("evaluate", levels / level, "--data", tmp_path / "a.txt", "--reset")
    assert bits == pytest.approx(evaluation["tokens"] * evaluation["loss_nats"] / math.log(2), rel=1e-5)
    count = sum(len(tokens) for one in found for tokens in one["tokens"])
    assert count == evaluation["tokens"]
    assert not options or sum(len(one["words"]) for one in found) == count
    if not options:
        assert [one["words"] for one in found] == [
            [*line.split(), "<eos>"] for line in SPACED.splitlines() if line.split()
        ]
        unknown = level == "char"  # a byte is never unknown
        assert found[2]["unknown"] == [unknown, False, unknown, False]


@pytest.mark.parametrize("level", ["char", "subword"])
def test_a_word_has_the_bits_of_its_tokens_and_the_distance_of_the_first(levels, tmp_path, level):
    words = ["the", "old", "pilot", "laughs"]
    (tmp_path / "a.txt").write_text(" ".join(words) + "\n")
    run = load_run(levels / level)
    tokens = run.vocabulary.tokens(" ".join(words))
    ids = [*run.vocabulary.encode(tokens), 1]
    bits = [-log_p / math.log(2) for log_p in by_steps(run, ids)]
    with torch.no_grad():
        traces = run.model.eval()(torch.tensor([1, *ids[:-1]])[:, None], return_gates=True).gates
    means = [1 - trace["master_forget"][1:, 0].double().mean(-1) for trace in traces]
    firsts = [len(run.vocabulary.tokens(" ".join(words[:k]))) for k in range(4)] + [len(tokens)]
    for options, distances in ((["--layer", 1], means[0]), ([], means[1]), (["--layer", "mean"], sum(means) / 2)):
        *rows, end = rows_of(levels / level, tmp_path / "a.txt", *options)
        for row, word, first, last in zip(rows, words, firsts, firsts[1:], strict=False):
            shown = " ".join(run.vocabulary.readable(tokens[first:last]))
            assert (row["word"], row["token"], row["known"]) == (word, shown, "1")
            assert float(row["surprisal_bits"]) == pytest.approx(sum(bits[first:last]), abs=2e-5)
            assert float(row["distance"]) == pytest.approx(float(distances[first]), abs=2e-6)
        assert (len(rows), end["word"], end["token"], end["distance"]) == (4, "<eos>", "<eos>", "")
        *rows, _ = rows_of(levels / level, tmp_path / "a.txt", "--tokens", *options)
        assert [row["token"] for row in rows] == run.vocabulary.readable(tokens)
        owners = [
            word for word, first, last in zip(words, firsts, firsts[1:], strict=False) for _ in range(first, last)
        ]
        assert [row["word"] for row in rows] == owners
        assert [float(row["surprisal_bits"]) for row in rows] == pytest.approx(bits[:-1], abs=2e-5)
        assert [float(row["distance"]) for row in rows] == pytest.approx(distances.tolist(), abs=2e-6)


def test_distances_of_words_are_those_of_their_trees(work, sentences):
    for layer in (1, "mean"):
        parsed = records("parse", work / "run", sentences, "--layer", layer, "--mapping", "exact")
        found = records("surprisal", work / "run", sentences, "--layer", layer)
        parsed = [one for one in parsed if one["words"]]  # an empty line has an empty tree, and no surprisal
        assert [one["distances"][:-1] for one in found] == [pytest.approx(one["distances"]) for one in parsed]


def test_a_cell_without_master_gates_has_no_distances(work, sentences):
    assert {row["distance"] for row in rows_of(work / "lstm", sentences)} == {""}
    assert {d for one in records("surprisal", work / "lstm", sentences) for d in one["distances"]} == {None}
    line = fails("surprisal", work / "lstm", sentences, "--layer", 1)
    assert "surprisal --layer: needs a cell with master gates; got cell 'lstm'" in line
    assert "got 'two'" in fails("surprisal", work / "run", sentences, "--layer", "two")
    assert "got 3" in fails("surprisal", work / "run", sentences, "--layer", 3)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ([], "the <unk> <unk> laughs"),
        (["--mapping", "exact"], "the <unk> <unk> laughs"),
        (["--mapping", "lower"], "the pilot <unk> laughs"),
        (["--mapping", "number"], "the pilot N laughs"),
    ],
)
def test_words_are_looked_up_as_written_unless_told_otherwise(work, tmp_path, options, seen):
    run = copy_of(work / "run", tmp_path / "run")
    (run / "vocabulary.json").write_text((run / "vocabulary.json").read_text().replace('"nurse"', '"N"'))
    for name, text in (("a.txt", "the PILOT 4711 laughs\n"), ("seen.txt", seen)):
        (tmp_path / name).write_text(text)
    (found,) = records("surprisal", run, tmp_path / "a.txt", *options)
    (wanted,) = records("surprisal", run, tmp_path / "seen.txt", "--mapping", "exact")
    assert found["words"] == ["the", "PILOT", "4711", "laughs", "<eos>"]
    assert found | {"words": None} == wanted | {"words": None}
    assert found["unknown"] == [word == "<unk>" for word in [*seen.split(), "<eos>"]]


def test_surprisal_counts_empty_lines_as_evaluate_does(work, sentences, tmp_path):
    run = copy_of(work / "run", tmp_path / "run", empty_lines="eos")
    found = records("surprisal", run, sentences)
    assert [len(r["words"]) for r in found] == [4, 1, 7, 2]
    evaluation = record("evaluate", run, "--data", sentences, "--reset")
    bits = sum(sum(r["surprisal_bits"]) for r in found)
    assert evaluation["tokens"] == 14 and bits == pytest.approx(14 * evaluation["loss_nats"] / math.log(2), rel=1e-5)


def test_surprisal_numbers_sentences_on_over_batches(work, tmp_path):
    (tmp_path / "long.txt").write_text("the pilot laughs\n" * 1100 + "the guards sleep " * 200 + "\n")
    rows = rows_of(work / "run", tmp_path / "long.txt")
    assert len(rows) == 4 * 1100 + 601 and (rows[-1]["sentence"], rows[-1]["word_index"]) == ("1101", "601")
    each = {(row["word"], row["surprisal_bits"], row["distance"]) for row in rows[: 4 * 1100]}
    assert len(each) == 4


def test_surprisal_of_nothing_is_one_line(work, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    assert "must hold at least one sentence" in fails("surprisal", work / "run", tmp_path / "empty.txt")
    assert "must be a readable file" in fails("surprisal", work / "run", tmp_path / "none.txt", "--json")
    assert "must be a run's folder" in fails("surprisal", tmp_path / "none", tmp_path / "empty.txt")


def test_distances_beside_surprisals_are_by_the_named_gate(work):
    run, text = load_run(work / "run"), "the old pilot laughs"
    for gate in GATES:
        (record,) = surprisal_records(run.model, run.vocabulary, align_lines(run.vocabulary, [text]), gate=gate)
        (parse,) = parse_sentences(run.model, run.vocabulary, [text.split()], gate=gate)
        assert list(record["distances"]) == [*parse.distances, None]
