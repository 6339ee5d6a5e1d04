"""The demo in small: every file it promises, with the keys it promises."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gatedrnn.cli.commands import demo
from gatedrnn.cli.main import main
from gatedrnn.data import CONSTRUCTIONS, DEEPER
from gatedrnn.export import runtime, web
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
