"""What Windows, macOS and programs without sources have otherwise, as far as a Linux machine can show it."""

import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from terminal import works

from gatedrnn.cli import arguments, output
from gatedrnn.cli.commands.gates import _sentence
from gatedrnn.cli.main import COMMANDS, build_parser, main
from gatedrnn.core import files
from gatedrnn.core.files import code_files, remove_stale, write_text
from gatedrnn.models.saving import WEIGHTS_FILE
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.training import checkpoint
from gatedrnn.training.distribution import make_fabric
from gatedrnn.training.run import load_run

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/maps")


@pytest.fixture
def windows(monkeypatch):
    """Files as Windows has them: a folder cannot be opened."""
    opened = os.open

    def refuse(path, *how, **given):
        if os.path.isdir(path):  # noqa: PTH112 - of any kind
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *how, **given)

    for module in (files, output):
        monkeypatch.setattr(module, "sys", SimpleNamespace(platform="win32", executable=sys.executable))
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(shutil, "_use_fd_functions", False)  # nor does rmtree there


def test_where_no_folder_can_be_opened_files_are_written(windows, tmp_path):
    write_text(tmp_path / "new" / "a.txt", "ä\r\nb\n")
    assert (tmp_path / "new" / "a.txt").read_bytes() == b"\xc3\xa4\r\nb\n"
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "a.txt"]


def test_where_no_folder_can_be_locked_what_is_a_day_old_is_stale(windows, tmp_path):
    for name, age in ((".a.1.writing", 0), (".b.2.writing", 25 * 60 * 60)):
        (tmp_path / name).mkdir()
        then = (tmp_path / name).stat().st_mtime - age
        os.utime(tmp_path / name, (then, then))
    remove_stale(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".a.1.writing"]


def test_a_command_that_is_told_can_be_typed_in_the_shell_that_is_there(windows, monkeypatch):
    assert output.as_typed("a b", "c\\d", "it's") == '"a b" c\\d it\'s'
    monkeypatch.undo()
    assert output.as_typed("a b", "c") == "'a b' c"


def mapped(folder):
    """The files of a folder that lie in this process's memory."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if f"{folder}/" in line]


@linux
@pytest.mark.parametrize("method", [["int8"], ["svd", "--rank", 2]], ids=["int8", "svd"])
def test_a_model_does_not_change_with_the_file_it_was_read_from(work, tmp_path, method):
    works("compress", work / "run", "--method", *method, "--out", tmp_path / "small")
    run = load_run(tmp_path / "small")
    ids = torch.tensor([[2], [3]])
    before = run.model(ids).logits
    os.truncate(tmp_path / "small" / WEIGHTS_FILE, 100)
    assert torch.equal(run.model(ids).logits, before) and not mapped(tmp_path)


@linux
def test_a_checkpoint_that_was_read_can_be_replaced(tmp_path):
    (tmp_path / checkpoint.CHECKPOINT_FOLDER).mkdir()
    checkpoint.save(tmp_path, 1, {"a": torch.arange(3.0)}, {"b": 1})
    tensors, values = checkpoint.load(tmp_path)
    assert tensors["a"].tolist() == [0, 1, 2] and values == {"b": 1} and not mapped(tmp_path)


def test_without_docstrings_every_command_has_its_options(monkeypatch):
    monkeypatch.setattr(arguments, "parse_docstring", lambda text: SimpleNamespace(params=[]))
    for command in COMMANDS:
        assert "--json" in build_parser(command).children[command].format_help()


@pytest.mark.parametrize(
    ("terminal", "encoding", "expected"),
    [(False, "", "schöne"), (True, "", "sch\\u00f6ne"), (False, "ascii", "sch\\u00f6ne")],
)
def test_a_file_or_a_pipe_gets_utf8_whatever_the_locale_says(work, tmp_path, monkeypatch, terminal, encoding, expected):
    (tmp_path / "a.txt").write_text("der schöne pilot\n", encoding="utf-8")
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    out.isatty = lambda: terminal
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["parse", str(work / "run"), str(tmp_path / "a.txt")]) == 0
    assert expected in out.buffer.getvalue().decode("utf-8")


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (["x/Mine", "y/mine"], ["x-Mine", "y-mine"]),
        (["Mine", "mine"], ["1-Mine", "2-mine"]),
        (["a\\run", "c:\\b\\run"], ["a-run", "c--b-run"]),
    ],
)
def test_figures_of_two_runs_are_two_files_whatever_the_file_system(runs, expected):
    record = dict.fromkeys(runs)
    assert [_sentence(record, run, 1) for run in runs] == [f"sentence-1-{name}" for name in expected]


def test_apple_s_gpu_is_taken_only_where_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert make_fabric(TrainingConfig(), tmp_path).device.type == expected


def test_code_is_found_where_there_are_no_sources(tmp_path):
    for name in ("a.py", "b.pyc", "__pycache__/a.pyc", "below/c.py"):
        (tmp_path / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / name).touch()
    (tmp_path / "archive.zip").touch()

    def found(folder, **how):
        return [path.name for path in code_files(folder, **how)]

    assert found(tmp_path / "package") == ["a.py"] and found(tmp_path / "package", below=True) == ["a.py", "c.py"]
    (tmp_path / "package" / "a.py").unlink()
    assert found(tmp_path / "package") == ["b.pyc"]
    assert found(tmp_path / "archive.zip" / "package" / "below") == ["archive.zip"]
    assert code_files(tmp_path / "nothing") == [Path(sys.executable)]


def test_another_archive_has_other_sources(tmp_path):
    package = Path(files.__file__).parents[1]
    hashes = []
    for name, more in (("a.zip", ""), ("b.zip", "# another version\n")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for path in package.rglob("*.py"):
                text = path.read_text(encoding="utf-8") + (more if path.name == "records.py" else "")
                archive.writestr(str(path.relative_to(package.parent)), text)
        code = "import gatedrnn.sequence.backends.cpu.compile.sources as s; print(s.__file__, s.IMPORTED)"
        how = {"env": os.environ | {"PYTHONPATH": str(tmp_path / name)}, "cwd": tmp_path}
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, **how)
        place, found = done.stdout.split()
        assert name in place
        hashes.append(found)
    assert hashes[0] != hashes[1]
