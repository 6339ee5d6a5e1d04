"""`gatedrnn distil`: a student of teachers of both families, its files, what it refuses, and what reads it."""

import json
import shutil

import numpy as np
import pytest
import yaml
from terminal import copy_of, fails, record, works

from gatedrnn.cli.commands import distil
from gatedrnn.data import EOS, Corpus, Vocabulary, find_splits, write_corpus
from gatedrnn.studies.parsing import parse_by_grammar, parse_sentences, vote
from gatedrnn.tasks.teacher import TEACHER_FILE, Teacher
from gatedrnn.training.loop import Loop
from gatedrnn.training.run import load_run, read_metrics
from gatedrnn.trees import distances_to_spans

CPU = ["--training.device", "cpu", "--training.epochs"]
ONLSTM = ["--model.embedding_size", 8, "--model.hidden_sizes", "[8, 8]", "--model.options.chunk_size", 2]
GRAMMAR = [f"--model.{name}={size}" for name, size in (("nonterminals", 6), ("preterminals", 10), ("state_size", 12))]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text and runs: `onlstm`, `grammar`, `lstm`, and `student` of the first two."""
    folder = tmp_path_factory.mktemp("distil")
    write_corpus(folder / "text", 1, train=120, valid=30, test=20)
    with (folder / "text" / "train.txt").open("a") as stream:
        stream.write("the\n" + "the old pilot " * 101 + "\n")  # neither has a tree
    data = ["--data", folder / "text"]
    works("train", *data, *ONLSTM, *CPU, 1, "--data.min_count", 9, "--out", folder / "onlstm")
    works("train", *data, "--task", "grammar", *GRAMMAR, *CPU, 1, "--out", folder / "grammar")
    works("train", *data, *ONLSTM[:4], "--model.cell", "lstm", *CPU, 1, "--out", folder / "lstm")
    teachers = [folder / "onlstm", folder / "grammar"]
    told = works("distil", *teachers, *data, *ONLSTM, *CPU, 2, "--distil.weight", 2, "--out", folder / "student")
    (folder / "told.txt").write_text(told)
    return folder


def command(place, *more):
    return ["distil", place / "onlstm", place / "grammar", "--data", place / "text", *ONLSTM, *CPU, *more]


def test_it_says_what_was_parsed_and_how_the_trees_are_met(place):
    told = (place / "told.txt").read_text()
    assert "teacher: trees of 120 of 122 training sentences by 2 runs" in told and "training onlstm into" in told
    assert "teacher: trees of 30 of 30 validation sentences by 2 runs" in told
    best = [line for line in read_metrics(place / "student") if line["best"]][-1]
    assert f"trees of the validation text: F1 {best['valid_tree_f1']:.2f} against the teacher's trees" in told


def test_the_teacher_is_the_vote_of_the_runs_on_the_words_of_the_text(place):
    teacher = Teacher.load(place / "student")
    corpus = Corpus(find_splits(place / "text"), Vocabulary.load(place / "student" / "vocabulary.json"))
    lines = [line.split() for line in (place / "text" / "train.txt").read_text().splitlines()]
    onlstm, grammar = load_run(place / "onlstm"), load_run(place / "grammar", "grammar")
    assert len(onlstm.vocabulary) < len(corpus.vocabulary) == len(grammar.vocabulary)
    parsed = [line for line in lines if 1 < len(line) <= 300]
    each = [
        parse_sentences(onlstm.model, onlstm.vocabulary, parsed),
        parse_by_grammar(grammar.model, grammar.vocabulary, parsed),
    ]
    expected = [voted.spans for voted in vote(each, ["one", "other"])]
    heights = np.split(teacher.heights["train"], np.flatnonzero(corpus["train"] == corpus.vocabulary.ids[EOS]) + 1)
    assert [len(own) - 1 for own in heights[:-1]] == [len(line) for line in lines]
    found = [distances_to_spans(own[:-1].tolist(), "unbiased") for own in heights[:-1] if own.any()]
    assert found == expected and teacher.heights["train"].dtype == np.int16
    assert [(each["task"], each["weight"]) for each in teacher.runs] == [("language_modelling", 1.0), ("grammar", 1.0)]
    assert (teacher.how.weight, teacher.how.layer) == (2.0, 2)


def test_a_student_is_a_run_as_any_other(place, tmp_path):
    student = place / "student"
    assert (student / TEACHER_FILE).name in json.loads((student / "checksums.json").read_text())
    assert record("evaluate", student)["perplexity"] > 1
    assert works("parse", student, place / "text" / "test.txt").count("\n") == 20
    assert record("eval-parsing", student, "--treebank", place / "text" / "test.trees")["layer"] == 2
    assert works("surprisal", student, place / "text" / "test.txt")
    small = record("compress", student, "--method", "svd", "--rank", 4, "--retrain", 1, "--out", tmp_path / "small")
    assert small["perplexity_after"] > 1 and (tmp_path / "small" / TEACHER_FILE).exists()
    assert "valid_tree_f1" in read_metrics(tmp_path / "small")[0]
    assert record("compress", student, "--method", "int8", "--out", tmp_path / "int8")["bytes_after"] > 0
    assert not (tmp_path / "int8" / TEACHER_FILE).exists()


def test_the_trees_are_learned(place, tmp_path):
    """A student whose only teacher is another ON-LSTM meets its trees more and more."""
    how = ["--training.learning_rate", 0.01, "--distil.weight", 20, "--json", "--out", tmp_path]
    found = record("distil", place / "onlstm", "--data", place / "text", *ONLSTM, *CPU, 12, *how)
    losses = [line["valid_tree_loss"] for line in read_metrics(tmp_path)]
    assert losses[-1] < 0.8 * losses[0] and found["valid_tree_f1"] > read_metrics(tmp_path)[0]["valid_tree_f1"]
    assert found["teacher"]["weight"] == 20 and [each["task"] for each in found["teacher"]["runs"]] == [
        "language_modelling"
    ]


class CutError(Exception):
    """What stops a training without warning."""


def cut(monkeypatch, at, error):
    step, steps = Loop._step, iter(range(10_000))

    def stopped(*arguments):
        if next(steps) == at:
            raise error
        return step(*arguments)

    monkeypatch.setattr(Loop, "_step", stopped)


@pytest.mark.parametrize("going_on", ["distil", "train"])
def test_cut_off_and_gone_on_with_it_ends_in_the_same_bits(place, tmp_path, monkeypatch, going_on):
    more = ["--training.checkpoint_minutes", "1e-9", "--distil.weight", 2, "--out"]
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        cut(patch, 10, CutError())
        with pytest.raises(CutError):
            works(*command(place, 2), *more, run)
        patch.setattr("gatedrnn.cli.commands.distil._heights", None)  # no sentence is parsed again
        again = {"distil": [*command(place, 2), *more, run], "train": ["train", "--out", run]}[going_on]
        works(*again, "--resume")
    for name in ("model.safetensors", TEACHER_FILE):
        assert (run / name).read_bytes() == (place / "student" / name).read_bytes()
    losses = [[line["valid_tree_loss"] for line in read_metrics(folder)] for folder in (run, place / "student")]
    assert losses[0] == losses[1] and len(losses[0]) == 2


def test_a_kill_before_the_first_step_leaves_the_trees(place, tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(place / "student" / TEACHER_FILE, run)
    monkeypatch.setattr("gatedrnn.cli.commands.distil._heights", None)
    works(*command(place, 1), "--distil.weight", 2, "--out", run, "--resume")
    assert (run / TEACHER_FILE).read_bytes() == (place / "student" / TEACHER_FILE).read_bytes()


def test_a_kill_before_the_first_checkpoint_is_no_plain_training_on(place, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        cut(patch, 1, CutError())
        with pytest.raises(CutError):
            works(*command(place, 1), "--distil.weight", 2, "--out", run)
    works("train", "--out", run, "--resume")
    assert read_metrics(run)[0]["valid_tree_loss"] == read_metrics(place / "student")[0]["valid_tree_loss"]


def test_trees_that_were_left_are_no_plain_run(place, tmp_path):
    shutil.copy(place / "student" / TEACHER_FILE, tmp_path)
    told = fails("train", "--data", place / "text", *ONLSTM, *CPU, 1, "--out", tmp_path)
    assert f"must not hold a run yet; got a student's {TEACHER_FILE}" in told
    assert not (tmp_path / "config.yaml").exists()


def test_another_process_may_have_begun_a_run_meanwhile(place, tmp_path, monkeypatch):
    """While one parses its text, another one begins a student in the same folder: its trees are left as they are."""
    run, heights = tmp_path / "run", distil._heights

    def late(*arguments):
        shutil.copytree(place / "student", run, dirs_exist_ok=True)
        return heights(*arguments)

    monkeypatch.setattr("gatedrnn.cli.commands.distil._heights", late)
    assert "must not hold a run yet" in fails(*command(place, 1), "--distil.weight", 3, "--out", run)
    assert (run / TEACHER_FILE).read_bytes() == (place / "student" / TEACHER_FILE).read_bytes()


def copy_of_student(place, folder):
    return shutil.copytree(place / "student", folder / "student")


SMALL = ONLSTM[:4]


@pytest.mark.parametrize(
    ("runs", "options", "said"),
    [
        (["onlstm", "onlstm"], ONLSTM, "RUN: must be different folders"),
        (["onlstm", "lstm"], ONLSTM, "lstm: needs a cell with master gates (onlstm), or a grammar; got cell 'lstm'"),
        (["nothing"], ONLSTM, "nothing: must be a run's folder; got no such folder"),
        (
            ["onlstm"],
            [*SMALL, "--model.cell", "lstm"],
            "model.cell: must have master gates for distil: onlstm; got lstm",
        ),
        (["onlstm"], [*ONLSTM, "--model.tree_layer", 3], "model.tree_layer: must lie in 1…2, or be mean; got 3"),
        (["onlstm"], [*ONLSTM, "--model.tree_layer", "mean"], "model.tree_layer: must be one layer for distil"),
        (
            ["onlstm"],
            [*ONLSTM, "--model.hidden_sizes", "[8]", "--model.tree_layer", "mean"],
            "got mean. Add --model.tree_layer 1.",
        ),
        (["onlstm"], [*ONLSTM, "--model.tree_gate", "both"], "model.tree_gate: must be master_forget for distil"),
        (["onlstm"], [*ONLSTM, "--distil.weight", 0], "distil.weight: must be"),
        (["onlstm"], [*ONLSTM, "--training.unit", "stream"], "training.unit: must be sentence for distil; got stream"),
        (["onlstm"], [*ONLSTM, "--data.level", "char"], "distil: needs a vocabulary of words; got level char"),
        (
            ["grammar", "onlstm"],
            [*ONLSTM, "--data.tokenize", "penn"],
            "data.tokenize: must be the student's, which is penn; got none in",
        ),
        (["onlstm"], ["--task", "grammar"], "distil --task: must be language_modelling; got grammar"),
    ],
)
def test_what_cannot_be_distilled_is_refused_in_a_line(place, tmp_path, runs, options, said):
    data = ("--data", place / "text", *CPU, 1, "--out", tmp_path / "out")
    assert said in fails("distil", *(place / run for run in runs), *data, *options)
    assert not (tmp_path / "out").exists()


def test_no_run_and_no_out_are_usage_errors(place, tmp_path):
    assert "required: RUN" in fails("distil", "--data", place / "text", "--out", tmp_path / "out", code=2)
    assert "out" in fails("distil", place / "onlstm", "--data", place / "text", code=2)


def test_a_run_of_another_task_is_refused(place, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("task: inference\n")
    line = fails("distil", tmp_path / "run", "--data", place / "text", "--out", tmp_path / "out")
    assert "must be a run of language_modelling or grammar; got a run of inference" in line


def test_a_student_goes_on_with_its_own_teacher_alone(place, tmp_path):
    out = copy_of_student(place, tmp_path)
    resume = ["--data", place / "text", *ONLSTM, *CPU, 3, "--out", out, "--resume"]
    line = fails("distil", place / "onlstm", *resume)
    assert "distil --resume: must name the runs that the student began with; got" in line and "grammar before" in line
    line = fails(*command(place, 3), "--distil.weight", 1, "--out", out, "--resume")
    assert "distil.weight: must be as in the run; got 1.0, and 2.0 in the run" in line


def test_a_plain_run_is_not_continued_as_a_student(place, tmp_path):
    plain = shutil.copytree(place / "onlstm", tmp_path / "plain")
    line = fails("distil", place / "grammar", *CPU, 2, "--out", plain, "--resume")
    assert "plain: must be a run that gatedrnn distil began; got a run without teacher.safetensors" in line


def test_a_changed_teacher_and_another_text_are_noticed(place, tmp_path):
    out = copy_of_student(place, tmp_path)
    path = out / TEACHER_FILE
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "teacher.safetensors: must be unchanged" in fails("train", "--out", out, "--resume", *CPU, 3)
    path.unlink()
    assert "teacher.safetensors: must exist; got no such file" in fails("train", "--out", out, "--resume", *CPU, 3)
    path.write_bytes(content)
    other = shutil.copytree(place / "text", tmp_path / "other")
    (other / "valid.txt").write_text("the old pilot\n")
    line = fails("train", "--out", out, "--resume", "--data", other, *CPU, 3)
    assert "must hold the trees of the text that is read; got another valid text" in line


def test_a_text_with_eos_inside_a_line_is_refused(place, tmp_path):
    text = shutil.copytree(place / "text", tmp_path / "text")
    with (text / "train.txt").open("a") as stream:
        stream.write("the <eos> pilot\n")
    line = fails("distil", place / "onlstm", "--data", text, *ONLSTM, *CPU, 1, "--out", tmp_path / "out")
    assert "train.txt: must not hold the word <eos> for distil" in line


def test_a_text_without_a_sentence_that_has_a_tree_is_refused(place, tmp_path):
    text = shutil.copytree(place / "text", tmp_path / "text")
    (text / "valid.txt").write_text("the\nold\n")
    line = fails("distil", place / "onlstm", "--data", text, *ONLSTM, *CPU, 1, "--out", tmp_path / "out")
    assert "valid.txt: must hold a sentence of 2 to 300 words for distil; got 2 others" in line


@pytest.mark.parametrize("gate", ["master_forget", "master_input", "both"])
def test_a_teacher_parses_by_its_own_gate_and_layer(place, tmp_path, gate):
    run = copy_of(place / "onlstm", tmp_path / gate)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"] |= {"tree_gate": gate, "tree_layer": 1}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    teacher = load_run(run)
    sentences = [line.split() for line in (place / "text" / "test.txt").read_text().splitlines()]
    found = list(distil._parses(teacher, iter(sentences)))
    assert found == list(parse_sentences(teacher.model, teacher.vocabulary, sentences, layer=1, gate=gate))
    (tmp_path / "a.txt").write_text("\n".join(map(" ".join, sentences)))
    assert [one.brackets for one in found] == works("parse", run, tmp_path / "a.txt").splitlines()
