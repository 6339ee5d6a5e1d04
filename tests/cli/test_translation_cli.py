"""`gatedrnn train --task translation`, `translate`, and what else works on such a run."""

import io
import json

import numpy as np
import pytest
from terminal import call, copy_of, fails, record, records, works

from gatedrnn.training.run import load_run, read_metrics
from gatedrnn.weights.compressed import compressed

SMALL = ["--model.embedding_size", "24", "--model.hidden_sizes", "[24]", "--model.decoder_sizes", "[24]", "--data.level", "word",
         "--training.device", "cpu", "--training.epochs", "1", "--training.batch_size", "16"]  # fmt: skip
TRAIN = ["train", "--task", "translation", *SMALL, "--data.source", "de", "--data.target", "en"]
LINES = "der kater\n\ndie eule und der kater\n  \ndie eule\n"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("parallel"), np.random.default_rng(1)
    words = {"der kater": "the cat", "die eule": "the owl", "und": "and"}
    for split, count in (("train", 90), ("valid", 30), ("test", 20)):
        rows = [draw.choice(list(words), draw.integers(1, 5)) for _ in range(count)]
        (folder / f"{split}.de").write_text("\n".join(" ".join(row) for row in rows) + "\n")
        (folder / f"{split}.en").write_text("\n".join(" ".join(words[w] for w in row) for row in rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    scores = record(*TRAIN, "--training.epochs", "15", "--training.learning_rate", "0.01", "--data", text, "--out", out)
    assert scores["best_valid_perplexity"] > 1 and scores["test_perplexity"] > 1
    return out


@pytest.fixture
def file(tmp_path):
    (tmp_path / "in.txt").write_text(LINES)
    return tmp_path / "in.txt"


def test_evaluate_prints_bleu_and_chrf_with_their_signatures(run, text):
    found = record("evaluate", run)
    names = {"sentences", "bleu", "bleu_signature", "chrf", "chrf_signature", "beam", "alpha"}
    assert set(found) == names and found["sentences"] == 20 and (found["beam"], found["alpha"]) == (5, 1)
    assert "tok:13a" in found["bleu_signature"]
    assert found == record("evaluate", run, "--data", text / "test") == record("evaluate", run, "--beam", "5")
    other = record("evaluate", run, "--beam", "2", "--alpha", "0", "--tokenize", "none")
    assert (other["beam"], other["alpha"]) == (2, 0) and "tok:none" in other["bleu_signature"]
    shown = works("evaluate", run)
    assert f"BLEU {found['bleu']:.2f}  chrF {found['chrf']:.2f}  20 sentences" in shown
    assert found["bleu_signature"] in shown and found["chrf_signature"] in shown


def test_evaluate_reads_a_table_of_pairs(run, text, tmp_path, monkeypatch):
    rows = zip((text / "test.de").read_text().splitlines(), (text / "test.en").read_text().splitlines(), strict=True)
    table = "".join(f"{source}\t{target}\n" for source, target in rows)
    (tmp_path / "pairs.tsv").write_text(table)
    expected = record("evaluate", run)
    assert record("evaluate", run, "--data", tmp_path / "pairs.tsv") == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(table.encode())))
    assert record("evaluate", run, "--data", "-") == expected


def test_as_many_lines_come_out_as_go_in(run, file, monkeypatch):
    lines = works("translate", run, file).splitlines()
    assert len(lines) == 5 and [bool(line) for line in lines] == [True, False, True, False, True]
    assert works("translate", run, file, "--batch-size", "1").splitlines() == lines
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINES.encode())))
    assert works("translate", run).splitlines() == lines


def test_scores_alignments_and_several_translations(run, file):
    plain = works("translate", run, file).splitlines()
    scored = [line.split("\t") for line in works("translate", run, file, "--scores", "--alignments").splitlines()]
    assert [line[1] if len(line) == 3 else line[0] for line in scored] == plain
    pairs = [tuple(map(int, pair.split("-"))) for pair in scored[2][2].split()]
    assert [target for _, target in pairs] == list(range(len(plain[2].split())))
    assert all(0 <= source <= 5 for source, _ in pairs) and float(scored[0][0]) < 0
    best = [line.split("\t") for line in works("translate", run, file, "--n-best", "3").splitlines()]
    assert [line[0] for line in best] == ["1"] * 3 + ["2"] + ["3"] * 3 + ["4"] + ["5"] * 3
    assert [best[0][1], best[4][1], best[8][1]] == [plain[0], plain[2], plain[4]] and best[3][1] == ""
    every = works("translate", run, file, "--n-best", "2", "--scores", "--alignments").splitlines()
    assert {line.count("\t") for line in every} == {3} and every[2] == "2\t\t\t"
    found = records("translate", run, file, "--n-best", "2", "--alpha", "0")
    assert [len(one["translations"]) for one in found] == [2, 0, 2, 0, 2] and found[0]["source"] == ["der", "kater"]
    assert all(one["score"] == one["log_probability"] for each in found for one in each["translations"])


def test_norwegian_is_a_language(text, tmp_path):
    options = ["--task", "translation", "--data.source", "no", "--data.target", "en", "--data", tmp_path]
    for columns in ("[no, en, x]", "no,en,x", "- no\n- en", "[no,\n en,]", '["no", "en"]', "~", "null"):
        told = fails("train", *options, "--data.columns", columns, "--out", tmp_path / "run")
        assert "train.no and train.en" in told
    assert "got no, x" in fails("train", *options, "--data.columns", "no,x", "--out", tmp_path / "run")


def test_the_table_of_compressions_without_a_score_to_compare_with(run, text, tmp_path, monkeypatch):
    scores = iter([0.0, 0.0, 3.0, *[1.0] * 20])
    monkeypatch.setattr("gatedrnn.cli.commands.compress._rate", lambda *_: (next(scores), 10))
    monkeypatch.setattr("gatedrnn.cli.commands.compress._speed", lambda *_: 1.0)
    rows = record("compress", run, "--table", "--out", tmp_path / "out")
    assert {row["change_percent"] for row in rows} == {None}
    assert "| 3.00 (–) |" in (tmp_path / "out" / "table.md").read_text()


def test_a_longer_source_than_was_trained_on_works_with_one_warning(run, tmp_path):
    (tmp_path / "in.txt").write_text(f"eule\n{'kater ' * 150}\n{'eule ' * 120}\n")
    code, out, err = call("translate", run, tmp_path / "in.txt", "--beam", "1")
    assert code == 0 and len(out.splitlines()) == 3
    assert (
        err.startswith("gatedrnn: line 2 has 150 tokens; the model was not trained on pairs of more than 100")
        and err.count("\n") == 1
    )


def test_without_data_it_trains_on_a_pair_of_languages_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("gatedrnn.data.verb_final.write_parallel.__defaults__", (200, 20, 20))
    works("train", "--task", "translation", *SMALL, "--out", tmp_path / "run")
    assert record("evaluate", tmp_path / "run", "--beam", "1")["sentences"] == 20
    assert (tmp_path / "run" / "text" / "train.vf").is_file()
    works("train", "--out", tmp_path / "run", "--resume", "--training.epochs", "2")
    assert len(read_metrics(tmp_path / "run")) == 2


def test_subwords_come_out_as_plain_text(text, tmp_path, file):
    works(*TRAIN, "--data", text, "--data.level", "subword", "--out", tmp_path / "run")
    lines = works("translate", tmp_path / "run", file).splitlines()
    assert len(lines) == 5 and not any("Ġ" in line for line in lines)
    works(*TRAIN, "--data", text, "--data.level", "subword", "--data.joint", "false", "--out", tmp_path / "two")
    assert (tmp_path / "two" / "tokenizer.source.json").read_bytes() != (
        tmp_path / "two" / "tokenizer.target.json"
    ).read_bytes()
    assert len(works("translate", tmp_path / "two", file).splitlines()) == 5


def test_gates_and_attention_are_drawn(run, text, tmp_path):
    found = record("gates", run, "--data", text / "test", "--sentence", "der kater", "--out", tmp_path / "g")
    (one,) = found.values()
    assert [layer["name"] for layer in one["layers"]] == ["encoder 1 forward", "encoder 1 backward", "decoder 1"]
    (sentence,) = one["sentences"]
    assert len(sentence["attention"]) == len(sentence["translation"]["words"])
    assert {path.name for path in (tmp_path / "g").glob("*.png")} == {
        "histograms.png", "sentence-1.png", "update-frequency.png"}  # fmt: skip


def test_compression_is_scored_by_bleu(run, text, tmp_path):
    found = record("compress", run, "--method", "int8", "--out", tmp_path / "small")
    assert {"bleu_before", "bleu_after"} < set(found) and found["bytes_after"] < found["bytes_before"]
    assert record("evaluate", tmp_path / "small")["sentences"] == 20
    shown = works("compress", run, "--method", "svd", "--rank", "2", "--data", text / "test", "--out", tmp_path / "svd")
    assert "bleu " in shown
    rows = record("compress", run, "--table", "--out", tmp_path / "table")
    assert [row["scheme"].split(" (")[0] for row in rows] == [
        "original", "round", "round & clip", "SVD", "SVD+", "bf16", "int8", "int4"]  # fmt: skip
    assert all({"bleu", "change_percent", "tokens_per_second_1"} < set(row) for row in rows)
    assert "| bleu |" in (tmp_path / "table" / "table.md").read_text()


def test_a_changed_run_is_accepted(run, tmp_path):
    other = copy_of(run, tmp_path / "run")
    works("accept", other)
    (other / "config.yaml").write_text((other / "config.yaml").read_text() + "\n")
    assert "must be unchanged since it was written" in fails("evaluate", other)
    assert "accepted" in works("accept", other)
    assert record("evaluate", other) == record("evaluate", run)


def test_every_matrix_is_small_by_int8(run, tmp_path):
    works("compress", run, "--method", "int8", "--out", tmp_path / "small")
    model = load_run(tmp_path / "small", None).model
    dense = [name for name, value in model.state_dict().items() if value.dim() == 2 and not compressed(value)]
    assert dense == []


def test_a_compressed_run_is_trained_on(run, tmp_path):
    works("compress", run, "--method", "svd", "--rank", "2", "--retrain", "2", "--out", tmp_path / "out")
    assert len(read_metrics(tmp_path / "out")) == 2
    assert record("evaluate", tmp_path / "out")["sentences"] == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["parse", "RUN", "-"], "must be a run of language_modelling or grammar; got a run of translation"),
        (["surprisal", "RUN"], "must be a run of language_modelling; got a run of translation"),
        (["evaluate", "RUN", "--reset"],
         "--reset: applies only to runs of the task language_modelling; got a run of the task translation"),
        (["evaluate", "RUN", "--cache", "--cache-window", "3"], "--cache: applies only to runs of the task language_modelling"),
        (["evaluate", "RUN", "--data", "nothing"], "nothing: must be a TSV file, or the common part of two files that"),
        (["translate", "RUN", "nothing.txt"], "nothing.txt"),
        (["translate", "RUN", "FILE", "--n-best", "9"], "beam.n_best: must be at most the beam's size"),
        (["translate", "RUN", "FILE", "--beam", "0"], "beam.size: must be"),
        (["train", "--resume", "--out", "RUN", "--data.source", "fr"], "data.source: must be as in the run"),
        (["train", "--task", "translation", "--data.source", "fr", "--out", "NEW"], "must be vf or en for the built-in pair"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_clear_line(run, file, arguments, words):
    given = {"RUN": run, "FILE": file, "NEW": file.parent / "new"}
    assert words in fails(*(given.get(each, each) for each in arguments))
    assert not given["NEW"].exists()


def test_translate_takes_runs_that_translate(work):
    assert "must be a run of translation; got a run of language_modelling" in fails("translate", work / "run", "-")
    assert "--beam: applies only to runs of the task translation" in fails("evaluate", work / "run", "--beam", "3")


def test_text_that_does_not_fit_leaves_no_run(text, tmp_path):
    for name in ("train.de", "train.en", "valid.de", "valid.en"):
        (tmp_path / name).write_text((text / name).read_text())
    with (tmp_path / "train.de").open("a") as stream:
        stream.write("noch einer\n")
    line = fails(*TRAIN, "--data", tmp_path, "--out", tmp_path / "run")
    assert "train.en: must have as many lines as the other side; got 90 lines, and 91 in train.de" in line
    line = fails(*TRAIN, "--data", text, "--data.target", "xx", "--out", tmp_path / "run")
    assert "must have train.xx beside it" in line
    assert not (tmp_path / "run").exists()


def test_records_are_those_of_json(run, file):
    assert [json.loads(line)["source"] for line in works("translate", run, file, "--json").splitlines()][1] == []
