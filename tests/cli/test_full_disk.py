"""A disk that is full: one line, and nothing half written."""

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from gatedrnn.cli.main import main
from gatedrnn.core import files
from gatedrnn.core.errors import DataError

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
