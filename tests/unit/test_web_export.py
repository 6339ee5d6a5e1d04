"""`export --to web`: the perplexity on its page, and what the demo says of a page that was left out."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from gatedrnn.cli.commands import demo
from gatedrnn.core.errors import ArgumentError
from gatedrnn.export import runtime, web
from gatedrnn.training.run import METRICS_FILE
from gatedrnn.training.scores import known_perplexity


@pytest.mark.parametrize(("values", "best"), [("[Infinity]", None), ("[Infinity, 9.5, NaN, null]", 9.5)])
def test_a_perplexity_that_is_not_finite_is_not_shown(tmp_path, values, best):
    lines = [json.dumps({"epoch": k, "valid_perplexity": value}) for k, value in enumerate(json.loads(values), 1)]
    (tmp_path / METRICS_FILE).write_text("\n".join(lines) + "\n")
    assert known_perplexity(tmp_path) == (best, "validation text, epoch 2" if best else "")


def test_the_demo_says_how_its_page_is_written(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "my demo"

    def refuse(*_, **how):
        raise ArgumentError("export --to web", "needs onnxruntime-web", "none", "Fetch it")

    monkeypatch.setattr(web, "export_run", refuse)
    demo._write_page(SimpleNamespace(folder=folder / "run"), folder / "page", Console())  # type: ignore[arg-type]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("the page of export --to web was left out: export --to web: needs onnxruntime-web")
    assert shown[1:] == [f"to write it later, run: gatedrnn export '{folder}/run' --to web --out '{folder}/page'"]


def test_npm_keeps_its_cache_where_it_can(tmp_path, monkeypatch):
    """And gets one of our own where its folder cannot be made, as there it would wait for minutes."""
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    assert runtime._npm_has_cache() and (tmp_path / "cache").is_dir()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "file" / "cache"))
    asked = []

    def run(command, **_):
        asked.append(command)
        raise OSError

    monkeypatch.setattr(runtime.subprocess, "run", run)
    with pytest.raises(OSError):
        runtime._packed("npm")
    assert "--cache" in asked[0]
