"""Whatever happens to the files of a run: damage is named, and nothing trained is ever overwritten."""

import errno
import io
import json
import shutil
import signal
from itertools import chain, combinations
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file
from terminal import call, fails, record, works

from gatedrnn.cli.commands import compress, train
from gatedrnn.data import write_corpus
from gatedrnn.tasks import LanguageModelling, language_modelling, of_corpus
from gatedrnn.training import checkpoint, loop
from gatedrnn.training.config import read_run_config
from gatedrnn.training.loop import Loop
from gatedrnn.training.run import METRICS_FILE, check_begun, locked, read_metrics

NEEDED = ("config.yaml", "model.safetensors", "vocabulary.json")
SPARE = ("checksums.json", "metrics.jsonl", "tokens")
PARTS = (*NEEDED, *SPARE, "checkpoint")
MORE = ("--training.epochs", 2)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A text; `run` and `other`, trained on it for one epoch; `two`, for two."""
    folder = tmp_path_factory.mktemp("damaged")
    write_corpus(folder / "text", seed=1, train=40, valid=8, test=8)
    sections = {
        "data": {"folder": str(folder / "text"), "min_count": 1},
        "model": {"cell": "onlstm", "embedding_size": 8, "hidden_sizes": [8], "options": {"chunk_size": 4}},
        "training": {"batch_size": 8, "sequence_length": 10, "device": "cpu", "checkpoint_minutes": 1e-9},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(sections))
    config = ("--config", folder / "config.yaml")
    works("train", *config, "--out", folder / "run", "--training.epochs", 1)
    works("train", *config, "--out", folder / "other", "--training.epochs", 1, "--training.seed", 2)
    works("train", *config, "--out", folder / "two", *MORE)
    return folder


@pytest.fixture
def run(place, tmp_path):
    """A copy of `run`."""
    return shutil.copytree(place / "run", tmp_path / "run")


def trained(folder):
    """The bytes of all that was trained."""
    files = (*folder.glob("model.safetensors"), *folder.glob("checkpoint/step-*"))
    return {path.name: path.read_bytes() for path in files}


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def swap_two_words(run):
    path = run / "vocabulary.json"
    content = json.loads(path.read_text())
    content["words"][5], content["words"][9] = content["words"][9], content["words"][5]
    path.write_text(json.dumps(content))
    return path


def flip_a_bit(run):
    path = run / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    return path


def turn_up_the_temperature(run):
    path = run / "config.yaml"
    content = yaml.safe_load(path.read_text())
    content["model"]["gates"] = {"temperature": 0.5}
    path.write_text(yaml.safe_dump(content))
    return path


CHANGES = (swap_two_words, flip_a_bit, turn_up_the_temperature)
COMMANDS = {
    "evaluate": ("evaluate", "RUN", "--data", "TEXT/valid.txt"),
    "surprisal": ("surprisal", "RUN", "TEXT/valid.txt"),
    "generate": ("generate", "RUN"),
    "parse": ("parse", "RUN", "TEXT/valid.txt"),
    "eval-parsing": ("eval-parsing", "RUN", "--treebank", "TEXT/test.trees"),
    "eval-syntax": ("eval-syntax", "RUN", "--pairs", "grammar"),
    "gates": ("gates", "RUN", "--data", "TEXT/valid.txt", "--out", "OUT"),
    "gates of a sentence": ("gates", "RUN", "--sentence", "the old pilot sleeps", "--out", "OUT"),
    "compress": ("compress", "RUN", "--method", "int8", "--out", "OUT"),
    "resume": ("train", "--out", "RUN", "--resume", *MORE),
}


def command(name, run, place):
    known = {"RUN": run, "OUT": run.parent / "out", "TEXT": place / "text"}
    return [known.get(each, str(each).replace("TEXT", str(place / "text"))) for each in COMMANDS[name]]


CHANGED = [  # one way to read a run, and one to go on with it
    pytest.param(change, name, id=f"{change.__name__}-{name}")
    for name in COMMANDS
    for change in (CHANGES if name in ("evaluate", "resume") else CHANGES[:1])
]


@pytest.mark.parametrize(("change", "name"), CHANGED)
def test_a_change_of_a_run_s_file_is_named_by_every_command(change, name, run, place):
    path = change(run)
    before = trained(run)
    error = fails(*command(name, run, place))
    assert (
        f"{path}: must be unchanged since it was written; got another checksum than in checksums.json. Restore the file"
        in error
    )
    assert f"gatedrnn accept {run}" in error
    assert trained(run) == before and not (run.parent / "out").exists()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_made_on_purpose_is_accepted(change, run, place):
    path = change(run)
    assert record("accept", run) == {"run": str(run), "accepted": [path.name]}
    assert record("evaluate", run, "--data", place / "text" / "valid.txt")["tokens"] > 0
    assert works("accept", run) == f"nothing had changed in {run}\n"


def test_a_live_run_is_not_accepted(run):
    with locked(run):
        assert "must not be in training already; got a run that another process trains" in fails("accept", run)


def test_only_a_run_is_accepted(run, tmp_path):
    assert "nowhere: must be a run's folder; got no config.yaml" in fails("accept", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    (run / "model.safetensors").write_bytes(b"")
    assert "model.safetensors: is damaged" in fails("accept", run)


def test_a_run_without_checksums_is_read_in_silence(run, place):
    (run / "checksums.json").unlink()
    code, _, errors = call("evaluate", run, "--data", place / "text" / "valid.txt")
    assert (code, errors) == (0, "")


@pytest.mark.parametrize("content", ["", "[1]", '{"config.yaml": 1}', "[" * 100_000, "\0"])
def test_damaged_checksums_are_named(content, run, place):
    (run / "checksums.json").write_text(content)
    assert "checksums.json: is damaged" in fails("evaluate", run, "--data", place / "text" / "valid.txt")
    assert "checksums.json: is damaged" in fails("train", "--out", run, "--resume", *MORE)
    assert record("accept", run)["accepted"] == ["config.yaml", "model.safetensors", "vocabulary.json"]


def test_other_ids_in_the_token_cache_are_never_trained_on(run, place):
    for name in ("train", "valid"):
        path = run / "tokens" / f"{name}.int32"
        content = path.read_bytes()
        path.write_bytes(content[4:] + content[:4])
    works("train", "--out", run, "--resume", *MORE)
    assert trained(run)["model.safetensors"] == trained(place / "two")["model.safetensors"]


# Finite weights that overflow.


@pytest.fixture(scope="module")
def overflowing(place):
    """A copy of `run` whose weights are finite and too large."""
    folder = shutil.copytree(place / "run", place / "large")
    weights = {name: value * 1e38 for name, value in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")
    works("accept", folder)
    return folder


@pytest.mark.parametrize("json_too", [(), ("--json",)], ids=["plain", "json"])
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "resume"])
def test_a_score_that_is_not_finite_is_one_line(name, json_too, overflowing, place):
    code, out, error = call(*command(name, overflowing, place), *json_too)
    assert code == 1 and error.count("\n") == 1, (code, error)
    assert "must be finite; got NaN or infinity. The weights are damaged or too large" in error
    assert "nan" not in out.lower() and not (place / "out").exists()


def test_a_weight_that_is_not_finite_is_one_line(run, place):
    weights = load_file(run / "model.safetensors")
    weights["decoder.bias"][3] = float("nan")
    save_file(weights, run / "model.safetensors")
    error = fails("generate", run)
    assert "must hold finite weights; got decoder.bias with NaN or infinity" in error


# Nothing trained is ever overwritten.

SUBSETS = [*chain.from_iterable(combinations(PARTS, size) for size in (1, 2, len(PARTS) - 1, len(PARTS)))]


def goes_on(missing):
    return not {*NEEDED, "checkpoint"} & set(missing)


def begins(missing):
    return {"model.safetensors", "checkpoint", "metrics.jsonl"} <= set(missing)


@pytest.mark.parametrize("missing", [m for m in SUBSETS if not goes_on(m) and not begins(m)], ids="+".join)
def test_without_these_files_a_resume_says_why_not_and_changes_nothing(missing, run):
    for name in missing:
        remove(run / name)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    error = fails("train", "--out", run, "--resume", *MORE)
    reasons = (
        "must exist; got no such file",
        "must have a checkpoint to continue from",
        "must be a readable vocabulary",
    )
    assert any(reason in error for reason in reasons)
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert after == before and not (run / "text").exists()


@pytest.mark.parametrize("missing", [m for m in SUBSETS if goes_on(m)], ids="+".join)
def test_without_these_files_a_resume_ends_in_the_same_bits(missing, run, place):
    for name in missing:
        remove(run / name)
    works("train", "--out", run, "--resume", *MORE)
    same_as_two(run, place)


def same_as_two(run, place):
    assert trained(run)["model.safetensors"] == trained(place / "two")["model.safetensors"]
    ours, theirs = ([record["valid_loss_nats"] for record in read_metrics(one)] for one in (run, place / "two"))
    assert ours == theirs and len(ours) == 2


@pytest.mark.parametrize("keep", [0, 0.5])
@pytest.mark.parametrize(
    "name", [*NEEDED, "metrics.jsonl", "tokens/tokens.json", "tokens/train.int32", "newest", "older", "both"]
)
def test_with_a_cut_file_a_resume_ends_in_the_same_bits_or_changes_nothing(name, keep, run, place):
    newest, older = sorted((run / "checkpoint").glob("step-*"), reverse=True)
    cut = {"newest": [newest], "older": [older], "both": [newest, older]}.get(name, [run / name])
    for path in cut:
        content = path.read_bytes()
        path.write_bytes(content[: int(keep * len(content))])
    before = trained(run)
    if name in NEEDED or name == "both":
        error = fails("train", "--out", run, "--resume", *MORE)
        assert str(run) in error
        assert trained(run) == before
    else:
        works("train", "--out", run, "--resume", *MORE)
        same_as_two(run, place)


@pytest.mark.parametrize("keep", [0, 0.3])
def test_a_cut_configuration_is_what_is_named(keep, run, place):
    content = (run / "config.yaml").read_bytes()
    (run / "config.yaml").write_bytes(content[: int(keep * len(content))])
    error = fails("evaluate", run, "--data", place / "text" / "valid.txt")
    assert f"{run / 'config.yaml'}: must be unchanged since it was written" in error


def test_a_folder_where_the_log_belongs_is_to_be_removed(run):
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    error = fails("train", "--out", run, "--resume", *MORE)
    assert "metrics.jsonl: must be writable; got Is a directory. Remove it" in error


@pytest.mark.parametrize("left", [*PARTS[:5], "checkpoint"])
def test_training_without_resume_begins_beside_no_part_of_a_run(left, run, place):
    for name in {*PARTS} - {left}:
        remove(run / name)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    error = fails("train", "--config", place / "config.yaml", "--out", run)
    assert (
        "must not hold a run yet; got a run's" in error and "Continue it with --resume, choose another --out" in error
    )
    assert "must not hold a run yet" in fails("compress", place / "other", "--method", "int8", "--out", run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_training_on_after_compression_never_goes_on_with_another_run(run, place):
    retrain = ("compress", place / "other", "--method", "svd", "--rank", 2, "--retrain", 2, "--resume", "--out", run)
    before = trained(run)
    assert "must be as in the run" in fails(*retrain)
    assert trained(run) == before
    for path in (run / "checkpoint").glob("step-*"):
        path.unlink()
    assert "must have a checkpoint to continue from" in fails(*retrain)
    assert trained(run) == {"model.safetensors": before["model.safetensors"]}


def test_a_demo_replaces_no_run_that_was_trained_on(run, tmp_path):
    demo = tmp_path / "demo"
    demo.mkdir()
    run.rename(demo / "run")
    (demo / "results.json").write_text("{}")
    before = trained(demo / "run")
    assert "must be new, empty, or hold only a demo; got run" in fails("demo", "--out", demo)
    assert trained(demo / "run") == before


def test_a_compression_that_fails_removes_its_own_files_alone(overflowing, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    fails("compress", overflowing, "--method", "int8", "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_weights_and_checkpoints_that_may_not_be_read_are_not_called_damaged(run, monkeypatch):
    def refuse(path, *_, **__):
        if path.suffix == ".safetensors":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *_, **__)

    opened = Path.open
    monkeypatch.setattr(Path, "open", refuse)
    told = "safetensors: must be a readable file; got Permission denied. Check its permissions."
    assert f"model.{told}" in fails("evaluate", run)
    monkeypatch.setattr("gatedrnn.training.loop.check_begun", lambda *_: True)  # which reads the weights before
    monkeypatch.setattr("gatedrnn.cli.commands.train.check_begun", lambda _: True)
    assert told in fails("train", "--out", run, "--resume", *MORE)


def test_a_run_killed_before_its_first_checkpoint_begins_again(run, place, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    out = run.parent / "new"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", kill)
        with pytest.raises(Killed):
            call("train", "--config", place / "config.yaml", "--out", out, *MORE)
    assert (out / "model.safetensors").exists() and not check_begun(out)
    assert not (out / METRICS_FILE).read_text()
    works("train", "--out", out, "--resume", *MORE)
    same_as_two(out, place)


class KilledError(BaseException):
    """A kill: nothing cleans up after it but what a process's end does."""


def kill(*_, **__):
    raise KilledError


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ((loop, "write_begun"), "config.yaml: must exist"),
        ((LanguageModelling, "write"), "model.safetensors: must exist"),
        ((loop, "save_weights"), "model.safetensors: must exist"),
        ((loop, "accept_run"), "must project the weights as at the start of the run"),
        ((Loop, "_step"), "must project the weights as at the start of the run"),
    ],
)
def test_training_on_that_was_killed_at_its_first_step_is_never_trained_anew(where, said, run, monkeypatch):
    """`train --resume` would draw new weights and leave the rank."""
    out = run.parent / "out"
    retrain = ("compress", run, "--method", "svd", "--rank", 2, "--retrain", 1, "--out", out)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(*where, kill)
        call(*retrain)
    first, before = trained(out), {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()}
    assert said in fails("train", "--out", out, "--resume", *MORE)
    assert {path: path.read_bytes() for path in out.rglob("*.*") if path.is_file()} == before
    works(*retrain, "--resume")
    works(*retrain[:-1], run.parent / "whole")
    assert trained(out) == trained(run.parent / "whole") != first


@pytest.mark.parametrize("stopped", [False, True])
def test_a_compression_leaves_a_run_that_was_trained_into_its_folder_meanwhile(stopped, run, place, monkeypatch):
    out, measured = run.parent / "out", compress._measured
    before = trained(run)

    def meanwhile(*arguments):
        if not out.exists():
            shutil.copytree(run, out)
            if stopped:
                raise KeyboardInterrupt
        return measured(*arguments)

    monkeypatch.setattr(compress, "_measured", meanwhile)
    arguments = ("compress", place / "other", "--method", "int8", "--out", out)
    assert ("interrupted" if stopped else "must not hold a run yet") in fails(*arguments, code=130 if stopped else 1)
    assert trained(out) == before and not (out / "compression.json").exists()


def test_a_compression_writes_into_no_live_run(run, place):
    out = run.parent / "out"
    with locked(out):
        assert "must not be in training already" in fails("compress", run, "--method", "int8", "--out", out)


def test_a_compressed_run_keeps_no_lock(run):
    works("compress", run, "--method", "int8", "--out", run.parent / "out")
    works("accept", run.parent / "out")
    assert not (run.parent / "out" / "checkpoint").exists()


@pytest.mark.parametrize("at", ["_measured", "write_json", "checkpoints"])
def test_training_on_after_compression_that_was_killed_at_its_end_has_its_record(at, run, monkeypatch):
    out = run.parent / "out"
    retrain = ("compress", run, "--method", "svd", "--rank", 2, "--retrain", 1, "--out", out)
    was = getattr(compress, at)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(compress, at, lambda *a: kill() if at != "_measured" or a[1] == out else was(*a))
        call(*retrain)
    assert (out / "compression.json").exists() == (at == "checkpoints")
    weights = trained(out)["model.safetensors"]
    told = record(*retrain, "--resume")
    assert (out / "compression.json").exists() and trained(out) == {"model.safetensors": weights}
    assert record(*retrain, "--resume") == told and trained(out) == {"model.safetensors": weights}  # it is finished
    assert "must have a checkpoint" in fails(*retrain[:-3], 2, *retrain[-2:], "--resume")
    assert "must have a checkpoint" in fails(*retrain, "--learning-rate", 0.5, "--resume")
    source = (run / "model.safetensors").read_bytes()
    flip_a_bit(run)
    works("accept", run)
    assert "must have a checkpoint" in fails(*retrain, "--resume")  # trained from other weights
    (run / "model.safetensors").write_bytes(source)
    works("accept", run)
    assert "must not hold a run yet" in fails(*retrain)
    kept = json.loads((out / "compression.json").read_text())
    (out / "compression.json").write_text(json.dumps({name: kept[name] for name in kept if name != "bytes_before"}))
    assert "must have a checkpoint" in fails(*retrain, "--resume")


def test_a_table_of_two_runs_reads_standard_input_once(run, place, monkeypatch, tmp_path):
    monkeypatch.setattr(compress, "published", lambda *a: {})
    monkeypatch.setattr(compress, "_WHOLE", ("int8",))
    text = io.TextIOWrapper(io.BytesIO((place / "text" / "valid.txt").read_bytes()))
    monkeypatch.setattr("sys.stdin", text)
    rows = record("compress", run, place / "other", "--table", "--data", "-")
    assert [row["run"] for row in rows] == ["run", "run", "other", "other"]


@pytest.mark.parametrize("resume", [(), ("--resume", "--training.epochs", 1)], ids=["new", "resume"])
def test_a_text_of_one_s_own_beside_a_run_that_begins_is_never_overwritten(resume, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("a text of mine\n")
    assert "text: must not exist yet; got another text" in fails("train", "--out", tmp_path, *resume)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["text", "text/train.txt"]
    assert (tmp_path / "text" / "train.txt").read_text() == "a text of mine\n"


def test_a_kill_while_the_text_is_read_leaves_nothing_in_the_way(place, tmp_path, monkeypatch):
    sections = yaml.safe_load((place / "config.yaml").read_text())
    del sections["data"]["folder"]
    (tmp_path / "grammar.yaml").write_text(yaml.safe_dump(sections))
    arguments = ("train", "--config", tmp_path / "grammar.yaml", "--out", tmp_path / "run", "--training.epochs", 1)
    monkeypatch.setattr(of_corpus, "write_corpus", lambda folder, seed: write_corpus(folder, seed, 40, 8, 8))
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(train.shutil, "rmtree", lambda *a, **k: None)  # a kill cleans nothing up
        patch.setattr(language_modelling, "Corpus", kill)
        call(*arguments)
    assert (tmp_path / "run" / "text").exists()
    works(*arguments)


@pytest.mark.parametrize("listed", [True, False])
def test_a_run_that_cannot_be_read_is_not_accepted_and_its_list_stays(listed, run):
    if not listed:
        (run / "checksums.json").unlink()
    before = (run / "checksums.json").read_bytes() if listed else None
    (run / "vocabulary.json").write_text("{}")
    assert "vocabulary.json" in fails("accept", run)
    assert (run / "checksums.json").exists() == listed
    assert not listed or (run / "checksums.json").read_bytes() == before


def test_a_changed_configuration_begins_nothing_where_nothing_was_trained(place, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(checkpoint, "save", kill)
        call("train", "--config", place / "config.yaml", "--out", tmp_path / "run", *MORE)
    before = turn_up_the_temperature(tmp_path / "run").read_bytes()
    assert "config.yaml: must be unchanged since it was written" in fails(
        "train", "--out", tmp_path / "run", "--resume"
    )
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_a_demo_replaces_no_run_that_was_trained_longer_and_set_back(place, tmp_path, monkeypatch):
    shutil.copytree(place / "two", tmp_path / "demo" / "run")
    (tmp_path / "demo" / "results.json").write_text("{}")
    demos = read_run_config(place / "run" / "config.yaml").training  # of one epoch
    config = (place / "run" / "config.yaml").read_text()
    (tmp_path / "demo" / "run" / "config.yaml").write_text(config)
    monkeypatch.setattr("gatedrnn.cli.commands.demo.TRAINING", demos)
    assert "must be new, empty, or hold only a demo; got run" in fails("demo", "--out", tmp_path / "demo")
    assert trained(tmp_path / "demo" / "run") == trained(place / "two")


def test_an_interrupt_without_out_names_the_run_to_go_on_with(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = Loop._step
    monkeypatch.setattr(Loop, "_step", lambda *a: signal.raise_signal(signal.SIGINT) or step(*a))
    code, out, _ = call("train", "--config", place / "config.yaml")
    assert code == 130 and out.splitlines()[-1] == "`gatedrnn train --out runs/text --resume` continues it"
