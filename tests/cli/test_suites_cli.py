"""`eval-syntax --suite` through `main`: the numbers of `surprisal` and of `eval-syntax --pairs`."""

import csv
import json

import pytest
from terminal import fails, record, records, works

from gatedrnn.data import agreement_pairs


def item(number, **sentences):
    conditions = [
        {
            "condition_name": name,
            "regions": [{"region_number": k, "content": text} for k, text in enumerate(texts, 1)],
        }
        for name, texts in sentences.items()
    ]
    return {"item_number": number, "conditions": conditions}


def write(path, items, *formulae, name="suite", metric="sum"):
    predictions = [{"type": "formula", "formula": formula} for formula in formulae]
    suite = {"meta": {"name": name, "metric": metric}, "predictions": predictions, "items": items}
    path.write_text(json.dumps(suite | {"region_meta": {"1": "first", "2": "second", "3": "third"}}))
    return path


def regions_of(folder):
    with (folder / "regions.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_suite_of_whole_sentences_judges_as_pairs_do(levels, tmp_path):
    pairs = list(agreement_pairs("simple", 30, 1))
    lines = [json.dumps({"good": " ".join(pair.good), "bad": " ".join(pair.bad)}) for pair in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    items = [item(k, good=[" ".join(p.good)], bad=[" ".join(p.bad)]) for k, p in enumerate(pairs, 1)]
    suite = write(tmp_path / "a.json", items, "(*;%good%) < (*;%bad%)")
    for run in ("run", "lstm", "char", "subword"):
        wanted = record("eval-syntax", levels / run, "--pairs", tmp_path / "pairs.jsonl")["macro_accuracy"]
        found = record("eval-syntax", levels / run, "--suite", suite)
        assert found["suites"]["suite"]["accuracy"] == found["macro_accuracy"] == pytest.approx(wanted)
        assert list(found) == ["suites", "macro_accuracy", "mapping", "unknown"] and 0 < wanted < 1


@pytest.mark.parametrize("level", ["run", "char", "subword"])
def test_regions_have_the_surprisals_of_the_command(levels, tmp_path, level):
    texts = ["the old pilot", "", "laughs"]
    suite = write(tmp_path / "a.json", [item(4, a=texts)], "(1;%a%) > 0")
    works("eval-syntax", levels / level, "--suite", suite, "--out", tmp_path / "out")
    (tmp_path / "a.txt").write_text("the old pilot laughs\n")
    (found,) = records("surprisal", levels / level, tmp_path / "a.txt")
    bits = found["surprisal_bits"]
    rows = regions_of(tmp_path / "out")
    assert [float(row["metric_value"]) for row in rows] == pytest.approx([sum(bits[:3]), 0, sum(bits[3:])], abs=2e-6)
    assert [row["content"] for row in rows] == texts and {row["item_number"] for row in rows} == {"4"}
    assert [row["region_name"] for row in rows] == ["first", "second", "third"]
    assert json.loads((tmp_path / "out" / "results.json").read_text())["suites"]["suite"]["accuracy"] == 1


def test_punctuation_and_clitics_stay_in_their_region(work, tmp_path):
    vocabulary = json.loads((work / "run" / "vocabulary.json").read_text())["words"]
    assert "laughs" in vocabulary and "," not in vocabulary
    texts = ['The "old" pilot,', "laughs", "!"]
    suite = write(tmp_path / "a.json", [item(1, a=texts)], "(3;%a%) > 0", metric="mean")
    found = record("eval-syntax", work / "run", "--suite", suite, "--out", tmp_path / "out")
    (tmp_path / "a.txt").write_text("the old pilot laughs\n")
    (wanted,) = records("surprisal", work / "run", tmp_path / "a.txt")
    bits = wanted["surprisal_bits"]
    rows = [float(row["metric_value"]) for row in regions_of(tmp_path / "out")]
    assert rows == pytest.approx([sum(bits[:3]) / 3, bits[3], bits[4]], abs=2e-6)  # the end is the last region's
    assert found["suites"]["suite"]["skipped"] == 0


def test_unknown_words_are_skipped_and_counted_or_judged(work, tmp_path):
    items = [item(1, a=["the pilot"], b=["the zebra"]), item(2, a=["the pilot"], b=["the pilots"])]
    suite = write(tmp_path / "a.json", items, "(1;%a%) > 0", "(1;%a%) = (1;%b%)")
    found = record("eval-syntax", work / "run", "--suite", suite)["suites"]["suite"]
    assert [one["skipped"] for one in found["predictions"]] == [0, 1]
    assert (found["items"], found["reasons"]) == (1, {"unknown word": 1})
    found = record("eval-syntax", work / "run", "--suite", suite, "--unknown", "unk")["suites"]["suite"]
    assert (found["items"], found["skipped"]) == (2, 0)


def test_several_suites_and_runs_side_by_side(work, tmp_path):
    one = write(tmp_path / "a.json", [item(1, a=["the pilot"])], "(1;%a%) > 0", name="[/x] one")
    two = write(tmp_path / "b.json", [item(1, a=["the pilot"])], "(1;%a%) < 0", "(1;%a%) > 0", name="two")
    given = [work / "run", work / "lstm", "--suite", one, "--suite", two]
    found = record("eval-syntax", *given, "--out", tmp_path / "out")
    assert found["unknown"] == "skip" and len(found["runs"]) == 2
    for each in found["runs"].values():
        assert [suite["accuracy"] for suite in each["suites"].values()] == [1, 0] and each["macro_accuracy"] == 0.5
    assert [p["accuracy"] for p in each["suites"]["two"]["predictions"]] == [0, 1]
    assert len(regions_of(tmp_path / "out")) == 4
    table = works("eval-syntax", *given)
    assert "[/x] one" in table and "(1;%a%) < 0" in table and "mean of the suites" in table
    again = write(tmp_path / "c.json", [item(1, a=["the pilot"])], "(1;%a%) > 0", name="two")
    assert "got two twice" in fails("eval-syntax", *given, "--suite", again)


def test_what_cannot_be_is_refused_in_one_line(work, tmp_path):
    suite = write(tmp_path / "a.json", [item(1, a=["the pilot"])], "(1;%b%) > 0")
    assert "item 1: must have the condition of (1;%b%)" in fails("eval-syntax", work / "run", "--suite", suite)
    for given, told in (
        ([], "got neither. Give --pairs FILE, or --suite FILE"),
        (["--suite", suite, "--pairs", "grammar"], "got both"),
        (["--suite", suite, "--append", "."], "--append: works only with --pairs"),
        (["--suite", suite, "--method", "prefix"], "--method: works only with --pairs"),
        (["--suite", tmp_path / "none.json"], "must be a readable file"),
    ):
        assert told in fails("eval-syntax", work / "run", *given)
