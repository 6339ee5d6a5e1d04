"""Texts that can be read only once, output that cannot be written, places that cannot be a folder."""

import gzip
import io
import itertools
import json
import os
import shutil
import signal
import sys

import pytest
import yaml
from terminal import call, copy_of, fails, record, works

from gatedrnn.cli.main import main
from gatedrnn.training.loop import Loop
from gatedrnn.training.run import load_run


@pytest.fixture
def piped(monkeypatch):
    """A way to give bytes that can be read once: `-`, or a pipe's path."""

    def give(raw, how):
        if how == "-":
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
            return "-"
        end, ours = os.pipe()
        os.write(ours, raw)
        os.close(ours)
        return f"/dev/fd/{end}"

    return give


def reading(work, text, folder):
    return {
        "evaluate": ["evaluate", work / "run", "--data", text],
        "gates": ["gates", work / "run", work / "other", "--data", text, "--out", folder / "figures"],
        "compress": ["compress", work / "run", "--method", "int8", "--data", text, "--out", folder / "small"],
        "surprisal": ["surprisal", work / "run", text],
        "parse": ["parse", work / "run", text],
    }


@pytest.mark.parametrize("how", ["-", "pipe"])
@pytest.mark.parametrize("command", ["evaluate", "gates", "compress", "surprisal", "parse"])
def test_a_text_that_can_be_read_once_is_read_as_a_file_is(work, tmp_path, piped, monkeypatch, command, how):
    monkeypatch.setattr("gatedrnn.cli.commands.gates._figures", lambda record: ())
    raw = (work / "text" / "valid.txt").read_bytes()
    (tmp_path / "a.txt").write_bytes(raw)
    by_file = works(*reading(work, tmp_path / "a.txt", tmp_path / "one")[command], "--json")
    by_pipe = works(*reading(work, piped(raw, how), tmp_path / "two")[command], "--json")
    keys = () if command in ("surprisal", "parse") else json.loads(by_file)
    assert by_pipe == by_file or {key for key in keys if json.loads(by_pipe)[key] != json.loads(by_file)[key]} <= {
        "tokens_per_second_before",
        "tokens_per_second_after",
    }


@pytest.mark.parametrize("how", ["-", "pipe"])
def test_what_is_wrong_with_a_piped_text_is_named(work, tmp_path, piped, how):
    name = piped(b"the pilot\n\xff\n", how)
    assert f"{name}:2: must be UTF-8 text" in fails("evaluate", work / "run", "--data", name)
    name = piped(b"", how)
    assert f"{name}: must hold at least one sentence" in fails("evaluate", work / "run", "--data", name)


@pytest.mark.parametrize("how", ["-", "pipe"])
def test_a_configuration_that_can_be_read_once_is_read(work, tmp_path, piped, how):
    raw = (work / "run.yaml").read_bytes()
    options = ["--data", work / "text", "--training.minutes", "1e-5", "--out", tmp_path / "run"]
    works("train", "--config", piped(raw, how), *options)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["training"]["learning_rate"] == 0.01
    grammar = piped(b"task: grammar\nmodel: {nonterminals: 3}", how)
    assert "none: must be a folder with" in fails(
        "train", "--config", grammar, "--data", tmp_path / "none", "--out", tmp_path / "no"
    )
    name = piped(b"model: {hiden_sizes: 1}", how)
    assert "model.hiden_sizes: unknown key" in fails("train", "--config", name, *options[:2], "--out", tmp_path / "no")


def test_a_closed_standard_input_is_one_line(work, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert "-: must be a readable file" in fails("evaluate", work / "run", "--data", "-")


def test_what_is_told_on_a_closed_standard_error_is_not_in_the_output(work, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["surprisal", str(work / "run"), str(work / "text" / "test.txt")]) == 0
    assert capsys.readouterr().out.startswith("sentence\t")


def test_a_line_without_an_end_is_refused_before_memory_ends(work, tmp_path, monkeypatch):
    monkeypatch.setattr("gatedrnn.data.text._LONGEST_LINE", 1 << 20)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a b\n" + b"a" * (1 << 21)))
    for arguments in reading(work, tmp_path / "a.txt.gz", tmp_path).values():
        assert "a.txt.gz:2: must be text in shorter lines; got a line of 1 MiB or more" in fails(*arguments)
    assert "/dev/zero:1: must be text" in fails("evaluate", work / "run", "--data", "/dev/zero")


# ---------------------------------------------------------------- output


@pytest.mark.parametrize("arguments", [["explain", "gru"], ["explain", "gru", "--json"], ["explain", "--help"]])
def test_a_full_disk_behind_standard_output_is_one_line(arguments, monkeypatch, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", open("/dev/full", "w"))  # noqa: PTH123, SIM115 - buffered, as a shell's `>` gives it
        code = call_without_stdout(arguments)
    assert code == 1
    error = capsys.readouterr().err
    assert error == (
        "gatedrnn: standard output: must be writable; got No space left on device. Free some space, or choose another place.\n"
    )


def call_without_stdout(arguments):
    try:
        return main(arguments)
    except SystemExit as stop:
        return stop.code


def test_a_reader_that_goes_away_ends_a_command_silently(work, monkeypatch, capsys):
    end, ours = os.pipe()
    os.close(end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", os.fdopen(ours, "w"))
        assert call_without_stdout(["explain", "gru", "--json"]) == 1
    assert capsys.readouterr().err == ""


def test_letters_that_a_terminal_lacks_are_written_as_in_json(work, tmp_path):
    (tmp_path / "a.txt").write_text("der schöne 😀 pilot\n", encoding="utf-8")
    for arguments in (
        ["surprisal", work / "run", tmp_path / "a.txt", "--json"],
        ["parse", work / "run", tmp_path / "a.txt"],
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
            sys.stdout.isatty = lambda: True
            assert main([str(argument) for argument in arguments]) == 0
            out = sys.stdout.buffer.getvalue().decode("ascii")
        assert json.loads(out)["words"][1:3] == ["schöne", "😀"] if "--json" in arguments else "sch\\u00f6ne" in out


PLACES = {
    "a file": ("file", "must be a folder or a new path; got '{}', a file"),
    "below a file": ("file/a/b", "must be a folder or a new path; got '{}', a file"),
    "a device": ("/dev/full", "must be a folder or a new path; got '/dev/full', a file"),
    "a link to nothing": ("link", "must be a folder or a new path; got"),
    "too long": ("x" * 300, "File name too long"),
    "too deep": ("a/" * 1900, "must need at most 32 new folders, one inside another; got 1900"),
    "nothing": ("", "got an empty name"),
}


@pytest.mark.parametrize("command", ["train", "compress", "gates", "eval-parsing", "eval-syntax", "parse"])
@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_cannot_be_a_folder_is_one_line(work, tmp_path, monkeypatch, command, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nothing")
    path, message = PLACES[place]
    option = "--svg" if command == "parse" else "--out"
    given = {
        "train": ["train", "--config", work / "run.yaml", "--data", work / "text"],
        "eval-parsing": ["eval-parsing", "--baseline", "left", "--treebank", work / "text" / "test.trees"],
        "eval-syntax": ["eval-syntax", work / "run", "--pairs", "grammar"],
    } | reading(work, work / "text" / "test.txt", tmp_path)
    arguments = [a for a in given[command] if command not in ("gates", "compress") or a not in ("--out",)]
    arguments = arguments[:-1] if command in ("gates", "compress") else arguments
    line = fails(*arguments, option, path)
    assert f"{option}: " in line and message.format(tmp_path / "file") in line.replace(
        "'file'", f"'{tmp_path / 'file'}'"
    )
    assert "Free some space" not in line and sorted(p.name for p in tmp_path.iterdir()) == ["file", "link"]


def test_arguments_that_are_no_text_are_one_line(work):
    assert r"arguments: must be UTF-8; got '\udcff'" in fails("generate", work / "run", "--prompt", "\udcff")


@pytest.mark.parametrize(
    "arguments",
    [["gates", "RUN", "--sentence=--", "--out", "OUT"], ["generate", "RUN", "--prompt=--", "--words", 3],
     ["eval-syntax", "RUN", "--pairs", "grammar", "--append=--"]],
)  # fmt: skip
def test_two_dashes_may_be_a_text(work, tmp_path, monkeypatch, arguments):
    monkeypatch.setattr("gatedrnn.cli.commands.gates._figures", lambda record: ())
    out = works(*[{"RUN": work / "run", "OUT": tmp_path / "out"}.get(a, a) for a in arguments], "--json")
    assert '"--"' in out


# ---------------------------------------------------------------- values of options


UNREADABLE = ["!!int ''", "!!int x", "!!bool x", "!!timestamp x", "9" * 5000, "{a: &a [*a]}"]
DEEP = ["[" * 4000, "[" * 50_000 + "]" * 50_000]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *itertools.product(["--training.epochs", "--model.gates", "--model.hidden_sizes", "--training"], UNREADABLE),
        *itertools.product(["--training.epochs", "--model.gates"], DEEP),
    ],
)
def test_a_value_that_cannot_be_read_is_one_line(work, tmp_path, option, value):
    arguments = ["train", "--data", work / "text", "--out", tmp_path / "run", f"{option}={value}"]
    assert len(fails(*arguments, code=(1, 2))) < 1200
    assert not (tmp_path / "run").exists()


def test_options_are_not_abbreviated(work):
    assert "unrecognized arguments: --conf" in fails("train", "--conf", work / "run.yaml", code=2)


@pytest.mark.parametrize("kind", ["folder", "link to nothing", "device"])
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_split_that_is_no_file_is_refused(work, tmp_path, split, kind):
    text = tmp_path / "text"
    text.mkdir()
    for name in ("train", "valid", "test"):
        (text / f"{name}.txt").write_text("the pilot\n" * 30)
    path = text / f"{split}.txt"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nothing" if kind == "link to nothing" else "/dev/null")
    line = fails("train", "--config", work / "run.yaml", "--data", text, "--out", tmp_path / "run")
    assert f"{split}.txt: must be a file; got something else" in line and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 100_000, "a.jsonl:1: must be a JSON object"),
        ('{"good": ' * 100_000, "a.jsonl:1: must be a JSON object"),
        ('{"good": "a \\ud800 b", "bad": "b a"}', r"a.jsonl:1: must be Unicode text; got a lone surrogate, '\ud800'"),
        ('{"good": "a b", "bad": "b a", "phenomenon": "\\udcff"}', "a.jsonl:1: must be Unicode text"),
        ('{"good": ' + "9" * 5000 + "}", "a.jsonl:1: must be a JSON object"),
    ],
)
def test_a_bad_pair_is_one_line(work, tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    assert message in fails("eval-syntax", work / "run", "--pairs", tmp_path / "a.jsonl")


def test_models_that_memory_cannot_hold_are_one_line(work, tmp_path):
    sizes = ["--model.embedding_size", 10**9, "--model.hidden_sizes", f"[{10**9}]", "--model.cell", "gru"]
    line = fails("train", "--data", work / "text", "--out", tmp_path / "run", *sizes)
    assert "memory: must hold the model and its batches" in line and not (tmp_path / "run").exists()


# ---------------------------------------------------------------- lines in are lines out


def test_an_empty_line_has_an_empty_tree(work, tmp_path):
    (tmp_path / "a.txt").write_text("\nthe pilot sleeps\n  \nmary waits\n\n")
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / "00010.svg").mkdir()
    for name in ("20231224", "mine"):  # one's own
        (tmp_path / "trees" / f"{name}.svg").write_text(name * 10)
    (tmp_path / "long.txt").write_text("the pilot sleeps\n" * 9)
    works("parse", work / "run", tmp_path / "long.txt", "--svg", tmp_path / "trees")
    assert (tmp_path / "trees" / "00009.svg").exists()
    out = works("parse", work / "run", tmp_path / "a.txt", "--svg", tmp_path / "trees")
    assert [bool(line) for line in out.split("\n")[:-1]] == [False, True, False, True, False]
    assert sorted(path.name for path in (tmp_path / "trees").iterdir()) == [
        "00002.svg",
        "00004.svg",
        "00010.svg",
        "20231224.svg",
        "mine.svg",
    ]
    found = [json.loads(line) for line in works("parse", work / "run", tmp_path / "a.txt", "--json").splitlines()]
    assert [(one["words"], one["tree"], one["distances"]) for one in found[::2]] == [([], "", [])] * 3
    assert [one["words"] for one in found[1::2]] == [["the", "pilot", "sleeps"], ["mary", "waits"]]


def test_a_sentence_too_long_to_draw_is_named_and_the_others_drawn(work, tmp_path):
    (tmp_path / "a.txt").write_text("the pilot sleeps\n" + "the " * 300 + "\nmary waits\n")
    code, out, err = call("parse", work / "run", tmp_path / "a.txt", "--svg", tmp_path / "trees")
    assert code == 0 and out.count("\n") == 3
    assert err == "gatedrnn: 00002.svg: not drawn, 300 words; at most 200 are drawn\n"
    assert sorted(path.name for path in (tmp_path / "trees").iterdir()) == ["00001.svg", "00003.svg"]


# ---------------------------------------------------------------- settings without use


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--model.cell", "gru", "--model.chunk_size", 7],
            "model.options.chunk_size: applies only to onlstm; got 7 with cell=gru",
        ),
        (
            ["--model.cell", "gru", "--model.options.chunk_size", 7],
            "model.options.chunk_size: applies only to onlstm; got 7 with cell=gru",
        ),
        (
            ["--model={cell: gru, chunk_size: 7}"],
            "model.options.chunk_size: applies only to onlstm; got 7 with cell=gru",
        ),
        (
            ["--model.reset_after", "false"],
            "model.options.reset_after: applies only to gru; got False with cell=onlstm",
        ),
        (["--model.peephole", "full"], "model.options.peephole: applies only to peephole"),
        (["--model.nonlinearity", "relu"], "model.options.nonlinearity: applies only to rnn"),
        (
            ["--model.cell", "lstm", "--model.split_points", "free"],
            "model.options.split_points: applies only to onlstm",
        ),
        (["--model.cell", "rnn", "--model.gates.temperature", 0.5], "model.gates: needs a cell with gates to perturb"),
    ],
)
def test_a_setting_that_the_cell_does_not_read_is_refused(work, tmp_path, options, message):
    assert message in fails("train", "--data", work / "text", "--out", tmp_path / "run", *options)
    assert not (tmp_path / "run").exists()


def test_a_setting_at_its_default_may_stand_and_old_runs_go_on(work, tmp_path):
    short = ["--data", work / "text", "--training.minutes", "1e-5", "--training.device", "cpu"]
    small = ["--model.embedding_size", 8, "--model.hidden_sizes", "[8]"]
    works("train", "--out", tmp_path / "a", *short, *small, "--model.cell", "gru", "--model.chunk_size", 10)
    works("train", "--out", tmp_path / "b", *short, "--config", tmp_path / "a" / "config.yaml")
    old = copy_of(tmp_path / "b", tmp_path / "old")
    config = yaml.safe_load((old / "config.yaml").read_text())
    config["model"]["options"]["chunk_size"] = 7
    (old / "config.yaml").write_text(yaml.safe_dump(config))
    works("evaluate", old, "--data", work / "text" / "test.txt")
    works("train", "--out", old, *short, "--config", old / "config.yaml", "--resume")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["compress", "--method", "int8", "--rank", 3],
            "compress --rank: applies only to svd; got 3 with --method int8",
        ),
        (["compress", "--method", "svd", "--step", 0.1], "compress --step: applies only to round and clip"),
        (["compress", "--method", "round", "--clip", 0.1], "compress --clip: applies only to clip"),
        (["compress", "--method", "int8", "--resume"], "compress --resume: needs --retrain"),
        (["compress", "--method", "int8", "--learning-rate", 0.1], "compress --learning-rate: needs --retrain"),
        (
            ["compress", "--table", "--rank", 3],
            "compress: takes either --table or the options of one method; got --rank",
        ),
        (["gates", "--sentence", "the pilot", "--batch-size", 3], "gates --batch-size: needs --data"),
        (["gates", "--data", "x", "--mapping", "exact"], "gates --mapping: needs --sentence"),
    ],
)
def test_an_option_that_the_command_would_not_read_is_refused(work, tmp_path, options, message):
    command, *rest = options
    assert message in fails(command, work / "run", *rest, "--out", tmp_path / "out")


def test_a_file_s_options_of_its_cell_may_stand_where_an_option_replaces_the_cell(work, tmp_path):
    config = [
        "--config",
        work / "run.yaml",
        "--data",
        work / "text",
        "--training.minutes",
        "1e-5",
    ]  # with chunk_size: 4
    works("train", *config, "--model.cell", "lstm", "--out", tmp_path / "a")
    rule = "model.options.chunk_size: applies only to onlstm; got 5 with cell=lstm"
    assert rule in fails("train", *config, "--model.cell", "lstm", "--model.chunk_size", 5, "--out", tmp_path / "b")
    own = tmp_path / "own.yaml"
    own.write_text((work / "run.yaml").read_text().replace("cell: onlstm", "cell: lstm"))
    config[1] = own
    assert "got 4 with cell=lstm" in fails("train", *config, "--model.cell", "lstm", "--out", tmp_path / "b")


# ---------------------------------------------------------------- runs


def test_a_moved_tokenizer_is_the_same_and_another_is_refused(work, levels, tmp_path):
    (tmp_path / "a").mkdir()
    shutil.copy(levels / "subword" / "tokenizer.json", tmp_path / "a" / "tokenizer.json")
    sections = yaml.safe_load((work / "run.yaml").read_text()) | {"data": {"level": "subword"}}
    (tmp_path / "a" / "c.yaml").write_text(yaml.safe_dump(sections))

    def arguments(place):
        given = ["--data.tokenizer", place / "tokenizer.json", "--out", place / "run"]
        return ["train", "--config", place / "c.yaml", "--data", work / "text", "--training.minutes", "1e-5", *given]

    works(*arguments(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    works("train", "--out", tmp_path / "b" / "run", "--resume")
    works(*arguments(tmp_path / "b"), "--resume")
    content = json.loads((tmp_path / "b" / "tokenizer.json").read_text())
    content["model"]["merges"].pop()
    (tmp_path / "c.json").write_text(json.dumps(content))
    other = [*arguments(tmp_path / "b"), "--resume", "--data.tokenizer", tmp_path / "c.json"]
    assert "data.tokenizer: must be as in the run" in fails(*other)


def test_a_relative_folder_of_texts_is_kept_absolute(work, tmp_path, monkeypatch):
    monkeypatch.chdir(work)
    short = ["--training.minutes", "1e-5", "--config", "run.yaml", "--out", tmp_path / "run"]
    works("train", "--data", "text", *short)
    config = tmp_path / "run" / "config.yaml"
    assert yaml.safe_load(config.read_text())["data"]["folder"] == str(work / "text")
    config.write_text(config.read_text().replace(str(work / "text"), "text"))  # as an older release kept it
    config.with_name("checksums.json").unlink()  # which it did not have
    works("train", "--out", tmp_path / "run", "--resume")
    assert yaml.safe_load(config.read_text())["data"]["folder"] == str(work / "text")
    monkeypatch.chdir(tmp_path)
    works("train", "--out", tmp_path / "run", "--resume")


def test_compression_that_grows_says_so(work, tmp_path):
    data = ["--data", work / "text" / "test.txt"]
    small = record("compress", work / "run", "--method", "int8", "--out", tmp_path / "small", *data)
    assert small["bytes_after"] < small["bytes_before"]
    code, _, err = call("compress", tmp_path / "small", "--method", "bf16", "--out", tmp_path / "grown", *data)
    assert code == 0
    told = "not smaller than before: compress the run that it was made from, or use a method with smaller weights"
    assert err == f"gatedrnn: {tmp_path / 'grown'} is {told}\n"


def test_compression_that_fails_removes_only_what_it_wrote(work, tmp_path, monkeypatch):
    def stops(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "gatedrnn.cli.commands.compress.load_run",
        lambda folder, *task: stops() if folder == tmp_path / "out" else load_run(folder, *task),
    )
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    arguments = ["compress", work / "run", "--method", "int8", "--out", tmp_path / "out"]
    assert fails(*arguments, code=130) == "gatedrnn: interrupted\n"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_an_interrupted_training_ends_with_130_and_names_resume(work, tmp_path, monkeypatch):
    step = Loop._step
    monkeypatch.setattr(Loop, "_step", lambda *a: signal.raise_signal(signal.SIGINT) or step(*a))
    arguments = ["train", "--config", work / "run.yaml", "--data", work / "text", "--out", tmp_path / "run"]
    code, out, err = call(*arguments)
    assert (code, err) == (130, "") and out.splitlines()[-1] == "run the same command with --resume to continue"
    code, out, err = call(*arguments, "--resume", "--json")
    assert code == 130 and json.loads(out)["stopped"] == "interrupted" and "with --resume to continue" in err


def test_an_interrupt_before_the_first_step_leaves_no_run(work, tmp_path, monkeypatch):
    def stops(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gatedrnn.tasks.language_modelling.find_splits", stops)
    arguments = ["train", "--config", work / "run.yaml", "--data", work / "text", "--out", tmp_path / "run"]
    assert fails(*arguments, code=130) == "gatedrnn: interrupted\n"
    assert not (tmp_path / "run").exists()
    assert fails("train", "--out", copy_of(work / "run", tmp_path / "b"), "--resume", code=130) == (
        "gatedrnn: interrupted: run the same command with --resume to continue\n"
    )
