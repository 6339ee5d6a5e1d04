"""The demo in small: every file it promises, with the keys it promises, and the folders it takes for its own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from terminal import fails

from gatedrnn.cli.commands import demo
from gatedrnn.cli.main import main
from gatedrnn.data import CONSTRUCTIONS, DEEPER
from gatedrnn.export import runtime, web
from gatedrnn.training.loop import Loop
from gatedrnn.training.run import held
from gatedrnn.trees import PROTOCOLS


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cache_folder", lambda: Path("nowhere"))
    monkeypatch.setattr(demo, "SENTENCES", {"train": 300, "valid": 40, "test": 40})
    monkeypatch.setattr(demo, "PAIRS", 10)
    monkeypatch.setattr(demo, "TRAINING", replace(demo.TRAINING, epochs=2))
    tiny = replace(demo.MODEL, embedding_size=16, hidden_sizes=(16, 16))
    monkeypatch.setattr(demo, "MODEL", tiny)


def test_demo_writes_what_it_promises(small, tmp_path: Path, capsys):
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--json"]) == 0
    results = json.loads((out / "results.json").read_text())
    assert json.loads(capsys.readouterr().out) == results
    assert set(results["perplexity"]) == {"valid", "test"}
    assert set(results["agreement"]) == set(CONSTRUCTIONS)
    assert set(results["deeper"]) == set(DEEPER)
    for one in results["deeper"].values():
        assert 0 <= one["accuracy"] <= 1 and (one["wrong"] is None) == (one["accuracy"] == 1)
        assert one["wrong"] is None or sum(a != b for a, b in zip(*map(str.split, one["wrong"]), strict=True)) == 1
    assert results["seconds"] > 0
    parsing = results["parsing"]
    assert (parsing["sentences"], parsing["algorithm"], parsing["layer"], parsing["max_words"]) == (
        40,
        "unbiased",
        1,
        None,
    )
    assert set(parsing["scores"]) == {"model", "left", "right", "balanced", "random", "upper_bound"}
    assert all(set(scores) == set(PROTOCOLS) for scores in parsing["scores"].values())
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 11  # ten sentences and the curve
    assert "src=" not in page and f"{parsing['scores']['model']['B']:.1f}" in page
    assert main(["parse", str(out / "run"), str(out / "run" / "text" / "test.txt")]) == 0


def test_demo_replaces_its_own_files_and_nothing_else(small, tmp_path: Path, capsys):
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out)]) == 0
    first = (out / "results.json").read_text()
    assert main(["demo", "--out", str(out)]) == 0
    again = json.loads((out / "results.json").read_text())
    assert again | {"seconds": 0} == json.loads(first) | {"seconds": 0}
    (out / "thesis.tex").write_text("precious")
    assert main(["demo", "--out", str(out)]) == 1
    assert "thesis.tex" in capsys.readouterr().err
    assert (out / "results.json").exists() and (out / "thesis.tex").read_text() == "precious"


def test_demo_never_deletes_a_run_of_yours(small, tmp_path: Path, capsys):
    (tmp_path / "work" / "run").mkdir(parents=True)
    (tmp_path / "work" / "run" / "model.safetensors").write_text("precious")
    assert main(["demo", "--out", str(tmp_path / "work")]) == 1
    assert "got run" in capsys.readouterr().err
    assert (tmp_path / "work" / "run" / "model.safetensors").read_text() == "precious"


def test_demo_writes_the_page_where_its_runtime_is(small, tmp_path: Path, capsys):
    out, asked = tmp_path / "demo", []

    def export_run(run, folder, **how):  # the page itself is tested in test_web.py
        asked.append((run.folder, how))
        folder.mkdir()
        (folder / "index.html").write_text("a page")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web, "export_run", export_run)
        assert main(["demo", "--out", str(out)]) == 0
    assert f"--directory {out / 'page'}" in capsys.readouterr().out
    assert asked == [(out / "run", {"fetch": False})]
    assert main(["demo", "--out", str(out)]) == 0  # it replaces its own page
    assert "the page of export --to web was left out: export" in capsys.readouterr().out and not (out / "page").exists()


def test_a_demo_takes_no_folder_of_another_command_for_its_own(tmp_path):
    for name in ("results.json", "report.html"):  # as eval-syntax --out writes
        (tmp_path / name).write_text("{}")
    line = fails("demo", "--out", tmp_path)
    assert "must be new, empty, or hold only a demo; got report.html" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.json"]


def test_a_lock_of_another_program_is_no_demo(tmp_path):
    (tmp_path / ".lock").write_text("mine")
    assert "must be new, empty, or hold only a demo; got .lock" in fails("demo", "--out", tmp_path)
    assert (tmp_path / ".lock").read_text() == "mine"


def test_a_demo_with_a_seed_that_is_none_leaves_the_one_before(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "unfinished").touch()
    assert "seed" in fails("demo", "--out", tmp_path, "--seed", -1)
    assert (tmp_path / "run").is_dir()


def test_a_demo_that_was_interrupted_starts_again(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SENTENCES", {"train": 30, "valid": 10, "test": 10})

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "_step", stop)
    out = tmp_path / "demo"
    for _ in range(2):
        assert "interrupted: the same command starts again" in fails("demo", "--out", out, code=130)
        assert (out / "unfinished").exists() and (out / "run" / "text").is_dir()


def test_a_demo_in_progress_is_not_removed_by_another(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "unfinished").touch()
    with held(tmp_path, demo.LOCK, "a demo"):
        assert "must not be in use; got a demo that another process runs" in fails("demo", "--out", tmp_path)
    assert (tmp_path / "run").is_dir()


def test_a_folder_that_another_process_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    acquire, failures = FileLock.acquire, [FileNotFoundError(2, "removed"), FileExistsError(17, "made")]

    def disturbed(self, *arguments, **given):
        if failures:
            raise failures.pop()
        return acquire(self, *arguments, **given)

    monkeypatch.setattr(FileLock, "acquire", disturbed)
    with held(tmp_path / "a", "lock", "a run"):
        assert (tmp_path / "a" / "lock").exists() and not failures


def test_a_demo_that_was_killed_while_it_wrote_starts_again(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SENTENCES", {"train": 30, "valid": 10, "test": 10})
    monkeypatch.setattr(Loop, "_step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    for name in (".page.abcdefgh.writing", "run"):
        (tmp_path / name).mkdir()
    for name in ("unfinished", "report.html"):
        (tmp_path / name).touch()
    assert "the same command starts again" in fails("demo", "--out", tmp_path, code=130)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "unfinished"]
