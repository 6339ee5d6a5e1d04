"""A disk that is full, and files that fail for another reason: one line, and nothing half written."""

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from gatedrnn.cli.main import main, report_errors
from gatedrnn.core import files
from gatedrnn.core.errors import DataError
from gatedrnn.core.files import write_folder, write_with

TINY = [
    "--model.embedding_size",
    "8",
    "--model.hidden_sizes",
    "[8]",
    "--model.options.chunk_size",
    "4",
    "--training.epochs",
    "1",
]


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_old_file_survives(tmp_path: Path):
    path = tmp_path / "file"
    files.write_text(path, "old")
    with pytest.raises(DataError, match=r"file: must be writable; got No space left on device\. Free some space"):
        files.write_with(path, no_space)
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_text() == "old"


def test_training_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    def fails(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", fails)
    (tmp_path / "text").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "text" / name).write_text("the old pilot sleeps\n" * 20)
    assert main(["train", "--data", str(tmp_path / "text"), "--out", str(tmp_path / "run"), *TINY]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "model.safetensors: must be writable; got No space left" in error
    assert not (tmp_path / "run").exists()


def test_a_config_without_sections_is_named(tmp_path: Path, capsys):
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    assert main(["train", "--config", str(tmp_path / "list.yaml")]) == 1
    assert "list.yaml: must hold the sections data, model and training; got ['a', 'b']" in capsys.readouterr().err


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


@pytest.mark.parametrize("kind", [SafetensorError, Exception])
def test_a_disk_that_is_full_for_a_library_in_rust_is_one_line(tmp_path, kind):
    def fill(place):
        raise kind("I/O error: No space left on device (os error 28)")

    for write in (write_with, write_folder):
        with pytest.raises(DataError, match="must be writable; got No space left on device"):
            write(tmp_path / "new", fill)
    assert not any(tmp_path.iterdir())


def test_an_error_of_another_kind_is_no_full_disk(tmp_path):
    def fill(place):
        raise ValueError("of the writer")

    for write in (write_with, write_folder):
        with pytest.raises(ValueError, match="of the writer"):
            write(tmp_path / "new", fill)
