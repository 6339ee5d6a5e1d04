"""YAML read safely: in bounded time and memory, every error with its file and line."""

import errno
import json
import os
import time
from pathlib import Path

import pytest

from gatedrnn.core import files
from gatedrnn.core.errors import ConfigError, DataError
from gatedrnn.core.files import read_yaml, write_folder, write_json, write_text, write_with

ALIASES = "a0: &a0 {k: 1}\n" + "".join(f"a{k}: &a{k} [*a{k - 1}, *a{k - 1}, *a{k - 1}]\n" for k in range(1, 40))
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{k}: &a{k} {{<<: [*a{k - 1}, *a{k - 1}, *a{k - 1}]}}\n" for k in range(1, 40))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b: 1\na: !!int ''", ":2: must be YAML; got a value that is not int"),
        ("a: !!int 0x", ":1: must be YAML; got a value that is not int"),
        ("a: !!float x", ":1: must be YAML; got a value that is not float"),
        ("a: !!bool x", ":1: must be YAML; got a value that is not bool"),
        ("a: !!timestamp x", ":1: must be YAML; got a value that is not timestamp"),
        ("a: !!timestamp 2001-99-99", ":1: must be YAML; got a value that is not timestamp"),
        ("a: " + "9" * 5000, ":1: must be YAML; got a value that is not int"),
        ("a:\n" + "[" * 1000, ":2: must be YAML; got more than 32 levels"),
        ("[" * 200_000, ":1: must be YAML; got more than 32 levels"),
        ("- " * 1000, ":1: must be YAML; got more than 32 levels"),
        (ALIASES, "must be YAML; got more than 10,000 values"),
        (MERGES, "must be YAML; got more than 10,000 values"),
        ("a: &a [*a]", r":1: must be YAML; got \*a, which is not defined before it"),
        ("a: *b", r":1: must be YAML; got \*b, which is not defined before it"),
        ("a: " + "x" * 300_000, "must be YAML; got more than 262,144 characters"),
        ("a: !!python/object:os.system x", ":1: must be YAML; got could not determine a constructor"),
        ("? [a]\n: b", ":1: must be YAML; got found unhashable key"),
        ("<<: [1]", ":1: must be YAML; got expected a mapping for merging"),
        ("\0", "must be YAML"),
    ],
    ids=lambda text: text[:20],
)
def test_what_cannot_be_read_is_refused_at_once_with_its_line(tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError, match=rf"a\.yaml:?.*{message}"):
        read_yaml(tmp_path / "a.yaml")
    assert time.process_time() - began < 10


def test_values_are_read_as_people_mean_them(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "a: 1e-3\nb: 2.5E+2\nc: 2001-99-99\nd: 2001-01-01\ne: &x {f: 1}\ng: {<<: *x, h: *x}\ni: 1_000\nj: .5e1\nk: 1_0e-3\n"
    )
    found = {
        "a": 0.001,
        "b": 250.0,
        "c": "2001-99-99",
        "d": "2001-01-01",
        "e": {"f": 1},
        "g": {"f": 1, "h": {"f": 1}},
        "i": 1000,
        "j": 5.0,
        "k": 0.01,
    }
    assert read_yaml(tmp_path / "a.yaml") == found


def test_a_folder_is_looked_through_once_for_what_killed_writers_left(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(files, "remove_stale", looked.append)
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        write_text(Path(name), "x")
        write_text(tmp_path / "other" / name, "x")
    assert looked == [tmp_path, tmp_path / "other"]


def test_a_folder_is_not_written_over_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="got the current one"):
        write_folder(Path(), lambda place: None)
    assert tmp_path.exists() and not list(tmp_path.iterdir())


def test_an_empty_folder_that_is_there_gives_its_mode(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir(mode=0o700)
    write_folder(out, lambda place: (place / "file").write_text("x"))
    assert (out / "file").read_text() == "x" and out.stat().st_mode & 0o777 == 0o700

    def busy(path):
        raise OSError(errno.EBUSY, "Device or resource busy")

    (out / "file").unlink()
    monkeypatch.setattr(Path, "rmdir", busy)
    with pytest.raises(DataError, match="out: must not be a mount; got Device or resource busy"):
        write_folder(out, lambda place: (place / "file").write_text("x"))
    assert not list(out.iterdir()) and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_loser_of_two_writers_is_told_so(tmp_path):
    def fill(place):
        (place / "mine").write_text("")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").write_text("")

    with pytest.raises(DataError, match="must stay empty meanwhile; got files of another"):
        write_folder(tmp_path / "out", fill)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]


def test_folders_that_were_made_for_what_failed_are_gone(tmp_path):
    def fail(place):
        raise OSError(28, "No space left on device")

    for write, path in ((write_folder, tmp_path / "a/b/c"), (write_with, tmp_path / "a/b/file")):
        with pytest.raises(DataError, match="No space left"):
            write(path, fail)
        assert not list(tmp_path.iterdir())
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="No space left"):
        write_folder(tmp_path / "a/b/c", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and not list((tmp_path / "a").iterdir())


def test_folders_on_the_way_to_what_was_written_stay(tmp_path):
    write_text(tmp_path / "new/../b/f.txt", "x")
    assert (tmp_path / "new/../b/f.txt").read_text() == "x"


def test_a_name_that_cannot_be_is_told_and_leaves_nothing(tmp_path):
    for path in (tmp_path / ("x" * 300) / "f", tmp_path / "fresh" / ("x" * 250)):
        with pytest.raises(DataError, match="the folder must be writable; got File name too long"):
            write_text(path, "x")
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_behind_a_link_is_filled(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_folder(tmp_path / "link", lambda place: (place / "file").write_text("x"))
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "file").read_text() == "x"


def test_json_holds_paths_whatever_their_bytes(tmp_path):
    given = {"path": os.fsdecode(b"caf\xe9/\xc3\xa9"), "back": "\\ud8"}
    write_json(tmp_path / "a.json", given)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == given and "é" in text
