"""Commands where a name is odd, a file is missing or damaged, or something was there before."""

import errno
import json
import shutil
from collections import Counter
from io import StringIO
from itertools import repeat
from types import SimpleNamespace

import pytest
import torch
from programs import together
from rich.console import Console
from rich.table import Table
from terminal import call, copy_of, fails, record, works

from gatedrnn.cli import output
from gatedrnn.cli.commands import compress
from gatedrnn.cli.main import report_errors
from gatedrnn.cli.text import run_names
from gatedrnn.core.errors import DataError
from gatedrnn.data import Vocabulary
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.plots.gates import histograms, update_frequencies
from gatedrnn.serve import Limits
from gatedrnn.serve.batch import Batch
from gatedrnn.serve.cache import StateCache
from gatedrnn.serve.rows import Prompt, Ticket, Wanted
from gatedrnn.training.run import METRICS_FILE, best_record, load_run, read_metrics

ODD = "a[lr=1] [/b] :cat:"
"""Part of a path that is a tag, an end of one, and an emoji code."""


# ---------------------------------------------------------------- prompts


@pytest.mark.parametrize(("mapping", "known"), [("exact", False), ("lower", True), ("number", True)])
def test_a_prompt_is_looked_up_by_the_rule_of_the_run(work, tmp_path, monkeypatch, mapping, known):
    folder = copy_of(work / "run", tmp_path / "run", mapping=mapping)
    run, asked = load_run(folder), list[list[int]]()
    expected = [1, run.vocabulary.ids["the"] if known else 0, run.vocabulary.ids["pilot"]]

    def generated(model, ids, **how):
        asked.append(ids)
        return repeat(2)

    monkeypatch.setattr("gatedrnn.cli.commands.generate.generate", generated)
    monkeypatch.setattr("gatedrnn.app.readings.generate", generated)
    works("generate", folder, "--prompt", "The pilot", "--words", 2)
    from gatedrnn.app.readings import go_on

    go_on(run, "The pilot", 1.0, 2, 1)
    assert asked == [expected] * 2
    pytest.importorskip("fastapi")
    from gatedrnn.serve.completions import read_prompts
    from gatedrnn.serve.schema import CompletionBody

    ((tokens, ids, many),) = read_prompts(CompletionBody(prompt="The pilot"), run, Limits())
    assert (tokens, ids, many) == (["<eos>", "The", "pilot"], expected, 2)


# ---------------------------------------------------------------- names of runs


def test_runs_are_named_by_their_folders_or_by_their_paths(tmp_path, monkeypatch):
    (tmp_path / "one" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "one")
    assert run_names(["a/x", "b/y"]) == ["x", "y"] and run_names(["a/x", "b/x", "c/y"]) == ["a/x", "b/x", "y"]
    assert run_names([".", "run"]) == ["one", "run"] and run_names(["/"]) == ["/"]
    (tmp_path / "one" / "best").symlink_to(tmp_path / "z" / "y")
    assert run_names(["best", "q/y"]) == ["best", "y"]  # as they are called
    assert run_names(["run/..", "q/run"]) == ["one", "run"]
    places = ["x/..", "q/x", "c/x"]
    assert len({*run_names(places)}) == 3


def test_the_table_has_a_row_for_each_of_two_runs_of_one_name(work, tmp_path, monkeypatch):
    monkeypatch.setattr(compress, "published", lambda *_: {})
    monkeypatch.setattr(compress, "_WHOLE", ("int8",))
    places = [shutil.copytree(work / name, tmp_path / name / "run") for name in ("run", "lstm")]
    how = ("--table", "--data", work / "text" / "test.txt")
    rows = record("compress", *places, *how, "--out", tmp_path / "out")
    assert [row["run"] for row in rows] == [str(place) for place in places for _ in range(2)]
    scores = (tmp_path / "out" / "table.md").read_text().split("\n\n")[0].splitlines()[2:]
    assert [line.split(" | ")[0] for line in scores] == [f"| {place}" for place in places]
    monkeypatch.chdir(places[1])
    assert {row["run"] for row in record("compress", ".", *how)} == {"run"}


def test_the_run_in_the_current_folder_has_a_name(work, tmp_path, monkeypatch):
    monkeypatch.setattr("gatedrnn.cli.commands.gates._figures", lambda _: ())
    monkeypatch.chdir(work / "lstm")
    assert list(record("gates", ".", "--sentence", "the pilot", "--out", tmp_path / "out")) == ["lstm"]


def test_figures_of_an_earlier_call_do_not_stay(work, tmp_path, monkeypatch):
    monkeypatch.setattr("gatedrnn.cli.commands.gates._KINDS", ("svg",))
    two = ("--sentence", "the pilot", "--sentence", "the old pilot")
    works("gates", work / "run", work / "lstm", *two, "--out", tmp_path)
    (tmp_path / "sentence-2-mine.svg").write_text("mine")
    assert len(list(tmp_path.iterdir())) == 6
    works("gates", work / "run", *two[:2], "--out", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"gates.json", "sentence-1.svg", "sentence-2-mine.svg"}
    (tmp_path / "gates.json").write_text("[1")
    works("gates", work / "run", *two[:2], "--out", tmp_path)
    monkeypatch.setattr("gatedrnn.plots.trees.save_all", lambda *_: (_ for _ in ()).throw(OSError(5, "no")))
    fails("gates", work / "run", *two[:2], "--out", tmp_path)
    assert (tmp_path / "sentence-1.svg").exists()  # what a failed call would have replaced stays


@pytest.mark.parametrize(("first", "second"), [("forget_gate", "update_gate"), ("update_gate", "forget_gate")])
def test_the_legend_names_every_model_whatever_gates_it_has(first, second):
    def layers(name, frequency):
        gate = {"counts": [1, 2, 3], "start": 0, "low": 0.1, "high": 0.2}
        return [{"gates": {name: gate}, "update_frequency": frequency}]

    for runs in (
        {"a": layers(first, [0.1, 0.2]), "b": layers(second, [0.3, 0.4])},
        {"a": layers(first, []) * 2, "b": layers(first, [0.1]) * 2},
        {"_a": layers(first, []), "_b": layers(second, [0.1])},
    ):
        (legend,) = histograms(runs).legends
        assert [text.get_text() for text in legend.get_texts()] == list(runs)
    deep = {"a": [*layers(first, []), *layers(first, [0.5])], "b": layers(first, [0.1])}
    (legend,) = update_frequencies(deep).legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "RUN", "--data", ""], "--data: must name a file"),
        (["gates", "RUN", "--sentence", "the", "--data", ""], "--data: must name a file"),
        (["compress", "RUN", "--table", "--data", ""], "--data: must name a file"),
        (["eval-parsing", "RUN", "--treebank", ""], "--treebank: must name a file"),
        (["eval-parsing", "--baseline", "left", "--treebank", "x", "--dev="], "--dev: must name a file"),
        (["eval-syntax", "RUN", "--pairs", ""], "--pairs: must name a file"),
        (["eval-syntax", "RUN", "--suite", ""], "--suite: must name a file"),
        (["sweep", "c", "--over", "training.seed=1,2", "--minutes", 1, "--out", "x", "--data", ""], "--data: must name a folder"),
        (["sweep", "", "--over", "training.seed=1,2", "--minutes", 1, "--out", "x"], "CONFIG: must name a file"),
        (["export", "RUN", "--to", "web", "--out", "x", "--runtime", ""], "--runtime: must name a file or folder"),
        (["surprisal", "RUN", ""], "FILE: must name a file"),
        (["translate", "RUN", ""], "FILE: must name a file"),
        (["generate", ""], "RUN: must name a folder"),
        (["parse", "RUN", ""], "RUN: must name a folder"),
        (["distil", "RUN", "--out", ""], "--out: must name a folder"),
        (["train", "--out", ""], "--out: must name a folder"),
        (["train", "--data", ""], "data.folder: must be a path; got an empty one"),
    ],
)  # fmt: skip
def test_an_empty_path_is_no_path(work, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    line = fails(*[{"RUN": work / "run"}.get(each, each) for each in arguments])
    assert said in line and "got an empty" in line and not list(tmp_path.iterdir())


def test_a_path_is_printed_as_it_is(work, tmp_path, capsys):
    place = tmp_path / ODD
    run = shutil.copytree(work / "run", place / "run")
    output.say(str(place))
    with output.status(f"reading {place}"):
        pass
    output.show_table(Table(title="x"), 20)
    assert capsys.readouterr().out.startswith(f"{place}\n")
    stream = StringIO()
    output.say(str(place), Console(file=stream, force_terminal=True, width=10))
    assert stream.getvalue() == f"{place}\n"
    text, trees = work / "text" / "test.txt", work / "text" / "test.trees"
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"good": "the pilot laughs", "bad": "the pilot laugh", "phenomenon": "x"}) + "\n")
    assert "perplexity" in works("evaluate", run, "--data", text)
    out = ("--out", place / "out")
    assert f"open {place / 'out' / 'report.html'}\n" in works("eval-syntax", run, "--pairs", pairs, *out)
    assert f"open {place / 'out' / 'report.html'}\n" in works("eval-parsing", run, "--treebank", trees, *out)
    assert f"are in {place / 'g'}\n" in works("gates", run, "--data", text, "--out", place / "g")
    assert f"is in {place / 'small'}\n" in works("compress", run, "--method", "int8", "--out", place / "small")
    told = works(
        "train", "--config", work / "run.yaml", "--data", work / "text", "--out", place / "t", "--training.epochs", 1
    )
    assert f"training onlstm into {place / 't'}\n" in told and f"the run is in {place / 't'}\n" in told


def test_translate_reads_no_conllu(tmp_path):
    (tmp_path / "a.conllu").write_text("1\tdas\t" + "\t".join("_" * 8) + "\n")
    line = fails("translate", tmp_path / "run", tmp_path / "a.conllu")
    assert "a.conllu: must be plain text for translate, one sentence per line; got a file of CoNLL-U" in line
    assert "CoNLL-U" not in call("translate", "--help")[1] and "CoNLL-U" in call("surprisal", "--help")[1]


# ---------------------------------------------------------------- what was there before


def test_a_demo_takes_no_folder_of_another_command_for_its_own(tmp_path):
    for name in ("results.json", "report.html"):  # as eval-syntax --out writes
        (tmp_path / name).write_text("{}")
    line = fails("demo", "--out", tmp_path)
    assert "must be new, empty, or hold only a demo; got report.html" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.json"]


@pytest.mark.parametrize("out", [False, True])
def test_several_processes_need_one_folder_and_one_text(work, tmp_path, out):
    given = ("--out", tmp_path / "run") if out else ("--data", work / "text")
    code, said, error = together(2, "train", *given)
    option, why = ("data", ": only one can write the built-in text") if out else ("out", "")
    line = f"gatedrnn: train --{option}: must be given where several processes train{why}; got 2 processes. "
    assert (code, said) == (1, "") and error.count(line) == error.count("\n") == 2
    assert not (tmp_path / "run").exists()


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """`sweep(*more, minutes)`: the arguments of a sweep of four trials, all of which fail in the second round."""
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "text" / name).write_text("the old pilot sleeps\n" * 9)
    (tmp_path / "c.yaml").write_text("model: {cell: lstm, embedding_size: 8, hidden_sizes: [8]}\n")

    def run_jobs(jobs, processes, ended):
        for job in jobs:
            run = tmp_path / "out" / job.name
            run.mkdir(exist_ok=True)
            (run / METRICS_FILE).write_text('{"valid_perplexity": 7.5}\n')
            ended(job, int(job.name.startswith("round-2")))

    monkeypatch.setattr("gatedrnn.cli.commands.sweep.run_jobs", run_jobs)
    how = ("--data", tmp_path / "text", "--out", tmp_path / "out")

    def arguments(*more, minutes=4):
        return ("sweep", tmp_path / "c.yaml", "--over", "training.seed=1,2,3,4", "--minutes", minutes, *how, *more)

    return arguments


def test_a_sweep_whose_last_round_failed_names_its_log(sweep, tmp_path):
    code, _, error = call(*sweep("--processes", 2))
    out = tmp_path / "out"
    line = error.splitlines()[-1]
    assert code == 1 and "must have at least one trial with a score in round 2; got none. See" in line
    assert f"See {out}/round-2/trial-" in line and f"delete {out} or choose another --out" in line
    assert fails(*sweep("--processes", 2)) == line + "\n"


def test_a_sweep_of_other_settings_says_which(sweep, tmp_path):
    call(*sweep("--processes", 2))
    (tmp_path / "c.yaml").write_text("model: {cell: gru, embedding_size: 8, hidden_sizes: [8]}\n")
    line = fails(*sweep("--processes", 3, minutes=5))
    told = "model.cell gru, and lstm before"
    assert f"same settings; got --minutes 5.0, and 4.0 before; --processes 3, and 2 before; {told}. Give" in line
    (tmp_path / "out" / "sweep.json").write_text("[]")
    assert "sweep.json: must be what a sweep wrote; got other JSON" in fails(*sweep())


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("damage", ["{", "[1]", "7", "", "\ud800", "[" * 9999])
def test_a_damaged_log_is_named_with_its_line(work, tmp_path, damage):
    run = copy_of(work / "run", tmp_path / "run")
    with (run / METRICS_FILE).open("ab") as stream:
        stream.write(damage.encode("utf-8", "surrogatepass") + b"\n")
    for read in (read_metrics, best_record):
        with pytest.raises(DataError, match=rf"{METRICS_FILE}:2: must be an epoch's record in JSON; got '.*Restore"):
            read(run)
    pytest.importorskip("transformers")
    line = fails("export", run, "--to", "hf", "--out", tmp_path / "hf")
    assert f"{METRICS_FILE}:2: must be an epoch's record in JSON" in line and not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([], None),
        ([None], None),
        ([float("nan"), float("inf")], None),
        ([3.0, float("nan"), 2.0, 2.5], 3),
        (["x", 4], 2),
    ],
)
def test_the_best_epoch_is_the_one_of_the_lowest_finite_perplexity(tmp_path, values, best):
    assert best_record(tmp_path) is None
    lines = [json.dumps({"epoch": k, "valid_perplexity": value}) for k, value in enumerate(values, 1)]
    (tmp_path / METRICS_FILE).write_text("\n".join([*lines, '{"epoch": 9}']))
    found = best_record(tmp_path)
    assert (found and found["epoch"]) == best


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ((errno.ENOENT, "No such file or directory", "x/y"),
         "x/y: cannot be read or written; got No such file or directory. Check the path, its permissions and the free space."),
        ((errno.EACCES, "Permission denied", "x"), "x: cannot be read or written; got Permission denied. Check the path"),
        ((errno.ENOSPC, "No space left on device", "x"),
         "x: must be writable; got No space left on device. Free some space, or choose another place."),
        ((errno.EIO, "Input/output error"), "standard output: cannot be read or written; got Input/output error. Check"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_no_full_disk(error, said, capsys):
    def fail():
        raise OSError(*error)

    assert report_errors(fail) == 1
    assert capsys.readouterr().err.startswith(f"gatedrnn: {said}")


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize(("wanted", "broken", "tokens"), [(0, False, 0), (3, False, 3), (3, True, 0)])
def test_tokens_are_counted_where_there_are_any(wanted, broken, tokens):
    torch.manual_seed(1)
    words = ["<unk>", "<eos>", "a", "b"]
    model = LanguageModel(LanguageModelConfig(len(words), cell="lstm", embedding_size=8, hidden_sizes=(8,))).eval()
    if broken:
        model.decoder.weight.data.fill_(float("nan"))
    run = SimpleNamespace(model=model, vocabulary=Vocabulary(words))
    batch, found = Batch("x", run, StateCache(0), Limits(rows=4)), Counter[str]()
    batch.add(Prompt(Ticket(print), Wanted(new_tokens=wanted, past_eos=True), ["<eos>"], [1], 0, 0))
    while batch.busy:
        found.update(type(event).__name__ for _, event in batch.advance())
    assert batch.tokens == tokens and set(found) == {"CheckpointError" if broken else "Event"}


def test_only_embeddings_are_said_to_be_given(work):
    pytest.importorskip("transformers")
    from gatedrnn.hf.folder import wrapped

    model = wrapped(load_run(work / "run"))
    for how, got in (({"num_items_in_batch": 3}, ""), ({"inputs_embeds": torch.ones(1, 1, 16)}, "; got inputs_embeds")):
        with pytest.raises(ValueError, match=rf"input_ids: must be given{got}\. Give ids"):
            model(**how)
