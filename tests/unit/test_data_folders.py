"""Folders of data that are absent, empty or unreadable, or hold something else in the place of a file."""

import errno
from pathlib import Path

import pytest

from gatedrnn.core.errors import DataError
from gatedrnn.data import find_splits
from gatedrnn.data.config import ParallelDataConfig
from gatedrnn.data.labelled import find_pairs
from gatedrnn.data.parallel import read_parallel

READ = {
    "corpus": (find_splits, "train.txt and valid.txt"),
    "labelled pairs": (find_pairs, "train.tsv and valid.tsv"),
    "parallel text": (
        lambda folder: read_parallel(folder, ParallelDataConfig("x", "de", "en")),
        "train.de and train.en",
    ),
}


@pytest.mark.parametrize("kind", READ)
def test_a_folder_that_holds_nothing_or_cannot_be_read_is_one_line(kind, tmp_path, monkeypatch):
    read, held = READ[kind]
    with pytest.raises(DataError, match=f"nowhere: must be a folder with {held}; got no such folder. Check --data"):
        read(tmp_path / "nowhere")
    (tmp_path / "a").touch()
    with pytest.raises(DataError, match=f"a: must be a folder with {held}; got something else. Check --data"):
        read(tmp_path / "a")
    (tmp_path / "a").unlink()
    with pytest.raises(DataError, match=r"must hold train.*; got an empty folder"):
        read(tmp_path)
    for name in "hgfedcbai":
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"; got a, b, c, d, e, f, g, h\. "):
        read(tmp_path)

    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match=f"{tmp_path.name}: must be a readable folder; got Permission denied"):
        read(tmp_path)
    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(DataError, match=f"must be a folder with {held}; got Permission denied"):
        read(tmp_path)


def broken(path, kind):
    path.unlink(missing_ok=True)
    path.mkdir() if kind == "folder" else path.symlink_to("nothing")


@pytest.mark.parametrize("kind", ["folder", "link to nothing"])
@pytest.mark.parametrize("name", ["train.de", "valid.en", "test.de", "test_2016.de", "test.tsv"])
def test_a_side_of_parallel_text_that_is_no_file_is_refused(tmp_path, name, kind):
    for split in ("train", "valid"):
        for code in ("de", "en"):
            (tmp_path / f"{split}.{code}").write_text("ja\n")
    broken(tmp_path / name, kind)
    with pytest.raises(DataError, match=rf"{name}: must be a file; got something else\. Restore it, or remove it"):
        read_parallel(tmp_path, ParallelDataConfig(str(tmp_path), "de", "en"))


@pytest.mark.parametrize("kind", ["folder", "link to nothing"])
@pytest.mark.parametrize("name", ["train.tsv", "valid.tsv", "test.tsv", "test.7.tsv.gz"])
def test_a_split_of_pairs_that_is_no_file_is_refused(tmp_path, name, kind):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").touch()
    broken(tmp_path / name, kind)
    with pytest.raises(DataError, match=rf"{name}: must be a file; got something else"):
        find_pairs(tmp_path)
