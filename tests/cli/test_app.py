"""The page of Gradio: its readings beside the commands, and the page built and listening, without a browser."""

import re
import urllib.request

import pytest
from terminal import fails, record, records

from gatedrnn.app.readings import go_on, layers, read
from gatedrnn.core.errors import ArgumentError
from gatedrnn.training.run import load_run

SENTENCE = "the cat that the Dogs chase sleeps ."


@pytest.fixture(scope="module")
def runs(levels):
    return {name: load_run(levels / name) for name in ("run", "lstm", "char")}


class TestReadings:
    @pytest.mark.parametrize("layer", [None, "1", "mean"])
    def test_tree_and_surprisal_are_the_commands(self, runs, levels, tmp_path, layer):
        (tmp_path / "text").write_text(SENTENCE)
        chosen = ["--layer", layer] if layer else []
        (parsed,) = records("parse", levels / "run", tmp_path / "text", *chosen)
        for mapped, mapping in ((False, "exact"), (True, "number")):
            (expected,) = records("surprisal", levels / "run", tmp_path / "text", "--mapping", mapping, *chosen)
            picture, brackets, bars, rows = read(runs["run"], SENTENCE, layer, mapped)
            assert brackets == parsed["tree"]
            assert [row[0] for row in rows] == expected["words"]
            assert [row[1] for row in rows] == pytest.approx(expected["surprisal_bits"], abs=1e-4)
            assert [row[3] for row in rows] == ["no" if unknown else "yes" for unknown in expected["unknown"]]
        assert picture.count("<svg") == bars.count("<svg") == 1
        assert ("forget 1" in picture, "forget 2" in picture) == (layer != None, layer != "1")  # noqa: E711

    def test_of_other_cells_and_levels(self, runs):
        picture, brackets, bars, rows = read(runs["lstm"], SENTENCE, None, False)
        assert "the cell lstm has none" in picture and brackets == "" and "<svg" in bars and len(rows) == 9
        picture, brackets, _, rows = read(runs["char"], SENTENCE, "1", False)
        assert "tokens of level char" in picture and brackets == "" and len(rows) == 9
        assert layers(runs["run"]) == layers(runs["char"]) == ["2", "1", "mean"] and layers(runs["lstm"]) == []

    def test_of_nothing_and_of_too_much(self, runs):
        assert read(runs["run"], " \t", None, False) == ("", "", "", [])
        with pytest.raises(ArgumentError, match=r"sentence: must have at most 100 words; got 101\. Use gatedrnn parse"):
            read(runs["run"], "the " * 101, None, False)

    def test_of_a_text_without_a_token(self, runs, monkeypatch):
        monkeypatch.setattr("gatedrnn.app.readings.surprisal_records", lambda *_, **__: iter(()))
        assert read(runs["char"], "日本", None, False) == ("", "", "", [])

    def test_continuation_is_the_commands(self, runs, levels):
        how = ("--prompt", "the cat", "--words", 12, "--seed", 3, "--temperature", 0.8)
        found = record("generate", levels / "run", *how)
        assert go_on(runs["run"], "the cat", 0.8, 12, 3) == runs["run"].vocabulary.text(found["text"])
        assert go_on(runs["run"], "the cat", 0, 12, 3) == go_on(runs["run"], "the cat", 0, 12, 4)
        for given, message in (
            ((1, 1001, 1), "words: must be at most 1,000"),
            ((-1, 5, 1), "temperature"),
            ((1, 5, -1), "seed"),
        ):
            with pytest.raises(ArgumentError, match=message):
                go_on(runs["run"], "", *given)


class TestThePage:
    def test_builds_listens_here_only_and_tells_mistakes(self, runs):
        gradio = pytest.importorskip("gradio", reason="needs the extra app")
        import os

        from gatedrnn.app.page import _choose, _go_on, _read, build, start

        assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
        page = build(runs)
        assert not page.analytics_enabled
        assert all(each.api_visibility == "private" for each in page.fns.values())
        told, layer = _choose(runs, "lstm")
        assert told.startswith("lstm, layers of 16") and not layer.visible
        tree, brackets, _, _ = _read(runs, "run", SENTENCE, "1", False)
        assert "<svg" in tree and brackets.visible and brackets.value.startswith("(X ")
        with pytest.raises(gradio.Error, match="at most 100 words"):
            _read(runs, "run", "the " * 101, None, False)
        with pytest.raises(gradio.Error, match="words: must be a positive integer"):
            _go_on(runs, "run", "", 1.0, None, None)
        try:
            url = start(page, _free())
            assert url.startswith("http://127.0.0.1:") and not page.share
            html = urllib.request.urlopen(url).read().decode()
            loaded = re.findall(r"<(?:script|link)[^>]+(?:src|href)=\"(https?:)?//", html)
            assert "gatedrnn" in html and loaded == []
            with pytest.raises(ArgumentError, match="--port: must be free; got"):
                start(build(runs), int(url.rstrip("/").rpartition(":")[2]))
        finally:
            page.close(verbose=False)

    def test_without_gradio_a_line_says_what_to_install(self, levels, monkeypatch):
        import sys

        monkeypatch.delitem(sys.modules, "gatedrnn.app.page", raising=False)
        monkeypatch.setitem(sys.modules, "gradio", None)
        assert "Install it: pip install 'gatedrnn[app]'" in fails("app", levels / "run")
        monkeypatch.delitem(sys.modules, "gatedrnn.app.page", raising=False)

    def test_a_port_out_of_range(self, levels):
        pytest.importorskip("gradio", reason="needs the extra app")
        assert "--port: must lie in 1…65535; got 0" in fails("app", levels / "run", "--port", 0)


def _free():
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]
