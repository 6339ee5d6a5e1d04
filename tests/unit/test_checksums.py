"""Files on disk: the old one or the new one after a kill at any moment, checksums that fit it, rights, nothing left behind."""

import errno
import json
import os
import signal
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gatedrnn.core import checksums, files
from gatedrnn.core.checksums import CHECKSUMS_FILE, accept, check, check_all, write_listed
from gatedrnn.core.errors import CheckpointError, DataError
from gatedrnn.core.files import remove_stale, to_json, write_folder, write_json, write_text, write_with
from gatedrnn.training.run import locked


def put(path, text):
    write_listed(path, lambda file: file.write_text(text))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_kill_at_any_moment_leaves_a_file_that_fits_its_checksum(moment, done, listed, tmp_path, monkeypatch):
    path, moves, replace = tmp_path / "file", 0, Path.replace
    if listed:
        put(path, "old")
    else:
        path.write_text("old")

    def killed(self, target):
        nonlocal moves
        moves += 1
        if moves != moment or done:
            replace(self, target)
        if moves == moment:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "replace", killed)
        put(path, "new")
    check(path)
    assert path.read_text() == ("old" if (moment, done) in ((1, False), (1, True), (2, False)) else "new")
    put(path, "newer")
    check(path)
    assert len(json.loads((tmp_path / CHECKSUMS_FILE).read_text())["file"]) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == [CHECKSUMS_FILE, "file"]


def test_a_file_that_is_replaced_while_it_is_read_is_no_damage(tmp_path, monkeypatch):
    put(tmp_path / "file", "old")
    found, original = [], checksums.checksum

    def slow(path):
        found.append(original(path))
        if len(found) == 1:
            monkeypatch.setattr(checksums, "checksum", original)
            put(path, "new")
            monkeypatch.setattr(checksums, "checksum", slow)
        return found[-1]

    monkeypatch.setattr(checksums, "checksum", slow)
    check(tmp_path / "file")
    assert len(found) == 2


def test_a_changed_or_missing_file_is_named_until_it_is_accepted(tmp_path):
    for name in ("one", "two"):
        put(tmp_path / name, name)
    (tmp_path / "one").write_text("One")
    with pytest.raises(
        CheckpointError, match=r"one: must be unchanged since it was written; got another checksum .*gatedrnn accept"
    ):
        check_all(tmp_path)
    assert accept(tmp_path, ["one", "two", "three"]) == ["one"]
    check_all(tmp_path)
    (tmp_path / "two").unlink()
    with pytest.raises(CheckpointError, match=r"two: must exist; got no such file"):
        check_all(tmp_path)
    assert accept(tmp_path, ["one", "two"]) == ["two"] and accept(tmp_path, ["one", "two"]) == []


def killed_while_writing(path):
    pid = os.fork()
    if pid == 0:
        write_with(path, lambda file: (file.write_text("half"), os.kill(os.getpid(), signal.SIGKILL)))
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    return [place for place in path.parent.iterdir() if place.name.startswith(f".{path.name}.")]


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    assert len(killed_while_writing(tmp_path / "file")) == 1
    (tmp_path / ".file.kept").write_text("not ours")
    write_text(tmp_path / "another", "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".file.kept", "another"]


def test_a_run_that_is_gone_on_with_is_rid_of_them(tmp_path):
    for place in (tmp_path, tmp_path / "checkpoint", tmp_path / "tokens"):
        place.mkdir(exist_ok=True)
        assert killed_while_writing(place / "file")
    with locked(tmp_path):
        assert {p.name for p in tmp_path.rglob("*")} == {"checkpoint", ".lock", "tokens"}


def test_the_file_of_a_live_writer_stays(tmp_path):
    def outer(file):
        file.write_text("outer")
        write_text(tmp_path / "inner", "inner")
        remove_stale(tmp_path)
        assert file.read_text() == "outer"

    write_with(tmp_path / "outer", outer)
    assert (tmp_path / "outer").read_text() == "outer" and (tmp_path / "inner").read_text() == "inner"


def test_a_writer_whose_place_is_taken_for_stale_takes_another(tmp_path, monkeypatch):
    lock, taken = files._lock, []

    def late(descriptor):
        if not taken:
            (place,) = tmp_path.glob(".*.writing")
            taken.append(place)
            place.rmdir()
        lock(descriptor)

    monkeypatch.setattr(files, "_lock", late)
    write_text(tmp_path / "file", "whole")
    assert taken and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_without_locks_nothing_is_taken_for_stale(tmp_path, monkeypatch):
    def none(_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files, "_lock", none)
    assert len(killed_while_writing(tmp_path / "file")) == 1
    write_text(tmp_path / "file", "whole")
    assert len([*tmp_path.iterdir()]) == 2


def test_temporary_files_of_a_library_are_in_a_place_of_ours(tmp_path):
    seen = []

    def write(file):
        save_file({"a": torch.zeros(3)}, file)
        seen.extend(path.name for path in tmp_path.iterdir())

    write_with(tmp_path / "model", write)
    assert len(seen) == 1 and seen[0].startswith(".model.") and [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_json_never_says_nan(value, tmp_path):
    with pytest.raises(DataError, match=r"result: must hold finite numbers; got NaN or infinity"):
        to_json({"perplexity": [1.0, value]})
    with pytest.raises(DataError, match=r"r\.json: must hold finite numbers"):
        write_json(tmp_path / "r.json", {"perplexity": value})
    assert not [*tmp_path.iterdir()]


def test_files_and_folders_have_the_rights_of_others_and_no_umask_is_set(tmp_path, monkeypatch):
    def replaced(path):
        path.unlink()
        path.write_text("a")
        path.chmod(0o600)

    (tmp_path / "plain").touch()
    (tmp_path / "room").mkdir()
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to all threads"))
    write_with(tmp_path / "file", replaced)
    write_folder(tmp_path / "folder", lambda path: path.chmod(0o700))
    for ours, theirs in (("file", "plain"), ("folder", "room")):
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in (ours, theirs)]
        assert modes[0] == modes[1], ours
